"""The circuit as a graph: heads by layer and role, edges by their direct effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calibrations.claimed_nodes import ClaimedNode, names
from calibrations.evidence import Evidence, sampling_units
from meridian.figures.intervals import clustered_means, interval_words
from meridian.figures.layout import FAINT, HELPS, LOGITS, OPPOSES
from meridian.figures.values import CircuitGraph, GraphEdge, GraphNode
from meridian.run_folder import RunFolder


def build(run: RunFolder) -> Iterator[CircuitGraph]:
    """The circuit of 20 with the noising effects of 28 on its edges; without 28, the heads alone.

    A node's effect is its activation patching effect (02, denoising). An edge's effect is the loss in the clean run if only that
    edge carries the corrupted prompt. Both are in the unit of the task's metric.
    """
    evidence, paths = run.evidence, run.data("28")
    edges = () if paths is None else tuple(_edges(paths, evidence))
    nodes = list(_nodes(evidence))
    if any(edge.receiver == LOGITS for edge in edges):
        nodes.append(GraphNode(LOGITS, evidence.n_layers, LOGITS))
    prompts = 0 if paths is None else len(paths["rows"])
    told = (
        f"Edges: what the clean run loses when that edge alone carries the corrupted prompt, mean over {prompts} "
        f"prompts, {interval_words([edge.low for edge in edges])}. Blue {HELPS}, orange {OPPOSES}; the width grows "
        f"with the size. Left out of the drawing, not of the table: edges below {FAINT:.0%} of the largest, and "
        f"{sum(edge.uncertain for edge in edges)} of {len(edges)} whose interval holds 0. Dashed enters the receiver's "
        "queries, dotted its keys, solid its values or the logits; bends only keep edges apart. Results 20, 02, 28."
        if edges
        else "No edge weights: path patching (28) has not been run. Results 20, 02."
    )
    yield CircuitGraph(
        name="circuit",
        title=f"The circuit: {len(evidence.circuit_heads)} heads{_mlps(evidence)} by layer and role",
        caption=f"A disc's area grows with the size of the head's activation patching effect, from a smallest one "
        f"that holds its name. {told}",
        n_layers=evidence.n_layers,
        nodes=tuple(nodes),
        edges=edges,
        unit=evidence.unit,
    )


def head_name(head: Any) -> str:
    """[2, 1] as L2H1; the logits as they are."""
    return head if isinstance(head, str) else f"L{head[0]}H{head[1]}"


def _nodes(evidence: Evidence) -> Iterator[GraphNode]:
    effects = evidence.head_effect("02", "denoising").mean(axis=0) if evidence.has("02") else None
    for role, spec in evidence.circuit["roles"].items():
        for layer, head in spec["heads"]:
            effect = None if effects is None else float(effects[evidence.heads.index((layer, head))])
            yield GraphNode(head_name((layer, head)), layer, role, effect)
        mlps = dict.fromkeys(node.layer for node in map(ClaimedNode.read, names(spec)) if node.kind == "mlp")
        yield from (GraphNode(f"M{layer}", layer, role, None) for layer in mlps)  # 02 patches heads only


def _mlps(evidence: Evidence) -> str:
    count = evidence.counted_besides.get("mlps", 0)
    return f" and {count} MLP{'s' * (count > 1)}" if count else ""


def _edges(paths: Mapping[str, Any], evidence: Evidence) -> Iterator[GraphEdge]:
    effects = clustered_means(np.asarray(paths["noising"], float).T, *labels_of(evidence, paths["rows"]))
    ends = [map(head_name, paths[side]) for side in ("senders", "receivers")]
    for sender, receiver, into, weight, low, high in zip(*ends, paths["input"], *effects, strict=True):
        yield GraphEdge(sender, receiver, weight, into, low, high)


def labels_of(evidence: Evidence, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(clusters, templates) of the stored prompts `rows`, formed as `Evidence` does for its own prompts."""
    baseline = evidence.data("01")
    templates, names = (np.array(baseline[label])[list(rows)] for label in ("template", "cluster"))
    return sampling_units(templates, names), templates
