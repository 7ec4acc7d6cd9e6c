"""The schedule of a trie's pass, made before it runs: what is computed together in each layer, and where edits write.

Consecutive states are computed in blocks. States that share an edit get their own blocks if that saves more than it costs,
since the heads that the edit replaces need not be computed. All other states share blocks, whatever their edits. A block of n
states takes as many launches as a block of one, so there are as few blocks as the rows of one product allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Int

from circuits.circuit import Kind
from circuits.engine.indices import ArraySpan, Indices
from circuits.engine.trie import NOTHING, SITES, Edit, Part, Places, Shift, Trie, TrieStage
from circuits.interventions import Recipe

Where = Callable[[Places | None], tuple[Int[np.ndarray, " place"], Int[np.ndarray, " place"]]]
Number = Callable[[Kind, int, Recipe], int]  # index of a recipe among those of its site


@dataclass(frozen=True)
class Sizes:
    """Sizes of one pass: `first` is the first position that is computed. A block has at most `largest` rows.

    States that share an edit get their own blocks if they have at least `smallest` rows.
    """

    n_prompts: int
    n_heads: int
    length: int
    first: int
    largest: int
    smallest: int

    def blocks(self, states: slice, positions: int) -> Iterator[slice]:
        """Slices of consecutive states, of nearly equal size, with no more rows than one matrix product takes."""
        count, most = states.stop - states.start, max(1, self.largest // max(1, self.n_prompts * positions))
        blocks = -(-count // most)
        edges = [states.start + count * number // blocks for number in range(blocks + 1)] if count else []
        yield from (slice(*pair) for pair in pairwise(edges))


@dataclass(frozen=True)
class Writes:
    """What edits of one kind of site write into some states.

    `into` has the indices of the targets, `of` those of the sources: whole states if `whole`, else tokens (of single heads).
    """

    kind: Kind
    whole: bool
    into: ArraySpan
    of: ArraySpan


@dataclass(frozen=True)
class MlpBlock:
    """Children of the MLP stage. `parent` counts from the first state of their attention block; None: one child per state."""

    children: slice
    parent: ArraySpan | None
    writes: tuple[Writes, ...]


@dataclass(frozen=True)
class AttentionBlock:
    """Children of the attention stage. `parent` counts from the first state of their block.

    `pick`: the source of each child's heads, -1 for a head as computed; None if an edit is not of whole heads at all positions.
    """

    parent: ArraySpan
    n_children: int
    pick: ArraySpan | None
    writes: tuple[Writes, ...]
    mlp: tuple[MlpBlock, ...]


@dataclass(frozen=True)
class Block:
    """States whose attention is computed together.

    If all states share `edit`, its replaced heads are not computed and the children are in `mlp`; else they are in `attention`.
    """

    states: slice
    edit: Edit | None
    attention: tuple[AttentionBlock, ...] = ()
    mlp: tuple[MlpBlock, ...] = ()


@dataclass(frozen=True)
class StreamBlock:
    """States that enter a layer, and what edits write into their stream."""

    states: slice
    writes: tuple[Writes, ...]


@dataclass(frozen=True)
class LayerSchedule:
    """The schedule of a layer. `parent` of the entering states; None if the previous layer's states enter unchanged."""

    parent: ArraySpan | None
    stream: tuple[StreamBlock, ...]
    blocks: tuple[Block, ...]
    n_children: int


@dataclass(frozen=True)
class ShiftGroup:
    """Shifts of the final norm's input by writers of one kind and layer: indices of their sources and, for heads, the heads."""

    kind: Kind
    layer: int
    held: ArraySpan
    shown: ArraySpan
    heads: ArraySpan | None


@dataclass(frozen=True)
class Shifts:
    """The last stage. Each of `rounds` adds one shift to each of some children, by its index among those of all `groups`."""

    parent: ArraySpan
    groups: tuple[ShiftGroup, ...]
    rounds: tuple[tuple[ArraySpan, ArraySpan], ...]


