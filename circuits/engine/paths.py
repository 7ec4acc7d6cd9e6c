"""Interventions on paths: give one reader of the residual stream another input than all the others get.

In a pre-norm decoder the input of a reader is the sum of all earlier writers. With the writers W_r of reader r replaced,

    input_r = stream + sum_{w in W_r} (w under the recipe - w in this run)

and only r's own projection is recomputed from it. Rows of a batch are (variant, prompt) pairs, variant-major.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuits.circuit import Node
from circuits.edges import PROJECTIONS, Reader
from circuits.engine.sources import Sources
from circuits.interventions import Recipe, Variant
from circuits.models import Model
from circuits.prompts import PromptSet
from results_io import UserError

STREAM = "blocks.{}.hook_resid_pre"
TOLERANCE = 1e-3  # relative; a wrong formula is off by order 1, float32 by 1e-6

Channel = tuple[Node, Recipe]  # a writer and what it is replaced by
Hook = tuple[str, Callable[..., Tensor]]


class UnknownWiringError(UserError):
    """The model does not compute its readers' inputs the way that path interventions assume."""


def writer_hook(writer: Node) -> str:
    """Where a writer's value is read: z of a head, the output of an MLP, the stream that enters layer 0."""
    if writer.kind == "embedding":
        return STREAM.format(0)
    return f"blocks.{writer.layer}." + ("attn.hook_z" if writer.kind == "head" else "hook_mlp_out")


@dataclass(frozen=True, eq=False)
class Group:
    """Readers of one layer that see the same input. `replaced[variant, channel]` is True where a channel is replaced."""

    readers: tuple[Reader, ...]
    replaced: Bool[Tensor, "variant channel"]
    variants: Int[Tensor, " affected"]


