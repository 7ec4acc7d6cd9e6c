"""The claim of a finished run as a graph of other tools: written, read back, and claimed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circuits import graphs
from circuits.circuit import HEADS_AND_MLPS, complement, head
from circuits.graphs import auto_circuit, eap_ig, measured
from meridian.finished_run import FinishedRun
from results_io import UserError

LAYERS, HEADS = 4, 8  # of pocket
EVERY = [head(layer, index) for layer in range(LAYERS) for index in range(HEADS)]


@pytest.fixture(scope="module")
def run(finished: Path) -> FinishedRun:
    return FinishedRun.open(finished)


def claimed(run: FinishedRun) -> set:
    return {head(*pair) for role in run.circuit["roles"].values() for pair in role["heads"]}


def test_what_another_tool_reads_back_leaves_the_same_heads_outside(run, tmp_path) -> None:
    run.write_graph(tmp_path / "graph.json")
    document = json.loads((tmp_path / "graph.json").read_text())
    assert document["cfg"] == {"n_layers": LAYERS, "n_heads": HEADS, "parallel_attn_mlp": False}
    found = graphs.load(tmp_path / "graph.json", "ioi", "pocket", shape=(LAYERS, HEADS))
    assert set(found.heads) == claimed(run) and found.scope == HEADS_AND_MLPS
    assert complement(found.nodes, found.in_scope(EVERY, LAYERS)) == complement(claimed(run), EVERY)


def test_scores_are_08_s_and_edges_inside_join_parts_inside(run, tmp_path) -> None:
    run.write_graph(tmp_path / "graph.json")
    edges, graph = run.require("08")["data"]["edges"], graphs.read(tmp_path / "graph.json")
    assert graph is not None
    table = np.array(edges["eap_ig_inputs"], float)
    assert len(graph.edges) == int((~np.isnan(table)).sum())
    for edge, mark in graph.edges.items():
        row, column = edges["readers"].index(str(edge.reader)), edges["writers"].index(str(edge.writer))
        assert mark.score == table[row, column]
        ends = (edge.writer, head(edge.reader.layer, edge.reader.index))
        assert mark.inside == all(
            end in claimed(run) for end in ends[: 1 + (edge.reader.index >= 0)] if end.kind == "head"
        )
    eap_ig.write(graph, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "graph.json").read_bytes()


def test_the_other_tools(run, tmp_path) -> None:
    run.write_graph(tmp_path / "scores.pt", tool="auto-circuit", method="eap")
    scores, edges = graphs.read(tmp_path / "scores.pt"), run.require("08")["data"]["edges"]
    assert scores is not None
    table = np.array(edges["eap"], np.float32)
    assert all(
        mark.score == table[edges["readers"].index(str(edge.reader)), edges["writers"].index(str(edge.writer))]
        for edge, mark in scores.edges.items()
    )
    auto_circuit.write(scores, tmp_path / "again.pt")
    assert graphs.read(tmp_path / "again.pt") == scores
    run.write_graph(tmp_path / "attribution.json", tool="circuit-tracer")
    found = graphs.load(tmp_path / "attribution.json", "ioi", "pocket")
    assert set(found.heads) == claimed(run) and found.mlp_layers == tuple(range(LAYERS))


def test_what_cannot_be_written_is_one_sentence_and_leaves_no_file(run, tmp_path) -> None:
    for name, asked, sentence in (
        ("graph.json", {"tool": "TransformerLens"}, "tool=TransformerLens is none of them; use one of these"),
        ("graph.pt", {}, "is no name for a graph of EAP-IG; end it in .json"),
        ("graph.json", {"method": "x"}, "method=x is none of 08's; use eap, eap_ig_activations, eap_ig_inputs"),
    ):
        with pytest.raises(UserError, match=sentence):
            run.write_graph(tmp_path / name, **asked)
    assert not list(tmp_path.iterdir())


def tables(shared: bool = False, beside: bool = False) -> dict[str, Any]:
    """The section of a model of one layer and two heads."""
    readers = ["L0H0.q", "L0H1.q", "L0H0.k", *([] if shared else ["L0H1.k"]), "L0H0.v", *([] if shared else ["L0H1.v"])]
    own = None if beside else 2.0
    rows = [*([1.0, None, None, None] for _ in readers), [1.0, own, own, None], [1.0, 2.0, 3.0, 4.0]]
    names = {"writers": ["embedding0", "L0H0", "L0H1", "mlp0"], "readers": [*readers, "mlp0", "logits"]}
    return {**names, "eap_ig_inputs": rows, "standard_error": {"eap_ig_inputs": rows}}


def test_shared_keys_and_values_and_positions_are_refused_and_layers_beside_each_other_are_told() -> None:
    claim: dict[str, Any] = {"roles": {"a": {"heads": [[0, 1]]}}}
    with pytest.raises(UserError, match="2 heads of a layer share 1 keys and values"):
        measured.of_results(claim, tables(shared=True))
    with pytest.raises(UserError, match="the claim names L0H1@end, one position of a node"):
        measured.of_results({"roles": {"a": {"heads": [[0, 1]], "nodes": ["L0H1@end"]}}}, tables())
    one, other = (measured.of_results(claim, tables(beside=beside)) for beside in (False, True))
    assert (len(one.edges), len(other.edges)) == (6 + 3 + 4, 6 + 1 + 4)
    assert not one.more["parallel_attn_mlp"] and other.more["parallel_attn_mlp"]
    assert one.heads == (head(0, 1),) and one.mlps == (0,)
    whole = {"roles": {"a": {"heads": [[0, 1]], "nodes": ["L0H1"]}}, "scope": HEADS_AND_MLPS}
    assert measured.of_results(whole, tables()).mlps == ()
    of_the_mlp = {"roles": {"a": {"heads": [], "nodes": ["M0"]}}, "scope": HEADS_AND_MLPS}
    assert (measured.of_results(of_the_mlp, tables()).heads, measured.of_results(of_the_mlp, tables()).mlps) == (
        (),
        (0,),
    )
