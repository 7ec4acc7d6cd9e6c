"""Gradients of the logit difference: first-order estimates of patches, for every node and every edge at once.

Let x be any activation of a base run. Patching x from another run into the base run changes the logit difference LD by
about

    LD(base with x_other) - LD(base)  ~=  sum over positions of (x_other - x_base) . dLD/dx        (nats)

and one backward pass gives the right side for all x (attribution patching: Nanda 2022; Kramar et al. 2024). For the edge
from writer u to reader r, x is u's share of r's input (edge attribution patching, EAP: Syed et al. 2023). EAP with
integrated gradients averages the gradient over runs between the two instead of taking it at the base run (Hanna et al.
2024). Every estimate here has the sign of the left side. Parameters get no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Node
from circuits.edges import PROJECTIONS, Edge, Graph, Reader
from circuits.engine.decoder import Decoder, Hook, precise
from circuits.engine.gim import BackwardPass, frozen_norm, modified_logits
from circuits.engine.lens import DeadHookError, hooked_logits
from circuits.engine.memory import Allowance, balanced
from circuits.engine.paths import STREAM, prove_wiring, writer_hook
from circuits.engine.scores import gather
from circuits.engine.workers import run_parallel
from circuits.interventions import Base
from circuits.models import Model
from circuits.prompts import PromptSet
from results_io import UserError

Method = Literal["eap", "eap_ig_inputs", "eap_ig_activations"]
METHODS: tuple[Method, ...] = get_args(Method)
KEPT_BYTES = 64 << 20  # per thread, for the cached outputs of stages
PROMPTS_PER_BACKWARD = 64  # fewer than in a forward pass, because a backward pass needs the activations of every layer

FORWARD_MODE = threading.Lock()  # torch's forward-mode differentiation levels are shared by all threads of the process
BATCHES = 8  # smallest number of batches on a decoder, so that threads can share them
FINAL = "ln_final.hook_in"
Z = "blocks.{}.attn.hook_z"
Advance = Callable[[int], None]
Norm = Callable[[Tensor], Tensor]
GroupKind = Literal["attention", "mlp", "logits"]
Values = Mapping[str, Tensor]  # hook name -> [prompt, position, ...]


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadEstimates:
    """Estimated change of the logit difference for each head, row-major (layer, head), in nats.

    `dropped` is the average over layers of |estimate| without the gradient through that layer; it has no sign.
    """

    plain: Float[np.ndarray, "prompt head"]
    dropped: Float[np.ndarray, "prompt head"] | None


@dataclass(frozen=True)
class NodeEstimates:
    """Estimated change for the queries, keys or values of each head. `corrected`: attention recomputed exactly."""

    readers: tuple[Reader, ...]
    plain: Float[np.ndarray, "prompt node"]
    corrected: Float[np.ndarray, "prompt node"] | None


@dataclass(frozen=True)
class EdgeScores:
    """Estimated change for each edge: mean over the prompts and its standard error, NaN where there is no edge.

    For a single prompt all standard errors are NaN. `total_effect` is the mean of LD(other) - LD(base). `by_prompt` has the
    scores of each prompt, with edges in the order of `graph.edges`; None unless requested.
    """

    graph: Graph
    mean: Float[np.ndarray, "reader writer"]
    standard_error: Float[np.ndarray, "reader writer"]
    total_effect: float
    prompts: int
    by_prompt: Float[np.ndarray, "prompt edge"] | None = None

    def of(self, edge: Edge) -> float:
        """The score of one edge. Raises UserError if the graph has no such edge."""
        self.graph.require(edge)
        return float(self.mean[self.graph.readers.index(edge.reader), self.graph.writers.index(edge.writer)])


# --- parts of the graph ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Writers that write together: the embedding, the heads of a layer, or its MLP. `start` is the first writer's column."""

    writers: tuple[Node, ...]
    start: int

    @property
    def hook(self) -> str:
        return writer_hook(self.writers[0])

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + len(self.writers))


