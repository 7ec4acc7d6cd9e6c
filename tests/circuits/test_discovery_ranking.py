"""The circuits that a ranking of heads or edges makes, against brute force on random models."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from circuits import study as studies
from circuits import tasks
from circuits.circuit import Node
from circuits.discovery import METHODS, resampling
from circuits.discovery.crossfit import CrossFit
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import EdgeRanking, HeadRanking, connected
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Graph, Reader
from circuits.engine.gradients import GradientEngine
from circuits.interventions import Sweep, Variant, ablate, patch_paths
from circuits.study import Study
from results_io import UserError
from tests.circuits import toy

SIZES = {"evaluation": 1, "held_out": 1, "discovery": 8, "reference": 30}
NONE = np.array([], int)
SETTINGS = {
    **toy.SETTINGS,
    "discovery": {"atp": {"base": "clean"}, "eap_ig": {"steps": 3}, "stability": {"greedy_resamples": 1}, **toy.SEARCH},
}


@pytest.fixture(scope="module")
def random_study(load) -> Callable[[str], Study]:
    """A random model of an architecture on greater-than prompts."""

    @cache
    def make(architecture: str = "gpt2") -> Study:
        return studies.prepare(load(architecture), tasks.get("greater_than"), SIZES, 0, toy.ENGINE, settings=SETTINGS)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ACDC-greedy", "AtP", "EAP-IG"])
def test_counting_a_prompt_twice_is_having_it_twice(random_study, method) -> None:
    study, module = random_study(), METHODS[method]
    prompts, weights = study.discovery, np.array([2.0, 0, 1, 1, 0, 3, 0, 1])
    again = prompts.select([row for row, times in enumerate(weights) for _ in range(int(times))])
    weighted = module.rank(study, prompts).order(weights)
    assert weighted.tolist() == module.rank(study, again).order(np.ones(8)).tolist()
    assert weighted.tolist() != module.rank(study, prompts).order(np.ones(8)).tolist()
    assert sorted(weighted) == list(range(len(weighted)))


# --- edges ---------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama"])
def test_leaving_out_edges_on_no_path_changes_no_logit(random_study, architecture) -> None:
    study = random_study(architecture)
    graph, prompts, rng = study.model.graph, study.discovery, random.Random(architecture)
    ranking = EdgeRanking(graph.edges, order=lambda weights: np.arange(len(graph.edges)), graph=graph)
    total = len(graph.edges)
    kept = [np.array(rng.sample(range(total), total * share // 10)) for share in (1, 3, 6, 9)]
    pruned = [len(one) - ranking.members(one).sum() for one in kept]
    left_out = [[edge for place, edge in enumerate(graph.edges) if place not in set(one.tolist())] for one in kept]
    plain = [patch_paths(edges, ranking.recipe, str(place)) for place, edges in enumerate(left_out)]
    expected = study.run(Sweep(tuple(plain)), prompts).logit_diff
    variants = tuple(ranking.only(one, str(place)) for place, one in enumerate(kept))
    assert study.run(Sweep(variants), prompts).logit_diff == pytest.approx(expected, abs=2e-5)
    assert max(pruned) > 10 and np.abs(np.diff(expected, axis=0)).max() > 0.01


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_connected_edges_are_those_on_some_path(groups) -> None:
    graph, rng = Graph(3, 4, groups), random.Random(groups)
    for share in (0.05, 0.15, 0.4):
        kept = set(rng.sample(graph.edges, int(share * len(graph.edges))))
        found = connected(np.array([edge in kept for edge in graph.edges]), graph)
        expected = {edge for edge in kept if on_a_path(edge, kept, graph)}
        assert {edge for edge, survives in zip(graph.edges, found, strict=True) if survives} == expected
        heads = {edge.writer for edge in expected if edge.writer.kind == "head"}
        assert EdgeRanking(graph.edges, order=None, graph=graph).heads(found) == tuple(sorted(heads))


def on_a_path(edge: Edge, kept: set[Edge], graph: Graph) -> bool:
    """By search along the edges: is the writer reached from the embedding, and the logits from the reader?"""

    def inputs(node: Node) -> set[Reader]:
        if node.kind == "head":
            return {graph.reader_of(node, kind) for kind in PROJECTIONS}
        return {Reader("mlp", node.layer)} if node.kind == "mlp" else set()

    def reached(writer: Node) -> bool:
        return writer == EMBEDDING or any(reached(other.writer) for other in kept if other.reader in inputs(writer))

    def arrives(reader: Reader) -> bool:
        if reader == graph.logits:
            return True
        owners = {node for node in graph.writers if reader in inputs(node)}
        return any(arrives(other.reader) for other in kept if other.writer in owners)

    return reached(edge.writer) and arrives(edge.reader)


def test_no_edges_leave_the_corrupted_run_and_all_the_clean_one(random_study) -> None:
    study = random_study()
    graph = study.model.graph
    ranking = EdgeRanking(graph.edges, order=lambda weights: np.arange(len(graph.edges)), graph=graph)
    sweep = Sweep((ranking.only(NONE, "none"), ranking.only(np.arange(len(graph.edges)), "all"), Variant("clean")))
    none, whole, clean = study.run(sweep, study.discovery).logit_diff
    (corrupted,) = study.run(Sweep((Variant("corrupted", base="corrupted"),)), study.discovery).logit_diff
    assert none == pytest.approx(corrupted, abs=1e-5) and whole == pytest.approx(clean, abs=1e-6)
    every = np.ones(len(graph.edges), bool)
    assert ranking.heads(~every) == () and ranking.heads(every) == study.model.heads


def test_scores_by_prompt_are_those_that_are_averaged(random_study) -> None:
    study = random_study("llama")
    engine = GradientEngine(study.model, 3)
    found = engine.edge_scores(study.discovery, "corrupted", "eap_ig_inputs", 2, by_prompt=True)
    alone = [engine.edge_scores(study.discovery.select([row]), "corrupted", "eap_ig_inputs", 2) for row in range(8)]
    edges = engine.graph.edges
    assert found.by_prompt.dtype == np.float32 and found.by_prompt.shape == (8, len(edges))
    expected = [[one.of(edge) for edge in edges[::7]] for one in alone]
    assert found.by_prompt[:, ::7] == pytest.approx(np.array(expected), abs=1e-5)
    assert found.by_prompt.mean(0)[::7] == pytest.approx([found.of(edge) for edge in edges[::7]], abs=1e-6)
    assert engine.edge_scores(study.discovery, "clean", "eap").by_prompt is None


# --- sizes ---------------------------------------------------------------------------------------------------------


class Known(Nested):
    """Circuits of which nothing is run."""

    def logit_diff(self, sizes: list[int]) -> None:
        """Nothing to run."""


seen: list[int] = []


def known(size: int) -> float:
    return min(1.0, size / 700)


def within(size: int) -> bool:
    """Faithful within .1; remembers what it was asked."""
    seen.append(size)
    return abs(known(size) - 1) <= 0.1


def test_edges_are_tried_on_a_grid_and_then_in_the_gap_below(monkeypatch) -> None:
    ranking = EdgeRanking(tuple(range(1000)), order=np.arange, graph=None)
    seen.clear()
    size = Known(None, [], ranking).smallest(within, [1, 10, 100, 500, 1000])
    assert size == 630 and known(629) < 0.9 <= known(630)
    assert seen[:4] == [1, 10, 100, 500] and len(seen) <= 4 + 9


def test_heads_are_tried_at_every_size() -> None:
    ranking = HeadRanking(tuple(range(1000)), order=np.arange)
    seen.clear()
    assert Known(None, [], ranking).smallest(within, [1, 1000]) == 630
    assert seen == list(range(1, 631))
    assert Nested(None, [], ranking).total == 1000


def test_circuits_of_every_size_leave_out_the_rest(random_study) -> None:
    study = random_study()
    heads = study.model.heads
    order = random.Random(0).sample(range(12), 12)
    ranked = Nested(study, study.discovery, HeadRanking(heads, order=lambda weights: np.array(order)))
    found = ranked.logit_diff([0, 5, 12])
    variants = (ablate(heads, HeadRanking.recipe, "0"), ablate([heads[i] for i in order[5:]], HeadRanking.recipe, "5"))
    expected = study.engine.run(Sweep((*variants, Variant("clean"))), study.discovery).logit_diff
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_model_that_needs_none_of_the_components_has_no_circuit(random_study) -> None:
    study = random_study()
    ranked = Nested(study, study.discovery, METHODS["AtP"].rank(study, study.discovery))
    ranked._known.update({0: np.ones(8), 12: np.ones(8)})
    with pytest.raises(UserError, match="no better with all heads than with none of them"):
        ranked.faithfulness([3])
    with pytest.raises(UserError, match="no better with all heads than with none of them"):
        CrossFit.of(ranked, 0).curve([0.5, 1.0])


def test_the_metric_of_the_task_is_named(random_study) -> None:
    for metric, words in (
        ("logit_difference", "logit difference"),
        ("probability_difference", "probability difference"),
    ):
        study = replace(random_study(), task=replace(random_study().task, metric=metric))
        ranked = Nested(study, study.discovery, HeadRanking(study.model.heads, order=lambda weights: np.arange(12)))
        ranked._known.update({0: np.ones(8), 12: np.ones(8)})
        with pytest.raises(UserError, match=rf"than with none of them \({words} 1.00 and 1.00, "):
            ranked.limits()


# --- halves --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["ACDC-greedy", "AtP", "EAP-IG"])
def test_every_prompt_is_scored_by_circuits_that_the_other_half_ranks(random_study, method) -> None:
    """Against two searches on prompt sets of their own."""
    study, module = random_study(), METHODS[method]
    prompts, sizes = study.discovery, [0, 2, 5, 9]
    crossed = CrossFit.of(Nested(study, prompts, module.rank(study, prompts)), seed=1)
    found = crossed.logit_diff(sizes)
    first = resampling.half(prompts.clusters, 1)
    assert 0 < first.sum() < 8 and "did not rank" in crossed.scored_on
    for half in (first, ~first):
        ranking, scoring = (prompts.select(np.flatnonzero(rows).tolist()) for rows in (half, ~half))
        order = module.rank(study, ranking).order(np.ones(len(ranking)))
        variants = tuple(crossed.whole.ranking.only(order[:size], str(size)) for size in sizes)
        assert found[:, ~half] == pytest.approx(study.engine.run(Sweep(variants), scoring).logit_diff, abs=1e-5)
    own = crossed.whole.logit_diff(sizes)
    assert np.abs(found - own)[1:].max() > 0.01  # the halves rank differently, so it matters who ranks
    assert found[0] == pytest.approx(own[0], abs=1e-5)  # no component is no component whoever ranks


def test_the_curve_and_the_chosen_size_pool_both_halves(random_study) -> None:
    study = random_study()
    whole = Nested(study, study.discovery, METHODS["AtP"].rank(study, study.discovery))
    whole._known.update({0: np.zeros(8), 12: np.full(8, 4.0)})  # the model does not do the task by itself
    crossed = CrossFit.of(whole, seed=1)
    shares = (0.1, 0.5, 1.0)
    found = crossed.curve(shares)
    assert found.sizes == (2, 6, 12)
    assert (
        (found.kept == crossed.logit_diff([2, 6, 12])).all() and (found.whole == 4).all() and (found.empty == 0).all()
    )
    assert crossed.faithfulness(6) == pytest.approx(crossed.logit_diff([6]).sum() / 32)


def test_a_single_cluster_has_no_halves_and_says_so(random_study) -> None:
    study = random_study()
    prompts = replace(study.discovery, clusters=("one",) * 8)
    whole = Nested(study, prompts, METHODS["AtP"].rank(study, prompts))
    crossed = CrossFit.of(whole, seed=0)
    assert crossed.scored_on == "the prompts that ranked, all of one cluster" and len(crossed.halves) == 1
    assert (crossed.logit_diff([3]) == whole.logit_diff([3])).all()
