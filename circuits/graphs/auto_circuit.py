"""auto-circuit's prune scores (Miller et al. 2024): a tensor of edge scores for every module that reads the stream.

    {"blocks.0.hook_q_input": [head, writer], ..., "blocks.0.hook_mlp_in": [writer], "blocks.1.hook_resid_post": [writer]}

saved with torch.save. Writers are in the order of the stream: the embedding, then layer by layer the heads and the MLP. A
module has scores for the writers before it. Scores with a first axis of positions are refused, since such a graph gives a claim
without positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import results_io
from circuits.circuit import Node
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.graphs import json_file
from circuits.graphs.component_graph import ComponentGraph, Mark, component, connected
from results_io import UserError

TOOL = "auto-circuit"
MOST_LAYERS = 1024  # limit for layers and for heads of a layer; the largest models have a few hundred of each
MODULE = re.compile(r"blocks\.([0-9]{1,9})\.hook_(q_input|k_input|v_input|mlp_in|resid_post)")


def read(path: Path) -> ComponentGraph:
    """The graph in a file; edges with a score other than 0 are inside. Raises UserError if the file has other contents."""
    scores = _scores_in(path)
    places = {name: MODULE.fullmatch(name) if isinstance(name, str) else None for name in scores}
    if unknown := [name for name, match in places.items() if match is None]:
        raise UserError(
            f"{path} has scores of {json_file.shown(unknown[0])}; expected blocks.<layer>.hook_q_input (k, v), hook_mlp_in and "
            "hook_resid_post of a factorised model with separate queries, keys and values"
        )
    found = [(int(match[1]), match[2], scores[name]) for name, match in places.items() if match]
    n_layers = 1 + max(layer for layer, _, _ in found)
    heads = {tensor.shape[0] for _, kind, tensor in found if kind.endswith("_input") and tensor.ndim == 2}
    wrong = [kind for _, kind, tensor in found if tensor.ndim != (2 if kind.endswith("_input") else 1)]
    if len(heads) != 1 or wrong:
        raise UserError(f"{path} has no scores of shape [head, writer] and [writer]; scores by position are not read")
    (n_heads,) = heads
    if n_layers > MOST_LAYERS or n_heads > MOST_LAYERS:
        raise UserError(
            f"{path} has {n_layers} layers x {n_heads} heads, and at most {MOST_LAYERS} of either are read; export it again"
        )
    has_mlps = any(kind == "mlp_in" for _, kind, _ in found)
    writers = writers_of(n_layers, n_heads, has_mlps)
    edges: dict[Edge, Mark] = {}
    for layer, kind, tensor in found:
        for reader, row in _readers(layer, kind, tensor):
            if len(row) > len(writers):
                raise UserError(
                    f"{path} scores {len(row)} writers in {reader}, and {n_layers} layers have {len(writers)}"
                )
            for writer, score in zip(writers, row.tolist(), strict=False):
                edges[Edge(writer, reader)] = Mark(score != 0, score)
    kept = connected({edge for edge, mark in edges.items() if mark.inside})
    inside = {end for edge in kept for end in (edge.writer, component(edge))}
    nodes = {node: Mark(node in inside) for node in writers}
    return ComponentGraph(TOOL, n_layers, n_heads, nodes, edges, {"dtype": {n: t.dtype for n, t in scores.items()}})


def write(graph: ComponentGraph, path: Path) -> None:
    """The file that `read` reads back. An edge without a score gets 1 if it is inside, and 0 if not."""
    rows: dict[str, dict[tuple[int, int], float]] = {}
    writers = writers_of(graph.n_layers, graph.n_heads, any(node.kind == "mlp" for node in graph.nodes))
    number = {writer: place for place, writer in enumerate(writers)}
    for edge, mark in graph.edges.items():
        place = (max(edge.reader.index, 0), number[edge.writer])
        rows.setdefault(_module(edge.reader, graph), {})[place] = float(
            mark.inside if mark.score is None else mark.score
        )
    dtypes = graph.more.get("dtype", {}) if graph.tool == TOOL else {}
    tensors = {}
    for module, values in rows.items():
        several = module.endswith("_input")
        tensor = torch.zeros(
            graph.n_heads if several else 1, 1 + max(writer for _, writer in values), dtype=torch.float64
        )
        for place, value in values.items():
            tensor[place] = value
        tensor = tensor.to(dtypes.get(module, torch.float32))
        tensors[module] = tensor if several else tensor[0]
    torch.save(tensors, path)


def writers_of(n_layers: int, n_heads: int, mlps: bool) -> tuple[Node, ...]:
    """All writers in the order of their scores; an attention-only model has no MLPs."""
    found = [EMBEDDING]
    for layer in range(n_layers):
        found += [Node("head", layer, index) for index in range(n_heads)]
        found += [Node("mlp", layer)] if mlps else []
    return tuple(found)


def _scores_in(path: Path) -> Mapping[str, Tensor]:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the pickle does
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        raise UserError(f"{path} is not a file of tensors ({reason}); save the scores with torch.save") from error
    if not isinstance(found, dict) or not found or not all(isinstance(one, Tensor) for one in found.values()):
        names = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise UserError(
            f"{path} holds {names[: results_io.SHOWN_NAME] or 'nothing'} in place of scores by module; save those of one "
            "algorithm alone"
        )
    for name, tensor in found.items():
        if fault := _no_scores(tensor):
            raise UserError(
                f"{path} has {fault} for {json_file.shown(name)}; save plain tensors of scores with torch.save"
            )
    return {name: tensor.detach() for name, tensor in found.items()}


def _no_scores(tensor: Tensor) -> str | None:
    """Why a tensor's scores cannot be read; None if they can."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return "a tensor that is sparse, quantised or without its numbers"
    if not tensor.is_floating_point():
        return f"numbers of type {str(tensor.dtype).removeprefix('torch.')} and no scores"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"a tensor of shape {tuple(tensor.shape)} that repeats fewer numbers"
    if not bool(tensor.isfinite().all()):
        return "NaN or infinity"
    return None


def _readers(layer: int, kind: str, tensor: Tensor) -> list[tuple[Reader, Tensor]]:
    if kind == "mlp_in":
        return [(Reader("mlp", layer), tensor)]
    if kind == "resid_post":
        return [(Reader("logits", layer + 1), tensor)]
    name = kind[0]
    return [(Reader(name, layer, index), row) for index, row in enumerate(tensor)]  # pyright: ignore[reportArgumentType]


def _module(reader: Reader, graph: ComponentGraph) -> str:
    if reader.kind == "logits":
        return f"blocks.{graph.n_layers - 1}.hook_resid_post"
    if reader.kind == "mlp":
        return f"blocks.{reader.layer}.hook_mlp_in"
    return f"blocks.{reader.layer}.hook_{reader.kind}_input"
