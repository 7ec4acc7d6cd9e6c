"""Every discovery method on models whose circuits are known, and against brute force on random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import results_io
from circuits import circuit as circuit_files
from circuits import discovery, models, planted, tasks
from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits.circuit import Node, head
from circuits.discovery import METHODS, classifier, resampling, search
from circuits.discovery.nested import Nested
from circuits.edges import EMBEDDING
from circuits.hypothesis import pathway_edges, pathways
from circuits.interventions import Effects
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError
from tests.circuits import toy

SIZES = {"evaluation": 1, "held_out": 1, "discovery": 8, "reference": 120}
SETTINGS: dict[str, Any] = {
    "prompts": 200,
    "greedy_heads": 64,
    "warn_above": 1e6,
    "clusters": 4,
    "tolerance": 0.1,
    "direct_share": 0.05,
    "attention": 0.3,
    "shares": [0.01, 0.1, 0.5, 1.0],
    "seed": 0,
    "resamples": 200,
    "stability": {"resamples": 20, "greedy_resamples": 1, "bar": 0.8, "bar_resamples": 20},
    "atp": {"base": "clean"},
    "eap_ig": {"steps": 3},
    **toy.SEARCH,
}
QUICK = ("AtP", "NAP-IG", "GIM", "EAP-IG", "EAP-GIM", "classifier")


@pytest.fixture(scope="module")
def planted_study() -> Callable[..., Study]:
    """planted_study(variant, task)"""

    @cache
    def load(variant: str) -> models.Model:
        settings = {"name": f"planted/{variant}", "kind": "planted", "variant": variant, "seed": 0, "device": "cpu"}
        return models.load(settings)

    @cache
    def make(variant: str = "sound", task: str = "ioi") -> Study:
        settings = {**toy.SETTINGS, "discovery": SETTINGS}
        return studies.prepare(load(variant), tasks.get(task), SIZES, 0, toy.ENGINE, settings=settings)

    return make


@pytest.fixture(scope="module")
def found(planted_study) -> Callable[..., search.Discovery]:
    """found(method, variant, task): what a method finds there."""
    return cache(lambda method, variant="sound", task="ioi": search.find(planted_study(variant, task), method))


@pytest.fixture(scope="module")
def random_study(load) -> Callable[[str], Study]:
    """A random model of an architecture on greater-than prompts; it does not do the task."""

    @cache
    def make(architecture: str = "gpt2") -> Study:
        sizes = {**SIZES, "reference": 30}
        settings = {**toy.SETTINGS, "discovery": SETTINGS}
        return studies.prepare(load(architecture), tasks.get("greater_than"), sizes, 0, toy.ENGINE, settings=settings)

    return make


def recovered(heads: tuple[Node, ...], truth: tuple[Node, ...]) -> tuple[float, float]:
    """(precision, recall)"""
    hits = len(set(heads) & set(truth))
    return hits / len(heads), hits / len(truth)


# --- what is planted is found --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["AtP", "EAP-IG"])
def test_a_sound_circuit_is_found_head_by_head(found, method) -> None:
    result = found(method)
    assert recovered(result.circuit.heads, planted.truth("sound").heads) == (1.0, 1.0)
    assert result.document["chosen"]["faithfulness"] == pytest.approx(1, abs=0.01)
    assert result.document["head_faithfulness"]["value"] == pytest.approx(1, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["AtP", "EAP-IG"])
def test_a_head_that_works_against_the_answer_is_part_of_the_circuit(found, method) -> None:
    result, truth = found(method, "negative_head"), planted.truth("negative_head").heads
    assert recovered(result.circuit.heads, truth) == (1.0, 1.0)
    opposing = {node for role in result.circuit.roles.values() if role.sign < 0 for node in role.heads}
    assert opposing == {head(3, 7)}
    scores = dict(zip(result.document["scores"]["components"], result.document["scores"]["mean"], strict=True))
    name = "L3H7" if method == "AtP" else "L3H7->logits"
    assert scores[name] < -1 < 1 < scores[name.replace("H7", "H0")]  # signed: positive helps


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["AtP"])
def test_a_backup_that_is_silent_as_long_as_the_movers_work_is_not_found(found, method) -> None:
    result, truth = found(method, "backup"), planted.truth("backup").heads
    assert recovered(result.circuit.heads, truth) == (1.0, 7 / 8)
    assert set(truth) - set(result.circuit.heads) == {head(3, 4)}


@pytest.mark.slow
def test_edges_found_are_those_of_the_planted_pathways(found, planted_study) -> None:
    graph, claim = planted_study().model.graph, planted_study().model.circuits["ioi"]
    written = {edge for way in pathways(claim) for edge in pathway_edges(way, claim, graph)}
    edges = set(found("EAP-IG").document["components"])
    assert len(written) == 36 and edges <= {str(edge) for edge in written}  # precision 1
    missed = [edge for edge in written if str(edge) not in edges]
    assert len(missed) <= 7  # what the embedding says of places and kinds of words is the same in both runs
    assert all(edge.writer == EMBEDDING and edge.reader.kind in ("q", "k") for edge in missed)


@pytest.mark.slow
def test_what_is_alike_in_both_runs_is_invisible_to_contrasts(found, planted_study) -> None:
    """Greater-than keeps its century when corrupted, so the head that notes the century has nothing to patch."""
    truth = planted_study("sound", "greater_than").model.circuits["greater_than"].heads
    edges = found("EAP-IG", "sound", "greater_than")
    assert recovered(edges.circuit.heads, truth) == (1.0, pytest.approx(2 / 3))
    assert set(truth) - set(edges.circuit.heads) == {head(0, 6)}
    assert edges.document["chosen"]["faithfulness"] == pytest.approx(
        1, abs=0.01
    )  # under patching they are all it needs
    assert edges.document["head_faithfulness"]["value"] < 0  # under mean ablation they are not
    heads = found("AtP", "sound", "greater_than")  # goes on down its ranking until the head is in by chance
    precision, recall = recovered(heads.circuit.heads, truth)
    assert recall == 1.0 and precision < 0.5


@pytest.mark.slow
def test_the_classifier_expects_heads_of_other_tasks_where_tasks_share_none(found, planted_study) -> None:
    """Planted tasks are done by disjoint heads: what the classifier learnt to look for are the others' heads."""
    result, study = found("classifier"), planted_study()
    truth = planted.truth("sound").heads
    precision, recall = recovered(result.circuit.heads, truth)
    assert recall == 1.0 and precision < 0.5
    scores = dict(zip(result.document["scores"]["components"], result.document["scores"]["mean"], strict=True))
    others = {node for name, one in study.model.circuits.items() if name != "ioi" for node in one.heads}
    decoys = set(study.model.heads) - others - set(truth)
    mean = {name: np.mean([scores[str(node)] for node in group]) for name, group in (("o", others), ("d", decoys))}
    assert result.document["components"][0] in {str(node) for node in others}
    assert mean["o"] > 1.5 * mean["d"]


