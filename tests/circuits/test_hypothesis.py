"""Which edges a circuit calls relevant, and the run in which only those carry the prompt."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from circuits.circuit import Pathway, Role, head
from circuits.edges import EMBEDDING, Edge, Graph
from circuits.engine import LensEngine
from circuits.hypothesis import circuit_edges, hypothesis_edges, pathway_edges, pathways, scrub
from circuits.interventions import Recipe, Sweep, Variant, patch_paths
from results_io import UserError
from tests.circuits import toy

GPT2 = Graph(3, 4, 4)
GROUPED = Graph(2, 4, 2)
CLAIM = toy.circuit()  # early L0H1, middle L1H2, late L2H0 and L2H3
RECIPE = Recipe("resample", seed=3)


def wired(*ways: tuple, roles=None):
    """The toy's circuit with these pathways."""
    return replace(CLAIM, roles=roles or CLAIM.roles, pathways=tuple(Pathway(*way) for way in ways))


def two_layers():
    return replace(CLAIM, roles={"a": Role((head(0, 1), head(0, 3)), 1), "b": Role((head(1, 0), head(1, 2)), 2)})


def between_heads(edges) -> set[str]:
    """Edges that neither begin nor end at an MLP or the embedding."""
    return {str(edge) for edge in edges if edge.writer.kind == "head" and edge.reader.kind != "mlp"}


def names(circuit) -> list[str]:
    return [str(pathway) for pathway in pathways(circuit)]


# --- pathways ---------------------------------------------------------------------------------------------------


def test_roles_feed_later_steps_and_the_last_step_writes_to_the_logits() -> None:
    assert names(CLAIM) == ["early->late", "early->middle", "late->logits", "middle->late"]


def test_declared_pathways_stand_for_themselves() -> None:
    assert names(wired(("early", "late", "k"))) == ["early->late.k"]


def test_roles_of_one_step_do_not_feed_one_another() -> None:
    roles = {"a": Role((head(0, 0),), 2), "b": Role((head(1, 0),), 2)}
    assert names(replace(CLAIM, roles=roles)) == ["a->logits", "b->logits"]


def test_the_step_orders_roles_and_not_the_layer() -> None:
    """A late role in an early layer is not fed by the layers after it, nor does it feed them."""
    roles = {"late": Role((head(0, 0),), 4), "early": Role((head(1, 0),), 1)}
    assert names(replace(CLAIM, roles=roles)) == ["late->logits"]


def test_a_role_without_a_step_feeds_and_is_fed_by_all_and_writes_to_the_logits() -> None:
    roles = {"any": Role((head(0, 3), head(2, 1)), None), **CLAIM.roles}
    more = {"any->any", "any->middle", "any->late", "any->logits", "early->any", "middle->any"}
    assert set(names(replace(CLAIM, roles=roles))) == more | set(names(CLAIM))


def test_a_pathway_without_an_edge_is_not_derived() -> None:
    roles = {"first": Role((head(0, 0),), None), "second": Role((head(0, 1), head(1, 1)), None)}
    assert names(replace(CLAIM, roles=roles)) == ["first->logits", "first->second", "second->logits", "second->second"]


# --- edges ------------------------------------------------------------------------------------------------------


def test_the_relevant_edges_of_the_toy_counted_by_hand() -> None:
    edges = hypothesis_edges(CLAIM, GPT2)
    from_embedding = 4 * 3 + 3 + 1  # inputs of the four heads, the MLPs, the logits
    from_mlps = (3 + 6 + 2 + 1) + (6 + 1 + 1) + 1  # of layer 0, 1, 2
    to_mlps = 3 + 2 + 1 + 1  # of L0H1, L1H2, L2H0, L2H3
    assert len(edges) == from_embedding + from_mlps + to_mlps + 17
    assert between_heads(edges) == {
        *(f"L0H1->L1H2.{kind}" for kind in "qkv"),
        *(f"{sender}->L2H{index}.{kind}" for sender in ("L0H1", "L1H2") for index in (0, 3) for kind in "qkv"),
        "L2H0->logits",
        "L2H3->logits",
    }
    assert edges <= set(GPT2.edges)
    assert len(GPT2.edges) == 17 + 82 + 147 + 16


