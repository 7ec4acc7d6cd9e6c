"""ComponentGraph: what another tool says about the parts of a model and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import results_io
from circuits.circuit import HEADS, HEADS_AND_MLPS, Circuit, Node, Role, mlp
from circuits.edges import EMBEDDING, Edge
from results_io import UserError


@dataclass(frozen=True)
class Mark:
    """Whether a part or an edge is in the circuit, its score if any, and the tool's other data about it."""

    inside: bool
    score: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentGraph:
    """Parts and edges of a model as a tool marks them.

    As in the tools, the reader of an edge names the query head for q, k and v, even if heads share keys and values. `more` is
    the file's other content, so that writing it again loses nothing. `whole`: the file names the model's shape; otherwise
    `n_layers` and `n_heads` come from its parts.
    """

    tool: str
    n_layers: int
    n_heads: int
    nodes: Mapping[Node, Mark]
    edges: Mapping[Edge, Mark]
    more: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True

    def strongest(self, count: int) -> ComponentGraph:
        """The graph with the `count` edges of largest |score| inside, and the parts they connect from the input to the logits.

        Raises UserError unless at least `count` edges have a score.
        """
        scored = [edge for edge, mark in self.edges.items() if mark.score is not None]
        if type(count) is not int or not 1 <= count <= len(scored):
            raise UserError(
                f"circuit.strongest={count}, and the graph has {len(scored)} edges with a score; use 1 to that"
            )
        ranked = sorted(scored, key=lambda edge: -abs(self.edges[edge].score or 0.0))  # stable: ties as in the file
        kept = connected(set(ranked[:count]))
        parts = {end for edge in kept for end in (edge.writer, component(edge)) if end is not None}
        return replace(
            self,
            nodes={node: replace(mark, inside=node in parts) for node, mark in self.nodes.items()},
            edges={edge: replace(mark, inside=edge in kept) for edge, mark in self.edges.items()},
        )

    @property
    def heads(self) -> tuple[Node, ...]:
        """Heads inside, in (layer, head) order."""
        return tuple(sorted(node for node, mark in self.nodes.items() if mark.inside and node.kind == "head"))

    @property
    def mlps(self) -> tuple[int, ...]:
        """Layers whose MLP is inside."""
        return tuple(sorted(node.layer for node, mark in self.nodes.items() if mark.inside and node.kind == "mlp"))

    def claim(self, path: Path, task: str, model: str, strongest: int | None = None) -> Circuit:
        """The parts inside as a claim about a task and a model, in one role, since a graph names no roles.

        If the graph has MLPs, inside or not, the claim is about heads and MLPs, because the tools ablate both. Raises UserError
        if nothing is inside, or if all heads of a graph that names the model's shape are inside and `strongest` is None.
        """
        graph = self if strongest is None else self.strongest(strongest)
        if not graph.heads and not graph.mlps:
            raise UserError(f"{path} ({self.tool}) has neither a head nor an MLP in its circuit; a claim needs one")
        if self.whole and len(graph.heads) == self.n_layers * self.n_heads and strongest is None:
            raise UserError(
                f"{path} ({self.tool}) has every head in its circuit, which claims nothing; give circuit.strongest=N for "
                "its N strongest edges"
            )
        provenance: dict[str, Any] = {
            "kind": "user",
            "source": f"{self.tool} graph",
            "split": "none",
            "file_sha256": results_io.file_digest(path),
        }
        if strongest is not None:
            provenance["strongest_edges"] = strongest
        evidence = f"in the circuit of a {self.tool} graph, which names no roles"
        roles = {"circuit": Role.of((*graph.heads, *map(mlp, graph.mlps)), evidence=evidence)}
        has_mlps = any(node.kind == "mlp" for node in self.nodes)
        return Circuit(path.stem, task, model, roles, provenance, scope=HEADS_AND_MLPS if has_mlps else HEADS)


def component(edge: Edge) -> Node | None:
    """The head or MLP that an edge ends at; None for the logits."""
    reader = edge.reader
    if reader.kind == "logits":
        return None
    return Node("mlp", reader.layer) if reader.kind == "mlp" else Node("head", reader.layer, reader.index)


def connected(kept: set[Edge]) -> set[Edge]:
    """The kept edges that lie on a path of kept edges from the input to the logits."""
    while True:
        fed = {component(edge) for edge in kept} | {EMBEDDING}
        read = {edge.writer for edge in kept}
        alive = {edge for edge in kept if edge.writer in fed and (component(edge) is None or component(edge) in read)}
        if len(alive) == len(kept):
            return alive
        kept = alive
