"""Graphs of other tools: read, written back to the same contents, and claimed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from circuits import circuit as circuit_files
from circuits import claims, graphs, tasks
from circuits.circuit import HEADS_AND_MLPS, Node, head, mlp
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.graphs import auto_circuit, circuit_tracer, eap_ig
from circuits.graphs.component_graph import ComponentGraph, Mark, connected
from circuits.measure import Plan
from results_io import UserError
from shown_progress import NoProgress
from tests.circuits import toy

LAYERS, HEADS = 3, 4
INSIDE = ("a0.h1", "a1.h2", "m1", "a2.h3")
PATH = ("input->a0.h1<q>", "a0.h1->a1.h2<v>", "a1.h2->m1", "m1->a2.h3<k>", "a2.h3->logits")


def eap_ig_document(inside: tuple[str, ...] = INSIDE, path: tuple[str, ...] = PATH) -> dict[str, Any]:
    """A graph of every edge of a 3 x 4 model with random scores; those of `path` are the largest."""
    rng, names = random.Random(0), []
    writers = ["input"]
    for layer in range(LAYERS):
        own = [f"a{layer}.h{index}" for index in range(HEADS)]
        names += [f"{w}->{one}<{kind}>" for one in own for kind in "qkv" for w in writers]
        names += [f"{w}->m{layer}" for w in (*writers, *own)]
        writers += [*own, f"m{layer}"]
    names += [f"{w}->logits" for w in writers]
    edges = {one: {"score": rng.uniform(-1, 1) + 9 * (one in path), "in_graph": one in path} for one in names}
    nodes = {name: {"in_graph": name in (*inside, "input"), "score": rng.random()} for name in writers}
    config = {"n_layers": LAYERS, "n_heads": HEADS, "parallel_attn_mlp": False, "d_model": 32}
    return {"cfg": config, "nodes": {**nodes, "logits": {"in_graph": True}}, "edges": edges}


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def refusal(path: Path, **rest: Any) -> str:
    with pytest.raises(UserError) as raised:
        graphs.load(path, "ioi", "toy", **rest)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- EAP-IG and MIB ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["as it is", "neurons", "plain nodes", "no scores", "scores alone", "more keys"])
def test_an_eap_ig_graph_comes_back_as_it_was(tmp_path, change) -> None:
    document = eap_ig_document()
    if change == "neurons":
        document["nodes"]["m1"] |= {"neurons": [True, False], "neurons_scores": [0.1, -1e-30]}
    if change == "plain nodes":
        document["nodes"] = {name: one["in_graph"] for name, one in document["nodes"].items()}
    if change == "no scores":
        document["edges"] = {name: {"in_graph": one["in_graph"]} for name, one in document["edges"].items()}
    if change == "scores alone":
        document["edges"] = {name: {"score": one["score"]} for name, one in document["edges"].items()}
    if change == "more keys":
        document |= {"made by": "größte Sorgfalt", "neurons": {"m1": [True]}}
    graph = graphs.read(write(tmp_path / "graph.json", document))
    assert graph is not None
    assert len(graph.edges) == len(document["edges"]) == 3 * 4 * (1 + 6 + 11) + (5 + 10 + 15) + 16
    eap_ig.write(graph, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == document
    assert graphs.read(tmp_path / "again.json") == graph


def test_its_heads_and_mlps_are_the_claim(tmp_path) -> None:
    path = write(tmp_path / "graph.json", eap_ig_document())
    found = graphs.load(path, "ioi", "toy")
    assert found.nodes == (*(head(0, 1), head(1, 2), head(2, 3)), mlp(1)) and found.scope == HEADS_AND_MLPS
    assert (found.name, found.task, found.model) == ("graph", "ioi", "toy")
    assert found.provenance["kind"] == "user" and found.provenance["source"] == "EAP-IG graph"
    assert len(found.provenance["file_sha256"]) == 64


def test_its_strongest_edges_are_another_claim(tmp_path) -> None:
    """The five of the path are the largest; six edges add one that leads nowhere, or a part on a path."""
    document = eap_ig_document(inside=tuple(f"a{layer}.h{index}" for layer in range(3) for index in range(4)))
    path = write(tmp_path / "graph.json", document)
    assert "has every head in its circuit, which claims nothing; give circuit.strongest=N" in refusal(path)
    found = graphs.load(path, "ioi", "toy", strongest=5)
    assert found.nodes == (*(head(0, 1), head(1, 2), head(2, 3)), mlp(1))
    assert found.provenance["strongest_edges"] == 5
    assert "has neither a head nor an MLP" in refusal(path, strongest=4)  # the path is cut
    for count in (0, 999):
        assert f"circuit.strongest={count}, and the graph has 262 edges with a score" in refusal(path, strongest=count)


@pytest.mark.parametrize(
    ("part", "name", "words"),
    [
        ("nodes", "a3.h0", "names a3.h0, and its cfg has 3 layers x 4 heads"),
        ("nodes", "b1", "'b1' is no node; expected input, a<layer>.h<head> or m<layer>"),
        ("edges", "input->a0.h0", "ends at a head and names none of its inputs"),
        ("edges", "input", "'' is no node"),
    ],
)
def test_a_broken_name_is_one_sentence(tmp_path, part, name, words) -> None:
    document = eap_ig_document()
    document[part][name] = {"in_graph": True, "score": 0.0}
    assert words in refusal(write(tmp_path / "graph.json", document))


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"cfg": {}, "nodes": {}, "edges": {}}', "\udcff"])
def test_a_file_that_is_no_graph_is_one_sentence(tmp_path, text) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(path) in refusal(path)


def test_a_circuit_file_is_read_as_before(tmp_path) -> None:
    circuit_files.save(toy.circuit("ioi"), tmp_path / "own.yaml")
    assert graphs.load(tmp_path / "own.yaml", "ioi", "toy") == toy.circuit("ioi")
    assert "means nothing; leave it out" in refusal(tmp_path / "own.yaml", strongest=3)
    assert "no circuit file at" in refusal(tmp_path / "none.json")
    document = toy.circuit("ioi").to_dict()
    for role in document["roles"].values():
        role["heads"] = [str(head(*pair)) for pair in role["heads"]]
    assert graphs.load(write(tmp_path / "own.json", document), "ioi", "toy") == toy.circuit("ioi")


def test_a_graph_is_claimed_by_its_path(folder, tmp_path) -> None:
    """circuit=file circuit.path=graph.json"""
    settings = {"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu", "dtype": "float32"}
    plan = Plan(settings, tasks.get("ioi"), toy.SIZES, 0, toy.SETTINGS, toy.ENGINE)
    path = write(tmp_path / "graph.json", eap_ig_document())
    silent = lambda title: NoProgress()  # noqa: E731
    found = claims.resolve(plan, {"kind": "file", "path": str(path), "strongest": None}, tmp_path, silent)  # pyright: ignore
    assert [str(node) for node in found.heads] == ["L0H1", "L1H2", "L2H3"]
    other = write(tmp_path / "large.json", eap_ig_document() | {"cfg": {"n_layers": 9, "n_heads": 9}})
    document = json.loads(other.read_text())
    document["nodes"]["a8.h8"] = {"in_graph": True}
    with pytest.raises(UserError, match="is a graph of 9 layers x 9 heads, and model toy has 3 x 4"):
        claims.resolve(plan, {"kind": "file", "path": str(write(other, document))}, tmp_path, silent)  # pyright: ignore


# --- auto-circuit ---------------------------------------------------------------------------------------------------


def prune_scores(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Zero but for a path: the embedding, L0H1, L1H2, L2H3, the logits."""
    scores: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        before = 1 + layer * (HEADS + 1)
        for kind in "qkv":
            scores[f"blocks.{layer}.hook_{kind}_input"] = torch.zeros(HEADS, before, dtype=dtype)
        scores[f"blocks.{layer}.hook_mlp_in"] = torch.zeros(before + HEADS, dtype=dtype)
    scores["blocks.2.hook_resid_post"] = torch.zeros(1 + LAYERS * (HEADS + 1), dtype=dtype)
    scores["blocks.0.hook_q_input"][1, 0] = 0.5
    scores["blocks.1.hook_v_input"][2, 2] = -0.25  # L0H1 is the third writer
    scores["blocks.2.hook_k_input"][3, 8] = 1e-3  # L1H2: 1 + 5 + 2
    scores["blocks.2.hook_resid_post"][14] = 2.0  # L2H3: 1 + 10 + 3
    return scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prune_scores_come_back_as_they_were(tmp_path, dtype) -> None:
    scores = prune_scores(dtype)
    torch.save(scores, tmp_path / "scores.pkl")
    graph = graphs.read(tmp_path / "scores.pkl")
    assert graph is not None
    assert graph.heads == (head(0, 1), head(1, 2), head(2, 3)) and graph.mlps == ()
    assert graph.edges[Edge(head(0, 1), Reader("v", 1, 2))].score == -0.25
    auto_circuit.write(graph, tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt")
    assert set(again) == set(scores)
    assert all(torch.equal(again[name], one) and again[name].dtype == dtype for name, one in scores.items())
    assert graphs.load(tmp_path / "scores.pkl", "ioi", "toy").heads == graph.heads


def test_a_graph_of_one_tool_is_written_for_another(tmp_path) -> None:
    torch.save(prune_scores(), tmp_path / "scores.pt")
    graph = graphs.read(tmp_path / "scores.pt")
    assert graph is not None
    eap_ig.write(graph, tmp_path / "graph.json")
    there = graphs.read(tmp_path / "graph.json")
    assert there is not None and there.heads == graph.heads
    assert {edge: mark.score for edge, mark in there.edges.items()} == {e: m.score for e, m in graph.edges.items()}
    auto_circuit.write(there, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    assert all(torch.equal(back[name], one) for name, one in prune_scores().items())


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({}, "holds nothing in place of scores by module"),
        ({"EAP": {"blocks.0.hook_q_input": torch.zeros(2, 1)}}, "holds EAP in place of scores by module"),
        ({"blocks.0.hook_attn_in": torch.zeros(2, 1)}, "has scores of 'blocks.0.hook_attn_in'"),
        ({"blocks.0.hook_q_input": torch.zeros(5, 2, 1)}, "scores by position are not read"),
        ({"blocks.0.hook_q_input": torch.zeros(2, 9)}, "scores 9 writers in L0H0.q, and 1 layers have 3"),
    ],
)
def test_other_scores_are_refused(tmp_path, scores, words) -> None:
    torch.save(scores, tmp_path / "scores.pt")
    assert words in refusal(tmp_path / "scores.pt")
    (tmp_path / "text.pkl").write_text("no pickle")
    assert "is not a file of tensors" in refusal(tmp_path / "text.pkl")