# --- one recipe for all --------------------------------------------------------------------------------------------


@pytest.mark.sampled(9)
@pytest.mark.parametrize("method", QUICK)
def test_numbers_of_the_document_belong_together(found, planted_study, method) -> None:
    document, circuit = found(method).document, found(method).circuit
    shares, f = document["curve"]["share"], document["curve"]["faithfulness"]
    assert document["cpr"]["estimate"] == pytest.approx(np.trapezoid(f, shares))
    assert document["cmd"]["estimate"] == pytest.approx(np.trapezoid(abs(1 - np.array(f)), shares))
    for name in ("cpr", "cmd"):
        assert document[name]["low"] <= document[name]["estimate"] <= document[name]["high"]
        assert document[name]["scored_on"] == document["cross_fitted"]["scored_on"] == document["curve"]["scored_on"]
    assert shares == pytest.approx([size / document["total"] for size in document["curve"]["size"]])
    assert document["curve"]["asked"] == tuple(SETTINGS["shares"])
    assert "did not rank" in document["curve"]["scored_on"] and document["cross_fitted"]["halves"]
    assert f[-1] == pytest.approx(1, abs=1e-6)
    assert document["heads"] == [str(node) for node in circuit.heads]
    assert document["path"]["size"][-1] == 0 and document["path"]["faithfulness"][-1] == 0
    if document["unit"] == "heads":
        assert document["head_faithfulness"]["value"] == pytest.approx(document["chosen"]["faithfulness"], abs=1e-6)
        assert document["path"]["size"] == list(range(32, -1, -1))
        eligible = [
            size
            for size, value in zip(document["path"]["size"], document["path"]["faithfulness"], strict=True)
            if abs(value - 1) <= 0.1
        ]
        assert document["chosen"]["size"] == min(eligible)
    assert circuit.provenance["kind"] == "discovered" and circuit.provenance["method"] == method
    same = document["stability"][document["unit"]]["pairwise"]
    assert (same is None) == (method == "classifier")
    assert circuit.provenance["jaccard"] == (None if same is None else pytest.approx(same, abs=1e-4))
    assert circuit.provenance["cpr"] == pytest.approx(document["cpr"]["estimate"], abs=1e-4)