@dataclass(eq=False)
class Rewiring:
    """The path interventions of a chunk of variants on one batch of prompts, as hooks for one forward pass."""

    model: Model
    variants: Sequence[Variant]
    batch: PromptSet
    sources: Sources
    _stream: dict[int, Tensor] = field(default_factory=dict)
    _changes: dict[Channel, Tensor] = field(default_factory=dict)
    _fired: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        used = {(e.writer, path.recipe): None for v in self.variants for path in v.on_paths for e in path.edges}
        self.channels: list[Channel] = list(used)
        self.groups = self._group()

    def _group(self) -> dict[tuple[int, str], list[Group]]:
        """(layer, reader kind) -> its groups of readers with equal inputs."""
        place = {channel: i for i, channel in enumerate(self.channels)}
        masks: dict[Reader, Tensor] = {}
        for row, variant in enumerate(self.variants):
            for path in variant.on_paths:
                for edge in path.edges:
                    mask = masks.setdefault(edge.reader, torch.zeros(len(self.variants), len(place), dtype=torch.bool))
                    mask[row, place[edge.writer, path.recipe]] = True
        alike: dict[tuple[int, str, bytes], list[Reader]] = {}
        for reader in sorted(masks):
            alike.setdefault((reader.layer, reader.kind, masks[reader].numpy().tobytes()), []).append(reader)
        groups: dict[tuple[int, str], list[Group]] = {}
        for (layer, kind, _), readers in alike.items():
            mask = masks[readers[0]]
            affected = mask.any(1).nonzero()[:, 0]
            groups.setdefault((layer, kind), []).append(Group(tuple(readers), mask, affected))
        return groups

    def hooks(self) -> list[Hook]:
        """To be added after the hooks of interventions on nodes, so that writers are read as those leave them."""
        return [(name, self._watched(name, act)) for name, act in self._actions()]

    def _watched(self, name: str, act: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def watched(tensor: Tensor, hook: object) -> Tensor:
            self._fired.add(name)
            return act(tensor)

        return watched

    def _actions(self) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
        found = [(writer_hook(node), partial(self._keep_changes, node=node)) for node in self._sites()]
        final = self.model.graph.logits.layer
        for layer, kind in self.groups:
            if kind in PROJECTIONS:
                found.append((STREAM.format(layer), partial(self._keep_stream, layer=layer)))
                found.append((f"blocks.{layer}.attn.hook_{kind}", partial(self._project, layer=layer, kind=kind)))
            else:
                name = "ln_final.hook_in" if layer == final else f"blocks.{layer}.ln2.hook_in"
                found.append((name, partial(self._shift, groups=self.groups[layer, kind])))
        return found

    def dead(self) -> set[str]:
        """Hooks that the forward pass did not call."""
        return {name for name, _ in self.hooks()} - self._fired

    def prefetch(self) -> None:
        """Compute every replacement before hooks are attached: it may run the model."""
        for writer, recipe in self.channels:
            self.sources.get(writer_hook(writer), recipe)

    def _sites(self) -> list[Node]:
        """One writer for each hook that has to be read."""
        return list({writer_hook(writer): writer for writer, _ in self.channels}.values())

    # --- hooks -----------------------------------------------------------------------------------------------------

    def _keep_changes(self, tensor: Tensor, node: Node) -> Tensor:
        """Remember (replacement - current value) of the writers at this hook, in the residual stream."""
        current = rearrange(tensor, "(variant prompt) ... -> variant prompt ...", variant=len(self.variants))
        for writer, recipe in self.channels:
            if writer_hook(writer) != writer_hook(node):
                continue
            source = self.sources.get(writer_hook(writer), recipe).to(tensor)
            if writer.kind == "head":
                change = source[:, :, writer.index] - current[:, :, :, writer.index]
                change = change @ self.model.projections["o"][writer.layer][writer.index]
            else:
                change = source - current
            self._changes[writer, recipe] = change
        return tensor

    def _keep_stream(self, tensor: Tensor, layer: int) -> Tensor:
        self._stream[layer] = tensor
        return tensor

    def _project(self, tensor: Tensor, layer: int, kind: str) -> Tensor:
        """Recompute the projections of the rewired readers from their own input."""
        result = tensor.clone()
        by_variant = result.view(len(self.variants), len(self.batch), *result.shape[1:])
        for group in self.groups[layer, kind]:
            normed = self.model.bridge.blocks[layer].ln1(self._input(self._stream[layer], group).flatten(0, 1))
            heads = [reader.index for reader in group.readers]
            values = project(self.model, layer, kind, normed, heads)
            values = rearrange(
                values, "(v prompt) position head dh -> v prompt position head dh", v=len(group.variants)
            )
            for place, variant in enumerate(group.variants.tolist()):
                by_variant[variant][:, :, heads] = values[place].to(result.dtype)
        return result

    def _shift(self, tensor: Tensor, groups: list[Group]) -> Tensor:
        """Give an MLP, or the logits, their own input."""
        result = tensor.clone()
        by_variant = result.view(len(self.variants), len(self.batch), *result.shape[1:])
        for group in groups:
            by_variant[group.variants.to(result.device)] = self._input(tensor, group)
        return result

    def _input(self, stream: Tensor, group: Group) -> Float[Tensor, "variant prompt position d_model"]:
        """What the readers of a group see, for the variants that rewire them."""
        rows = group.variants.to(stream.device)
        by_variant = rearrange(stream, "(variant prompt) p d -> variant prompt p d", variant=len(self.variants))
        used = group.replaced.any(0).nonzero()[:, 0].tolist()
        changes = torch.stack([self._changes[self.channels[i]][rows] for i in used])
        weights = group.replaced[group.variants][:, used].to(changes)
        delta = einsum(weights, changes, "variant channel, channel variant prompt p d -> variant prompt p d")
        return by_variant[rows] + delta


def project(
    model: Model, layer: int, kind: str, normed: Float[Tensor, "row position d_model"], heads: list[int]
) -> Float[Tensor, "row position head d_head"]:
    """Queries, keys or values of some heads from the normalised stream."""
    values = einsum(normed, model.projections[kind][layer][heads], "row p d, head d dh -> row p head dh")
    bias = model.projection_biases[kind][layer]
    return values if bias is None else values + bias[heads]


@torch.no_grad()
def prove_wiring(model: Model, run: Callable[[tuple[str, ...]], Mapping[str, Tensor]]) -> None:
    """UnknownWiringError unless every reader's input of an intact run is what path interventions take it to be.

    `run` returns the activations at hooks. Checked in each layer: queries, keys and values are the projections of the
    normalised stream; attention output is the sum of z W_O and a constant; what the MLP and the next layer (or the final
    norm) read is the plain sum of the writers.
    """
    for layer in range(model.n_layers):
        for what, expected, found in _wiring(model, run, layer):
            error = float((expected - found).abs().max() / found.abs().max().clamp(min=1e-9))
            if error > TOLERANCE:
                raise UnknownWiringError(
                    f"{what} of layer {layer} in model {model.name} is not the one of a pre-norm decoder (relative "
                    f"difference {error:.2g}), so path interventions would be wrong; use interventions on nodes"
                )


def _wiring(
    model: Model, run: Callable[[tuple[str, ...]], Mapping[str, Tensor]], layer: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(what, as path interventions compute it, as the model does) for one layer."""
    block, last = f"blocks.{layer}", layer == model.n_layers - 1
    following = "ln_final.hook_in" if last else STREAM.format(layer + 1)
    parts = ["hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_mlp_out", "ln2.hook_in"]
    parts += [f"attn.hook_{kind}" for kind in PROJECTIONS]
    kept = {name: t.to(model.device) for name, t in run((*(f"{block}.{part}" for part in parts), following)).items()}
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
