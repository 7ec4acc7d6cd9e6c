"""The spread over ablation recipes: every way is the run that it says, a sound circuit has none, published signs by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits import hypothesis
from circuits.interventions import Recipe, Sweep, Variant, ablate, patch_paths
from meridian.experiments import reproduce_ablation_recipes as experiment
from meridian.experiments import reproduction
from meridian.experiments.estimates import PromptSample
from meridian.experiments.reproduce_ablation_recipes import (
    ALL,
    EDGES,
    PLACED,
    RESAMPLED,
    RESTORE,
    TWIN,
    AblationWay,
    mean_over,
)
from results_io import UserError
from tests.meridian.experiments import reproduced

SETTINGS = {**reproduced.settings_of("reproduce_ablation_recipes"), "abc_per_template": [5, 9]}
N = 40


@pytest.fixture(scope="module")
def study():
    return reproduced.planted()


@pytest.fixture(scope="module")
def found(study):
    parts = [experiment.measured(study, value, SETTINGS) for value in experiment.values(SETTINGS)]
    return {name: np.asarray(row, float) for part in parts for name, row in part.items()}


@pytest.fixture(scope="module")
def whole(study):
    return study.run(Sweep((Variant("model"),))).logit_diff[0].astype(float)


@pytest.mark.slow
def test_a_sound_circuit_is_faithful_in_every_way(found, whole) -> None:
    assert len(found) == 6 * 3 + 2
    for name, f in found.items():
        assert f.mean() / whole.mean() == pytest.approx(1, abs=0.02), name


@pytest.mark.slow
def test_each_way_is_the_run_that_it_names(study, found) -> None:
    """Against the same run put together by hand."""
    outside = sorted(set(study.model.heads) - set(study.circuit.heads))
    graph = study.model.graph
    cut = set(graph.edges) - hypothesis.hypothesis_edges(study.circuit, graph)
    cases = {
        AblationWay(ALL, mean_over(5)): ablate(outside, Recipe("mean"), "a"),
        AblationWay(ALL, RESAMPLED): ablate(outside, Recipe("resample"), "a"),
        AblationWay(ALL, "zero"): ablate(outside, Recipe("zero"), "a"),
        AblationWay(EDGES, TWIN): patch_paths(sorted(cut), Recipe("patch", source="corrupted"), "a"),
    }
    for way, variant in cases.items():
        engine = experiment.engine_for(study, way.value, SETTINGS)
        expected = engine.run(Sweep((variant,)), study.prompts).logit_diff[0]
        assert found[str(way)] == pytest.approx(expected, abs=1e-3), way


def test_small_and_large_abc_sets(study) -> None:
    sizes = {}
    for value in (mean_over(5), mean_over(9), RESAMPLED, TWIN):
        templates = experiment.engine_for(study, value, SETTINGS).reference.prompts.templates
        sizes[value] = max(templates.count(name) for name in set(templates))
    assert sizes[mean_over(5)] == 5
    assert sizes[mean_over(9)] == sizes[RESAMPLED] == 9
    assert sizes[TWIN] > 9


@pytest.mark.parametrize("sizes", [[7], [4, 100], [7, 7], [100, 7]])
def test_sizes_that_compare_nothing_are_refused(sizes) -> None:
    with pytest.raises(UserError, match="abc_per_template"):
        experiment.check({"abc_per_template": sizes})


def test_the_table_by_hand() -> None:
    """Ways whose faithfulness is known: the spread, the signs, and what is undecided."""
    d = np.full(N, 2.0)
    orders = ["ABBA", "BABA"] * (N // 2)
    level = {
        AblationWay(PLACED, mean_over(9)): np.where(np.array(orders) == "BABA", 2.0, 1.0),  # .75: BABA 1, ABBA .5
        AblationWay(PLACED, mean_over(5)): np.full(N, 1.2),
        AblationWay(ALL, mean_over(9)): np.full(N, 1.8),
        AblationWay(EDGES, mean_over(9)): np.full(N, 2.6),
        AblationWay(PLACED, RESAMPLED): np.full(N, -0.4),
    }
    sample = PromptSample(tuple(map(str, range(N))), resamples=200)
    rows = experiment.rows({str(w): f for w, f in level.items()}, d, orders, sample, SETTINGS)
    value = {row.quantity: row.ours.value for row in rows}
    inside = {row.quantity: row.inside for row in rows}
    assert value[str(AblationWay(EDGES, mean_over(9)))] == pytest.approx(1.3)
    lowest, highest = (
        f"lowest of 5 ways: {AblationWay(PLACED, RESAMPLED)}",
        f"highest of 5 ways: {AblationWay(EDGES, mean_over(9))}",
    )
    assert (value[lowest], inside[lowest]) == (pytest.approx(-0.2), True)
    assert (value[highest], inside[highest]) == (pytest.approx(1.3), True)
    assert inside["edges minus heads at all positions"] is True
    assert inside["(head, position) minus heads at all positions"] is False
    assert value["mean minus resampled, (head, position)"] == pytest.approx(0.95)
    assert value["BABA minus ABBA, (head, position)"] == pytest.approx(0.5)
    assert value["mean of ratios minus ratio of means"] == pytest.approx(0)
    assert inside["mean of ratios minus ratio of means"] is None


def test_every_row_by_hand() -> None:
    """Each of the twenty ways with a number of its own; F(M) is 2."""
    d, orders = np.tile([1.5, 2.5], N // 2), ["ABBA", "BABA"] * (N // 2)
    every = [way for value in experiment.values(SETTINGS) for way in experiment.ways(value)]
    assert len(every) == 20
    level = {str(way): 0.2 + 0.13 * number for number, way in enumerate(every)}
    large = str(AblationWay(PLACED, mean_over(9)))
    found = {name: np.full(N, value) for name, value in level.items()}
    found[large] = level[large] + np.tile([-0.1, 0.1], N // 2)
    paper = SETTINGS["paper"]
    whole = AblationWay(PLACED, mean_over(5))

    def less(one, other) -> float:
        return (level[str(one)] - level[str(other)]) / 2

    abba, baba = (level[large] - 0.1) / 1.5, (level[large] + 0.1) / 2.5
    sample = PromptSample(tuple(map(str, range(N))), resamples=200)
    reproduced.assert_rows(
        experiment.rows(found, d, orders, sample, SETTINGS),
        [
            *((str(way), level[str(way)] / 2, 0.87 if way == whole else None) for way in every),
            (f"lowest of 20 ways: {every[0]}", 0.1, "below 0 %"),
            (f"highest of 20 ways: {every[-1]}", (0.2 + 0.13 * 19) / 2, "above 100 %"),
            (
                "edges minus heads at all positions",
                less(AblationWay(EDGES, mean_over(9)), AblationWay(ALL, mean_over(9))),
                paper["granularity"],
            ),
            (
                "(head, position) minus heads at all positions",
                less(AblationWay(PLACED, mean_over(9)), AblationWay(ALL, mean_over(9))),
                paper["positions"],
            ),
            (
                "mean over 9 ABC prompts minus mean over 5 ABC prompts",
                less(AblationWay(PLACED, mean_over(9)), whole),
                paper["set_size"],
            ),
            (
                "mean minus resampled, (head, position)",
                less(AblationWay(PLACED, mean_over(9)), AblationWay(PLACED, RESAMPLED)),
                paper["value"],
            ),
            ("BABA minus ABBA, (head, position)", baba - abba, paper["order"]),
            ("mean of ratios minus ratio of means", (abba + baba) / 2 - level[large] / 2, paper["average"]),
        ],
    )


def test_the_whole_model_is_measured_in_logits(study, whole) -> None:
    other = replace(study, task=replace(study.task, metric="probability_difference"), done={})
    assert experiment.behaviour(other) == pytest.approx(whole, abs=1e-5)


@pytest.mark.slow
def test_a_random_model_has_all_rows_and_no_ratio(tmp_path) -> None:
    folder = reproduced.save_random(tmp_path / "model")
    outcome, document = reproduced.reproduce(
        "reproduce_ablation_recipes",
        tmp_path / "results",
        "model=gpt2",
        f"model.path={folder}",
        "experiment.prompts={discovery: 2, evaluation: 6, held_out: 2, reference: 160}",
        "experiment.abc_per_template=[5,8]",
        "experiment.bootstrap.resamples=100",
    )
    assert "gpt2 does not do ioi" in outcome.said
    assert len(document["rows"]) == 20 + 2 + 6
    assert all(row["ours"]["value"] is None and row["ours"]["reason"] for row in document["rows"])
    assert [len(document["data"][value]) for value in (TWIN, "zero")] == [5, 3]
    restored = str(AblationWay(PLACED, TWIN, RESTORE))
    assert np.isfinite(document["data"][TWIN][restored]).all()


def test_the_reference_is_kept_for_one_set_at_a_time(study) -> None:
    assert reproduction.corrupted_reference(study, 5) is reproduction.corrupted_reference(study, 5)
    assert reproduction.corrupted_reference(study, 5) is not reproduction.corrupted_reference(study, 9)
