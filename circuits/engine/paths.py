"""Interventions on paths: one reader of the residual stream gets a changed input, and all other readers keep theirs.

In a pre-norm decoder the input of a reader is the sum of all earlier writers. With the writers W_r of reader r replaced,

    input_r = stream + sum_{w in W_r} (w under the recipe - w in this run)

and only r's own projection is recomputed from it. Rows of a batch are (variant, prompt) pairs, variant-major.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Node
from circuits.edges import PROJECTIONS, Reader
from circuits.engine.decoder import Hook
from circuits.engine.memory import Paths
from circuits.engine.sources import Sources
from circuits.interventions import Base, Recipe, Variant
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet

STREAM = "blocks.{}.hook_resid_pre"

Place = tuple[int, str]  # the place of readers: a layer, and "attention" (q, k and v together), "mlp" or "logits"


class UnknownWiringError(UnsupportedArchitectureError):
    """The model does not compute its readers' inputs the way that path interventions assume."""


def writer_hook(writer: Node) -> str:
    """The hook at which a writer's value is read: z of a head, the output of an MLP, the stream that enters layer 0."""
    if writer.kind == "embedding":
        return STREAM.format(0)
    return f"blocks.{writer.layer}." + ("attn.hook_z" if writer.kind == "head" else "hook_mlp_out")


@dataclass(frozen=True)
class ReplacedWriters:
    """Writers at one hook that the same readers see under the same recipe, so that one vector is added for all of them."""

    hook: str
    recipe: Recipe
    writers: tuple[Node, ...]
    readers: frozenset[Reader]


@dataclass(frozen=True)
class VariantPaths:
    """The path interventions of one variant.

    `replacements` are in the order in which their writers write. `inputs` groups the readers at each place by their input:
    {indices of the replacements in the input: readers with that input}.
    """

    replacements: tuple[ReplacedWriters, ...]
    inputs: Mapping[Place, Mapping[tuple[int, ...], tuple[Reader, ...]]]


def plan(variant: Variant) -> VariantPaths:
    """The path interventions of a variant, with readers of equal inputs grouped.

    If two interventions change one edge, the second counts.
    """
    recipes = {edge: path.recipe for path in variant.on_paths for edge in path.edges}
    seen_by: dict[tuple[Node, Recipe], set[Reader]] = {}
    for edge, recipe in recipes.items():
        seen_by.setdefault((edge.writer, recipe), set()).add(edge.reader)
    together: dict[tuple[str, Recipe, frozenset[Reader]], list[Node]] = {}
    for (writer, recipe), readers in sorted(seen_by.items(), key=lambda item: _written(item[0][0])):
        together.setdefault((writer_hook(writer), recipe, frozenset(readers)), []).append(writer)
    replacements = tuple(
        ReplacedWriters(hook, recipe, tuple(own), readers) for (hook, recipe, readers), own in together.items()
    )
    seen: dict[Reader, list[int]] = {}
    for index, replacement in enumerate(replacements):
        for reader in replacement.readers:
            seen.setdefault(reader, []).append(index)
    inputs: dict[Place, dict[tuple[int, ...], tuple[Reader, ...]]] = {}
    for reader in sorted(seen):
        place = reader.layer, "attention" if reader.kind in PROJECTIONS else reader.kind
        alike = inputs.setdefault(place, {})
        alike[tuple(seen[reader])] = (*alike.get(tuple(seen[reader]), ()), reader)
    return VariantPaths(replacements, inputs)


def most_paths(variants: Iterable[Variant]) -> Paths:
    """The most memory that the path interventions of one of these variants hold for each row and position.

    They hold a stream for each replacement, three for the inputs of readers, and a head for each reader of attention.
    """
    plans = [plan(variant) for variant in variants if variant.on_paths]
    readers = [
        sum(len(alike) for (_, part), own in one.inputs.items() if part == "attention" for alike in own.values())
        for one in plans
    ]
    return Paths(max((len(one.replacements) + 3 for one in plans), default=0), max(readers, default=0))


