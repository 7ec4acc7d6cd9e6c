"""What every discovery method returns: components in order of importance, and the run in which only some are intact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from circuits.circuit import HEADS, HEADS_AND_MLPS, Kind, Node, mlp
from circuits.edges import Graph
from circuits.hypothesis import scrub
from circuits.interventions import Recipe, Variant, ablate
from circuits.study import Study
from results_io import UserError

Weights = Float[np.ndarray, " prompt"]
Kept = Int[np.ndarray, " kept"]
Members = Bool[np.ndarray, " component"]


@dataclass(frozen=True, eq=False)
class ComponentRanking(ABC):
    """Heads or edges in order of importance.

    `order(weights)` gives their indices, most important first, with each prompt counted `weights` times; it is
    deterministic. `scores` are per component, if the method has any. A circuit of size n is the first n components. It is given
    as indices into `components`, because a model of a thousand heads has millions of edges.
    """

    components: tuple[Any, ...]
    order: Callable[[Weights], Int[np.ndarray, " component"]]
    scores: Float[np.ndarray, " component"] | None = None

    unit: ClassVar[str]
    recipe: ClassVar[Recipe]
    all_sizes: ClassVar[bool]  # True: every size is tried; False: a grid, then sizes between two of its points

    @abstractmethod
    def only(self, kept: Kept, name: str) -> Variant:
        """The clean run in which just these components are intact."""

    @abstractmethod
    def members(self, kept: Kept) -> Members:
        """Which components take part in the circuit made of these."""

    @abstractmethod
    def heads(self, members: Members) -> tuple[Node, ...]:
        """The heads of the circuit with these components, in (layer, head) order; then its MLPs, if MLPs were searched."""

    @abstractmethod
    def part(self, node: Node) -> Members:
        """The components that belong to a node."""

    @abstractmethod
    def strongest_heads(self, kept: Kept) -> tuple[Node, ...]:
        """The heads of the circuit made of these components, in the order of each one's first component."""

    def _chosen(self, members: Members) -> list[Any]:
        return [self.components[index] for index in np.flatnonzero(members)]

    def _mask(self, kept: Kept) -> Members:
        found = np.zeros(len(self.components), bool)
        found[kept] = True
        return found


def searched(study: Study) -> tuple[Node, ...]:
    """The nodes among which a search chooses: the model's heads, and its MLPs if `settings["discovery"]["scope"]` has them."""
    asked = study.settings["discovery"].get("scope", HEADS)
    return (*study.model.heads, *(mlp(layer) for layer in range(study.model.n_layers) if asked == HEADS_AND_MLPS))


def require_heads(study: Study, method: str) -> None:
    """Raises UserError if MLPs are to be searched too but `method` scores only heads."""
    if len(searched(study)) > len(study.model.heads):
        raise UserError(
            f"method {method} ranks heads alone, and measurement.discovery.scope asks for MLPs too; use method=ACDC-greedy or "
            "method=EAP-IG"
        )


class HeadRanking(ComponentRanking):
    """Heads; all other heads are mean-ablated per template and position, and everything except heads stays intact."""

    unit, recipe, all_sizes = "heads", Recipe("mean"), True

    def only(self, kept: Kept, name: str) -> Variant:
        return ablate(sorted(self._chosen(~self._mask(kept))), self.recipe, name)

    def members(self, kept: Kept) -> Members:
        return self._mask(kept)

    def heads(self, members: Members) -> tuple[Node, ...]:
        return tuple(sorted(self._chosen(members)))

    def part(self, node: Node) -> Members:
        return self._mask(np.array([self.components.index(node)]))

    def strongest_heads(self, kept: Kept) -> tuple[Node, ...]:
        return tuple(self.components[index] for index in kept)


class NodeRanking(HeadRanking):
    """Heads and MLPs; all others are mean-ablated per template and position."""

    unit = "nodes"


