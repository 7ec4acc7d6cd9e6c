"""Writers, readers and edges: counted, ordered, and refused where there are none."""

from __future__ import annotations

import itertools

import pytest

from circuits.circuit import Node, head
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Graph, Reader
from results_io import UserError

pytestmark = pytest.mark.every_architecture

SHAPES = [(3, 4, 4, False), (2, 4, 2, False), (2, 4, 4, True), (1, 1, 1, False), (5, 3, 1, False)]
GROUPED = Graph(3, 4, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_edges_are_counted_as_by_hand(shape) -> None:
    """A reader of layer l sees the embedding and l layers of heads and an MLP; the MLP its own layer's heads too."""
    n_layers, n_heads, n_groups, parallel = shape
    graph = Graph(*shape)
    before = [1 + layer * (n_heads + 1) for layer in range(n_layers + 1)]
    projections = sum((n_heads + 2 * n_groups) * before[layer] for layer in range(n_layers))
    mlps = sum(before[layer] + (0 if parallel else n_heads) for layer in range(n_layers))
    assert len(graph.writers) == before[-1]
    assert len(graph.readers) == n_layers * (n_heads + 2 * n_groups + 1) + 1
    assert len(graph.edges) == len(set(graph.edges)) == projections + mlps + before[-1]


def test_gpt2_small_has_as_many_edges_as_counted_elsewhere() -> None:
    """157 writers, 445 readers, 32 491 edges (EAP-IG)."""
    graph = Graph(12, 12, 12)
    assert (len(graph.writers), len(graph.readers), len(graph.edges)) == (157, 445, 32_491)


@pytest.mark.parametrize("shape", SHAPES)
def test_writers_of_a_reader_are_those_that_connect_in_order(shape) -> None:
    graph = Graph(*shape)
    for reader in graph.readers:
        found = graph.writers_of(reader)
        assert found == tuple(writer for writer in graph.writers if graph.connects(writer, reader))
        assert found[0] == EMBEDDING
    pairs = itertools.product(graph.writers, graph.readers)
    assert {Edge(w, r) for w, r in pairs if graph.connects(w, r)} == set(graph.edges)


def test_a_head_is_read_by_later_layers_and_its_own_mlp() -> None:
    graph = Graph(3, 2, 2)
    readers = {str(edge.reader) for edge in graph.edges if edge.writer == head(1, 0)}
    assert readers == {"mlp1", "L2H0.q", "L2H1.q", "L2H0.k", "L2H1.k", "L2H0.v", "L2H1.v", "mlp2", "logits"}
    readers = {str(edge.reader) for edge in graph.edges if edge.writer == Node("mlp", 1)}
    assert "mlp1" not in readers
    assert "logits" in readers


def test_beside_a_parallel_mlp_it_is_not_read_by_its_own_layer() -> None:
    graph = Graph(2, 2, 2, parallel=True)
    assert not graph.connects(head(1, 0), Reader("mlp", 1))
    assert graph.connects(head(0, 0), Reader("mlp", 1))


def test_query_heads_of_a_group_share_keys_and_values() -> None:
    assert [GROUPED.reader_of(head(1, index), "q").index for index in range(4)] == [0, 1, 2, 3]
    for kind in ("k", "v"):
        assert [GROUPED.reader_of(head(1, index), kind).index for index in range(4)] == [0, 0, 1, 1]
    assert {reader.index for reader in GROUPED.readers if reader.kind == "k"} == {0, 1}


def test_the_heads_of_an_input_are_those_that_have_it() -> None:
    for reader in GROUPED.readers:
        heads = [head(layer, index) for layer in range(3) for index in range(4)]
        own = [node for node in heads if reader.kind in PROJECTIONS and GROUPED.reader_of(node, reader.kind) == reader]
        assert GROUPED.heads_of(reader) == tuple(own)
        assert len(own) == {"q": 1, "k": 2, "v": 2}.get(reader.kind, 0)


@pytest.mark.parametrize(("architecture", "groups", "parallel"), [("gpt2", 4, False), ("neox", 4, True)])
def test_the_graph_of_a_model_with_a_key_for_each_head(architecture, groups, parallel, load) -> None:
    model = load(architecture)
    assert model.graph == Graph(model.n_layers, 4, groups, parallel)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_graph_of_a_model_with_grouped_queries(architecture, load) -> None:
    assert load(architecture).graph == Graph(2, 4, 2, parallel=False)


def test_edges_print_as_sender_and_receiver() -> None:
    logits = GROUPED.logits
    assert str(Edge(head(0, 3), Reader("k", 2, 1))) == "L0H3->L2H1.k"
    assert str(Edge(Node("mlp", 1), Reader("mlp", 2))) == "mlp1->mlp2"
    assert str(Edge(EMBEDDING, logits)) == "embedding0->logits"


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (head(1, 0), Reader("q", 1, 0)),
        (head(2, 0), Reader("v", 1, 1)),
        (head(2, 0), Reader("mlp", 1)),
        (Node("mlp", 1), Reader("mlp", 1)),
        (Node("mlp", 1), Reader("k", 0, 0)),
    ],
)
def test_an_edge_that_runs_backwards_is_refused(writer, reader) -> None:
    with pytest.raises(UserError, match=rf"edge {writer}->{reader} runs backwards: {writer} writes after {reader}"):
        GROUPED.require(Edge(writer, reader))


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (head(0, 4), Reader("q", 1, 0)),
        (head(3, 0), Reader("logits", 3)),
        (head(0, 0), Reader("k", 1, 2)),
        (head(0, 0), Reader("q", 3, 0)),
        (head(0, 0), Reader("mlp", 3)),
        (head(0, 0), Reader("logits", 2)),
        (Node("residual", 0), Reader("logits", 3)),
        (Node("attention", 0), Reader("mlp", 1)),
        (Node("embedding", 1), Reader("logits", 3)),
    ],
)
def test_an_edge_outside_the_model_is_refused(writer, reader) -> None:
    with pytest.raises(
        UserError, match=rf"edge {writer}->{reader} is outside a model with layers 0-2, 4 heads and 2 key"
    ):
        GROUPED.require(Edge(writer, reader))


def test_every_edge_of_the_graph_is_accepted() -> None:
    for edge in GROUPED.edges:
        GROUPED.require(edge)
    assert all(reader.kind in (*PROJECTIONS, "mlp", "logits") for reader in GROUPED.readers)