def test_a_circuit_of_strong_heads_is_stable_and_says_so(found) -> None:
    stable = found("AtP").document["stability"]
    assert stable["heads"] == {"pairwise": 1.0, "with_full_sample": 1.0}
    assert stable["inclusion"] == {str(node): 20 for node in planted.truth("sound").heads}
    assert stable["meets_bar"] and stable["resamples"] == stable["bar_resamples"] == 20
    assert stable["untested"] is None
    assert "Jaccard 1.00 at a fixed size over 20 resamples, which meets the bar of 0.8" in found("AtP").sentence


def test_faithfulness_says_on_which_prompts_it_is(found) -> None:
    document, sentence = found("AtP").document, found("AtP").sentence
    assert (
        f"faithfulness {document['chosen']['faithfulness']:.3f} on the prompts that chose it (other heads: " in sentence
    )
    crossed = document["cross_fitted"]
    assert (
        f"; ranked on one half of them and scored on the other, faithfulness {crossed['faithfulness']:.3f} at this size, "
        f"CPR {document['cpr']['estimate']:.3f}" in sentence
    )
    alone = {**document, "cross_fitted": {**crossed, "halves": False, "faithfulness": None}}
    assert "; CPR" in search.sentence(alone) and "on the same; Jaccard" in search.sentence(alone)


@pytest.mark.slow
def test_what_resamples_cannot_change_is_not_called_stable(found, planted_study) -> None:
    study = planted_study()
    ranked = Nested(study, study.discovery, METHODS["AtP"].rank(study, study.discovery))
    few = replace(study.discovery, clusters=("a", "a", "a", "b", "b", "b", "c", "c"))
    reasons = {
        "a circuit of all heads is the same in every resample": search.stability(ranked, 32, 20, SETTINGS),
        "the prompts come from 3 clusters (at least 4 are needed)": search.stability(
            replace(ranked, prompts=few), 7, 20, SETTINGS
        ),
        "the settings leave it out": search.stability(ranked, 7, 1, SETTINGS),
        classifier.UNTESTED: found("classifier").document["stability"],
    }
    for reason, stable in reasons.items():
        assert stable["untested"] == reason and stable["heads"] == {"pairwise": None, "with_full_sample": None}
        assert not stable["meets_bar"] and stable["resamples"] == 0 and stable["inclusion"] == {}
    assert f"stability not tested: {classifier.UNTESTED}" in found("classifier").sentence


@pytest.mark.slow
def test_few_clusters_give_no_interval(planted_study) -> None:
    study = planted_study()
    few = replace(study, discovery=replace(study.discovery, clusters=("a", "a", "a", "b", "b", "b", "c", "c")))
    document = search.find(few, "AtP").document
    reason = "the prompts come from 3 clusters (at least 4 are needed)"
    assert document["resamples"]["no_interval"] == document["stability"]["untested"] == reason
    assert document["cpr"]["low"] is None is document["cmd"]["high"] and document["cpr"]["estimate"] > 0.5


@pytest.mark.slow
def test_only_the_strongest_scores_are_kept(found, planted_study, monkeypatch) -> None:
    study, every = planted_study(), found("EAP-IG").document["scores"]
    ranked = Nested(study, study.discovery, METHODS["EAP-IG"].rank(study, study.discovery))
    monkeypatch.setattr(search, "SCORES", 30)
    kept = search._scores(ranked)
    assert len(kept["components"]) == len(kept["mean"]) == 30
    assert kept["total"] == every["total"] == len(study.model.graph.edges) == len(every["mean"])
    assert kept["components"] == every["components"][:30] and (kept["mean"] == every["mean"][:30]).all()
    assert (np.diff(abs(every["mean"])) <= 1e-7).all()


@pytest.mark.slow
def test_the_gradient_of_the_corrupted_run_gives_the_same_signs(planted_study) -> None:
    """Where patching the clean output in helps, taking it out harms: positive helps whichever run is the base."""
    study = planted_study("negative_head")
    own = {**study.settings["discovery"], "atp": {"base": "corrupted"}}
    other = replace(study, settings={**study.settings, "discovery": own})
    clean, corrupted = (METHODS["AtP"].rank(one, one.discovery).scores for one in (study, other))
    heads = study.model.heads
    movers = [heads.index(head(3, 0)), heads.index(head(3, 7))]
    assert corrupted[movers[0]] > 1 and corrupted[movers[1]] < -1
    assert np.sign(corrupted[movers]).tolist() == np.sign(clean[movers]).tolist() == [1, -1]
    assert (corrupted != clean).any()


