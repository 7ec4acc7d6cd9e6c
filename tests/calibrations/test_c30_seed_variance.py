"""C30: published CV of five subsamples, and the CV that independent samples have."""

import json

import numpy as np
import pytest

from calibrations.c30_seed_variance import calibrate, thetas_by_seed
from calibrations.evidence import Evidence
from calibrations.statistics import bootstrap_ratio_errors, ratio_of_means
from tests.calibrations.settings import config_of, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("c30")
QUICK = {**CONFIG, "bootstrap_resamples_p": 499}  # for rates over many samples


def one(subject, config=CONFIG):
    (record,) = calibrate(subject, config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_a_planted_circuit_is_excellent():
    record = one(evidence())
    assert (record.published_label, record.published_verdict, record.verdict) == ("excellent", "pass", "pass")
    assert record.p == pytest.approx(1 / 10000)


def test_published_cv_has_ddof_0_and_the_companion_corrects_for_the_shared_pool():  # peer D27
    subject = evidence(noise=6.0)
    record, pool = one(subject), subject.data("19")
    assert len(pool["clean"]) == 3 * 400
    chosen = [np.random.default_rng(seed).choice(1200, 400, replace=False) for seed in (42, 123, 456, 789, 1337)]
    fresh = [np.array(pool["circuit"])[rows].sum() / np.array(pool["clean"])[rows].sum() for rows in chosen]
    assert record.published_value == pytest.approx(np.std(fresh) / abs(np.mean(fresh)))
    thetas = thetas_by_seed(subject, CONFIG)
    ddof1 = np.std(thetas, ddof=1) / abs(np.mean(thetas))
    corrected = record.companions["cv_corrected_for_shared_pool"]
    assert corrected == pytest.approx(ddof1 / np.sqrt(1 - 133 / 400))


def test_the_verdict_is_about_independent_samples_of_a_third():
    """theta .95, sd(y) = noise / mean D = 1.2: CV of 300 prompts = 1.2 / sqrt(300) / .95."""
    record = one(evidence(noise=6.0, n_evaluation=900, n_held_out=0))
    assert record.estimate == pytest.approx(1.2 / np.sqrt(300) / 0.95, rel=0.1)
    assert record.ci90[0] < record.estimate < record.ci90[1]


@pytest.mark.slow
def test_the_published_cv_understates_the_true_one():
    """Five overlapping samples and ddof 0: .69 of the CV of independent samples of their size, three times the verdict's."""
    ratios = []
    for seed in range(25):
        record = one(evidence(seed=seed, noise=6.0, n_held_out=0, n_random=20), QUICK)
        ratios.append(record.published_value / (record.estimate / np.sqrt(3)))
    assert np.mean(ratios) == pytest.approx(0.69, abs=0.12)


def test_subsamples_are_a_third_without_replacement_and_differ():  # peer D26: pool <= n gives CV 0
    subject = evidence(n_evaluation=90)
    thetas = thetas_by_seed(subject, CONFIG)
    assert len(set(thetas)) == 5
    rows = np.random.default_rng(42).choice(90, 30, replace=False)
    assert thetas[0] == pytest.approx(subject.ablated("circuit")[rows].sum() / subject.clean[rows].sum())


def test_a_noisy_circuit_fails_and_a_middling_one_is_inconclusive():
    bad, middling = one(evidence(noise=12.0, n_evaluation=90)), one(evidence(noise=7.5))
    assert bad.verdict == "fail" and bad.ci90[0] > 0.2
    assert middling.verdict == "inconclusive" and middling.needs.startswith("about ")


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ({"n_evaluation": 89}, "n_prompts"),
        ({"faithfulness": 0.0}, "ratio_undefined"),
        ({"faithfulness": 0.2}, "not_faithful"),
        ({"mean_clean": -1.0}, "behaviour_absent"),
    ],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_labels_between_010_and_020_are_neither_pass_nor_fail():
    for seed in range(30):
        record = one(evidence(seed=seed, noise=12.0, n_random=20), QUICK)
        if record.published_label == "marginal":
            assert record.published_verdict == "none" and 0.10 <= record.published_value <= 0.20
            return
    raise AssertionError("no marginal sample among 30 seeds")


def test_the_bootstrap_standard_error_is_that_of_the_ratio_when_every_prompt_occurs_once():
    subject = evidence(noise=3.0)
    f, d = subject.ablated("circuit"), subject.clean
    once = np.ones((1, len(d)), dtype=int)
    errors = bootstrap_ratio_errors(once, f, d, subject.clusters)
    assert errors[0] == pytest.approx(ratio_of_means(f, d, subject.clusters).standard_error)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(noise=3.0)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda docs: docs.pop("19"), "not_run: measurement 19 has not been run"),
        (
            lambda docs: docs["19"]["data"]["unavailable"].update(pool="only 700 distinct prompts"),
            "n_prompts: only 700",
        ),
    ],
)
def test_without_a_pool_there_is_no_published_value_and_the_verdict_stands(change, label):
    docs = documents()
    change(docs)
    record = one(Evidence(docs, COMMON))
    assert (record.published_value, record.published_verdict, record.verdict) == (None, "none", "pass")
    assert record.published_label.startswith(label)


def test_the_pool_says_nothing_of_held_out_prompts():
    record = one(evidence("held_out"))
    assert record.published_value is None and record.verdict == "pass"