@dataclass(frozen=True)
class ReaderGroup:
    """Readers behind one norm: all projections of a layer, its MLP, or the logits. `start` is the first reader's row.

    `stream` is the hook of the norm's input. `inner` are the hooks at which gradients are taken: those of the projections; or
    the norm's input if the norm has a single reader, since the gradient there belongs to that reader only.
    """

    kind: GroupKind
    layer: int
    readers: tuple[Reader, ...]
    start: int

    @property
    def stream(self) -> str:
        return {"attention": STREAM.format(self.layer), "mlp": f"blocks.{self.layer}.ln2.hook_in"}.get(self.kind, FINAL)

    @property
    def inner(self) -> tuple[str, ...]:
        if self.kind == "attention":
            return tuple(f"blocks.{self.layer}.attn.hook_{kind}" for kind in PROJECTIONS)
        return (self.stream,)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + len(self.readers))


def stages_of(graph: Graph) -> tuple[Stage, ...]:
    """The embedding, then layer by layer the heads and the MLP, in the order of `graph.writers`."""
    by_hook: dict[str, list[Node]] = {}
    for writer in graph.writers:
        by_hook.setdefault(writer_hook(writer), []).append(writer)
    return tuple(Stage(tuple(found), graph.writers.index(found[0])) for found in by_hook.values())


def groups_of(graph: Graph) -> tuple[ReaderGroup, ...]:
    """Layer by layer the projections and the MLP, then the logits, in the order of `graph.readers`."""
    grouped: dict[tuple[GroupKind, int], list[Reader]] = {}
    for reader in graph.readers:
        kind = reader.kind if reader.kind in ("mlp", "logits") else "attention"
        grouped.setdefault((kind, reader.layer), []).append(reader)
    return tuple(
        ReaderGroup(kind, layer, tuple(found), graph.readers.index(found[0]))
        for (kind, layer), found in grouped.items()
    )


def midpoints(steps: int) -> list[float]:
    """Sampling points of an integral from 0 to 1: (k - 1/2) / steps, so that its error falls as 1 / steps^2.

    Hanna et al. 2024 take the ends of the intervals, which has the same limit but an error that falls as 1 / steps. Raises
    UserError unless steps is at least 1.
    """
    if steps < 1:
        raise UserError(f"{steps} integration steps are no path between two runs; use at least 1, for example 5")
    return [(step + 0.5) / steps for step in range(steps)]


# --- the engine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PathPoint:
    """One point of an integration path, whose run scores the writers of `stages` with this `weight`."""

    replaced: Values
    weight: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Kept:
    """What the runs on one batch share: streams that enter a layer, and the outputs of stages, by hook.

    The outputs of stages take no more than KEPT_BYTES, or are those of one stage.
    """

    entering: dict[int, Tensor]
    stages: dict[str, Tensor]

    def written(self, stage: Stage, compute: Callable[[], Tensor]) -> Tensor:
        if stage.hook not in self.stages:
            value = compute()
            if sum(one.nbytes for one in (value, *self.stages.values())) > KEPT_BYTES:
                self.stages.clear()
            self.stages[stage.hook] = value
        return self.stages[stage.hook]


