"""Edges of the computational graph, as values: an edge is one writer's output as one reader sees it.

Writers add to the residual stream: the embedding, every attention head, every MLP. Readers take their input from it: the
query, key and value projections of attention heads, every MLP, and the logits. In a pre-norm decoder the input of a
reader is the sum of all earlier writers, so each (writer, reader) pair is an edge of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from circuits.circuit import Node
from results_io import UserError

ReaderKind = Literal["q", "k", "v", "mlp", "logits"]
PROJECTIONS: tuple[ReaderKind, ...] = ("q", "k", "v")
EMBEDDING = Node("embedding", 0)


@dataclass(frozen=True, order=True)
class Reader:
    """An input of a component: `q`, `k` or `v` of a head, an MLP's, or the final norm's (`logits`).

    `index` is a query head for q and a key-value head for k and v (under grouped-query attention several query heads
    share one); -1 for every other kind. The layer of `logits` is the number of layers.
    """

    kind: ReaderKind
    layer: int
    index: int = -1

    def __str__(self) -> str:
        if self.kind == "logits":
            return "logits"
        return f"L{self.layer}H{self.index}.{self.kind}" if self.index >= 0 else f"mlp{self.layer}"


@dataclass(frozen=True, order=True)
class Edge:
    """The direct path from a writer to a reader, through the residual stream only."""

    writer: Node
    reader: Reader

    def __str__(self) -> str:
        return f"{self.writer}->{self.reader}"


@dataclass(frozen=True)
class Graph:
    """All writers, readers and edges of a pre-norm decoder.

    `parallel`: attention and MLP of a layer both read the stream that enters the layer (GPT-NeoX), so the MLP does not
    see the heads of its own layer.
    """

    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel: bool = False

    @cached_property
    def writers(self) -> tuple[Node, ...]:
        """The embedding, then layer by layer the heads and the MLP."""
        found = [EMBEDDING]
        for layer in range(self.n_layers):
            found += [Node("head", layer, index) for index in range(self.n_heads)]
            found.append(Node("mlp", layer))
        return tuple(found)

    @cached_property
    def heads(self) -> tuple[Node, ...]:
        """All heads, layer by layer."""
        return tuple(node for node in self.writers if node.kind == "head")

    @cached_property
    def nodes(self) -> frozenset[Node | Reader]:
        """Writers and readers as a set, for look-up."""
        return frozenset(self.writers) | frozenset(self.readers)

    @property
    def logits(self) -> Reader:
        return Reader("logits", self.n_layers)

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        """Layer by layer the heads' q, k and v and the MLP, then the logits."""
        found = []
        for layer in range(self.n_layers):
            found += [Reader("q", layer, index) for index in range(self.n_heads)]
            found += [Reader("k", layer, index) for index in range(self.n_key_value_heads)]
            found += [Reader("v", layer, index) for index in range(self.n_key_value_heads)]
            found.append(Reader("mlp", layer))
        return (*found, self.logits)

    def reader_of(self, head: Node, kind: ReaderKind) -> Reader:
        """The query, key or value input of `head`; query heads of one group share their key and value inputs."""
        group = 1 if kind == "q" else self.n_heads // self.n_key_value_heads
        return Reader(kind, head.layer, head.index // group)

    def heads_of(self, reader: Reader) -> tuple[Node, ...]:
        """The heads that use an input: one for q, a whole group for k and v, none for an MLP's or the logits'."""
        if reader.kind not in PROJECTIONS:
            return ()
        group = 1 if reader.kind == "q" else self.n_heads // self.n_key_value_heads
        return tuple(Node("head", reader.layer, reader.index * group + place) for place in range(group))

    def connects(self, writer: Node, reader: Reader) -> bool:
        """True if `writer` comes before `reader`."""
        if writer.kind == "embedding":
            return True
        if reader.kind == "mlp" and writer.kind == "head" and not self.parallel:
            return writer.layer <= reader.layer
        return writer.layer < reader.layer

    def writers_of(self, reader: Reader) -> tuple[Node, ...]:
        """Every writer that `reader` sees."""
        return tuple(writer for writer in self.writers if self.connects(writer, reader))

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(Edge(writer, reader) for reader in self.readers for writer in self.writers_of(reader))

    def require(self, edge: Edge) -> None:
        """Raises UserError if the graph has no such edge."""
        if edge.writer not in self.nodes or edge.reader not in self.nodes:
            raise UserError(
                f"edge {edge} is outside a model with layers 0-{self.n_layers - 1}, {self.n_heads} heads and "
                f"{self.n_key_value_heads} key-value heads a layer; choose a writer (embedding, head or MLP) and a reader "
                "(q, k, v, MLP or logits) inside it"
            )
        if not self.connects(edge.writer, edge.reader):
            raise UserError(f"edge {edge} runs backwards: {edge.writer} writes after {edge.reader} has read")