class Schedule:
    """The layers of one pass, with all indices in `indices`, not yet sent to the device.

    `where` gives prompts and positions of roles (None: all), `number` a recipe's index among the sources of its site.
    """

    def __init__(self, trie: Trie, n_layers: int, sizes: Sizes, where: Where, number: Number) -> None:
        self.trie, self.sizes, self.where, self.number = trie, sizes, where, number
        self.indices = Indices()
        self.layers = tuple(self._layer(layer, layer == n_layers - 1) for layer in range(n_layers))
        self.shifts = None if trie.shifts.trivial else self._shifts(trie.shifts)
        self.leaves = self.indices.add(trie.leaves)

    # --- one layer -------------------------------------------------------------------------------------------------

    def _layer(self, layer: int, last: bool) -> LayerSchedule:
        stream, mlp = self.trie.steps[layer, "stream"], self.trie.steps[layer, "mlp"]
        start, sizes = self.sizes.first, self.sizes
        entering = () if stream.trivial else sizes.blocks(slice(0, len(stream.parent)), sizes.length - start)
        return LayerSchedule(
            None if stream.trivial else self.indices.add(stream.parent),
            tuple(StreamBlock(own, self._writes(layer, "stream", stream.edits[own], start)) for own in entering),
            tuple(self._blocks(layer, sizes.length - 1 if last else start)),
            len(mlp.parent),
        )

    def _blocks(self, layer: int, start: int) -> Iterator[Block]:
        """The blocks of a layer that writes the positions from `start` on."""
        step, sizes = self.trie.steps[layer, "attention"], self.sizes
        count = len(self.trie.steps[layer, "stream"].parent)
        for run, edit in runs(step, count, sizes.smallest / (sizes.n_prompts * (sizes.length - sizes.first))):
            for states in sizes.blocks(run, sizes.length - sizes.first):
                children = step.children(states)
                if edit is not None:
                    yield Block(states, edit, mlp=tuple(self._mlp(layer, children, start)))
                    continue
                parts = sizes.blocks(children, sizes.length - start)
                yield Block(states, None, tuple(self._attention(layer, states, own, start) for own in parts))

    def _attention(self, layer: int, states: slice, children: slice, start: int) -> AttentionBlock:
        step = self.trie.steps[layer, "attention"]
        edits = step.edits[children]
        picked = all(map(whole_heads, edits))
        return AttentionBlock(
            parent=self.indices.add(step.parent[children] - states.start),
            n_children=len(edits),
            pick=self.indices.add(self._pick(layer, edits)) if picked else None,
            writes=() if picked else self._writes(layer, "attention", edits, start),
            mlp=tuple(self._mlp(layer, children, start)),
        )

    def _mlp(self, layer: int, parents: slice, start: int) -> Iterator[MlpBlock]:
        step = self.trie.steps[layer, "mlp"]
        children = step.children(parents)
        if np.array_equal(step.parent[children], np.arange(parents.start, parents.stop)):
            yield MlpBlock(children, None, self._writes(layer, "mlp", step.edits[children], start))
            return
        for own in self.sizes.blocks(children, self.sizes.length - start):
            parent = self.indices.add(step.parent[own] - parents.start)
            yield MlpBlock(own, parent, self._writes(layer, "mlp", step.edits[own], start))

    # --- edits -----------------------------------------------------------------------------------------------------

    def _pick(self, layer: int, edits: Sequence[Edit]) -> Int[np.ndarray, "child head"]:
        pick = np.full((len(edits), self.sizes.n_heads), -1, np.int64)
        for child, edit in enumerate(edits):
            for kind, (recipe, heads, _) in edit:
                pick[child, list(heads)] = self.number(kind, layer, recipe)
        return pick

    def _writes(self, layer: int, stage: str, edits: Sequence[Edit], start: int) -> tuple[Writes, ...]:
        """What edits write at each kind of site of a stage, in the order in which a block computes them."""
        found = []
        kinds: list[Kind] = [kind for kind, at in SITES.items() if at == stage]
        for kind in kinds:
            parts = {
                state: own for state, edit in enumerate(edits) if (own := [part for site, part in edit if site == kind])
            }
            if parts:
                found.append(self._write(kind, layer, parts, start))
        return tuple(found)

    def _write(self, kind: Kind, layer: int, parts: Mapping[int, Sequence[Part]], start: int) -> Writes:
        """The writes of one kind of site; `parts` are by the index of the state that takes them."""
        whole = all(not heads and positions is None for own in parts.values() for _, heads, positions in own)
        if whole:
            into, of = list(parts), [self.number(kind, layer, own[-1][0]) for own in parts.values()]
            return Writes(kind, True, self.indices.add(np.array(into)), self.indices.add(np.array(of)))
        pairs = [self._places(kind, layer, state, own, start) for state, own in parts.items()]
        into, of = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return Writes(kind, False, self.indices.add(into), self.indices.add(of))

    def _places(
        self, kind: Kind, layer: int, state: int, parts: Sequence[Part], start: int
    ) -> tuple[Int[np.ndarray, " place"], Int[np.ndarray, " place"]]:
        """(indices in the states, indices in the sources) of one state's writes; at each place the later part wins."""
        sizes, per_token = self.sizes, self.sizes.n_heads if kind == "head" else 1
        into, of = [], []
        for recipe, heads, positions in parts:
            prompt, position = self.where(positions)
            prompt, position = prompt[position >= start], position[position >= start]
            token = (state * sizes.n_prompts + prompt) * (sizes.length - start) + position - start
            source = (self.number(kind, layer, recipe) * sizes.n_prompts + prompt) * sizes.length + position
            head = np.asarray(heads or (0,))
            into.append((token[:, None] * per_token + head).ravel())
            of.append((source[:, None] * per_token + head).ravel())
        whole_into, whole_of = np.concatenate(into), np.concatenate(of)
        places, last = np.unique(whole_into[::-1], return_index=True)
        return places, whole_of[::-1][last]

    # --- shifts of the final norm's input --------------------------------------------------------------------------

    def _shifts(self, step: TrieStage) -> Shifts:
        distinct = dict.fromkeys(shift for edit in step.edits for shift in edit)
        alike: dict[tuple[Kind, int], list[Shift]] = {}
        for shift in distinct:
            alike.setdefault((shift[0].kind, shift[0].layer), []).append(shift)
        numbers = {shift: number for number, shift in enumerate(shift for some in alike.values() for shift in some)}
        most = max(map(len, step.edits))
        rounds = [
            [(child, numbers[edit[turn]]) for child, edit in enumerate(step.edits) if turn < len(edit)]
            for turn in range(most)
        ]
        return Shifts(
            self.indices.add(step.parent),
            tuple(self._shift_group(kind, layer, some) for (kind, layer), some in alike.items()),
            tuple((self.indices.add(pairs[:, 0]), self.indices.add(pairs[:, 1])) for pairs in map(np.array, rounds)),
        )

    def _shift_group(self, kind: Kind, layer: int, shifts: Sequence[Shift]) -> ShiftGroup:
        numbers = [(self.number(kind, layer, held), self.number(kind, layer, shown)) for _, held, shown in shifts]
        held, shown = map(self.indices.add, np.array(numbers).T)
        heads = self.indices.add(np.array([writer.index for writer, _, _ in shifts])) if kind == "head" else None
        return ShiftGroup(kind, layer, held, shown, heads)


