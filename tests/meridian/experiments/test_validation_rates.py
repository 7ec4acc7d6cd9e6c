"""Samples of a pool, what is declared of a subject, and verdicts counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from calibrations.statistics import Insufficient
from meridian.experiments.validation import declared, rates
from meridian.experiments.validation.rates import JudgedSample, PassRate
from meridian.experiments.validation.replicates import samples
from results_io import UserError
from tests.calibrations.settings import CONFIGS, config_of
from tests.calibrations.synthetic import COMMON, complete, documents

RULES = yaml.safe_load((CONFIGS.parent / "certificate" / "tiers.yaml").read_text())
TARGETS = {"max_false_pass": 0.05, "min_power": 0.95}
POOL = {"n_evaluation": 90, "n_held_out": 30, "n_clusters": 30}


@pytest.fixture(scope="module")
def pool():
    return documents(seed=3, **POOL)


def drawn(pool, evaluation=60, held_out=30, replicates=(0, 1), seed=5):
    return list(samples(pool, COMMON, {"evaluation": evaluation, "held_out": held_out}, replicates, seed))


# --- samples -------------------------------------------------------------------------------------------------------


def test_splits_of_a_sample_are_disjoint_and_of_the_sizes_asked_for(pool):
    for sample in drawn(pool):
        evaluation, held_out = sample.rows, sample.on("held_out").rows
        assert (len(evaluation), len(held_out)) == (60, 30)
        assert len(set(evaluation.tolist()) | set(held_out.tolist())) == 90


def test_samples_repeat_by_number_and_seed_and_differ_between_numbers(pool):
    first, second = drawn(pool)
    again = drawn(pool, replicates=(1,))[0]
    np.testing.assert_array_equal(second.rows, again.rows)
    assert set(first.rows.tolist()) != set(second.rows.tolist())
    assert not np.array_equal(first.rows, drawn(pool, seed=6)[0].rows)


def test_templates_are_drawn_in_equal_numbers(pool):
    """120 prompts of 6 templates, samples of 60: ten of each in the evaluation split."""
    for sample in drawn(pool):
        assert np.unique(sample.templates, return_counts=True)[1].tolist() == [10] * 6


def test_a_sample_of_the_whole_pool_is_the_pool(pool):
    """All 120 prompts drawn: the clean mean and random circuits equal those of the stored arrays."""
    (sample,) = drawn(pool, evaluation=120, held_out=0, replicates=(0,))
    ids = np.asarray(pool["01"]["data"]["prompt_id"])
    np.testing.assert_array_equal(sample.rows, np.argsort(ids))
    assert sample.clean.mean() == pytest.approx(np.mean(pool["01"]["data"]["clean_logit_diff"]))
    values, where = sample.random_circuits
    stored = pool["20"]["data"]["random_circuits"]
    assert values.shape == (200, len(stored["prompt_index"]))
    assert set(sample.rows[where].tolist()) == set(stored["prompt_index"])


def test_every_prompt_is_drawn_equally_often(pool):
    """300 samples of 40 of 120: each row 100 times in expectation, SD at most sqrt(300 x 1/3 x 2/3) = 8.2."""
    counts = np.zeros(120)
    for sample in drawn(pool, evaluation=30, held_out=10, replicates=range(300)):
        counts[sample.rows] += 1
        counts[sample.on("held_out").rows] += 1
    assert counts.sum() == 300 * 40
    assert np.abs(counts - 100).max() < 4.5 * 8.2


def test_companion_tasks_are_sampled_as_well(pool):
    first, second = drawn(pool, evaluation=60)
    stored = pool["27"]["data"]["tasks"]
    for name, task in first.data("27")["tasks"].items():
        assert len(task["prompt_id"]) == len(task["denoising"]) == 30
        place = stored[name]["prompt_id"].index(task["prompt_id"][7])
        np.testing.assert_array_equal(task["denoising"][7], stored[name]["denoising"][place])
        assert set(task["prompt_id"]) != set(second.data("27")["tasks"][name]["prompt_id"])


def test_a_pool_that_is_too_small_is_refused(pool):
    with pytest.raises(UserError, match="pool of 120 prompts cannot give samples of 150"):
        drawn(pool, evaluation=100, held_out=50)


def test_random_circuits_of_repeated_rows_are_found(pool):
    """Evidence with a row listed twice: its column is there twice (rows may repeat in other resampling schemes)."""
    (sample,) = drawn(pool, evaluation=120, held_out=0, replicates=(0,))
    row = pool["20"]["data"]["random_circuits"]["prompt_index"][0]
    twice = replace(sample, drawn={"evaluation": np.array([row, row])})
    values, where = twice.random_circuits
    assert where.tolist() == [0, 1]
    np.testing.assert_array_equal(values[:, 0], values[:, 1])


def test_a_sample_without_random_circuits_says_so(pool):
    (sample,) = drawn(pool, evaluation=120, held_out=0, replicates=(0,))
    with pytest.raises(Insufficient, match="random circuits were not run"):
        replace(sample, drawn={"evaluation": np.array([1, 2])}).random_circuits  # noqa: B018


# --- declarations --------------------------------------------------------------------------------------------------


def subject(**entry):
    return declared.subjects({"subjects": {"one": {"sentence": "A plant.", **entry}}})["one"]


def test_a_sound_subject_must_pass_everything_but_what_is_free():
    one = subject(truth="sound", free={"C14": "few heads"})
    assert set(one.expected) == {"P", *CALIBRATIONS}
    assert one.expected["C14"] == "free" and {v for k, v in one.expected.items() if k != "C14"} == {"pass"}


def test_a_flawed_subject_must_not_pass_what_detects_it():
    one = subject(truth="flawed", not_pass={"C13": "differs"})
    assert one.expected["C13"] == "not_pass" and one.expected["C11"] == "free"
    assert one.reasons == {"C13": "differs"}


def test_a_faithful_subject_must_pass_what_is_named():
    one = subject(truth="faithful", must_pass={"P": "trained"})
    assert one.expected["P"] == "pass" and one.expected["C17"] == "free"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"truth": "odd"}, "truth 'odd'; use one of sound, faithful, flawed"),
        ({"truth": "flawed"}, "nothing is declared to detect it"),
        ({"truth": "flawed", "not_pass": {"C99": "x"}}, "'C99', which is no calibration"),
        ({"truth": "sound", "not_pass": {"C13": "x"}}, "is sound, so not_pass says nothing"),
        ({"truth": "flawed", "not_pass": {"C13": "x"}, "free": {"P": "y"}}, "is flawed, so free says nothing"),
    ],
)
def test_declarations_that_say_nothing_are_refused(entry, said):
    with pytest.raises(UserError, match=said):
        subject(**entry)


# --- counting ------------------------------------------------------------------------------------------------------


def outcomes(verdicts, row="C13", published="pass", tier=1):
    everything = dict.fromkeys(declared.ROWS, ("none", "insufficient"))
    return [JudgedSample({"C13.x": (published, v)}, {**everything, row: (published, v)}, tier) for v in verdicts]


def cell(one, verdicts, at_default=True):
    (found,) = [c for c in rates.cells(one, 400, outcomes(verdicts), TARGETS, at_default) if c.row == "C13"]
    return found


def test_a_false_pass_rate_is_met_without_allowance():
    """5 of 100 false passes are the target, 6 are not."""
    one = subject(truth="flawed", not_pass={"C13": "differs"})
    assert cell(one, ["pass"] * 5 + ["fail"] * 95).met is True
    assert cell(one, ["pass"] * 6 + ["inconclusive"] * 94).met is False
    assert cell(one, ["pass"] * 6 + ["fail"] * 94, at_default=False).met is False


def test_power_is_asked_for_at_the_size_of_a_run():
    one = subject(truth="sound")
    assert cell(one, ["pass"] * 95 + ["fail"] * 5).met is True
    assert cell(one, ["pass"] * 94 + ["fail"] * 6).met is False
    assert cell(one, ["pass"] * 10 + ["fail"] * 90, at_default=False).met is None


def test_verdicts_are_counted():
    found = cell(subject(truth="sound"), ["pass", "pass", "fail", "inconclusive"])
    assert found.verdicts == {"pass": 2, "fail": 1, "inconclusive": 1} and found.verdict_pass.value == 0.5
    assert found.published_pass == PassRate(4, 4)
    assert found.to_dict()["verdict_pass"]["ci95"] == pytest.approx((0.1500, 0.8500), abs=1e-4)


def test_tiers_are_counted_and_pooled():
    mixed = outcomes(["pass"] * 3, tier=4) + outcomes(["pass"], tier=2)
    assert rates.tiers(mixed, 4)["counts"] == [0, 0, 1, 0, 3]
    assert rates.tiers(mixed, 4)["certified"]["rate"] == 0.75
    assert rates.pooled([PassRate(1, 4), PassRate(2, 6)]) == PassRate(3, 10)


def test_metrics_are_counted_apart():
    assert rates.metric_passes(outcomes(["pass", "fail"], published="fail")) == {"C13.x": [0, 1]}


@pytest.mark.slow
def test_an_outcome_holds_every_calibration_and_the_tier():
    """A synthetic sound circuit without the measurements of C12: everything is judged, what is missing says so."""
    config = {"common": config_of("common")} | {i.lower(): config_of(i.lower()) for i in CALIBRATIONS}
    evidence = Evidence(documents(seed=1, n_evaluation=120, n_held_out=60), COMMON)
    found = rates.outcome(evidence, config, RULES)
    assert set(found.rows) == {"P", *CALIBRATIONS}
    assert found.rows["P"] == ("none", "pass") and found.rows["C36"] == ("pass", "pass")
    assert found.rows["M3b"] == ("pass", "pass")  # its second gate has no published rule to fail
    assert found.rows["S3"][1] == "insufficient" and 0 <= found.tier < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "law", [{}, {"faithfulness": 0.6}, {"template_shift": 0.5}], ids=["sound", "partial", "templates"]
)
def test_the_experiment_s_lighter_settings_give_the_verdicts_of_a_run(law):
    """Shipped settings against those that samples are judged with: the same verdict from every calibration."""
    shipped = {"common": config_of("common")} | {i.lower(): config_of(i.lower()) for i in CALIBRATIONS}
    experiment = yaml.safe_load((CONFIGS.parent / "experiment" / "validate_calibrations.yaml").read_text())
    lighter = {name: {**section, **experiment["calibration"].get(name, {})} for name, section in shipped.items()}
    evidence = Evidence(complete(documents(seed=4, n_clusters=60, **law)), COMMON)
    full = rates.outcome(evidence, shipped, RULES)
    light = rates.outcome(evidence, lighter, RULES)
    assert light.rows == full.rows and light.tier == full.tier
    assert {metric: full.metrics[metric] for metric in light.metrics} == light.metrics
