"""Recipe, Intervention, PathIntervention, Variant, Sweep, Effects: what to do to a model, as serialisable values.

These values run nothing; `circuits.engine` does. A sweep is a list of variants; each variant is a base run (clean or corrupted
tokens) with interventions on top, and the engine returns one logit difference per variant and prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

import results_io
from circuits.circuit import Node
from circuits.edges import Edge
from results_io import UserError

Base = Literal["clean", "corrupted"]
RecipeKind = Literal["zero", "zero_raw", "mean", "resample", "noise", "patch"]


@dataclass(frozen=True)
class Recipe:
    """What replaces an activation.

    zero: zeros. zero_raw: the equivalent of zeros in the unfolded model. mean: the mean over the reference prompts, per
    template and position, or over all prompts and positions if `pooled`. resample: the activation on a random reference prompt
    of the same template. noise: pooled mean plus `scale` x per-component SD x standard normal; with `additive` the original
    plus `scale` x SD x normal (SD of the embeddings over the reference prompts, as in causal tracing). patch: the activation
    at the same place in the run on `source` tokens.

    `draw` is the index of an independent draw of resample or noise. Draws are functions of `seed`, the draw, the layer and the
    prompt's own hash (`circuits.engine.philox`), never of its place in a batch or of the device.

    Norms and value biases are folded beforehand, as in TransformerLens: a head's constant c = b_V + b_LN W_V goes through W_O
    into the layer's output bias, since attention sums to 1. So

        zero       z = 0        removes what the head reads from the prompt and keeps c W_O
        zero_raw   z = -c       removes c W_O too, like zeroing the head in the unfolded model

    The two are the same in models without these biases (Llama, Qwen 3, Gemma) and for nodes other than heads.
    """

    kind: RecipeKind
    pooled: bool = False
    additive: bool = False
    scale: float = 1.0
    seed: int = 0
    draw: int = 0
    source: Base = "clean"

    def __post_init__(self) -> None:
        if self.kind not in get_args(RecipeKind):
            raise UserError(f"ablation kind {self.kind!r} is unknown; use one of {', '.join(get_args(RecipeKind))}")

    def __str__(self) -> str:
        if self.kind == "mean":
            return "mean over all positions" if self.pooled else "mean per template and position"
        if self.kind == "patch":
            return f"patched from the {self.source} run"
        if self.kind == "noise":
            return f"{'added' if self.additive else 'replaced by mean plus'} noise, {self.scale:g} SD, draw {self.draw}"
        if self.kind == "resample":
            return f"resample, draw {self.draw}"
        return "zero, its biases' constant removed" if self.kind == "zero_raw" else "zero, its biases' constant kept"


@dataclass(frozen=True)
class EveryBut:
    """Every position of a prompt except those that `roles` name: where a head claimed at positions is ablated.

    Raises UserError without a role, since all positions are written as None.
    """

    roles: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.roles:
            raise UserError("every position but none is every position; write positions=None")


@dataclass(frozen=True)
class Intervention:
    """Replace the activations of `nodes` by `recipe`, at the named `positions` or (None) at all of them.

    Nodes must be whole; `on_parts` makes interventions on parts of nodes. Raises ValueError for a part.
    """

    nodes: tuple[Node, ...]
    recipe: Recipe
    positions: tuple[str | EveryBut, ...] | None = None

    def __post_init__(self) -> None:
        parts = [node for node in self.nodes if node.is_part]
        if parts:
            raise ValueError(f"{parts[0]} is a part of a node, and positions belong to the intervention; use on_parts")


@dataclass(frozen=True)
class PathIntervention:
    """Show only the readers of `edges` the values of their writers under `recipe`.

    The input of reader r becomes stream + sum over its edges' writers w of (w under the recipe - w in this run), at all
    positions. The writers themselves are unchanged, so a single edge is just the direct path (Goldowsky-Dill et al. 2023), and
    a set of edges can be the complement of an edge-level circuit. If two path interventions of a variant change one edge, the
    later one counts.
    """

    edges: tuple[Edge, ...]
    recipe: Recipe


@dataclass(frozen=True)
class Variant:
    """One row of the effects table: a base run and the interventions on it.

    Interventions on nodes come first, in order; those on paths then see the changed nodes.
    """

    name: str
    interventions: tuple[Intervention | PathIntervention, ...] = ()
    base: Base = "clean"

    @property
    def on_nodes(self) -> tuple[Intervention, ...]:
        return tuple(item for item in self.interventions if isinstance(item, Intervention))

    @property
    def on_paths(self) -> tuple[PathIntervention, ...]:
        return tuple(item for item in self.interventions if isinstance(item, PathIntervention))


@dataclass(frozen=True)
class Sweep:
    """An ordered list of variants with distinct names.

    `probabilities`: also compute those of answers and foils, which needs the logits of the whole vocabulary.
    """

    variants: tuple[Variant, ...]
    probabilities: bool = False

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"variant name {twice!r} stands twice in a sweep; names must be distinct")

    def __len__(self) -> int:
        return len(self.variants)

    @cached_property
    def sha256(self) -> str:
        """Identity of the sweep within a process. No result stores it, so it may change with the fields of a variant."""
        return results_io.sha256(repr((self.probabilities, self.variants)).encode())


@dataclass(frozen=True)
class Effects:
    """The results of a sweep: one row per variant, one column per prompt.

    `logit_diff`: mean answer logit minus mean foil logit at the last position, in nats; from a study it holds the task's
    metric instead. `correct`: the answers are more probable than the foils. `answer_probability` is summed over the answers,
    `foil_probability` over the foils; both are None unless the sweep asks for them.
    """

    names: tuple[str, ...]
    logit_diff: Float[np.ndarray, "variant prompt"]
    correct: Bool[np.ndarray, "variant prompt"]
    answer_probability: Float[np.ndarray, "variant prompt"] | None
    sweep_sha256: str
    prompts_sha256: str
    foil_probability: Float[np.ndarray, "variant prompt"] | None = None

    @property
    def probabilities(self) -> tuple[Float[np.ndarray, "variant prompt"], Float[np.ndarray, "variant prompt"]]:
        """Probabilities of the answers and of the foils. Raises ValueError if the sweep did not ask for them."""
        if self.answer_probability is None or self.foil_probability is None:
            raise ValueError("the effects have no probabilities; run the sweep with probabilities=True")
        return self.answer_probability, self.foil_probability

    def part(self, rows: slice, sweep: Sweep) -> Effects:
        """The effects of some of the variants, which are those of `sweep`."""
        answers, foils = self.answer_probability, self.foil_probability
        return Effects(
            names=self.names[rows],
            logit_diff=self.logit_diff[rows],
            correct=self.correct[rows],
            answer_probability=None if answers is None else answers[rows],
            sweep_sha256=sweep.sha256,
            prompts_sha256=self.prompts_sha256,
            foil_probability=None if foils is None else foils[rows],
        )

    def row(self, name: str) -> Float[np.ndarray, " prompt"]:
        """Logit difference of the variant called `name`."""
        return self.logit_diff[self.names.index(name)]


def on_parts(nodes: Iterable[Node], recipe: Recipe) -> tuple[Intervention, ...]:
    """The interventions that replace each of `nodes` at all positions, or at the positions of its given parts.

    A token that two named positions share is replaced if either part is. Parts that cover a node count as the whole node.
    """
    places: dict[Node, tuple[str | EveryBut, ...] | None] = {}
    for node in nodes:
        if not node.is_part:
            places[node] = None
            continue
        known = places.get(node.whole, ())
        place = EveryBut(node.but) if node.but else node.position
        places[node.whole] = None if known is None else (*known, place)
    together: dict[tuple[str | EveryBut, ...] | None, list[Node]] = {}
    for node, own in places.items():
        together.setdefault(_everywhere(own), []).append(node)
    return tuple(Intervention(tuple(own), recipe, where) for where, own in together.items())


def _everywhere(places: tuple[str | EveryBut, ...] | None) -> tuple[str | EveryBut, ...] | None:
    """None if `places` cover all positions, else `places`."""
    named = {place for place in places or () if isinstance(place, str)}
    full = any(isinstance(place, EveryBut) and named >= set(place.roles) for place in places or ())
    return None if full else places


def ablate(nodes: Iterable[Node], recipe: Recipe, name: str) -> Variant:
    """The clean run with `nodes` ablated, each at its positions (no nodes: the clean run itself)."""
    return Variant(name, on_parts(nodes, recipe))


def denoise(nodes: Iterable[Node], name: str, positions: tuple[str, ...] | None = None) -> Variant:
    """The corrupted run with the clean activations of `nodes` put in: are they sufficient?"""
    return Variant(name, _patched(nodes, "clean", positions), "corrupted")


def noise(nodes: Iterable[Node], name: str, positions: tuple[str, ...] | None = None) -> Variant:
    """The clean run with the corrupted activations of `nodes` put in: are they necessary?"""
    return Variant(name, _patched(nodes, "corrupted", positions), "clean")


def _patched(nodes: Iterable[Node], source: Base, positions: tuple[str, ...] | None) -> tuple[Intervention, ...]:
    """Nodes patched from a run at `positions`, or (None) each at its own positions."""
    recipe = Recipe("patch", source=source)
    return on_parts(nodes, recipe) if positions is None else (Intervention(tuple(nodes), recipe, positions),)


def patch_paths(edges: Iterable[Edge], recipe: Recipe, name: str, base: Base = "clean") -> Variant:
    """The `base` run with `edges` carrying their writers' values under `recipe` (no edges: the base run itself)."""
    edges = tuple(edges)
    return Variant(name, (PathIntervention(edges, recipe),) if edges else (), base)