def test_a_circuit_of_every_head_says_that_it_claims_nothing(found) -> None:
    document = found("AtP").document
    assert "claims nothing" not in search.sentence(document)
    whole = {**document, "heads": [str(node) for node in range(32)]}
    assert search.sentence(whole).endswith("; every head takes part, so of heads it claims nothing")


@pytest.mark.slow
def test_stability_equals_a_loop_over_resampled_searches(planted_study) -> None:
    """On greater-than AtP ranks noise from the third head on, so that resamples differ."""
    study = planted_study("sound", "greater_than")
    module, prompts = METHODS["AtP"], study.discovery
    ranked = Nested(study, prompts, module.rank(study, prompts))
    found = search.stability(ranked, 8, 6, SETTINGS)
    sets = []
    for counts in resampling.cluster_counts(prompts.clusters, 6, 0):
        again = prompts.select([row for row, times in enumerate(counts) for _ in range(times)])
        sets.append(set(module.rank(study, again).order(np.ones(len(again)))[:8].tolist()))
    pairs = [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i in range(6) for j in range(i)]
    assert found["heads"]["pairwise"] == pytest.approx(np.mean(pairs)) and np.mean(pairs) < 1
    assert found["inclusion"]["L1H7"] == 6 and sum(found["inclusion"].values()) == 48
    assert not found["meets_bar"]  # 6 resamples are too few


@pytest.mark.slow
def test_counting_a_prompt_twice_shifts_the_classifier_alike(planted_study) -> None:
    study, weights = planted_study(), np.array([2.0, 0, 1, 1, 0, 3, 0, 1])
    again = study.discovery.select([row for row, times in enumerate(weights) for _ in range(int(times))])
    assert classifier.rank(study, study.discovery).order(weights).tolist() == (
        classifier.rank(study, again).order(np.ones(8)).tolist()
    )


def test_the_classifier_sees_a_mean_over_prompts_however_often_all_are_counted(planted_study) -> None:
    study = planted_study()
    ranking, weights = classifier.rank(study, study.discovery), np.array([2.0, 0, 1, 1, 0, 3, 0, 1])
    once = ranking.order(weights).tolist()
    assert ranking.order(10 * weights).tolist() == ranking.order(weights / 10).tolist() == once
    twice = study.discovery.select([*range(8), *range(8)])
    assert classifier.rank(study, twice).scores == pytest.approx(ranking.scores)


class Untouchable(PromptSet):
    """In place of the scored prompts: whoever looks at them fails."""

    def __init__(self) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # for type checks
            return PromptSet
        raise AssertionError(f"a search asked the scored prompts for {name}")

    def __len__(self) -> int:
        raise AssertionError("a search counted the scored prompts")


@pytest.mark.slow
@pytest.mark.parametrize("method", QUICK)
def test_the_same_search_finds_the_same_without_a_look_at_scored_prompts(
    found, planted_study, method, monkeypatch
) -> None:
    blind, drawn = replace(planted_study(), prompts=Untouchable(), done={}), prompt_sets.draw_examples
    expected = found(method)  # before drawing is watched: it may be the first to draw the scored prompts

    def draw(task, sizes, seed):
        assert set(sizes) == {"discovery"}
        return drawn(task, sizes, seed)

    monkeypatch.setattr(prompt_sets, "draw_examples", draw)
    again = search.find(blind, method)
    assert results_io.dumps(again.document) == results_io.dumps(expected.document)
    assert again.circuit == expected.circuit
    with pytest.raises(AssertionError, match="asked the scored prompts for rows_of"):
        blind.subset(3)


@pytest.mark.slow
def test_a_circuit_file_keeps_everything(found, tmp_path) -> None:
    for method in QUICK:
        circuit_files.save(found(method).circuit, tmp_path / "circuit.yaml")
        assert circuit_files.load(tmp_path / "circuit.yaml") == found(method).circuit


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_random_model_has_no_circuit(random_study, method) -> None:
    with pytest.raises(UserError, match=r"^model toy/gpt2 does not do task greater_than \(mean logit difference .*\)"):
        discovery.discover(random_study(), method)