def runs(step: TrieStage, n_states: int, smallest: float) -> Iterator[tuple[slice, Edit | None]]:
    """Runs of consecutive states that are computed in the same way, each with their shared attention edit, or None.

    A shared edit is the only one of each state, and it replaces whole heads at all positions, or nothing. Runs of fewer than
    `smallest` states are merged with such neighbours and get None; a short run without an edit and such neighbours gets NOTHING.
    """
    single = np.bincount(step.parent, minlength=n_states) == 1
    edit_of = [step.edits[at] for at in np.searchsorted(step.parent, np.arange(n_states))]
    kinds = [edit if one and whole_heads(edit) else None for one, edit in zip(single, edit_of, strict=True)]
    alike, start = [], 0
    for kind, states in groupby(kinds):
        stop = start + len(list(states))
        alike.append((slice(start, stop), kind, kind is not None and stop - start >= smallest))
        start = stop
    for apart, group in groupby(alike, key=lambda run: run[2]):
        some = list(group)
        if apart:
            yield from ((states, kind) for states, kind, _ in some)
        else:  # a single run without an edit needs no selection of heads
            yield (
                slice(some[0][0].start, some[-1][0].stop),
                NOTHING if len(some) == 1 and some[0][1] == NOTHING else None,
            )


def whole_heads(edit: Edit) -> bool:
    """True if an edit of attention replaces whole heads at all positions, or nothing."""
    return all(kind == "head" and positions is None for kind, (_, _, positions) in edit)
