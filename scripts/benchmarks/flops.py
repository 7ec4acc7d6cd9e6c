"""How many floating-point operations a sweep takes: naively, and at least.

Matrix products only, two operations per multiply-add, causal attention over the positions that exist. One position of one
layer costs 2 d_model (3 d_model) for queries, keys and values, 4 d_model per attended position, 2 d_model^2 for W_O and
4 d_model d_mlp for the MLP; the unembedding 2 d_model vocabulary for each position that is unembedded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from circuits.interventions import Intervention, Sweep, Variant
from circuits.prompts import CHANGED, PromptSet
from results_io import UserError

LastLayer = Literal["all positions", "keys and values", "absorbed", "cheaper"]
STAGES = {"embedding": 0, "residual": 0, "head": 1, "attention": 1, "mlp": 2}
Key = tuple  # (base, the interventions so far): variants with one key share one state


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT-2-like decoder; heads are d_model / n_heads wide."""

    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int
    vocabulary: int

    @property
    def mlp(self) -> int:
        return 4 * self.d_model * self.d_mlp

    @property
    def projection(self) -> int:
        """One of W_Q, W_K, W_V, W_O at one position."""
        return 2 * self.d_model**2

    def attention(self, positions: Iterable[int]) -> int:
        """Scores and weighted values of queries at `positions`, each over itself and what precedes it."""
        return sum(4 * self.d_model * (position + 1) for position in positions)

    def layer(self, positions: Sequence[int]) -> int:
        """A whole layer at `positions`."""
        return len(positions) * (4 * self.projection + self.mlp) + self.attention(positions)

    def unembedding(self, positions: int) -> int:
        return 2 * self.d_model * self.vocabulary * positions


def naive(shape: Shape, variants: int, length: int, unembedded: int) -> int:
    """Operations per prompt when every variant is a whole forward pass that unembeds `unembedded` positions."""
    return variants * (shape.n_layers * shape.layer(range(length)) + shape.unembedding(unembedded))


def restart(shape: Shape, sweep: Sweep, length: int) -> int:
    """Operations per prompt of the expert loop: whole blocks from the first changed one on, one position unembedded."""
    blocks = sum(shape.n_layers - first_layer(variant, shape.n_layers) for variant in sweep.variants)
    return blocks * shape.layer(range(length)) + len(sweep) * shape.unembedding(1)


def first_layer(variant: Variant, n_layers: int) -> int:
    """The first block that has to run again; `n_layers` if the variant changes nothing."""
    layers = [node.layer for item in variant.on_nodes for node in item.nodes]
    return min(layers, default=n_layers)


def floor(shape: Shape, sweep: Sweep, prompts: PromptSet, last_layer: LastLayer = "cheaper") -> int:
    """Fewest operations per prompt that this family of methods needs: every changed (state, position, layer) once.

    States are distinct prefixes of interventions, so variants that differ only later share one. In the last layer only the
    last position is read: "all positions" ignores that, "keys and values" forms both at the changed positions, "absorbed"
    multiplies queries and weighted residuals by W_K and W_V instead and never forms them, "cheaper" takes the lesser. The
    answer direction costs 2 d_model a state, intact runs nothing (they are shared). It is a floor of this family, not a
    proof: the MLP is dense (spec/performance.md). Prompts must have one length (UserError).
    """
    length = int(prompts.end[0]) + 1
    if bool((prompts.end + 1 != length).any()):
        raise UserError(
            f"the floor needs prompts of one length, not {sorted(set(prompts.lengths.values()))}; split them"
        )
    trie = _Trie(shape, prompts, length, last_layer)
    return sum(trie.layer(sweep, layer) for layer in range(shape.n_layers)) + 2 * shape.d_model * len(sweep)


def changed_positions(intervention: Intervention, prompts: PromptSet) -> list[int]:
    """Positions that an intervention changes by itself: named ones, or all from the first that can differ.

    Patching a run on other tokens changes nothing before the first token that differs.
    """
    length = int(prompts.end[0]) + 1
    differs = (prompts.clean != prompts.corrupted).any(0).nonzero().flatten().tolist()
    if intervention.positions is None:
        start = differs[0] if intervention.recipe.kind == "patch" and differs else 0
        return list(range(start, length))
    named = [differs if role == CHANGED else prompts.positions[role].tolist() for role in intervention.positions]
    return sorted({position for places in named for position in places})