def test_a_logit_difference_that_chance_explains_is_no_ability(random_study, monkeypatch) -> None:
    study = random_study()
    counts = resampling.cluster_counts(range(8), 1000, 0)

    def answer(clean: list[float], empty: list[float]) -> Callable[..., Effects]:
        return lambda self, sweep, prompts=None: Effects(
            ("clean", "empty"), np.array([clean, empty]), np.ones((2, 8), bool), None, "", ""
        )

    nothing, noisy, certain = [0.0] * 8, [3.0, -2.5] * 4, [3.0, 2.5] * 4
    for clean, empty, able in ((certain, nothing, True), (noisy, nothing, False), (certain, certain, False)):
        monkeypatch.setattr(Study, "run", answer(clean, empty))
        if able:
            assert search.require_ability(study, study.discovery, counts).tolist() == [clean, empty]
        else:
            with pytest.raises(UserError, match="does not do task"):
                search.require_ability(study, study.discovery, counts)


def test_an_unknown_method_is_told_the_known_ones(random_study) -> None:
    with pytest.raises(UserError) as raised:
        search.find(random_study(), "ACDC")
    assert str(raised.value) == (
        "discovery method 'ACDC' is unknown; use auto or one of ACDC-greedy, AtP, NAP-IG, GIM, EAP-IG, EAP-GIM, classifier"
    )
    names = {"atp": "AtP", "EAP-ig": "EAP-IG", "Classifier": "classifier", "acdc-GREEDY": "ACDC-greedy"}
    for name, expected in names.items():
        assert search.method_name(name, 12, {}) == expected


@pytest.mark.parametrize(("heads", "expected"), [(1, "ACDC-greedy"), (64, "ACDC-greedy"), (65, "EAP-IG")])
def test_auto_prunes_small_models_and_takes_gradients_of_large_ones(heads, expected) -> None:
    assert search.method_name("AUTO", heads, {"discovery": SETTINGS}) == expected
    assert search.DEFAULT == "auto" not in METHODS


def test_a_long_pruning_is_told_before_it_begins() -> None:
    settings = {"discovery": {**SETTINGS, "stability": {**SETTINGS["stability"], "greedy_resamples": 5}}}
    assert search.warning("ACDC-greedy", 144, 500, settings) == (
        "ACDC-greedy on 144 heads runs up to 14,617,400 (variant, prompt) pairs; method=EAP-IG takes far fewer, and so do "
        "measurement.discovery.prompts and measurement.discovery.stability.greedy_resamples=1"
    )
    assert 14_617_400 == 7 * (144 * 145 // 2 + 1) * 200
    assert search.warning("ACDC-greedy", 32, 200, settings) is None  # 740,600
    assert search.warning("EAP-IG", 1024, 200, settings) is None


def test_the_classifier_needs_two_other_circuits(random_study) -> None:
    with pytest.raises(UserError) as raised:
        classifier.rank(random_study(), random_study().discovery)
    assert str(raised.value) == (
        "method classifier learns from the model's circuits of other tasks, and toy/gpt2 has 0 (at least 2 are needed); "
        "store circuits of other tasks with it, found for example with method=ACDC-greedy, or use another method"
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"shares": [0.1, 0.5]}, "measurement.discovery.shares is [0.1, 0.5]; expected rising shares"),
        ({"shares": []}, "measurement.discovery.shares is []; expected"),
        ({"shares": [0.5, 0.1, 1.0]}, "expected rising shares above 0 that end with 1"),
        ({"shares": [0.0, 1.0]}, "expected rising shares above 0 that end with 1"),
        ({"atp": {"base": "both"}}, "measurement.discovery.atp.base is 'both'; expected one of clean, corrupted"),
        ({"shares": ["a", 1]}, "measurement.discovery.shares is ['a', 1]; expected rising shares above 0"),
        ({"shares": [None, 1.0]}, "measurement.discovery.shares is [None, 1.0]; expected rising shares"),
        ({"shares": 1.0}, "measurement.discovery.shares is 1.0; expected rising shares"),
        ({"tolerance": "wide"}, "measurement.discovery.tolerance is 'wide'; expected a number of at least 0"),
        ({"resamples": 0}, "measurement.discovery.resamples is 0; expected a whole number of at least 1"),
        ({"eap_ig": {"steps": 1.5}}, "measurement.discovery.eap_ig.steps is 1.5; expected a whole number"),
        ({"tolerance": -0.1}, "measurement.discovery.tolerance is -0.1; expected a number of at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(changed, expected) -> None:
    with pytest.raises(UserError) as raised:
        discovery.check({"discovery": {**SETTINGS, **changed}})
    assert expected in str(raised.value)