def test_the_parts_of_the_circuit_that_no_pathway_holds_are_what_the_heads_alone_claim() -> None:
    every = circuit_edges(CLAIM, GPT2)
    assert between_heads(every - hypothesis_edges(CLAIM, GPT2)) == {"L0H1->logits", "L1H2->logits"}
    assert hypothesis_edges(CLAIM, GPT2) < every


def test_a_parallel_model_s_mlp_does_not_read_the_heads_of_its_layer() -> None:
    edges = hypothesis_edges(two_layers(), Graph(2, 4, 4, parallel=True))
    to_mlps = {str(edge) for edge in edges if edge.reader.kind == "mlp" and edge.writer.kind == "head"}
    assert to_mlps == {"L0H1->mlp1", "L0H3->mlp1"}


def test_an_input_narrows_a_pathway_to_one_projection() -> None:
    edges = hypothesis_edges(wired(("early", "middle", "q"), ("middle", "late", "v"), ("late", "logits")), GPT2)
    assert between_heads(edges) == {
        "L0H1->L1H2.q",
        "L1H2->L2H0.v",
        "L1H2->L2H3.v",
        "L2H0->logits",
        "L2H3->logits",
    }


def test_a_circuit_that_says_nothing_of_the_embedding_reads_all_of_it() -> None:
    silent = hypothesis_edges(wired(("late", "logits")), GPT2)
    stated = hypothesis_edges(wired(("late", "logits"), ("embedding", "early"), ("embedding", "late", "v")), GPT2)
    lost = {str(edge) for edge in silent - stated}
    assert lost == {
        *(f"embedding0->L1H2.{kind}" for kind in "qkv"),
        *(f"embedding0->L2H{index}.{kind}" for index in (0, 3) for kind in "qk"),
        "embedding0->logits",
    }
    assert stated < silent


def test_leaving_a_pathway_out_takes_its_own_edges_and_no_others() -> None:
    edges = hypothesis_edges(CLAIM, GPT2)
    for pathway in pathways(CLAIM):
        assert edges - hypothesis_edges(CLAIM, GPT2, pathway) == pathway_edges(pathway, CLAIM, GPT2)


def test_an_edge_of_two_pathways_stays_when_one_is_left_out() -> None:
    claim = wired(("early", "late"), ("early", "late", "q"))
    whole = hypothesis_edges(claim, GPT2)
    assert hypothesis_edges(claim, GPT2, Pathway("early", "late", "q")) == whole
    lost = {str(edge) for edge in whole - hypothesis_edges(claim, GPT2, Pathway("early", "late"))}
    assert lost == {f"L0H1->L2H{index}.{kind}" for index in (0, 3) for kind in "kv"}


def test_leaving_out_the_only_pathway_from_the_embedding_does_not_bring_it_back() -> None:
    claim = wired(("embedding", "early"), ("early", "logits"))
    edges = hypothesis_edges(claim, GPT2, Pathway("embedding", "early"))
    assert {str(edge) for edge in edges if edge.writer == EMBEDDING} == {
        f"embedding0->mlp{layer}" for layer in range(3)
    }


def test_query_heads_of_a_group_share_their_key_and_value_inputs() -> None:
    roles = {"a": Role((head(0, 1),), 1), "b": Role((head(1, 0),), 2), "c": Role((head(1, 1),), 2)}
    claim = wired(("a", "b"), ("b", "logits"), ("c", "logits"), roles=roles)
    assert between_heads(hypothesis_edges(claim, GROUPED)) == {
        "L0H1->L1H0.q",
        "L0H1->L1H0.k",
        "L0H1->L1H0.v",  # head 1 reads these two too
        "L1H0->logits",
        "L1H1->logits",
    }
    assert len(pathway_edges(Pathway("a", "b"), claim, Graph(2, 4, 4))) == 3