class _Trie:
    """Counts the distinct states of a sweep, layer by layer."""

    def __init__(self, shape: Shape, prompts: PromptSet, length: int, last_layer: LastLayer) -> None:
        self.shape, self.prompts, self.length, self.last_layer = shape, prompts, length, last_layer
        self._courses: dict[str, dict[tuple[int, int], list[int]]] = {}

    def layer(self, sweep: Sweep, layer: int) -> int:
        """Operations of one layer: attention of every changed parent, W_O and MLP of every changed child."""
        parents, children = {}, {}
        for variant in sweep.variants:
            parents[_key(variant, layer, 0)] = variant
            children[_key(variant, layer, 1)] = variant
        last = layer == self.shape.n_layers - 1 and self.last_layer != "all positions"
        attention = sum(self._attention(self._changed(variant, layer, 0), last) for variant in parents.values())
        return attention + sum(self._after(variant, layer, last) for variant in children.values())

    def _attention(self, changed: list[int], last: bool) -> int:
        """Queries, keys, values and mixing, given the changed positions of the stream entering the layer."""
        shape = self.shape
        if not changed:
            return 0
        if not last:
            return len(changed) * 3 * shape.projection + shape.attention(range(changed[0], self.length))
        formed = (1 + 2 * len(changed)) * shape.projection + shape.attention([self.length - 1])
        # W_K applied to the query and W_V to the weighted residuals, whose mixing is n_heads times as wide; the keys and
        # values of unchanged positions are the base run's
        mixing = 4 * shape.d_model * (self.length - len(changed) + shape.n_heads * len(changed))
        absorbed = 3 * shape.projection + mixing
        choice = {"keys and values": formed, "absorbed": absorbed}
        return choice.get(self.last_layer, min(formed, absorbed))

    def _after(self, variant: Variant, layer: int, last: bool) -> int:
        """W_O and the MLP, at the positions changed after attention."""
        changed = self._changed(variant, layer, 1)
        rows = len([place for place in changed if place == self.length - 1] if last else changed)
        if self._replaced(variant, layer, "mlp"):
            return rows * self._output(variant, layer)
        return rows * (self._output(variant, layer) + self.shape.mlp)

    def _output(self, variant: Variant, layer: int) -> int:
        """W_O at one position: of all heads after a changed parent, else of the changed heads alone."""
        if self._replaced(variant, layer, "attention"):
            return 0
        if self._changed(variant, layer, 0):
            return self.shape.projection
        heads = {
            node.index for item in variant.on_nodes for node in item.nodes if node.layer == layer and node.index >= 0
        }
        return self.shape.projection * len(heads) // self.shape.n_heads

    def _replaced(self, variant: Variant, layer: int, kind: str) -> bool:
        """True if the variant replaces the whole output of this sublayer at every position that could change."""
        own = [item for item in variant.on_nodes if any((n.kind, n.layer) == (kind, layer) for n in item.nodes)]
        return any(item.positions is None for item in own)

    def _changed(self, variant: Variant, layer: int, stage: int) -> list[int]:
        """Positions of the stream that differ from the base run once stage `stage` of `layer` is done."""
        if variant.name not in self._courses:
            self._courses[variant.name] = self._course(variant)
        return self._courses[variant.name][layer, stage]

    def _course(self, variant: Variant) -> dict[tuple[int, int], list[int]]:
        """The changed positions after every stage of every layer."""
        own: dict[tuple[int, int], set[int]] = {}
        for item in variant.on_nodes:
            places = changed_positions(item, self.prompts)
            for site in {(node.layer, STAGES[node.kind]) for node in item.nodes}:
                own.setdefault(site, set()).update(places)
        course, changed = {}, set()
        for layer in range(self.shape.n_layers):
            for stage in range(3):
                if stage == 1 and changed:  # attention carries a change to every later position
                    changed = set(range(min(changed), self.length))
                changed = changed | own.get((layer, stage), set())
                course[layer, stage] = sorted(changed)
        return course


def _key(variant: Variant, layer: int, stage: int) -> Key:
    """What decides a variant's state after stage `stage` of `layer`: its base and the interventions so far."""
    done = frozenset(
        (node, item.recipe, item.positions)
        for item in variant.on_nodes
        for node in item.nodes
        if (node.layer, STAGES[node.kind]) <= (layer, stage)
    )
    return (variant.base, done)
