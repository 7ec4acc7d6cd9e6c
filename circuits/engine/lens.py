"""The reference backend: TransformerLens hooks, with many variants and prompts in a forward pass.

Rows of a batch are (variant, prompt) pairs. Each hook point is visited once per forward pass and edits the rows of all
variants that intervene there. It works for every architecture that TransformerBridge loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Node
from circuits.engine import memory, philox
from circuits.engine.decoder import Hook, hooks_attached, precise
from circuits.engine.memory import Allowance, DecoderSizes, Paths
from circuits.engine.paths import Rewiring, UnknownWiringError, most_paths, prove_wiring, writer_hook
from circuits.engine.scores import Scores, of_logits
from circuits.engine.sources import Activations, ReferenceActivations, Sources
from circuits.interventions import Base, Effects, EveryBut, Intervention, PathIntervention, Recipe, Sweep, Variant
from circuits.models import Model
from circuits.prompts import CHANGED, PromptSet
from results_io import UserError

HOOKS = {
    "head": "blocks.{layer}.attn.hook_z",
    "attention": "blocks.{layer}.hook_attn_out",
    "mlp": "blocks.{layer}.hook_mlp_out",
    "residual": "blocks.{layer}.hook_resid_pre",
    "embedding": "hook_embed",
}
ROWS_PER_FORWARD = 512
PROMPTS_PER_BATCH = 128

Advance = Callable[[int], None]


class DeadHookError(UserError):
    """An intervention that should have changed the model's computation did not, so nothing can be measured in the model."""


def hook_name(node: Node) -> str:
    """The TransformerLens hook point of a node."""
    return HOOKS[node.kind].format(layer=node.layer)


def constants_of(model: Model) -> dict[str, Float[Tensor, "head d_head"]]:
    """The model's `value_constants`, by the hook point whose activation lacks them; on the CPU, like all activations."""
    return {hook_name(Node("head", layer)): value.cpu() for layer, value in enumerate(model.value_constants)}


