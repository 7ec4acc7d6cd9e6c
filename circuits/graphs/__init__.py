"""Circuits of other tools as files: read, written, and made into claims that a certificate can judge.

measured          a claim of ours with the scores of 08, to be written for other tools
component_graph   their common content: parts of a model, and edges between them, with scores
eap_ig            the JSON of EAP-IG and of MIB's circuit track
auto_circuit      auto-circuit's prune scores
circuit_tracer    the attribution graphs of circuit-tracer and Neuronpedia
"""

from __future__ import annotations

from pathlib import Path

from circuits.circuit import Circuit
from circuits.circuit import load as load_circuit_file
from circuits.graphs import auto_circuit, circuit_tracer, eap_ig, measured
from circuits.graphs.component_graph import ComponentGraph
from circuits.graphs.json_file import document_of
from results_io import UserError

__all__ = ["ComponentGraph", "load", "measured", "read", "write"]

TENSORS = (".pt", ".pkl")  # auto-circuit saves its scores with torch.save


def read(path: Path) -> ComponentGraph | None:
    """The graph in a file of another tool, recognised by its content; None for any other file.

    Raises UserError for a broken graph.
    """
    if path.suffix in TENSORS:
        return auto_circuit.read(path)
    if path.suffix != ".json":
        return None
    document = document_of(path)
    for module in (eap_ig, circuit_tracer):
        if module.is_one(document):
            return module.read(path)
    return None


def write(graph: ComponentGraph, path: Path, tool: str) -> None:
    """Write a graph as a file of `tool`. Raises UserError for an unknown tool, or a file suffix that the tool does not read."""
    module = next((module for module in (eap_ig, auto_circuit, circuit_tracer) if tool == module.TOOL), None)
    if module is None:
        names = ", ".join(module.TOOL for module in (eap_ig, auto_circuit, circuit_tracer))
        raise UserError(f"graphs are written for {names}, and tool={tool} is none of them; use one of these")
    endings = TENSORS if module is auto_circuit else (".json",)
    if path.suffix not in endings:
        raise UserError(f"{path} is no name for a graph of {tool}; end it in {' or '.join(endings)}")
    module.write(graph, path)


def load(
    path: Path, task: str, model: str, strongest: int | None = None, shape: tuple[int, int] | None = None
) -> Circuit:
    """The circuit in a file: a circuit file, or another tool's graph as a claim about this task and model, whose `shape` is
    (layers, heads).

    `strongest` takes that many edges of a graph by |score| instead of those it marks. Raises UserError as `read` does, and if a
    graph has another shape, marks nothing, or marks every head.
    """
    graph = read(path) if path.is_file() else None
    if graph is not None:
        own = (graph.n_layers, graph.n_heads)
        if shape is not None and (own != shape if graph.whole else own[0] > shape[0] or own[1] > shape[1]):
            raise UserError(
                f"{path} is a graph of {own[0]} layers x {own[1]} heads, and model {model} has {shape[0]} x {shape[1]}; use the "
                "graph of this model"
            )
        return graph.claim(path, task, model, strongest)
    if strongest is not None:
        raise UserError(f"{path} is no graph with scores, so circuit.strongest={strongest} means nothing; leave it out")
    return load_circuit_file(path)