# --- circuit-tracer and Neuronpedia ---------------------------------------------------------------------------------


def attribution_graph() -> dict[str, Any]:
    """Two features of layer 1 at two positions, an error node of layer 2, an embedding and a logit."""

    def node(name: str, layer: str, kind: str) -> dict[str, Any]:
        return {"node_id": name, "feature": 1, "layer": layer, "ctx_idx": 0, "feature_type": kind, "clerp": ""}

    nodes = [node("E_5_0", "E", "embedding"), node("1_7_0", "1", "cross layer transcoder")]
    nodes += [node("1_9_1", "1", "cross layer transcoder"), node("0_2_1", "2", "mlp reconstruction error")]
    nodes.append(node("4_11_1", "4", "logit"))
    ends = [("E_5_0", "1_7_0", 0.5), ("E_5_0", "1_9_1", 0.25), ("1_7_0", "0_2_1", -1.0), ("0_2_1", "4_11_1", 3.0)]
    links = [{"source": a, "target": b, "weight": weight} for a, b, weight in [*ends, ("1_7_0", "1_9_1", 9.0)]]
    return {"metadata": {"slug": "x", "scan": "gemma"}, "qParams": {"a": [1]}, "nodes": nodes, "links": links}


def test_an_attribution_graph_is_added_up_by_layer_and_comes_back_as_it_was(tmp_path) -> None:
    path = write(tmp_path / "graph.json", attribution_graph())
    graph = graphs.read(path)
    assert graph is not None and (graph.heads, graph.mlps) == ((), (1, 2))
    assert {str(edge): mark.score for edge, mark in graph.edges.items()} == {
        "embedding0->mlp1": 0.75,
        "mlp1->mlp2": -1.0,
        "mlp2->logits": 3.0,
    }
    circuit_tracer.write(graph, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == attribution_graph()
    found = graphs.load(path, "ioi", "toy")
    assert found.nodes == (mlp(1), mlp(2)) and found.scope == HEADS_AND_MLPS


def test_a_graph_with_heads_is_written_as_an_attribution_graph_and_claimed(tmp_path) -> None:
    graph = graphs.read(write(tmp_path / "graph.json", eap_ig_document()))
    assert graph is not None
    circuit_tracer.write(graph, tmp_path / "attribution.json", "When Mary", ("When", " Mary"))
    document = json.loads((tmp_path / "attribution.json").read_text())
    assert document["metadata"]["prompt_tokens"] == ["When", " Mary"]
    assert {one["clerp"] for one in document["nodes"]} == {"embedding", "L0H1", "L1H2", "mlp1", "L2H3", "logit"}
    assert all(one["ctx_idx"] == 1 for one in document["nodes"]) and len(document["links"]) == 5
    names = {one["node_id"] for one in document["nodes"]}
    assert all({link["source"], link["target"]} <= names for link in document["links"])
    found = graphs.load(tmp_path / "attribution.json", "ioi", "toy")
    assert found.nodes == (*(head(0, 1), head(1, 2), head(2, 3)), mlp(1))


def test_an_unknown_kind_of_node_is_refused(tmp_path) -> None:
    document = attribution_graph()
    document["nodes"][1]["feature_type"] = "lorsa"
    assert "feature_type 'lorsa' is unknown" in refusal(write(tmp_path / "graph.json", document))


# --- paths ----------------------------------------------------------------------------------------------------------


def test_edges_that_lead_nowhere_are_on_no_path() -> None:
    a, b, logits = head(0, 0), head(1, 0), Reader("logits", 2)
    whole = {Edge(EMBEDDING, Reader("q", 0, 0)), Edge(a, Reader("k", 1, 0)), Edge(b, logits)}
    assert connected(whole) == whole
    assert connected(whole - {Edge(b, logits)}) == set()
    extra = Edge(a, Reader("mlp", 0))
    assert connected({*whole, extra}) == whole and connected(set()) == set()
    graph = ComponentGraph("x", 2, 1, {a: Mark(True), Node("mlp", 0): Mark(True)}, {})
    assert (graph.heads, graph.mlps) == ((a,), (0,))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"n_layers": 3', '"n_layers": 1e400', "it holds a number that is too large"),
        ('"n_layers": 3', '"n_layers": Infinity', "it holds Infinity, which is no number"),
        ('"n_layers": 3', '"n_layers": 3.9', "n_layers is 3.9, and not a whole number from 0"),
        ('"n_layers": 3', '"n_layers": 2, "n_layers": 3', "a key stands there twice"),
        ('"n_layers": 3', f'"n_layers": {"9" * 400}', "it holds an integer of 400 digits"),
        ('"score": 0', '"score": NaN, "was": 0', "it holds NaN, which is no number"),
        ('"score": 0', '"score": [1], "was": 0', "a score is [1], and not a number"),
        ('"m1": {', '"m01": {"in_graph": true}, "m1": {', "stands there twice"),
        ('"m1": {', '"m9": 5, "m1": {', "m9 is 5, and not keys with values"),
    ],
)
def test_no_number_or_key_of_a_graph_is_taken_for_another(tmp_path, before, after, words) -> None:
    text = json.dumps(eap_ig_document())
    assert before in text
    (path := tmp_path / "graph.json").write_text(text.replace(before, after, 1))
    said = refusal(path)
    assert words in said and "Error" not in said