class LensEngine:
    """Runs sweeps on one model with one set of reference prompts.

    `reference` gives means, donors and noise scales and must not contain a scored prompt (UserError in `run`).
    A forward pass has at most `rows_per_forward` rows, and no more than fit into `memory_mib` (None: `memory.room`). If memory
    runs out, rows are halved, if need be down to one prompt, and the run continues; after some passes that fit, more rows are
    tried again.
    """

    def __init__(
        self,
        model: Model,
        reference: PromptSet,
        rows_per_forward: int = ROWS_PER_FORWARD,
        prompts_per_batch: int = PROMPTS_PER_BATCH,
        memory_mib: float | int | None = None,
        memory_share: float = memory.SHARE,
    ) -> None:
        self.model = model
        self.shape = DecoderSizes.of(model)
        self.room_on = partial(memory.room, memory_mib=memory_mib, memory_share=memory_share)  # bytes on a device
        self.room = min(map(self.room_on, model.devices))
        self.rows_per_forward = rows_per_forward
        self.row_allowance = Allowance(rows_per_forward)
        self.prompts_per_batch = prompts_per_batch
        self.reference = ReferenceActivations(reference, self.on_device, constants_of(model))
        self.hooked = True  # forward passes run the model's own modules
        self.why = "asked for"
        self._alive: set[str] = set()
        self._wired = False

    def on(self, reference: PromptSet) -> LensEngine:
        """The same engine with other reference prompts."""
        other = copy(self)
        other.reference = ReferenceActivations(reference, other.on_device, self.reference.constants)
        return other

    def describe(self) -> dict[str, Any]:
        """Which backend and kernels produce the numbers, and why, as JSON data."""
        return {"backend": "lens", "why": self.why, "kernels": {}, "random": philox.GENERATOR, **self._spread()}

    def _spread(self) -> dict[str, list[str]]:
        """The devices of a model that is on several, for `describe`."""
        return {"devices": list(map(str, self.model.devices))} if len(self.model.devices) > 1 else {}

    # --- what callers use ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, sweep: Sweep, prompts: PromptSet, advance: Advance | None = None) -> Effects:
        """Every variant of `sweep` on every prompt.

        `advance` is called with the number of (variant, prompt) pairs just finished. Raises UserError if a scored prompt is
        also a reference prompt, or if a template's reference prompts differ in length from its scored ones; DeadHookError if
        an intervention had no hook to act on.
        """
        self._check(sweep, prompts)
        self._prefetch_reference(sweep)
        scores = Scores.empty(sweep, prompts, self.model.dtype)
        for index in self._batches(prompts):
            for numbers, rows, found in self._batch(sweep, prompts, index):
                scores.put(numbers, rows, found)
                if advance is not None:
                    advance(len(numbers) * len(rows))
        return scores.effects(sweep, prompts)

    @torch.no_grad()
    def activations(
        self, prompts: PromptSet, base: Base, hooks: tuple[str, ...], device: torch.device | str = "cpu"
    ) -> Activations:
        """The intact run's activations at `hooks`, {hook: [prompt, position, ...]}, on the CPU or on `device`.

        Rows keep the order of `prompts`; values at positions after a prompt's end are meaningless.
        """
        return self._read(prompts, base, hooks, lambda tensor, rows: tensor.to(device))

    @torch.no_grad()
    def at_end(self, prompts: PromptSet, base: Base, hooks: tuple[str, ...]) -> dict[str, Float[Tensor, "prompt ..."]]:
        """`activations` at each prompt's last position, on the CPU; other positions are held for one forward pass only."""

        def last(tensor: Tensor, rows: slice) -> Tensor:
            ends = prompts.end[rows].to(tensor.device)
            return tensor[torch.arange(len(ends), device=tensor.device), ends].cpu()

        return self._read(prompts, base, hooks, last)

    def _read(
        self, prompts: PromptSet, base: Base, hooks: tuple[str, ...], kept_of: Callable[[Tensor, slice], Tensor]
    ) -> dict[str, Tensor]:
        """`kept_of` of each hook's tensor in the forward passes over slices of the prompts, joined over the slices."""
        tokens = prompts.clean if base == "clean" else prompts.corrupted

        def read(rows: slice) -> dict[str, Tensor]:
            kept: dict[str, Tensor] = {}

            def keep(tensor: Tensor, hook: object, name: str) -> None:
                kept[name] = kept_of(tensor.detach(), rows)

            self._forward(tokens[rows], prompts.end[rows], [(name, partial(keep, name=name)) for name in hooks])
            dead = set(hooks) - set(kept)
            if dead:
                raise DeadHookError(
                    f"{self.model.name} never called hook {min(dead)}; no activation was read, so use a model of another family"
                )
            return kept

        parts = list(self._in_chunks(prompts, read))
        return {name: torch.cat([part[name] for part in parts]) for name in hooks}

    def on_device(self, prompts: PromptSet, base: Base, hooks: tuple[str, ...]) -> Activations:
        """`activations` on the model's device, for patching."""
        return self.activations(prompts, base, hooks, self.model.device)

    @torch.no_grad()
    def end_logits(self, prompts: PromptSet, base: Base = "clean") -> Float[Tensor, "prompt vocabulary"]:
        """Logits of the intact model at each prompt's last position."""
        tokens = prompts.clean if base == "clean" else prompts.corrupted

        def read(rows: slice) -> Tensor:
            return self._forward(tokens[rows], prompts.end[rows], []).cpu()

        return torch.cat(list(self._in_chunks(prompts, read)))

    @torch.no_grad()
    def is_alive(self, node: Node) -> bool:
        """False if no logit changes when the whole tensor at a node's hook is replaced."""
        try:
            self._prove_alive(hook_name(node))
        except DeadHookError:
            return False
        return True

    def is_wired(self) -> bool:
        """False if the model is not the pre-norm decoder that path interventions assume; they are then refused."""
        try:
            self._prove_wired()
        except UnknownWiringError:
            return False
        return True

    # --- batching --------------------------------------------------------------------------------------------------

    def forward_rows(self, length: int, paths: Paths = memory.NO_PATHS) -> int:
        """Planned number of rows of a forward pass over prompts of `length` tokens."""
        return max(1, min(self.row_allowance.now, self.room // self.shape.forward_row(length, self.hooked, paths)))

    def planned(self, sweep: Sweep, prompts: PromptSet) -> int:
        """Largest number of bytes beside the weights that a sweep is planned to hold."""
        length, paths = prompts.clean.shape[1], most_paths(sweep.variants)
        rows = min(len(sweep) * len(prompts), self.forward_rows(length, paths))
        return rows * self.shape.forward_row(length, self.hooked, paths)

    def _in_chunks(self, prompts: PromptSet, work: Callable[[slice], Any]) -> Iterator[Any]:
        """`work` on consecutive slices of the prompts, of nearly equal sizes that fit into memory."""
        start = 0
        while start < len(prompts):
            rest = len(prompts) - start
            size = -(-rest // memory.parts(rest, self.forward_rows(prompts.clean.shape[1])))
            try:
                result = work(slice(start, start + size))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                self.row_allowance.failed(size)
                continue
            self.row_allowance.fitted()
            yield result
            start += size

    def _batches(self, prompts: PromptSet) -> Iterator[list[int]]:
        """Row indices of each batch; batches have prompts of similar length, so little is padding."""
        order = torch.argsort(prompts.end, stable=True).tolist()
        size = min(self.prompts_per_batch, self.forward_rows(prompts.clean.shape[1]))
        yield from (order[part] for part in memory.balanced(len(order), size))

    def _batch(
        self, sweep: Sweep, prompts: PromptSet, rows: list[int]
    ) -> Iterator[tuple[list[int], list[int], Scores]]:
        """(indices of variants, rows of `prompts`, their scores), as many at a time as fit one forward pass."""
        pending = [(rows, 0)]
        while pending:
            index, done = pending.pop(0)
            batch = prompts.select(index)
            try:
                sources = Sources(batch, self.reference, self.on_device)
                self._prefetch(sweep, sources)
                for found in self._scores(replace(sweep, variants=sweep.variants[done:]), batch, sources):
                    yield list(range(done, done + len(found.logit_diff))), index, found
                    done += len(found.logit_diff)
            except torch.OutOfMemoryError:
                if len(index) == 1:
                    raise
                half = len(index) // 2
                pending = [(index[:half], done), (index[half:], done), *pending]

    def _scores(self, sweep: Sweep, batch: PromptSet, sources: Sources) -> Iterator[Scores]:
        """Scores of consecutive chunks of variants that fit one forward pass.

        Raises torch.OutOfMemoryError if a single variant on this batch does not fit.
        """
        start, paths = 0, most_paths(sweep.variants)
        while start < len(sweep):
            rest = sweep.variants[start:]
            most = self.forward_rows(batch.clean.shape[1], paths) // len(batch)
            chunk = rest[: -(-len(rest) // memory.parts(len(rest), most))]
            try:
                logits = self._run_chunk(chunk, batch, sources)
            except torch.OutOfMemoryError:
                self.row_allowance.failed(len(chunk) * len(batch))
                if len(chunk) == 1:
                    raise
                continue
            self.row_allowance.fitted()
            yield of_logits(logits, batch, len(chunk), sweep.probabilities)
            start += len(chunk)

    def _run_chunk(
        self, variants: Sequence[Variant], batch: PromptSet, sources: Sources
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at the end of every (variant, prompt), variant-major."""
        size = len(batch)
        tokens = torch.cat([batch.clean if v.base == "clean" else batch.corrupted for v in variants])
        edits: dict[str, list[tuple[int, Intervention, list[int]]]] = {}
        for place, variant in enumerate(variants):
            for intervention in variant.on_nodes:
                for name, heads in _by_hook(intervention.nodes).items():
                    edits.setdefault(name, []).append((place, intervention, heads))
        replacements = {
            (name, intervention.recipe): sources.get(name, intervention.recipe)
            for name, sites in edits.items()
            for _, intervention, _ in sites
        }
        paths = Rewiring(self.model, variants, batch, sources)
        paths.prefetch()
        fired: set[str] = set()

        def edit(tensor: Tensor, hook: object, name: str) -> Tensor:
            fired.add(name)
            tensor = tensor.clone()
            for place, intervention, heads in edits[name]:
                rows = tensor[place * size : (place + 1) * size]
                source = replacements[name, intervention.recipe].to(rows)
                put_in_place(rows, source, intervention.positions, heads, batch)
            return tensor

        hooks = [*((name, partial(edit, name=name)) for name in edits), *paths.hooks()]
        logits = self._forward(tokens, batch.end.repeat(len(variants)), hooks)
        dead = set(edits) - fired or paths.dead()
        if dead:
            raise DeadHookError(
                f"{self.model.name} never called hook {min(dead)}; nothing was replaced, so use a model of another family"
            )
        return logits

    def _prefetch(self, sweep: Sweep, sources: Sources) -> None:
        """Run each base once for all activations that the sweep patches from it."""
        wanted: dict[Base, set[str]] = {}
        for recipe, hook in _replaced(sweep):
            if recipe.kind == "patch" or recipe.additive:
                wanted.setdefault(recipe.source, set()).add(hook)
        for base, hooks in wanted.items():
            sources.prefetch(tuple(sorted(hooks)), base)
        sources.prefetch_noise([(hook, recipe) for recipe, hook in _replaced(sweep)])

    def _prefetch_reference(self, sweep: Sweep) -> None:
        """Run the reference prompts once for all that the sweep takes from them."""
        self.reference.prefetch(sorted({hook for recipe, hook in _replaced(sweep) if recipe.kind != "patch"}))

    def _forward(
        self, tokens: Int[Tensor, "row position"], end: Int[Tensor, " row"], hooks: list[Hook]
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's end, in float32 at least, with hooks attached."""
        return hooked_logits(self.model, tokens, end, hooks)

    # --- guards ----------------------------------------------------------------------------------------------------

    def _check(self, sweep: Sweep, prompts: PromptSet) -> None:
        prompts.require_disjoint(self.reference.prompts)
        prompts.require_same_lengths(self.reference.prompts)
        for edge in {edge for variant in sweep.variants for path in variant.on_paths for edge in path.edges}:
            self.model.graph.require(edge)
            self._prove_wired()
        for variant in sweep.variants:
            for intervention in variant.on_nodes:
                for node in intervention.nodes:
                    self.model.require(node)
                    self._prove_alive(hook_name(node))
                unknown = _roles(intervention) - {*prompts.positions, CHANGED}
                if unknown:
                    known = ", ".join(prompts.positions)
                    raise UserError(f"position {min(unknown)!r} is not one of task {prompts.task}'s ({known})")

    def _prove_wired(self) -> None:
        """Raises UnknownWiringError unless the model is the pre-norm decoder that path interventions assume."""
        if self._wired:
            return
        probe = self.reference.prompts.select([0])
        own = LensEngine(self.model, probe)  # not a subclass, since the proof is about the model's own modules
        prove_wiring(self.model, lambda hooks: own.activations(probe, "clean", hooks))
        self._wired = True

    def _prove_alive(self, name: str) -> None:
        """Raises DeadHookError unless replacing the whole tensor at this hook changes the model's logits."""
        if name in self._alive:
            return
        probe, end = self.reference.prompts.clean[:1], self.reference.prompts.end[:1]
        # with a hook that changes nothing, so that the same code runs and rounding is the same
        intact = self._forward(probe, end, [(name, lambda tensor, hook: None)])

        def move(tensor: Tensor, hook: object) -> Tensor:
            ramp = torch.linspace(-1, 1, tensor[0].numel(), device=tensor.device, dtype=tensor.dtype)
            # different for each component, so that no layer norm or softmax removes it
            return tensor + tensor.std().clamp(min=1e-3) * ramp.reshape(tensor.shape[1:])

        if torch.equal(intact, self._forward(probe, end, [(name, move)])):
            raise DeadHookError(
                f"replacing the tensor at {name} of {self.model.name} changes no logit: a dead hook, or a part that writes "
                "nothing; use another model"
            )
        self._alive.add(name)


def _replaced(sweep: Sweep) -> set[tuple[Recipe, str]]:
    """(recipe, hook) of everything that a sweep replaces."""
    items = {item for variant in sweep.variants for item in variant.interventions}
    return {(item.recipe, hook) for item in items for hook in _hooks_of(item)}


def _roles(intervention: Intervention) -> set[str]:
    """The position roles that an intervention names, whether to act at or to leave out."""
    named = intervention.positions or ()
    return {role for item in named for role in (item.roles if isinstance(item, EveryBut) else (item,))}


def _hooks_of(intervention: Intervention | PathIntervention) -> set[str]:
    """The hooks at which the values that an intervention replaces are read."""
    if isinstance(intervention, PathIntervention):
        return {writer_hook(edge.writer) for edge in intervention.edges}
    return set(map(hook_name, intervention.nodes))


def _by_hook(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """{hook name: indices of the heads changed there (empty for whole-tensor nodes)}."""
    grouped: dict[str, list[int]] = {}
    for node in nodes:
        heads = grouped.setdefault(hook_name(node), [])
        if node.kind == "head":
            heads.append(node.index)
    return grouped


def put_in_place(
    rows: Tensor,
    source: Tensor,
    positions: tuple[str | EveryBut, ...] | None,
    heads: list[int],
    batch: PromptSet,
    start: int = 0,
) -> None:
    """Write `source` into `rows`, both [prompt, position, (head), component] with `start` as their first position.

    `positions` are the roles to write at (None: all positions), `heads` the heads to write (empty: the whole tensor).
    """
    if positions is None:
        where: tuple = (slice(None), slice(None), heads) if heads else (slice(None),)
        rows[where] = source[where]
        return
    for role in positions:
        prompt, place = places(batch, role)
        computed = place >= start
        prompt, place = prompt[computed].to(rows.device), place[computed].to(rows.device) - start
        head = torch.as_tensor(heads, device=rows.device)
        where = (prompt[:, None], place[:, None], head[None]) if heads else (prompt, place)
        rows[where] = source[where]


def places(batch: PromptSet, role: str | EveryBut) -> tuple[Int[Tensor, " place"], Int[Tensor, " place"]]:
    """(prompt, position) of every token that a role names; padding does not count."""
    if isinstance(role, EveryBut):
        chosen = torch.arange(batch.clean.shape[1])[None] <= batch.end[:, None]
        for other in role.roles:
            chosen[places(batch, other)] = False
    elif role == CHANGED:
        chosen = batch.clean != batch.corrupted
    else:
        return torch.arange(len(batch)), batch.positions[role]
    prompt, position = chosen.nonzero(as_tuple=True)
    return prompt, position


def hooked_logits(
    model: Model, tokens: Int[Tensor, "row position"], end: Int[Tensor, " row"], hooks: list[Hook]
) -> Float[Tensor, "row vocabulary"]:
    """Logits at each row's end, in float32 at least, from the model's own modules with hooks attached.

    The unembedding reads only the ends: with a vocabulary of 50,000, logits of all positions would take gigabytes. Hooks are
    attached to the model's own modules, so threads take turns; otherwise a thread's hooks would act on another's tokens.
    """

    def keep_ends(stream: Tensor, hook: object) -> Tensor:
        return stream[torch.arange(len(end), device=stream.device), end.to(stream.device)][:, None]

    hooks = [*hooks, ("unembed.hook_in", keep_ends)]  # last, so that the others see every position
    with hooks_attached:
        logits = model.bridge.run_with_hooks(tokens.to(model.device), fwd_hooks=hooks, return_type="logits")
    return precise(logits[:, 0])
