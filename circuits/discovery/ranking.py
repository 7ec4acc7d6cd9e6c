"""What every discovery method gives: components in order of importance, and the run in which only some are intact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from circuits.circuit import Node
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Graph, Reader
from circuits.hypothesis import scrub
from circuits.interventions import Recipe, Variant, ablate

Weights = Float[np.ndarray, " prompt"]


@dataclass(frozen=True, eq=False)
class Ranking(ABC):
    """Heads or edges, and in which order they matter.

    `order(weights)` gives their indices, most important first, with each prompt counted `weights` times; it is
    deterministic. `scores` by component where the method has any. A circuit of size n is the first n components.
    """

    components: tuple[Any, ...]
    order: Callable[[Weights], Int[np.ndarray, " component"]]
    scores: Float[np.ndarray, " component"] | None = None

    unit: ClassVar[str]
    recipe: ClassVar[Recipe]
    all_sizes: ClassVar[bool]  # whether every size is tried, or a few and then those between two of them

    def first(self, size: int, weights: Weights) -> tuple[Any, ...]:
        """The `size` most important components."""
        return tuple(self.components[index] for index in self.order(weights)[:size])

    @abstractmethod
    def only(self, kept: Iterable[Any], name: str) -> Variant:
        """The clean run in which just these components are intact."""

    @abstractmethod
    def surviving(self, kept: Iterable[Any]) -> frozenset[Any]:
        """The components that take part."""

    @abstractmethod
    def heads(self, kept: Iterable[Any]) -> tuple[Node, ...]:
        """The heads of the circuit made of these components, in (layer, head) order."""


class HeadRanking(Ranking):
    """Heads; all others are mean-ablated per template and position, and everything but heads stays as it is."""

    unit, recipe, all_sizes = "heads", Recipe("mean"), True

    def only(self, kept: Iterable[Node], name: str) -> Variant:
        return ablate(sorted(set(self.components) - set(kept)), self.recipe, name)

    def surviving(self, kept: Iterable[Node]) -> frozenset[Node]:
        return frozenset(kept)

    def heads(self, kept: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(sorted(kept))


@dataclass(frozen=True, eq=False)
class EdgeRanking(Ranking):
    """Edges; all others carry what their writer gives on the corrupted prompt.

    An edge that is not on a path of kept edges from the embedding to the logits carries the corrupted value anyway, or
    reaches nothing: leaving it out changes no logit, and it is no part of the circuit.
    """

    graph: Graph | None = None

    unit, recipe, all_sizes = "edges", Recipe("patch", source="corrupted"), False

    def only(self, kept: Iterable[Edge], name: str) -> Variant:
        return scrub(self.surviving(kept), self.graph, self.recipe, name)

    def surviving(self, kept: Iterable[Edge]) -> frozenset[Edge]:
        return connected(kept, self.graph)

    def heads(self, kept: Iterable[Edge]) -> tuple[Node, ...]:
        return tuple(sorted({edge.writer for edge in self.surviving(kept) if edge.writer.kind == "head"}))


def connected(kept: Iterable[Edge], graph: Graph) -> frozenset[Edge]:
    """The edges that lie on a path of kept edges from the embedding to the logits.

    A path enters a head by its query, key or value, and an MLP by its input. Under grouped-query attention a key or value
    input belongs to every head of its group.
    """
    kept = frozenset(kept)
    read_by: dict[Node, set[Reader]] = {}
    for edge in kept:
        read_by.setdefault(edge.writer, set()).add(edge.reader)
    reached, fed = set(), set()
    for writer in graph.writers:
        if writer == EMBEDDING or fed & set(_inputs(writer, graph)):
            reached.add(writer)
            fed |= read_by.get(writer, set())
    needed, wanted = set(), {graph.logits}
    for writer in reversed(graph.writers):
        if writer in reached and wanted & read_by.get(writer, set()):
            needed.add(writer)
            wanted.update(_inputs(writer, graph))
    return frozenset(edge for edge in kept if edge.writer in needed and edge.reader in wanted)


def _inputs(writer: Node, graph: Graph) -> Sequence[Reader]:
    """What a writer reads."""
    if writer.kind == "head":
        return [graph.reader_of(writer, kind) for kind in PROJECTIONS]
    return [Reader("mlp", writer.layer)] if writer.kind == "mlp" else []


def by_size(scores: Float[np.ndarray, "prompt component"]) -> Callable[[Weights], Int[np.ndarray, " component"]]:
    """Order by |weighted mean over prompts|, largest first; ties in the order of the components.

    The size and not the sign: components that work against the answer are part of how the model arrives at it.
    """

    def order(weights: Weights) -> Int[np.ndarray, " component"]:
        mean = weights.astype(scores.dtype) @ scores / weights.sum()
        return np.argsort(-np.abs(mean), kind="stable")

    return order
