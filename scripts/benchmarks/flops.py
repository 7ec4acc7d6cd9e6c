"""The number of floating-point operations of a sweep: naively, and at least.

Only matrix products count, with two operations per multiply-add and causal attention over the positions that exist. One position
of one layer costs 2 d_model (3 d_model) for queries, keys and values, 4 d_model per attended position, 2 d_model^2 for W_O and
4 d_model d_mlp for the MLP. The unembedding costs 2 d_model vocabulary for each position that is unembedded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from circuits.interventions import Intervention, Sweep, Variant
from circuits.prompts import CHANGED, PromptSet
from results_io import UserError

LastLayer = Literal["all positions", "keys and values", "absorbed", "cheaper"]
STAGES = {"embedding": 0, "residual": 0, "head": 1, "attention": 1, "mlp": 2}
Key = tuple  # (base, the interventions so far): variants with one key share one state


@dataclass(frozen=True)
class DecoderShape:
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
        """Operations of one of W_Q, W_K, W_V, W_O at one position."""
        return 2 * self.d_model**2

    def attention(self, positions: Iterable[int]) -> int:
        """Operations of scores and weighted values for queries at `positions`, each over itself and all positions before it."""
        return sum(4 * self.d_model * (position + 1) for position in positions)

    def layer(self, positions: Sequence[int]) -> int:
        """Operations of a whole layer at `positions`."""
        return len(positions) * (4 * self.projection + self.mlp) + self.attention(positions)

    def unembedding(self, positions: int) -> int:
        return 2 * self.d_model * self.vocabulary * positions


def naive(shape: DecoderShape, variants: int, length: int, unembedded: int) -> int:
    """Operations per prompt if every variant is a whole forward pass that unembeds `unembedded` positions."""
    return variants * (shape.n_layers * shape.layer(range(length)) + shape.unembedding(unembedded))


def restart(shape: DecoderShape, sweep: Sweep, length: int) -> int:
    """Operations per prompt of the expert loop: whole blocks from the first changed one on, one position unembedded."""
    blocks = sum(shape.n_layers - first_layer(variant, shape.n_layers) for variant in sweep.variants)
    return blocks * shape.layer(range(length)) + len(sweep) * shape.unembedding(1)


def first_layer(variant: Variant, n_layers: int) -> int:
    """The first block that has to run again; `n_layers` if the variant changes nothing."""
    layers = [node.layer for item in variant.on_nodes for node in item.nodes]
    return min(layers, default=n_layers)


def floor(
    shape: DecoderShape,
    sweep: Sweep,
    prompts: PromptSet,
    last_layer: LastLayer = "cheaper",
    every_head: bool = False,
) -> int:
    """The fewest operations per prompt in this family of methods: every changed (state, position, layer) is computed once.

    States are distinct prefixes of interventions, so variants that differ only later share one. The answer direction costs
    2 d_model per variant; intact runs cost nothing, because they are shared. Heads that all variants of a state replace at all
    positions are not computed, and the output of replaced heads is projected once for each distinct intervention. With
    `every_head`, all heads of a changed state are computed instead.

    Of the last layer, only the last position is read. `last_layer` says how that is used:

    - "all positions": not at all;
    - "keys and values": both are formed at the changed positions;
    - "absorbed": queries and weighted residuals are multiplied by W_K and W_V, so keys and values are never formed;
    - "cheaper": the cheaper of the two.

    This is the floor of this family and not a proof for all methods: the MLP is dense. UserError unless prompts have one length.
    """
    length = int(prompts.end[0]) + 1
    if bool((prompts.end + 1 != length).any()):
        raise UserError(
            f"the floor needs prompts of one length, not {sorted(set(prompts.lengths.values()))}; split them"
        )
    trie = _Trie(shape, prompts, length, last_layer, every_head)
    return sum(trie.layer(sweep, layer) for layer in range(shape.n_layers)) + 2 * shape.d_model * len(sweep)


def changed_positions(intervention: Intervention, prompts: PromptSet) -> list[int]:
    """Positions that an intervention itself changes: the named ones, or all from the first that can differ.

    Patching from a run on other tokens changes nothing before the first token that differs.
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

    def __init__(
        self, shape: DecoderShape, prompts: PromptSet, length: int, last_layer: LastLayer, every_head: bool = False
    ) -> None:
        self.shape, self.prompts, self.length = shape, prompts, length
        self.last_layer, self.every_head = last_layer, every_head
        self._courses: dict[str, dict[tuple[int, int], list[int]]] = {}
        self._changed_by: dict[tuple, list[int]] = {}

    def layer(self, sweep: Sweep, layer: int) -> int:
        """Operations of one layer: attention of every changed parent state, W_O and MLP of every changed child state."""
        parents, children, written = {}, {}, {}
        computed: dict[Key, set[int]] = {}
        for variant in sweep.variants:
            parent = _key(variant, layer, 0)
            parents[parent] = variant
            computed.setdefault(parent, set()).update(self._computed(variant, layer))
            children[_key(variant, layer, 1)] = variant
        last = layer == self.shape.n_layers - 1 and self.last_layer != "all positions"
        attention = sum(
            self._attention(self._changed(variant, layer, 0), last) * len(computed[parent]) // self.shape.n_heads
            for parent, variant in parents.items()
        )
        for variant in children.values():
            written |= self._written(variant, layer, last)
        return attention + sum(written.values()) + sum(self._after(v, layer, last) for v in children.values())

    def _computed(self, variant: Variant, layer: int) -> set[int]:
        """Heads whose own output a variant uses at some position."""
        if self.every_head:
            return set(range(self.shape.n_heads))
        if self._replaced(variant, layer, "attention"):
            return set()
        whole = {head for item in variant.on_nodes if item.positions is None for head in _heads(item, layer)}
        return set(range(self.shape.n_heads)) - whole

    def _attention(self, changed: list[int], last: bool) -> int:
        """Operations of queries, keys, values and mixing of all heads, given the changed positions at the layer's input."""
        shape = self.shape
        if not changed:
            return 0
        if not last:
            return len(changed) * 3 * shape.projection + shape.attention(range(changed[0], self.length))
        formed = (1 + 2 * len(changed)) * shape.projection + shape.attention([self.length - 1])
        # W_K is applied to the query and W_V to the weighted residuals, whose mixing is n_heads times as wide. Keys and values
        # of unchanged positions are those of the base run.
        mixing = 4 * shape.d_model * (self.length - len(changed) + shape.n_heads * len(changed))
        absorbed = 3 * shape.projection + mixing
        choice = {"keys and values": formed, "absorbed": absorbed}
        return choice.get(self.last_layer, min(formed, absorbed))

    def _after(self, variant: Variant, layer: int, last: bool) -> int:
        """Operations of the MLP, and of W_O for heads computed after a changed parent, at positions changed after attention."""
        rows = len(self._read(self._changed(variant, layer, 1), last))
        mlp = 0 if self._replaced(variant, layer, "mlp") else self.shape.mlp
        if not self._changed(variant, layer, 0) or self._replaced(variant, layer, "attention"):
            return rows * mlp
        return rows * (mlp + self._output(self._computed(variant, layer)))

    def _written(self, variant: Variant, layer: int, last: bool) -> dict[Key, int]:
        """Operations of W_O for each intervention's replacements of heads, unless the computed heads' product covers them."""
        after_change = bool(self._changed(variant, layer, 0))
        if self._replaced(variant, layer, "attention") or (after_change and self.every_head):
            return {}
        found: dict[Key, int] = {}
        for item in variant.on_nodes:
            heads = _heads(item, layer)
            if heads and not (after_change and item.positions is not None):
                rows = len(self._read(self._places(item), last))
                found[variant.base, heads, item.recipe, item.positions] = rows * self._output(heads)
        return found

    def _read(self, positions: Sequence[int], last: bool) -> list[int]:
        """The positions that are read after attention; in the last layer, only the last position."""
        return [place for place in positions if not last or place == self.length - 1]

    def _output(self, heads: Collection[int]) -> int:
        """Operations of W_O for some heads at one position."""
        return self.shape.projection * len(heads) // self.shape.n_heads

    def _replaced(self, variant: Variant, layer: int, kind: str) -> bool:
        """True if the variant replaces the whole output of this sublayer at every position that could change."""
        own = [item for item in variant.on_nodes if any((n.kind, n.layer) == (kind, layer) for n in item.nodes)]
        return any(item.positions is None for item in own)

    def _changed(self, variant: Variant, layer: int, stage: int) -> list[int]:
        """Positions of the residual stream that differ from the base run after stage `stage` of `layer`."""
        if variant.name not in self._courses:
            self._courses[variant.name] = self._course(variant)
        return self._courses[variant.name][layer, stage]

    def _places(self, item: Intervention) -> list[int]:
        """Positions that an intervention itself changes; they depend only on its recipe's kind and its positions' roles."""
        key = (item.recipe.kind, item.positions)
        if key not in self._changed_by:
            self._changed_by[key] = changed_positions(item, self.prompts)
        return self._changed_by[key]

    def _course(self, variant: Variant) -> dict[tuple[int, int], list[int]]:
        """The changed positions after every stage of every layer."""
        own: dict[tuple[int, int], set[int]] = {}
        for item in variant.on_nodes:
            places = self._places(item)
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


def _heads(item: Intervention, layer: int) -> frozenset[int]:
    """Heads of a layer that an intervention replaces."""
    return frozenset(node.index for node in item.nodes if (node.kind, node.layer) == ("head", layer))


def _key(variant: Variant, layer: int, stage: int) -> Key:
    """The key of a variant's state after stage `stage` of `layer`: its base and the interventions so far."""
    done = frozenset(
        (node, item.recipe, item.positions)
        for item in variant.on_nodes
        for node in item.nodes
        if (node.layer, STAGES[node.kind]) <= (layer, stage)
    )
    return (variant.base, done)
