"""A claim of ours with the edge scores of 08, as a graph that other tools read.

A claim of heads leaves every MLP intact, so all MLPs are inside its graph. An edge is inside if both its ends are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuits.circuit import HEADS_AND_MLPS, Node, names_of, parse_node
from circuits.edges import EMBEDDING, Edge, Graph
from circuits.graphs.component_graph import ComponentGraph, Mark, component
from results_io import UserError

TOOL = "Meridian"
METHOD = "eap_ig_inputs"  # the scores of 08 that are EAP-IG as published


def of_results(claim: Mapping[str, Any], edges: Mapping[str, Any], method: str = METHOD) -> ComponentGraph:
    """The graph of the `claim` that result 20 stores, with the scores by `method` of the section `edges` of 08, in nats.

    Raises UserError for a claim of positions, which graphs of other tools lack, for a method that 08 does not have, and for
    heads that share keys and values, because other tools name such edges by query head.
    """
    graph = _graph(edges)
    if method not in edges or "standard_error" not in edges or method not in edges["standard_error"]:
        raise UserError(f"method={method} is none of 08's; use {', '.join(edges['standard_error'])}")
    nodes = [parse_node(name) for role in claim["roles"].values() for name in _names(role)]
    if part := next((node for node in nodes if node.is_part), None):
        raise UserError(
            f"the claim names {part}, one position of a node, which graphs of other tools cannot say; claim the whole node"
        )
    mlps = () if claim.get("scope") == HEADS_AND_MLPS else [node for node in graph.writers if node.kind == "mlp"]
    inside = {*nodes, *mlps, EMBEDDING}
    scores = dict(_scores(graph, edges, method))
    return ComponentGraph(
        TOOL,
        graph.n_layers,
        graph.n_heads,
        {node: Mark(node in inside) for node in graph.writers},
        {edge: Mark({edge.writer, component(edge) or EMBEDDING} <= inside, score) for edge, score in scores.items()},
        {"parallel_attn_mlp": graph.parallel},
    )


def _names(role: Mapping[str, Any]) -> list[str]:
    return list(role["nodes"]) if "nodes" in role else names_of(Node("head", *pair) for pair in role["heads"])


def _graph(edges: Mapping[str, Any]) -> Graph:
    """The graph whose writers and readers 08 lists. Raises UserError if heads share keys and values."""
    writers, readers = edges["writers"], edges["readers"]
    n_layers = sum(name.startswith("mlp") for name in readers)
    n_heads, n_groups = (
        sum(name.startswith("L0H") and name.endswith(kind) for name in readers) for kind in (".q", ".k")
    )
    if n_heads != n_groups:
        raise UserError(
            f"{n_heads} heads of a layer share {n_groups} keys and values, and other tools name these by head; there is no graph "
            "of such a model to write"
        )
    beside = edges[METHOD][readers.index("mlp0")][writers.index("L0H0")] is None
    return Graph(n_layers, n_heads, n_groups, beside)


def _scores(graph: Graph, edges: Mapping[str, Any], method: str) -> list[tuple[Edge, float]]:
    """Every edge with its score, in the graph's order."""
    writer_at, reader_at = ({name: place for place, name in enumerate(edges[side])} for side in ("writers", "readers"))
    table = edges[method]
    return [(edge, float(table[reader_at[str(edge.reader)]][writer_at[str(edge.writer)]])) for edge in graph.edges]