class GradientEngine:
    """Estimates the effect of patches on one model from gradients.

    `prompts_per_backward` bounds memory. If memory runs out, the number is halved, if need be down to one prompt, and the
    estimate continues; after some batches that fit, larger ones are tried again. If `decoder` is given, it runs instead of the
    model's own hooked modules; it must be known to compute the same. If `backward` is given, it replaces the model's own
    backward pass, which changes gradients but not activations. Every method calls `advance` with the number of (forward or
    backward pass, prompt) pairs just finished.
    """

    def __init__(
        self,
        model: Model,
        prompts_per_backward: int = PROMPTS_PER_BACKWARD,
        decoder: Decoder | None = None,
        backward: BackwardPass | None = None,
    ) -> None:
        self.model, self.backward = model, backward
        self.decoder = backward.decoder(decoder) if backward and decoder else decoder
        self.graph = model.graph
        self.prompts_at_once = Allowance(prompts_per_backward)
        self.stages = stages_of(self.graph)
        self.groups = groups_of(self.graph)
        self._wired = False

    # --- what callers use ------------------------------------------------------------------------------------------

    def head_effects(
        self, prompts: PromptSet, base: Base, dropping: bool = False, advance: Advance | None = None
    ) -> HeadEstimates:
        """AtP of every head's output z at all positions: sum over positions of (z_other - z_base) . dLD/dz.

        With `dropping` also GradDrop (Kramar et al. 2024, eq. 11): 1/(L-1) sum over l of |(z_other - z_base) . dLD/dz_l|,
        where dLD/dz_l is the gradient that passes through no output of layer l. It reveals direct and indirect effects that
        cancel. Raises UserError if the model has a single layer, for which GradDrop is undefined.
        """
        layers = range(self.model.n_layers)
        if dropping and len(layers) == 1:
            raise UserError(f"gradient dropping averages over the other layers, and {self.model.name} has only one")
        hooks = tuple(Z.format(layer) for layer in layers)
        passes = self.head_passes(dropping)

        def estimate(batch: PromptSet) -> tuple[Tensor, Tensor]:
            gate = GradientStop()
            difference, kept = self._run(batch, base, hooks, extra=gate.hooks(layers) if dropping else ())
            change = self._change(batch, base, kept)
            plain = _dots(change, _gradients(difference, kept, retain=dropping))
            dropped = torch.zeros_like(plain)
            for layer in layers if dropping else ():
                gate.closed = layer
                gradient = _gradients(difference, kept, retain=layer < layers[-1])
                dropped += _dots(change, gradient).abs() / (len(layers) - 1)
            return plain, dropped

        plain, dropped = self._collect(prompts, estimate, passes, advance)
        return HeadEstimates(plain, dropped if dropping else None)

    def integrated_head_effects(
        self, prompts: PromptSet, base: Base, steps: int, advance: Advance | None = None
    ) -> Float[np.ndarray, "prompt head"]:
        """AtP of every head's output z with integrated gradients (node attribution patching, NAP-IG: Mueller et al. 2025).

        Sum over positions of (z_other - z_base) . mean of dLD/dz, with the mean over runs whose embeddings lie between those
        of the two runs, at `midpoints(steps)`. Raises UserError unless `steps` is at least 1.
        """
        embedding, places = self.stages[0].hook, midpoints(steps)
        hooks = tuple(Z.format(layer) for layer in range(self.model.n_layers))

        def estimate(batch: PromptSet) -> tuple[Tensor]:
            _, kept = self._run_without_gradient(batch, base, (embedding, *hooks))
            change = self._change(batch, base, kept)
            start, way = kept[embedding], change.pop(embedding)
            mean: dict[str, Tensor] = {}
            for place in places:
                difference, states = self._run(batch, base, hooks, replaced={embedding: start + place * way})
                for name, gradient in _gradients(difference, {name: states[name] for name in hooks}).items():
                    mean[name] = mean.get(name, 0) + gradient / steps
            return (_dots(change, mean),)

        (found,) = self._collect(prompts, estimate, self.integrated_head_passes(steps), advance)
        return found

    def node_effects(
        self, prompts: PromptSet, base: Base, correcting: bool = False, advance: Advance | None = None
    ) -> dict[str, NodeEstimates]:
        """AtP of the queries, keys and values of every head, at all positions, by kind "q", "k", "v".

        Plain: sum over positions of (q_other - q_base) . dLD/dq, and likewise for k and v. With `correcting`, q and k also get
        the estimate of AtP* (Kramar et al. 2024, section 3.1), (z' - z_base) . dLD/dz: z' of the head is recomputed exactly
        with its q (or k) replaced and all else as in the base run, and only later computation is linearised. z is linear in
        the values, so for them the plain estimate is the same. Keys and values are those of key-value heads.
        """
        found = self._collect(
            prompts, lambda batch: self._nodes(batch, base, correcting), self.node_passes(correcting), advance
        )
        corrected = dict(zip(PROJECTIONS, found[3:], strict=False))
        return {
            kind: NodeEstimates(tuple(r for r in self.graph.readers if r.kind == kind), plain, corrected.get(kind))
            for kind, plain in zip(PROJECTIONS, found[:3], strict=True)
        }

    def edge_scores(
        self,
        prompts: PromptSet,
        base: Base,
        method: Method,
        steps: int = 1,
        advance: Advance | None = None,
        by_prompt: bool = False,
    ) -> EdgeScores:
        """score(u -> r) = sum over positions of (u_other - u_base) . dLD/d(input of r), averaged over prompts.

        Inputs are taken before the reader's norm. The gradient is

        - eap: that of the base run;
        - eap_ig_inputs: the mean over runs whose embeddings lie between those of the two runs. The scores of all edges from
          the embedding then sum to LD(other) - LD(base);
        - eap_ig_activations: for the writers of one stage (the embedding, the heads of a layer, an MLP), the mean over
          base runs whose outputs at that stage lie between those of the two runs. The scores of all edges from the stage then
          sum to LD(base with the stage patched) - LD(base). (The authors' code takes the mean over the runs of all stages for
          every edge, for which no such sum holds.)

        With `by_prompt` the scores of single prompts are kept too, in float32: 26 MB for 200 prompts on GPT-2 small.
        Raises UserError unless `steps` is at least 1, UnknownWiringError if the model is no pre-norm decoder.
        """
        passes = self.edge_passes(method, steps)
        self._prove_wired(prompts)
        total, squares, effect = 0.0, 0.0, 0.0
        single = np.empty((len(prompts), len(self.graph.edges)), np.float32) if by_prompt else None
        for rows, (scores, effects) in self._in_batches(prompts, lambda batch: self._edges(batch, base, method, steps)):
            total, squares, effect = total + scores.sum(0), squares + (scores**2).sum(0), effect + effects.sum()
            if single is not None:
                single[rows] = scores[:, self._is_edge]
            if advance is not None:
                advance(passes * len(scores))
        count = len(prompts)
        mean = np.where(self._is_edge, total / count, np.nan)
        variance = np.maximum(squares / count - mean**2, 0) * (count / (count - 1) if count > 1 else np.nan)
        return EdgeScores(self.graph, mean, np.sqrt(variance / count), float(effect) / count, count, single)

    def head_passes(self, dropping: bool) -> int:
        """Number of forward and backward passes of `head_effects` per prompt."""
        return 3 + (self.model.n_layers if dropping else 0)

    def integrated_head_passes(self, steps: int) -> int:
        """Number of forward and backward passes of `integrated_head_effects` per prompt."""
        return 2 + 2 * steps

    def node_passes(self, correcting: bool) -> int:
        """Number of forward and backward passes of `node_effects` per prompt."""
        return 5 if correcting else 3

    def edge_passes(self, method: Method, steps: int) -> int:
        """Number of forward and backward passes of `edge_scores` per prompt."""
        runs = {"eap": 1, "eap_ig_inputs": steps, "eap_ig_activations": steps * len(self.stages)}
        return 2 + 2 * runs[method]

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _nodes(self, batch: PromptSet, base: Base, correcting: bool) -> tuple[Float[Tensor, "prompt node"], ...]:
        """Plain estimates for q, k and v, then the corrected ones for q and k."""
        layers = range(self.model.n_layers)
        names = {kind: [f"blocks.{layer}.attn.hook_{kind}" for layer in layers] for kind in PROJECTIONS}
        watched = [*(name for found in names.values() for name in found), *(Z.format(layer) for layer in layers)]
        difference, kept = self._run(batch, base, watched)
        gradient = _gradients(difference, kept)
        change = self._change(batch, base, kept)
        plain = [_dots({name: change[name] for name in names[kind]}, gradient) for kind in PROJECTIONS]
        values = {name: tensor.detach() for name, tensor in kept.items()}
        corrected = []
        for kind in PROJECTIONS[:2] if correcting else ():
            replaced = {name: values[name] + change[name] for name in names[kind]}
            corrected.append(self._corrected(batch, base, replaced, values, gradient))
        return (*plain, *corrected)

    def _change(self, batch: PromptSet, base: Base, kept: Values) -> dict[str, Tensor]:
        """x_other - x_base of the activations of a base run."""
        _, other = self._run_without_gradient(batch, _other(base), tuple(kept))
        return {name: other[name] - kept[name].detach() for name in kept}

    def _corrected(
        self, batch: PromptSet, base: Base, replaced: Values, values: Values, gradient: Values
    ) -> Float[Tensor, "prompt node"]:
        """(z' - z_base) . dLD/dz, where z' has the queries or keys `replaced` in one layer at a time.

        All layers share one run: after z' is read, each layer's z is reset to its base value, so no layer affects another.
        """
        hooks = tuple(Z.format(layer) for layer in range(self.model.n_layers))
        changed: dict[str, Tensor] = {}

        def put_back(tensor: Tensor, hook: object, name: str) -> Tensor:
            changed[name] = tensor - values[name]
            return values[name]

        self._run_without_gradient(batch, base, (), replaced, [(name, partial(put_back, name=name)) for name in hooks])
        effects = rearrange(_dots(changed, gradient), "prompt (layer head) -> prompt layer head", layer=len(hooks))
        nodes = next(iter(replaced.values())).shape[2]  # query heads that share a key head are summed
        return reduce(effects, "prompt layer (node head) -> prompt (layer node)", "sum", node=nodes)

    # --- edges -----------------------------------------------------------------------------------------------------

    @cached_property
    def _is_edge(self) -> np.ndarray:
        return np.array([[self.graph.connects(w, r) for w in self.graph.writers] for r in self.graph.readers])

    def _edges(
        self, batch: PromptSet, base: Base, method: Method, steps: int
    ) -> tuple[Float[np.ndarray, "prompt reader writer"], Float[np.ndarray, " prompt"]]:
        """(scores of every edge, LD(other) - LD(base)) on a batch."""
        hooks = [stage.hook for stage in self.stages]
        at_base, values = self._run_without_gradient(batch, base, hooks)
        at_other, other = self._run_without_gradient(batch, _other(base), hooks)
        change = {name: other[name] - values[name] for name in hooks}
        shape = (len(batch), len(self.graph.readers), len(self.graph.writers))
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        scores = torch.zeros(shape, dtype=dtype, device=self.model.device)
        kept = Kept({}, {})
        for run in self._runs(method, steps, values, change):
            self._add_scores(scores, run, batch, base, change, kept)
        return scores.double().cpu().numpy(), (at_other - at_base).double().cpu().numpy()

    def _add_scores(
        self,
        scores: Float[Tensor, "prompt reader writer"],
        run: PathPoint,
        batch: PromptSet,
        base: Base,
        change: Values,
        kept_between: Kept,
    ) -> None:
        """Add the contribution of one run, for one group of readers and one stage of writers at a time to save memory."""
        groups = [g for g in self.groups if self.graph.connects(run.stages[0].writers[0], g.readers[0])]
        inner = tuple(name for group in groups for name in group.inner)
        streams = tuple(group.stream for group in groups)
        difference, kept = self._run(batch, base, inner, streams, run.replaced, known=kept_between.entering)
        gradient = _gradients(difference, {name: kept[name] for name in inner})
        for group in groups:
            stages = [stage for stage in run.stages if self.graph.connects(stage.writers[0], group.readers[0])]
            upstream = self._upstream(group, gradient)
            # (J change) . gradient = change . (J^T gradient), J the norm's Jacobian; apply it to the smaller of the two
            few_writers = sum(len(stage.writers) for stage in stages) < len(group.readers)
            stream = kept[group.stream].detach()
            if group.kind == "attention" and not few_writers:
                upstream = _pull_back(self._norm(group.layer), stream, upstream)
            for stage in stages:
                written = kept_between.written(stage, lambda stage=stage: self._written(stage, change[stage.hook]))
                written = written.to(stream.device)
                if few_writers:
                    written = _push_forward(self._norm(group.layer), stream, written)
                terms = "reader prompt position d, writer prompt position d -> prompt reader writer"
                found = run.weight * einsum(upstream, written, terms)
                scores[:, group.rows, stage.columns] += found.to(scores.device)

    def _runs(self, method: Method, steps: int, values: Values, change: Values) -> Iterator[PathPoint]:
        """The runs whose gradients a method takes, each with the writers it scores."""
        if method == "eap":
            yield PathPoint({}, 1.0, self.stages)
            return
        for stage in self.stages if method == "eap_ig_activations" else self.stages[:1]:
            for place in midpoints(steps):
                replaced = {stage.hook: values[stage.hook] + place * change[stage.hook]}
                yield PathPoint(replaced, 1 / steps, (stage,) if method == "eap_ig_activations" else self.stages)

    def _written(self, stage: Stage, value: Tensor) -> Float[Tensor, "writer prompt position d_model"]:
        """The contribution of each writer of a stage to the stream, in the precision of the scores."""
        value = precise(value)
        if stage.writers[0].kind != "head":
            return value[None]
        weights = self.model.projections["o"][stage.writers[0].layer].to(value)
        return einsum(value, weights, "prompt position head dh, head dh d -> head prompt position d")

    def _upstream(self, group: ReaderGroup, gradient: Values) -> Float[Tensor, "reader prompt position d_model"]:
        """dLD/d(input of each projection) through that projection only; for a single reader, dLD/d(norm's input)."""
        if group.kind != "attention":
            return gradient[group.inner[0]][None]
        terms = "prompt position head dh, head d dh -> head prompt position d"
        weights = (self.model.projections[kind][group.layer] for kind in PROJECTIONS)
        parts = [
            einsum(gradient[name], weight.to(gradient[name]), terms)
            for name, weight in zip(group.inner, weights, strict=True)
        ]
        return torch.cat(parts)

    def _norm(self, layer: int) -> Norm:
        """The norm in front of a layer's queries, keys and values."""
        if self.decoder is not None:
            return self.decoder.norm
        return self.model.bridge.blocks[layer].ln1 if self.backward is None else frozen_norm(self.model, layer)

    # --- running ---------------------------------------------------------------------------------------------------

    def _run(
        self,
        batch: PromptSet,
        base: Base,
        differentiated: Sequence[str],
        watched: Sequence[str] = (),
        replaced: Values | None = None,
        extra: Sequence[Hook] = (),
        known: dict[int, Tensor] | None = None,
    ) -> tuple[Float[Tensor, " prompt"], dict[str, Tensor]]:
        """(logit difference, activations), both in one autograd graph that starts at the hooks `differentiated`.

        `replaced` are values that replace activations; `watched` are only read. `known` are streams of earlier runs on this
        base (`Decoder.forward`). Raises DeadHookError if a hook is not called.
        """
        replaced, kept = replaced or {}, {}
        names = dict.fromkeys((*replaced, *watched, *differentiated))

        def visit(tensor: Tensor, hook: object, name: str) -> Tensor:
            tensor = replaced.get(name, tensor)
            if (
                name in differentiated and torch.is_grad_enabled()
            ):  # a view, so that the gradient excludes other readers
                tensor = tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()
            kept[name] = tensor
            return tensor

        tokens = batch.clean if base == "clean" else batch.corrupted
        hooks = [*((name, partial(visit, name=name)) for name in names), *extra]
        logits = self._forward(tokens, batch.end, hooks, known)
        dead = set(names) - set(kept)
        if dead:
            raise DeadHookError(
                f"{self.model.name} never called hook {min(dead)}; no gradient was taken, so use a model of another family"
            )
        answers, foils = (torch.nanmean(gather(logits, ids), 1) for ids in (batch.answers, batch.wrong))
        return answers - foils, kept

    @torch.no_grad()
    def _run_without_gradient(
        self,
        batch: PromptSet,
        base: Base,
        watched: Sequence[str],
        replaced: Values | None = None,
        extra: Sequence[Hook] = (),
    ) -> tuple[Float[Tensor, " prompt"], dict[str, Tensor]]:
        return self._run(batch, base, (), watched, replaced, extra)

    def _forward(
        self,
        tokens: Int[Tensor, "row position"],
        end: Int[Tensor, " row"],
        hooks: list,
        known: dict[int, Tensor] | None,
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits at each row's last position, in float32 at least; from the bridge if the decoder lacks one of the hooks."""
        if self.decoder is not None and self.decoder.can_run(tokens.shape[1], hooks):
            return self.decoder.forward(tokens, end, hooks, known)
        if self.backward is None or not torch.is_grad_enabled():
            return hooked_logits(self.model, tokens, end, hooks)
        return modified_logits(self.backward, self.model, tokens, end, hooks)

    def _in_batches(self, prompts: PromptSet, work: Callable[[PromptSet], Any]) -> Iterator[tuple[list[int], Any]]:
        """(rows, `work` on them) for each batch; batches have prompts of similar length, so little is padding."""
        order = torch.argsort(prompts.end, stable=True).tolist()
        most = self.prompts_at_once.now
        size = most if self.decoder is None else min(most, -(-len(order) // BATCHES))
        batches = [order[part] for part in balanced(len(order), size)]
        with frozen(self.model.bridge):
            if self.decoder is None:  # hooks on the model's own modules, so one batch after the other
                for rows in batches:
                    yield from self._halving(prompts, rows, work)
            else:
                yield from run_parallel(lambda rows: self._halving(prompts, rows, work), batches, self.model.device)

    def _halving(
        self, prompts: PromptSet, rows: list[int], work: Callable[[PromptSet], Any]
    ) -> Iterator[tuple[list[int], Any]]:
        """(rows, `work` on them), with the rows halved if memory runs out."""
        pending = [rows]
        while pending:
            some, most = pending.pop(0), self.prompts_at_once.now
            if len(some) > most:
                pending = [*(some[part] for part in balanced(len(some), most)), *pending]
                continue
            try:
                with torch.enable_grad():
                    result = work(prompts.select(some))
            except torch.OutOfMemoryError:
                if len(some) == 1:
                    raise
                self.prompts_at_once.failed(len(some))
                pending = [some, *pending]
                continue
            self.prompts_at_once.fitted()
            yield some, result

    def _collect(
        self, prompts: PromptSet, work: Callable[[PromptSet], tuple[Tensor, ...]], passes: int, advance: Advance | None
    ) -> list[np.ndarray]:
        """Each of the tensors [prompt, ...] that `work` returns, for all prompts in their order."""
        collected: list[np.ndarray] = []
        for rows, found in self._in_batches(prompts, work):
            if not collected:
                collected = [np.zeros((len(prompts), *t.shape[1:]), t.cpu().numpy().dtype) for t in found]
            for array, tensor in zip(collected, found, strict=True):
                array[rows] = tensor.cpu().numpy()
            if advance is not None:
                advance(passes * len(rows))
        return collected

    def _prove_wired(self, prompts: PromptSet) -> None:
        """Raises UnknownWiringError unless the model is the pre-norm decoder that edges assume."""
        if not self._wired:
            probe = prompts.select([0])
            own = GradientEngine(self.model)  # without a decoder, since the proof is about the model's own modules
            prove_wiring(self.model, lambda hooks: own._run_without_gradient(probe, "clean", hooks)[1])
            self._wired = True


@dataclass
class GradientStop:
    """Stops the gradient at the outputs of layer `closed` (None: nowhere)."""

    closed: int | None = field(default=None)

    def hooks(self, layers: Sequence[int]) -> list[Hook]:
        names = ("hook_attn_out", "hook_mlp_out")
        return [(f"blocks.{layer}.{name}", partial(self._watch, layer=layer)) for layer in layers for name in names]

    def _watch(self, tensor: Tensor, hook: object, layer: int) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: torch.zeros_like(gradient) if self.closed == layer else gradient)


@contextmanager
def frozen(module: torch.nn.Module) -> Iterator[None]:
    """Context in which the module's parameters get no gradient; their flags are restored afterwards."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def _gradients(difference: Float[Tensor, " prompt"], kept: Values, retain: bool = False) -> dict[str, Tensor]:
    """dLD/dx of each kept activation x. Prompts are independent, so the gradient of the sum is that of each prompt."""
    found = torch.autograd.grad(difference.sum(), list(kept.values()), retain_graph=retain, allow_unused=True)
    for name, gradient in zip(kept, found, strict=True):
        if gradient is None:
            raise DeadHookError(
                f"the logit difference does not depend on the tensor at {name}: a dead hook, or a part that writes nothing; use "
                "another model"
            )
    return {name: precise(gradient) for name, gradient in zip(kept, found, strict=True)}


def _dots(change: Values, gradient: Values) -> Float[Tensor, "prompt node"]:
    """Sum over positions and components of change times gradient; nodes are ordered by hook, then head."""
    home = next(iter(change.values())).device
    return torch.cat([(values * gradient[name]).sum((1, 3)).to(home) for name, values in change.items()], 1)


def _pull_back(
    norm: Norm,
    stream: Float[Tensor, "prompt position d_model"],
    upstream: Float[Tensor, "reader prompt position d_model"],
) -> Float[Tensor, "reader prompt position d_model"]:
    """J^T upstream, J the Jacobian of a norm at `stream`."""
    transposed = torch.func.vjp(norm, stream)[1]
    (found,) = torch.vmap(transposed)(upstream.to(stream.dtype))
    return found.to(upstream.dtype)


def _push_forward(
    norm: Norm,
    stream: Float[Tensor, "prompt position d_model"],
    change: Float[Tensor, "writer prompt position d_model"],
) -> Float[Tensor, "writer prompt position d_model"]:
    """J change, J the Jacobian of a norm at `stream`."""
    with FORWARD_MODE:
        found = torch.vmap(lambda one: torch.func.jvp(norm, (stream,), (one,))[1])(change.to(stream.dtype))
    return found.to(change.dtype)


def _other(base: Base) -> Base:
    return "clean" if base == "corrupted" else "corrupted"