@pytest.mark.parametrize("value", ["1e400", "9" * 400, "-5", "4.9", "null", '"-5"', "NaN"])
def test_a_layer_of_an_attribution_graph_is_a_whole_number(tmp_path, value) -> None:
    document = attribution_graph()
    next(one for one in document["nodes"] if one["feature_type"] in circuit_tracer.OF_AN_MLP)["layer"] = "@"
    (path := tmp_path / "graph.json").write_text(json.dumps(document).replace('"@"', value))
    assert "Error" not in refusal(path)
    document = attribution_graph()
    document["links"][0]["weight"] = "@"
    path.write_text(json.dumps(document).replace('"@"', "9" * 400))
    assert "it holds an integer of 400 digits" in refusal(path)


QUERIES = "blocks.0.hook_q_input"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda scores: {"blocks.100000000.hook_q_input": scores[QUERIES]},
            "100000001 layers x 4 heads, and at most 1024",
        ),
        (lambda scores: {f"blocks.{'9' * 5000}.hook_q_input": scores[QUERIES]}, "has scores of 'blocks.999"),
        (lambda scores: {5: scores[QUERIES]}, "has scores of 5; expected"),
        (lambda scores: {QUERIES: scores[QUERIES][:1].expand(10**6, -1)}, "that repeats fewer numbers"),
        (lambda scores: {QUERIES: scores[QUERIES].to("meta")}, "sparse, quantised or without its numbers"),
        (lambda scores: {QUERIES: scores[QUERIES].to_sparse()}, "sparse, quantised or without its numbers"),
        (lambda scores: {QUERIES: scores[QUERIES] * float("nan")}, "NaN or infinity"),
        (lambda scores: {QUERIES: scores[QUERIES].to(torch.complex64)}, "numbers of type complex64 and no scores"),
    ],
)
def test_tensors_that_hold_no_scores_are_refused_at_once(tmp_path, change, words) -> None:
    scores = prune_scores()
    torch.save({**scores, **change(scores)}, path := tmp_path / "scores.pt")
    said = refusal(path)
    assert words in said and len(said) < 400