@pytest.mark.parametrize("seed", range(10))
def test_no_edge_of_a_head_outside_is_relevant(seed) -> None:
    rng = random.Random(seed)
    graph = rng.choice((GPT2, GROUPED, Graph(4, 8, 8, parallel=True)))
    every = [node for node in graph.writers if node.kind == "head"]
    chosen = rng.sample(every, rng.randint(2, len(every)))
    cut = rng.randint(1, len(chosen) - 1)
    roles = {
        "x": Role(tuple(chosen[:cut]), rng.choice((None, 1, 2))),
        "y": Role(tuple(chosen[cut:]), rng.choice((None, 2, 4))),
    }
    edges = hypothesis_edges(replace(CLAIM, roles=roles), graph)
    assert edges <= circuit_edges(replace(CLAIM, roles=roles), graph) <= set(graph.edges)
    assert {edge.writer for edge in edges if edge.writer.kind == "head"} <= set(chosen)
    read = {(edge.reader.layer, edge.reader.index) for edge in edges if edge.reader.kind == "q"}
    assert read <= {(node.layer, node.index) for node in chosen}
    assert {edge for edge in graph.edges if {edge.writer.kind, edge.reader.kind} == {"mlp"}} <= edges


# --- the scrubbed run -------------------------------------------------------------------------------------------


def test_nothing_to_scrub_is_the_clean_run() -> None:
    assert scrub(GPT2.edges, GPT2, RECIPE, "all").interventions == ()


def test_with_nothing_relevant_every_component_is_replaced() -> None:
    (intervention,) = scrub((), GPT2, RECIPE, "none").interventions
    assert set(intervention.nodes) == set(GPT2.writers)


def test_a_component_that_no_relevant_edge_connects_to_the_logits_is_replaced() -> None:
    """Only embedding -> L0H1.v -> L2H0.q -> logits is open; L1H2 is read by L2H3, which nobody reads."""
    logits, l0h1, l2h0 = GPT2.logits, head(0, 1), head(2, 0)
    open_ = {
        Edge(EMBEDDING, GPT2.reader_of(l0h1, "v")),
        Edge(l0h1, GPT2.reader_of(l2h0, "q")),
        Edge(l2h0, logits),
        Edge(head(1, 2), GPT2.reader_of(head(2, 3), "q")),
    }
    nodes, paths = scrub(open_, GPT2, RECIPE, "chain").interventions
    assert set(nodes.nodes) == set(GPT2.writers) - {EMBEDDING, l0h1, l2h0}
    assert {str(edge) for edge in paths.edges} == {
        *(f"embedding0->{reader}" for reader in ("L0H1.q", "L0H1.k", "L2H0.q", "L2H0.k", "L2H0.v", "logits")),
        *(f"L0H1->{reader}" for reader in ("L2H0.k", "L2H0.v", "logits")),
    }


def claims(graph: Graph) -> list[frozenset[Edge]]:
    """Edge sets to scrub down to: of circuits, and any at random."""
    claim = CLAIM if graph.n_layers == 3 else two_layers()
    first, *_, last = claim.roles
    narrow = replace(claim, pathways=(Pathway("embedding", first), Pathway(first, last, "v"), Pathway(last, "logits")))
    rng = random.Random(0)
    return [
        hypothesis_edges(claim, graph),
        hypothesis_edges(claim, graph, pathways(claim)[0]),
        hypothesis_edges(narrow, graph),
        circuit_edges(claim, graph),
        *(frozenset(rng.sample(graph.edges, round(share * len(graph.edges)))) for share in (0.0, 0.1, 0.5, 0.9)),
    ]


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_scrubbing_is_the_path_intervention_on_the_complement(architecture, load, scored, reference) -> None:
    model = load(architecture, "float64")
    prompts = scored.select(range(0, len(scored), 6))
    variants = []
    for place, relevant in enumerate(claims(model.graph)):
        complement = [edge for edge in model.graph.edges if edge not in relevant]
        variants += [
            patch_paths(complement, RECIPE, f"complement {place}"),
            scrub(relevant, model.graph, RECIPE, f"scrubbed {place}"),
        ]
    results = LensEngine(model, reference).run(Sweep((Variant("clean"), *variants)), prompts).logit_diff
    assert np.abs(results[1::2] - results[2::2]).max() < 1e-10 * np.abs(results).max()
    assert np.abs(results[1::2] - results[0]).max(1).min() > 0.1  # none of them leaves the clean run as it is


def test_unknown_roles_are_refused_where_the_claim_is_made() -> None:
    with pytest.raises(UserError, match="'earlier' is no role of it; use early, middle, late, embedding"):
        wired(("earlier", "late"))
