"""Trie of the states that a set of variants passes through, layer by layer, shared until their interventions first differ.

A state is a residual stream (of every prompt of a batch). All variants start in the state of their base run and branch where
their edits differ: the children of a step are the distinct (parent state, edit) pairs. So what variants share is computed
once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from circuits.circuit import Kind, Node
from circuits.interventions import Base, EveryBut, Recipe, Variant

Places = tuple[str | EveryBut, ...]
Part = tuple[Recipe, tuple[int, ...], Places | None]  # recipe, heads (empty: all of it), position roles (None: all)
Edit = tuple[tuple[Kind, Part], ...]  # (kind of site, part), in the order in which they are applied
Stage = tuple[int, str]  # layer, and one of its STAGES
Shift = tuple[
    Node, Recipe, Recipe
]  # a writer, the recipe of its value, and the recipe that the final norm sees instead
STAGES = ("stream", "attention", "mlp")  # stages of a layer, in the order in which a block computes them
SITES: dict[Kind, str] = {
    "embedding": "stream",
    "residual": "stream",
    "head": "attention",
    "attention": "attention",
    "mlp": "mlp",
}
NOTHING: Edit = ()


@dataclass(frozen=True, eq=False)
class TrieStage:
    """The children of one stage, in the order of their parents, and the edit that makes each child."""

    parent: Int[np.ndarray, " child"]
    edits: tuple[tuple, ...]

    @property
    def trivial(self) -> bool:
        """True if every state continues unchanged, as its own only child in the same order."""
        return not any(self.edits) and np.array_equal(self.parent, np.arange(len(self.parent)))

    def children(self, parents: slice) -> slice:
        """The children of consecutive parents."""
        return slice(*np.searchsorted(self.parent, (parents.start, parents.stop)).tolist())


@dataclass(frozen=True, eq=False)
class Trie:
    """The steps of every stage, and the state in which each variant ends.

    `shifts` is the last step, whose edits are shifts of the final norm's input. `at_end` are the roles that name the last
    position.
    """

    steps: Mapping[Stage, TrieStage]
    shifts: TrieStage
    leaves: Int[np.ndarray, " variant"]
    at_end: frozenset[str]

    @property
    def width(self) -> int:
        """The largest number of states at any stage."""
        return max(len(step.parent) for step in self.steps.values())

    @property
    def recipes(self) -> Iterator[tuple[Kind, int, Recipe]]:
        """(kind of site, layer, recipe) of every edit and of both sides of every shift, in order, with repetitions."""
        for (layer, _), step in self.steps.items():
            yield from ((kind, layer, recipe) for edit in step.edits for kind, (recipe, _, _) in edit)
        for writer, held, shown in (shift for edit in self.shifts.edits for shift in edit):
            yield from ((writer.kind, writer.layer, recipe) for recipe in (held, shown))


def build(variants: Sequence[Variant], n_layers: int, at_end: Collection[str]) -> Trie:
    """The trie of some variants on one base run.

    `at_end` are the roles that name the last position. In the last layer only that position is read, so an edit of any other
    position makes no new state there, unless it edits the stream, from which keys and values are computed. `EveryBut` may
    include the last position and so always counts.
    """
    states, intact = np.zeros(len(variants), np.int64), np.ones(len(variants), bool)
    every, steps = [_edits(variant, n_layers - 1, at_end) for variant in variants], {}
    for stage in ((layer, part) for layer in range(n_layers) for part in STAGES):
        edits = [own.get(stage, NOTHING) for own in every]
        for number in np.flatnonzero(intact).tolist():
            if _restores(edits[number], variants[number].base):
                edits[number] = NOTHING
            intact[number] = not edits[number]
        steps[stage], states = _step(states, edits)
        if stage[1] == "stream":
            after = [own.get((stage[0], "attention"), NOTHING) for own in every]
            steps[stage], states = _arrange(steps[stage], states, after)
    shifts, states = _step(states, [final_norm_change(variant) or NOTHING for variant in variants])
    return Trie(steps, shifts, states, frozenset(at_end))


def final_norm_change(variant: Variant) -> tuple[Shift, ...] | None:
    """What the paths of a variant change in the final norm's input.

    None if they change more than that, or if the change is not known without a run.

    A writer's value is known if the variant replaces all of it, or if it precedes every replaced node.
    """
    held = {
        node: intervention.recipe if intervention.positions is None else None
        for intervention in variant.on_nodes
        for node in intervention.nodes
    }
    before = min((node.layer for node in held), default=math.inf)  # writers in earlier layers are those of the base run
    seen = {edge: path.recipe for path in variant.on_paths for edge in path.edges}
    intact = Recipe("patch", source=variant.base)
    for edge in seen:
        if edge.writer.layer < before:
            held.setdefault(edge.writer, intact)
    shifts: list[Shift] = []
    for edge, recipe in sorted(seen.items(), key=lambda item: item[0]):
        holds = held.get(edge.writer)
        if edge.reader.kind != "logits" or holds is None:
            return None
        if edge.writer.kind == "embedding":
            return None  # as a writer it is the stream entering layer 0, as a node the embedding without positions
        shifts.append((edge.writer, holds, recipe))
    return tuple(shifts)


def _step(states: Int[np.ndarray, " variant"], edits: Sequence[tuple]) -> tuple[TrieStage, Int[np.ndarray, " variant"]]:
    """The distinct (state, edit) pairs as children, and the child of each variant."""
    known = {edit: number for number, edit in enumerate(dict.fromkeys(edits))}
    keys = np.array([known[edit] for edit in edits], np.int64)
    pairs, children = np.unique(states * len(known) + keys, return_inverse=True)
    distinct = list(known)
    return TrieStage(pairs // len(known), tuple(distinct[key] for key in pairs % len(known))), children


def _arrange(
    step: TrieStage, states: Int[np.ndarray, " variant"], edits: Sequence[Edit]
) -> tuple[TrieStage, Int[np.ndarray, " variant"]]:
    """The same step with its children reordered, so that children with the same later attention edits are neighbours."""
    following: dict[int, set[Edit]] = {}
    for state, edit in zip(states.tolist(), edits, strict=True):
        following.setdefault(state, set()).add(edit)
    numbers: dict[frozenset[Edit], int] = {}
    kinds = [numbers.setdefault(frozenset(following[state]), len(numbers)) for state in range(len(step.parent))]
    order = np.argsort(kinds, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return TrieStage(step.parent[order], tuple(step.edits[old] for old in order)), place[states]


def _restores(edit: Edit, base: Base) -> bool:
    """True if an edit only restores values of the base run."""
    return all(recipe.kind == "patch" and recipe.source == base for _, (recipe, _, _) in edit)


def _edits(variant: Variant, last: int, at_end: Collection[str]) -> dict[Stage, Edit]:
    """The edit of a variant at each stage, without redundant parts."""
    parts: dict[tuple[int, Kind], list[Part]] = {}  # (layer, kind of site), in the order in which they are applied
    for intervention in variant.on_nodes:
        touched: dict[tuple[int, Kind], list[int]] = {}
        for node in intervention.nodes:
            touched.setdefault((node.layer, node.kind), []).extend([node.index] if node.kind == "head" else [])
        for (layer, kind), heads in touched.items():
            positions = intervention.positions
            if positions is not None and layer == last and SITES[kind] != "stream":
                positions = tuple(r for r in positions if isinstance(r, EveryBut) or r in at_end)
            if positions is None or positions:
                part = (intervention.recipe, tuple(sorted(set(heads))), positions)
                parts.setdefault((layer, kind), []).append(part)
    edits: dict[Stage, Edit] = {}
    for layer, kind in sorted(parts, key=lambda site: list(SITES).index(site[1])):  # as a block computes them
        stage = (layer, SITES[kind])
        edits[stage] = edits.get(stage, NOTHING) + tuple(_last(kind, parts[layer, kind]))
    return edits


def _last(kind: Kind, parts: Sequence[Part]) -> list[tuple[Kind, Part]]:
    """Parts of one kind without those that a later part overwrites everywhere."""
    if any(positions is not None for _, _, positions in parts):
        return [(kind, part) for part in parts]
    if kind != "head":
        return [(kind, part) for part in parts[-1:]]
    recipes = {head: recipe for recipe, heads, _ in parts for head in heads}
    together: dict[Recipe, list[int]] = {}
    for head in sorted(recipes):
        together.setdefault(recipes[head], []).append(head)
    return [(kind, (recipe, tuple(heads), None)) for recipe, heads in together.items()]