def first_change(variant: Variant) -> int:
    """The first layer in which a variant changes anything; the number of layers for the final norm."""
    nodes = [node.layer for intervention in variant.on_nodes for node in intervention.nodes]
    return min([*nodes, *(edge.reader.layer for path in variant.on_paths for edge in path.edges)])


def _is_intact(replacement: ReplacedWriters, variant: Variant) -> bool:
    """True if a replaced writer precedes everything that its variant changes, so that its output is that of the base run."""
    return replacement.writers[0].layer < first_change(variant)


def _written(writer: Node) -> tuple[int, int, int]:
    """Sort key: the order in which writers write."""
    return writer.layer, ("embedding", "head", "mlp").index(writer.kind), writer.index


@dataclass(eq=False, repr=False)  # TransformerLens names every hook by its repr, this object's included
class Rewiring:
    """The path interventions of a chunk of variants on one batch of prompts, as hooks for one forward pass."""

    model: Model
    variants: Sequence[Variant]
    batch: PromptSet
    sources: Sources
    _changes: dict[int, Float[Tensor, "replacement prompt position d_model"]] = field(default_factory=dict)
    _projected: dict[tuple[int, str], list[tuple[int, slice, list[int], Tensor]]] = field(default_factory=dict)
    _fired: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.plans = [plan(variant) for variant in self.variants]
        self._actions = self._list_actions()

    def hooks(self) -> list[Hook]:
        """Hooks to add after those of interventions on nodes, so that writers are read after those have acted."""
        return [(name, partial(self._act, name=name, act=act)) for name, act in self._actions]

    def dead(self) -> set[str]:
        """Hooks that the forward pass did not call."""
        return {name for name, _ in self._actions} - self._fired

    def prefetch(self) -> None:
        """Compute every replacement before hooks are attached, because that may run the model.

        The output of an intact writer is taken from the base run, so the forward pass needs no hook for it.
        """
        for one in self.plans:
            for replacement in one.replacements:
                self.sources.get(replacement.hook, replacement.recipe)
        intact: dict[Base, set[str]] = {}
        for variant, one in zip(self.variants, self.plans, strict=True):
            hooks = {replacement.hook for replacement in one.replacements if _is_intact(replacement, variant)}
            intact.setdefault(variant.base, set()).update(hooks)
        for base, hooks in intact.items():
            self.sources.prefetch(tuple(sorted(hooks)), base)
        for number, variant in enumerate(self.variants):
            for index, replacement in enumerate(self.plans[number].replacements):
                if _is_intact(replacement, variant):
                    current = self.sources.run_on(replacement.hook, variant.base)
                    self._room(number, current)[index] = self._change(replacement, current)

    def _list_actions(self) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
        written = sorted(
            {
                replacement.hook
                for variant, one in zip(self.variants, self.plans, strict=True)
                for replacement in one.replacements
                if not _is_intact(replacement, variant)
            }
        )
        found = [(name, partial(self._keep_changes, name=name)) for name in written]
        final = self.model.graph.logits.layer
        for layer, part in sorted({place for one in self.plans for place in one.inputs}):
            if part == "attention":
                found.append((STREAM.format(layer), partial(self._project, layer=layer)))
                groups = [group for one in self.plans for group in one.inputs.get((layer, part), {}).values()]
                found += [
                    (f"blocks.{layer}.attn.hook_{kind}", partial(self._exchange, layer=layer, kind=kind))
                    for kind in sorted({reader.kind for group in groups for reader in group})
                ]
            else:
                name = "ln_final.hook_in" if layer == final else f"blocks.{layer}.ln2.hook_in"
                found.append((name, partial(self._shift, place=(layer, part))))
        return found

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _act(self, tensor: Tensor, hook: object, name: str, act: Callable[[Tensor], Tensor]) -> Tensor:
        self._fired.add(name)
        return act(tensor)

    def _by_variant(self, tensor: Tensor) -> Tensor:
        return rearrange(tensor, "(variant prompt) ... -> variant prompt ...", variant=len(self.variants))

    def _keep_changes(self, tensor: Tensor, name: str) -> Tensor:
        """Store (replacement - current value) of every writer at this hook, as a change of the residual stream."""
        for variant, current in enumerate(self._by_variant(tensor)):
            for index, replacement in enumerate(self.plans[variant].replacements):
                if replacement.hook == name and not _is_intact(replacement, self.variants[variant]):
                    self._room(variant, tensor)[index] = self._change(replacement, current)
        return tensor

    def _room(self, variant: int, like: Tensor) -> Tensor:
        """Buffer for the changes by one variant's replacements, zero until the writer has been read."""
        if variant not in self._changes:
            shape = (len(self.plans[variant].replacements), *self.batch.clean.shape, self.model.bridge.cfg.d_model)
            self._changes[variant] = like.new_zeros(shape)
        return self._changes[variant]

    def _change(self, replacement: ReplacedWriters, current: Tensor) -> Float[Tensor, "prompt position d_model"]:
        source = self.sources.get(replacement.hook, replacement.recipe)
        writer, heads = replacement.writers[0], [writer.index for writer in replacement.writers]
        if writer.kind != "head":
            return source.to(current) - current
        weights = self.model.projections["o"][writer.layer][heads]
        current = current.to(weights.device)
        change = source[:, :, heads].to(current) - current[:, :, heads]
        return einsum(change, weights, "prompt p head dh, head dh d -> prompt p d")

    def _project(self, stream: Tensor, layer: int) -> Tensor:
        """Queries, keys and values of this layer's rewired readers, each from its own input."""
        here = stream.to(self.model.projections["q"][layer].device)
        for variant, own in enumerate(self._by_variant(here)):
            groups = self.plans[variant].inputs.get((layer, "attention"), {})
            for rows in self._slices(len(groups)):
                inputs = self._inputs(own, variant, list(groups), rows)
                normed = self.model.bridge.blocks[layer].ln1(inputs.flatten(0, 1)).view_as(inputs)
                for readers, seen in zip(groups.values(), normed, strict=True):
                    for kind, heads in _by_kind(readers).items():
                        values = project(self.model, layer, kind, seen, heads)
                        self._projected.setdefault((layer, kind), []).append((variant, rows, heads, values))
        return stream

    def _slices(self, n_groups: int) -> Iterator[slice]:
        """Slices of prompts so small that all groups of a slice together have no more rows than the forward pass."""
        if n_groups:
            size = max(1, len(self.variants) * len(self.batch) // n_groups)
            yield from (slice(start, start + size) for start in range(0, len(self.batch), size))

    def _exchange(self, tensor: Tensor, layer: int, kind: str) -> Tensor:
        """Put the rewired readers' projections in place of the model's."""
        result = tensor.clone()
        by_variant = self._by_variant(result)
        for variant, rows, heads, values in self._projected.pop((layer, kind), []):
            by_variant[variant][rows, :, heads] = values.to(result)
        return result

    def _shift(self, tensor: Tensor, place: Place) -> Tensor:
        """Give an MLP or the final norm (before the logits) its own input."""
        result = tensor.clone()
        for variant, own in enumerate(self._by_variant(result)):
            for seen in self.plans[variant].inputs.get(place, {}):
                own.copy_(self._inputs(own, variant, [seen], slice(None))[0])
        return result

    def _inputs(
        self, stream: Float[Tensor, "prompt position d_model"], variant: int, seen: list[tuple[int, ...]], rows: slice
    ) -> Float[Tensor, "group row position d_model"]:
        """The input of each group of readers on some rows; `seen` are the replacements that each group sees."""
        changes = self._room(variant, stream)[: 1 + max(map(max, seen)), rows].to(stream.device)
        mask = changes.new_zeros(len(seen), len(changes))
        for group, indices in enumerate(seen):
            mask[group, list(indices)] = 1
        return stream[rows] + einsum(mask, changes, "group change, change row p d -> group row p d")


def _by_kind(readers: Iterable[Reader]) -> dict[str, list[int]]:
    """{kind of reader: head indices}."""
    found: dict[str, list[int]] = {}
    for reader in readers:
        found.setdefault(reader.kind, []).append(reader.index)
    return found


def project(
    model: Model, layer: int, kind: str, normed: Float[Tensor, "row position d_model"], heads: list[int]
) -> Float[Tensor, "row position head d_head"]:
    """Queries, keys or values of some heads from the normalised stream."""
    values = einsum(normed, model.projections[kind][layer][heads], "row p d, head d dh -> row p head dh")
    bias = model.projection_biases[kind][layer]
    return values if bias is None else values + bias[heads]


@torch.no_grad()
def prove_wiring(model: Model, run: Callable[[tuple[str, ...]], Mapping[str, Tensor]]) -> None:
    """Raises UnknownWiringError unless every reader's input in an intact run is the one that path interventions assume.

    `run` returns the activations at hooks. Each layer is checked for four things. It has the hooks of a pre-norm decoder (one
    norm for attention, one for the MLP). Queries, keys and values are the projections of the normalised stream. Attention
    output is the sum of z W_O and a constant. The MLP and the next layer (or the final norm) read the plain sum of the
    writers. The tolerance is the square root of the dtype's rounding error; a wrong formula has an error of order 1.
    """
    tolerance = torch.finfo(model.dtype).eps ** 0.5
    for layer in range(model.n_layers):
        missing = [name for name in _observed(model, layer) if name not in model.bridge.hook_dict]
        if missing:
            raise UnknownWiringError(
                f"model {model.name} has no {missing[0]}, so it is not a pre-norm decoder with one norm for attention and "
                "one for the MLP, and path interventions would be wrong; use interventions on nodes"
            )
        for what, expected, found in _wiring(model, run, layer):
            error = float((expected - found).abs().max() / found.abs().max().clamp(min=1e-9))
            if error > tolerance:
                raise UnknownWiringError(
                    f"{what} of layer {layer} in model {model.name} is not the one of a pre-norm decoder (relative "
                    f"difference {error:.2g}), so path interventions would be wrong; use interventions on nodes"
                )


def _observed(model: Model, layer: int) -> tuple[str, ...]:
    """The hooks that show a layer's wiring; the last is that of the stream leaving it."""
    parts = ["hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_mlp_out", "ln2.hook_in"]
    parts += [f"attn.hook_{kind}" for kind in PROJECTIONS]
    following = "ln_final.hook_in" if layer == model.n_layers - 1 else STREAM.format(layer + 1)
    return (*(f"blocks.{layer}.{part}" for part in parts), following)


def _wiring(
    model: Model, run: Callable[[tuple[str, ...]], Mapping[str, Tensor]], layer: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(what is compared, value by path interventions, value in the model) for one layer."""
    names = _observed(model, layer)
    block, following = f"blocks.{layer}", names[-1]
    kept = {name: tensor.to(model.projections["o"][layer].device) for name, tensor in run(names).items()}
    stream, attention = kept[f"{block}.hook_resid_pre"], kept[f"{block}.hook_attn_out"]
    normed = model.bridge.blocks[layer].ln1(stream)
    for kind in PROJECTIONS:
        found = kept[f"{block}.attn.hook_{kind}"]
        yield f"the {kind} projection", project(model, layer, kind, normed, list(range(found.shape[2]))), found
    heads = einsum(kept[f"{block}.attn.hook_z"], model.projections["o"][layer], "row p h dh, h dh d -> row p d")
    constant = (attention - heads).mean((0, 1))
    yield "the attention output", heads + constant, attention
    yield "the MLP input", stream if model.graph.parallel else stream + attention, kept[f"{block}.ln2.hook_in"]
    yield "the output", stream + attention + kept[f"{block}.hook_mlp_out"], kept[following]