@dataclass(frozen=True, eq=False)
class EdgeRanking(ComponentRanking):
    """Edges, in the order of `graph.edges`; all others carry their writer's output on the corrupted prompt.

    A kept edge that lies on no path of kept edges from the embedding to the logits carries the corrupted value anyway, or
    does not reach the logits. Removing it changes no logit, so it does not count as part of the circuit.
    """

    graph: Graph = field(kw_only=True)
    kinds: tuple[Kind, ...] = field(kw_only=True, default=("head",))  # of writers that are part of the circuit

    unit, recipe, all_sizes = "edges", Recipe("patch", source="corrupted"), False

    def only(self, kept: Kept, name: str) -> Variant:
        return scrub(self._chosen(self.members(kept)), self.graph, self.recipe, name)

    def members(self, kept: Kept) -> Members:
        return connected(self._mask(kept), self.graph)

    def heads(self, members: Members) -> tuple[Node, ...]:
        writers = (self.graph.writers[index] for index in np.unique(_wiring(self.graph).writer[members]))
        return tuple(sorted(node for node in writers if node.kind in self.kinds))

    def part(self, node: Node) -> Members:
        """The edges that the head writes."""
        return _wiring(self.graph).writer == self.graph.writers.index(node)

    def strongest_heads(self, kept: Kept) -> tuple[Node, ...]:
        members = self.members(kept)
        writers = _wiring(self.graph).writer[[index for index in kept if members[index]]]
        nodes = (self.graph.writers[index] for index in dict.fromkeys(writers.tolist()))
        return tuple(node for node in nodes if node.kind in self.kinds)


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph as arrays: the ends of each edge, and the nodes that use each reader.

    A head uses its query, key and value, and an MLP its input. Under grouped-query attention a key or value input belongs
    to every head of its group.
    """

    writer: Int[np.ndarray, " edge"]
    reader: Int[np.ndarray, " edge"]
    used_by: Bool[np.ndarray, "writer reader"]


@cache
def _wiring(graph: Graph) -> Wiring:
    writers = {node: place for place, node in enumerate(graph.writers)}
    readers = {reader: place for place, reader in enumerate(graph.readers)}
    used_by = np.zeros((len(writers), len(readers)), bool)
    for reader, place in readers.items():
        users = (Node("mlp", reader.layer),) if reader.kind == "mlp" else graph.heads_of(reader)
        used_by[[writers[node] for node in users], place] = True
    return Wiring(
        np.array([writers[edge.writer] for edge in graph.edges]),
        np.array([readers[edge.reader] for edge in graph.edges]),
        used_by,
    )


def connected(kept: Bool[np.ndarray, " edge"], graph: Graph) -> Bool[np.ndarray, " edge"]:
    """The edges that lie on a path of kept edges from the embedding to the logits; edges in the order of `graph.edges`."""
    wiring = _wiring(graph)
    reads = np.zeros_like(wiring.used_by)
    reads[wiring.writer[kept], wiring.reader[kept]] = True
    reached, needed = np.zeros(len(reads), bool), np.zeros(len(reads), bool)
    fed, wanted = np.zeros((2, reads.shape[1]), bool)
    wanted[-1] = True  # the logits are the last reader, and the embedding the first writer
    for writer in range(len(reads)):
        if writer == 0 or (fed & wiring.used_by[writer]).any():
            reached[writer] = True
            fed |= reads[writer]
    for writer in reversed(range(len(reads))):
        if reached[writer] and (wanted & reads[writer]).any():
            needed[writer] = True
            wanted |= wiring.used_by[writer]
    return kept & needed[wiring.writer] & wanted[wiring.reader]


def by_size(scores: Float[np.ndarray, "prompt component"]) -> Callable[[Weights], Int[np.ndarray, " component"]]:
    """Order by |weighted mean over prompts|, largest first; ties in the order of the components.

    The sign does not count: components that work against the answer are part of how the model arrives at it.
    """

    def order(weights: Weights) -> Int[np.ndarray, " component"]:
        mean = weights.astype(scores.dtype) @ scores / weights.sum()
        return np.argsort(-np.abs(mean), kind="stable")

    return order
