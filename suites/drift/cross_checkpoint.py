"""Patch activations of checkpoint A into checkpoint B's run on the same tokens: which heads carry the change between them?

With LD the logit of A's token minus the logit of B's token,

    restored(h) = (LD[B, head h writes what it writes in A] - LD_B) / (LD_A - LD_B)

What a head writes is its output in the residual stream, including W_O and the constant of the value biases. A change of W_O alone
is thus a change of the head. Each head is patched by itself, as the attention output of B's own run plus the head's difference.
This is exact, since nothing before the single patched layer changes. Both models must have one architecture, since norms folded
in only one of them would make their outputs incomparable.

The ceiling patches all attention and MLP outputs; it is not 1 if embeddings, unembeddings or the last norm differ. The floor
patches B's own outputs and is 0.

`direct` is what each head adds to LD by itself, through the last norm and unembedding of its own checkpoint. It shows which heads
gained or lost a part in the answer; a patch shows only whether A's head would restore the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Node
from circuits.engine import FusedEngine, LensEngine
from circuits.engine.decoder import Hook
from circuits.engine.lens import hook_name
from circuits.engine.sources import Activations
from circuits.interventions import Base, Intervention, Recipe, Sweep, Variant, denoise
from circuits.measurements import direct_logit_attribution
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet
from results_io import UserError

END, SCALE = "end", "ln_final.hook_scale"
Given = Callable[[PromptSet, tuple[str, ...]], Activations]


@dataclass(frozen=True)
class NextTokenQuestion:
    """Tokens that both checkpoints read, and the next token that each gives. Questions of one cluster are dependent."""

    tokens: tuple[int, ...]
    said_by_a: int
    said_by_b: int
    cluster: str


@dataclass(frozen=True)
class Restored:
    """Changes of LD (logits) by question: for each single head, the ceiling and the floor. `gap`: LD_A - LD_B, their divisor."""

    heads: tuple[str, ...]
    effect: Float[np.ndarray, "head question"]
    ceiling: Float[np.ndarray, " question"]
    floor: Float[np.ndarray, " question"]
    gap: Float[np.ndarray, " question"]
    clusters: tuple[str, ...]


class GivenLens(LensEngine):
    """The reference backend, which takes its patches from `given` in place of the "clean" run."""

    given: Given | None = None

    def activations(
        self, prompts: PromptSet, base: Base, hooks: tuple[str, ...], device: torch.device | str = "cpu"
    ) -> Activations:
        if base == "clean" and self.given is not None:
            return {hook: value.to(device) for hook, value in self.given(prompts, hooks).items()}
        return super().activations(prompts, base, hooks, device)

    @torch.no_grad()
    def hooked_ends(
        self, prompts: PromptSet, hooks_of: Callable[[slice], list[Hook]]
    ) -> Float[Tensor, "prompt vocabulary"]:
        """Logits at the end of every prompt of the "corrupted" run with these hooks, as many prompts at once as fit.

        For what no sweep says: a value that depends on what the patched run itself has by then. `hooks_of`: for some prompts.
        """

        def read(rows: slice) -> Tensor:
            return self._forward(prompts.corrupted[rows], prompts.end[rows], hooks_of(rows)).cpu()

        return torch.cat(list(self._in_chunks(prompts, read)))


class GivenFused(GivenLens, FusedEngine):
    """The fused backend alike."""


class CrossCheckpoint:
    """Two checkpoints of one architecture and tokenizer. `backend`: auto, fused or lens.

    UserError without questions, for an unknown backend, and as `require_alike`.
    """

    def __init__(self, a: Model, b: Model, questions: Sequence[NextTokenQuestion], backend: str = "auto") -> None:
        require_alike(a, b)
        if not questions:
            raise UserError(
                "no prompt changed its class, so there is no run to patch; trace an alarm with changed outputs"
            )
        self.a, self.b = a, b
        self.prompts = prompt_set(questions, int(b.bridge.cfg.d_vocab))
        # the guards of an engine probe with the tokens themselves, not with the stand-ins in `prompts`
        self.read = replace(self.prompts, clean=self.prompts.corrupted, split="reference")
        self.engine_b = _engine(b, self.read, backend)
        self.engine_a = LensEngine(a, self.read)

    def restored(self) -> Restored:
        """Every head alone, the ceiling and the floor."""
        b, layers = self.b, range(self.b.n_layers)
        ld_a = self._run(self.engine_a, [Variant("a", base="corrupted")])[0]
        ld_b = self._run(self.engine_b, [Variant("b", base="corrupted")])[0]
        effect = {}
        for index in range(b.n_heads):
            self.engine_b.given = partial(self._one_head, index=index)
            variants = [denoise([Node("attention", layer)], f"head {layer}.{index}") for layer in layers]
            for layer, row in zip(layers, self._run(self.engine_b, variants), strict=True):
                effect[str(Node("head", layer, index))] = row - ld_b
        sites = tuple(Node(kind, layer) for kind in ("attention", "mlp") for layer in layers)
        self.engine_b.given = self._all_of_a
        itself = Variant("floor", (Intervention(sites, Recipe("patch", source="corrupted")),), "corrupted")
        ceiling, floor = self._run(self.engine_b, [denoise(sites, "ceiling"), itself])
        names = tuple(str(node) for node in b.heads)
        table = np.stack([effect[name] for name in names])
        return Restored(names, table, ceiling - ld_b, floor - ld_b, ld_a - ld_b, self.prompts.clusters)

    def together(self, heads: Sequence[Node]) -> Float[np.ndarray, " question"]:
        """LD with all of `heads` writing what they write in A, less LD_B. Each layer's own run counts, so this is no sum.

        By hooks in the engine's run: what a head is to change by depends on what it writes after the patches in layers before.
        """
        wanted: dict[int, list[int]] = {}
        for node in heads:
            wanted.setdefault(node.layer, []).append(node.index)
        hooks_a = tuple(hook_name(Node("head", layer)) for layer in wanted)
        z_of_a = self.engine_a.activations(self.prompts, "corrupted", hooks_a) if wanted else {}
        now: dict[int, Tensor] = {}

        def keep(tensor: Tensor, hook: object, layer: int) -> None:
            now[layer] = tensor

        def add(tensor: Tensor, hook: object, layer: int, rows: slice) -> Tensor:
            z = z_of_a[hook_name(Node("head", layer))][rows].to(tensor)
            change = written(self.a, layer, z) - written(self.b, layer, now[layer])
            return tensor + change[:, :, wanted[layer]].sum(2)

        def hooks_of(rows: slice) -> list[Hook]:
            kept: list[Hook] = [(hook_name(Node("head", layer)), partial(keep, layer=layer)) for layer in wanted]
            return kept + [
                (hook_name(Node("attention", layer)), partial(add, layer=layer, rows=rows)) for layer in wanted
            ]

        run = self.engine_b.hooked_ends
        changed, plain = run(self.prompts, hooks_of), run(self.prompts, lambda rows: [])
        return (self._difference(changed) - self._difference(plain)).numpy().astype(float)

    @torch.no_grad()
    def direct(self) -> dict[str, Float[np.ndarray, "head question"]]:
        """{a, b}: what each head adds to LD directly at the last position, nats: o_h . (U[:, a] - U[:, b]) / scale.

        NonlinearReadoutError for a checkpoint that bounds its logits, which are then not a sum of contributions.
        """
        return {"a": self._direct(self.a, self.engine_a), "b": self._direct(self.b, self.engine_b)}

    def _direct(self, model: Model, engine: LensEngine) -> Float[np.ndarray, "head question"]:
        direct_logit_attribution.require_linear(model)
        names = tuple(hook_name(Node("head", layer)) for layer in range(model.n_layers))
        stored = engine.activations(self.prompts, "corrupted", (*names, SCALE))
        rows, end = torch.arange(len(self.prompts)), self.prompts.end
        columns = model.unembedding.T
        direction = columns[self.prompts.answers[:, 0]] - columns[self.prompts.wrong[:, 0]]
        if model.centred_norm:
            direction = direction - direction.mean(1, keepdim=True)
        direction = direction.float() / stored[SCALE][rows, end].float()
        heads = [
            torch.einsum("qhm,qm->hq", written(model, layer, stored[name])[rows, end].float(), direction)
            for layer, name in enumerate(names)
        ]
        return torch.cat(heads).cpu().numpy().astype(float)

    def _difference(self, logits: Float[Tensor, "question vocabulary"]) -> Float[Tensor, " question"]:
        rows = torch.arange(len(logits))
        return logits[rows, self.prompts.answers[:, 0]] - logits[rows, self.prompts.wrong[:, 0]]

    def _run(self, engine: LensEngine, variants: Sequence[Variant]) -> Float[np.ndarray, "variant question"]:
        return engine.run(Sweep(tuple(variants)), self.prompts).logit_diff.astype(float)

    def _all_of_a(self, prompts: PromptSet, hooks: tuple[str, ...]) -> Activations:
        return self.engine_a.activations(prompts, "corrupted", hooks)

    def _one_head(self, prompts: PromptSet, hooks: tuple[str, ...], index: int) -> Activations:
        """B's attention outputs, with head `index` of each layer writing what it writes in A."""
        layers = [layer for layer in range(self.b.n_layers) if hook_name(Node("attention", layer)) in hooks]
        z_hooks = tuple(hook_name(Node("head", layer)) for layer in layers)
        z_a = self.engine_a.activations(prompts, "corrupted", z_hooks)
        own = self.engine_b.activations(prompts, "corrupted", (*hooks, *z_hooks))
        found = {name: own[name] for name in hooks}
        for layer, z in zip(layers, z_hooks, strict=True):
            change = written(self.a, layer, z_a[z])[:, :, index] - written(self.b, layer, own[z])[:, :, index]
            name = hook_name(Node("attention", layer))
            found[name] = found[name] + change.to(found[name])
        return found


