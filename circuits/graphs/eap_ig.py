"""The graph JSON of EAP-IG (Hanna et al. 2024), in which MIB's circuit track exchanges circuits (Mueller et al. 2025).

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {...}, "m0": {...}, "logits": {...}},
     "edges": {"input->a0.h0<q>": {"score": 0.1, "in_graph": true}, "m0->logits": {...}}}

Nodes may have "score", "neurons" and "neurons_scores", which are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from circuits.circuit import Node
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.graphs import json_file
from circuits.graphs.component_graph import ComponentGraph, Mark
from results_io import UserError

TOOL = "EAP-IG"
PARTS = ("cfg", "nodes", "edges")
HEAD, MLP = re.compile(r"a([0-9]{1,9})\.h([0-9]{1,9})"), re.compile(r"m([0-9]{1,9})")
TARGET = re.compile(r"(a[0-9]{1,9}\.h[0-9]{1,9})<([qkv])>")
LOGITS = "logits"


def is_one(document: Mapping[str, Any]) -> bool:
    """True if it has the three parts of a graph."""
    return all(isinstance(document.get(part), Mapping) for part in PARTS)


def read(path: Path) -> ComponentGraph:
    """The graph in a file. Raises UserError if a name in it is invalid or lies outside the model's shape."""
    document = json_file.document_of(path)
    try:
        config = document["cfg"]
        shape = json_file.integer(config["n_layers"], "n_layers"), json_file.integer(config["n_heads"], "n_heads")
        nodes = _once(
            (node_of(name), _mark(name, given)) for name, given in document["nodes"].items() if name != LOGITS
        )
        edges = _once((edge_of(name, shape[0]), _mark(name, given)) for name, given in document["edges"].items())
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is no graph of {TOOL} ({json_file.reason(error)}); export it again") from error
    outside = [node for node in nodes if node.layer >= shape[0] or node.index >= shape[1]]
    if outside:
        raise UserError(f"{path} names {name_of(outside[0])}, and its cfg has {shape[0]} layers x {shape[1]} heads")
    for edge in edges:
        reader = edge.reader
        if (
            edge.writer.layer >= shape[0]
            or edge.writer.index >= shape[1]
            or reader.layer > shape[0]
            or reader.index >= shape[1]
        ):
            raise UserError(
                f"{path} has the edge {edge_name(edge)}, and its cfg has {shape[0]} layers x {shape[1]} heads"
            )
        if not _feeds(edge, bool(config.get("parallel_attn_mlp"))):
            raise UserError(
                f"{path} has the edge {edge_name(edge)}, whose end does not come after its beginning; export it again"
            )
    more = {name: value for name, value in document.items() if name not in ("nodes", "edges")}
    if LOGITS in document["nodes"]:
        more[LOGITS] = document["nodes"][LOGITS]
    return ComponentGraph(TOOL, *shape, nodes, edges, more)


def write(graph: ComponentGraph, path: Path) -> None:
    """The file that `read` reads back to an equal graph, with the same contents as the one it was read from."""
    parallel = bool(graph.more.get("parallel_attn_mlp"))
    config = {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "parallel_attn_mlp": parallel}
    more = dict(graph.more) if graph.tool == TOOL else {}
    logits = more.pop(LOGITS, {"in_graph": True})
    nodes = {name_of(node): _entry(mark) for node, mark in graph.nodes.items()}
    edges = {edge_name(edge): _entry(mark) for edge, mark in graph.edges.items()}
    if graph.tool != TOOL or LOGITS in graph.more:
        nodes[LOGITS] = logits
    json_file.write(path, {"cfg": config, **more, "nodes": nodes, "edges": edges})


def _feeds(edge: Edge, parallel: bool) -> bool:
    """True if the reader comes after the writer: in a later layer, or as the MLP of the head's layer unless the two run in
    parallel."""
    writer, reader = edge.writer, edge.reader
    if writer.kind == "embedding" or reader.kind == "logits" or reader.layer > writer.layer:
        return True
    return reader.layer == writer.layer and reader.kind == "mlp" and writer.kind == "head" and not parallel


def node_of(name: str) -> Node:
    """The part of this name; ValueError if there is none."""
    if name == "input":
        return EMBEDDING
    if match := HEAD.fullmatch(name):
        return Node("head", int(match[1]), int(match[2]))
    if match := MLP.fullmatch(name):
        return Node("mlp", int(match[1]))
    raise ValueError(f"{name!r} is no node; expected input, a<layer>.h<head> or m<layer>")


def name_of(node: Node) -> str:
    if node.kind == "embedding":
        return "input"
    return f"m{node.layer}" if node.kind == "mlp" else f"a{node.layer}.h{node.index}"


def edge_of(name: str, n_layers: int) -> Edge:
    """The edge of this name; ValueError if there is none."""
    parent, _, child = name.partition("->")
    if child == LOGITS:
        return Edge(node_of(parent), Reader("logits", n_layers))
    if match := TARGET.fullmatch(child):
        end = node_of(match[1])
        return Edge(node_of(parent), Reader(match[2], end.layer, end.index))  # pyright: ignore[reportArgumentType]
    end = node_of(child)
    if end.kind != "mlp":
        raise ValueError(f"edge {name!r} ends at a head and names none of its inputs <q>, <k>, <v>")
    return Edge(node_of(parent), Reader("mlp", end.layer))


def edge_name(edge: Edge) -> str:
    parent, reader = name_of(edge.writer), edge.reader
    if reader.kind == "logits":
        return f"{parent}->{LOGITS}"
    if reader.kind == "mlp":
        return f"{parent}->m{reader.layer}"
    return f"{parent}->a{reader.layer}.h{reader.index}<{reader.kind}>"


def _once(pairs: Iterable[tuple[Any, Mark]]) -> dict[Any, Mark]:
    """Parts or edges with their marks; raises ValueError for one that occurs twice, as m1 and m01 do."""
    found: dict[Any, Mark] = {}
    for part, mark in pairs:
        if part in found:
            raise ValueError(f"{part} stands there twice")
        found[part] = mark
    return found


def _mark(name: str, given: Any) -> Mark:
    """The mark from {"in_graph", "score", ...}, from a bare score, or from the plain true or false of older files."""
    if isinstance(given, bool):
        return Mark(given, more={"plain": True})
    json_file.keyed(given, name)
    if not isinstance(given.get("in_graph", False), bool):
        raise ValueError(f"in_graph is {given['in_graph']!r}, and neither true nor false")
    more = {name: value for name, value in given.items() if name not in ("in_graph", "score")}
    if "in_graph" not in given:
        more["unmarked"] = True
    score = given.get("score")
    if "score" in given and score is None:
        more["score"] = None
    return Mark(bool(given.get("in_graph", False)), None if score is None else json_file.number(score, "a score"), more)


def _entry(mark: Mark) -> Any:
    if mark.more.get("plain"):
        return mark.inside
    score = {} if mark.score is None else {"score": mark.score}
    inside = {} if mark.more.get("unmarked") else {"in_graph": mark.inside}
    return {**score, **inside, **{name: value for name, value in mark.more.items() if name != "unmarked"}}
