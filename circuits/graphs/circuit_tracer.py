"""The attribution graphs of circuit-tracer and Neuronpedia, as JSON: written, and read for the heads and MLPs in one.

    {"metadata": {"slug", "scan", "prompt_tokens", "prompt", ...}, "qParams": {...},
     "nodes": [{"node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp", ...}],
     "links": [{"source", "target", "weight"}]}

Its nodes are features of transcoders, which stand for their layer's MLP, and the transcoders' residuals ("mlp reconstruction
error"). The format has no type for heads: a head is written with feature type "attention head" and its name as "clerp".
Attention is frozen in such a graph, so graphs made by circuit-tracer name no heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from circuits.circuit import Node, parse_head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.graphs import json_file
from circuits.graphs.component_graph import ComponentGraph, Mark, component
from results_io import UserError

TOOL = "circuit-tracer"
HEAD, MLP, LOGIT, INPUT = "attention head", "mlp", "logit", "embedding"
OF_AN_MLP = (MLP, "cross layer transcoder", "transcoder", "mlp reconstruction error")


def is_one(document: Mapping[str, Any]) -> bool:
    """True if it has metadata, nodes and links."""
    lists = isinstance(document.get("nodes"), list) and isinstance(document.get("links"), list)
    return lists and isinstance(document.get("metadata"), Mapping)


def read(path: Path) -> ComponentGraph:
    """The heads and MLPs of a graph, and the links between them summed over features and positions.

    A head's input is not named, so a link to a head is read as a link to its query. Raises UserError for a broken node or link.
    """
    document = json_file.document_of(path)
    try:
        for part in ("nodes", "links"):
            for one in document[part]:
                json_file.keyed(one, f"one of its {part}")
        nodes = {str(one["node_id"]): _node(one) for one in document["nodes"]}
        logits = {str(one["node_id"]) for one in document["nodes"] if one["feature_type"] == LOGIT}
        parts = [node for node in nodes.values() if node is not None]
        n_layers = 1 + max((node.layer for node in parts), default=0)
        weights: dict[Edge, float] = {}
        for link in document["links"]:
            writer, reader = nodes[str(link["source"])], _reader(str(link["target"]), nodes, logits, n_layers)
            if writer is not None and reader is not None and writer != component(Edge(writer, reader)):
                edge = Edge(writer, reader)
                weights[edge] = weights.get(edge, 0.0) + json_file.number(link["weight"], "a weight")
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is no graph of {TOOL} ({json_file.reason(error)}); export it again") from error
    heads = 1 + max((node.index for node in parts), default=-1)
    marks = {node: Mark(True) for node in dict.fromkeys(parts)}
    edges = {edge: Mark(True, weight) for edge, weight in weights.items()}
    return ComponentGraph(TOOL, n_layers, heads, marks, edges, {"document": document}, whole=False)


def write(graph: ComponentGraph, path: Path, prompt: str = "", tokens: tuple[str, ...] = ("",)) -> None:
    """Write the parts and edges inside, all at the last position; a graph that was read is written unchanged."""
    if graph.tool == TOOL and "document" in graph.more:
        json_file.write(path, graph.more["document"])
        return
    end, inside = len(tokens) - 1, [node for node, mark in graph.nodes.items() if mark.inside]
    logits = {**_entry(Node("residual", graph.n_layers), end), "feature_type": LOGIT, "layer": str(graph.n_layers + 1)}
    entries = [_entry(node, end) for node in dict.fromkeys((EMBEDDING, *inside))]
    totals: dict[tuple[str, str], float] = {}
    for edge, mark in graph.edges.items():
        target = component(edge)
        if mark.inside:
            ends = (_id(edge.writer, end), logits["node_id"] if target is None else _id(target, end))
            totals[ends] = totals.get(ends, 0.0) + (1.0 if mark.score is None else mark.score)
    metadata = {"slug": path.stem, "scan": graph.tool, "transcoder_list": [], "prompt_tokens": list(tokens)}
    json_file.write(
        path,
        {
            "metadata": {**metadata, "prompt": prompt, "node_threshold": None},
            "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
            "nodes": [*entries, logits],
            "links": [{"source": a, "target": b, "weight": weight} for (a, b), weight in totals.items()],
        },
    )


def _id(node: Node, position: int) -> str:
    if node.kind == "embedding":
        return f"E_0_{position}"
    return f"{node.layer}_{'m' if node.kind == 'mlp' else 'l' if node.kind == 'residual' else node.index}_{position}"


def _entry(node: Node, position: int) -> dict[str, Any]:
    name = _id(node, position)
    kind = {"head": HEAD, "mlp": MLP, "embedding": INPUT}.get(node.kind, LOGIT)
    layer = "E" if node.kind == "embedding" else str(node.layer)
    return {
        "node_id": name,
        "feature": max(node.index, 0),
        "layer": layer,
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": kind == LOGIT,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{name}-0",
        "clerp": str(node) if node.kind in ("head", "mlp") else kind,
        "influence": None,
        "activation": None,
    }


def _node(given: Mapping[str, Any]) -> Node | None:
    """The part of the model that a node stands for; None for a logit. Raises UserError for a head without a name."""
    kind = given["feature_type"]
    if kind == HEAD:
        return parse_head(given["clerp"])
    if kind in OF_AN_MLP:
        return Node("mlp", json_file.integer(given["layer"], "a layer"))
    if kind == INPUT:
        return EMBEDDING
    if kind == LOGIT:
        return None
    raise ValueError(
        f"feature_type {kind!r} is unknown; expected {HEAD}, {LOGIT}, {INPUT} or one of {', '.join(OF_AN_MLP)}"
    )


def _reader(target: str, nodes: Mapping[str, Node | None], logits: set[str], n_layers: int) -> Reader | None:
    if target in logits:
        return Reader("logits", n_layers)
    node = nodes[target]
    if node is None or node.kind == "embedding":
        return None
    return Reader("mlp", node.layer) if node.kind == "mlp" else Reader("q", node.layer, node.index)