def written(model: Model, layer: int, z: Float[Tensor, "prompt position head d_head"]) -> Tensor:
    """What each head writes into the residual stream, [prompt, position, head, d_model], value-bias constant included."""
    constant, weights = model.value_constants[layer].to(z), model.output_weights[layer].to(z)
    return torch.einsum("pthd,hdm->pthm", z + constant, weights)


def require_alike(a: Model, b: Model) -> None:
    """UserError unless both have the same shape and vocabulary, and add heads' outputs without a norm between."""
    shapes = [(m.n_layers, m.n_heads, int(m.bridge.cfg.d_model), int(m.bridge.cfg.d_vocab)) for m in (a, b)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{a.name} and {b.name} have the shapes {shapes[0]} and {shapes[1]}; trace two checkpoints of one"
        )
    if a.tokenizer.get_vocab() != b.tokenizer.get_vocab():
        raise UserError(f"{a.name} and {b.name} have other tokens; trace two checkpoints with one tokenizer")
    if b.normalises_attention:
        raise UnsupportedArchitectureError(
            f"{b.name} norms the heads' sum, so no head has an output of its own to patch"
        )


def prompt_set(questions: Sequence[NextTokenQuestion], vocabulary: int) -> PromptSet:
    """The questions as `corrupted` tokens. `clean` holds stand-ins that differ everywhere, since engines skip shared tokens."""
    width = max(len(one.tokens) for one in questions)
    rows = torch.zeros(len(questions), width, dtype=torch.long)
    for number, one in enumerate(questions):
        rows[number, : len(one.tokens)] = torch.tensor(one.tokens)
    end = torch.tensor([len(one.tokens) - 1 for one in questions])
    return PromptSet(
        task="cross-checkpoint",
        split="changed",
        clean=(rows + 1) % vocabulary,
        corrupted=rows,
        end=end,
        answers=torch.tensor([[one.said_by_a] for one in questions]),
        wrong=torch.tensor([[one.said_by_b] for one in questions]),
        templates=tuple(f"{len(one.tokens)} tokens" for one in questions),
        clusters=tuple(one.cluster for one in questions),
        positions={END: end},
        ids=tuple(str(number) for number in range(len(questions))),
        splits=("changed",) * len(questions),
    )


def _engine(model: Model, reference: PromptSet, backend: str) -> GivenLens:
    """The engine of one checkpoint; `auto` takes the reference backend where the fused one does not apply.

    UserError for an unknown backend.
    """
    if backend not in ("auto", "fused", "lens"):
        raise UserError(f"engine.name={backend} is unknown; use auto, fused or lens")
    if backend != "lens":
        try:
            return GivenFused(model, reference)
        except UnsupportedArchitectureError:
            if backend == "fused":
                raise
    return GivenLens(model, reference)
