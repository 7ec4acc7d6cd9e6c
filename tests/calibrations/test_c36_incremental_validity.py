"""C36: paired difference to the norm baseline, floored at 0 and not fooled by overshoot."""

import json

import numpy as np
import pytest

from calibrations.c36_incremental_validity import calibrate
from calibrations.evidence import Evidence
from tests.calibrations.settings import clean_of, config_of, set_intact, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("c36")
QUICK = {**CONFIG, "bootstrap_resamples_p": 499}  # for rates over many samples


def one(subject, config=CONFIG):
    (record,) = calibrate(subject, config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_a_planted_circuit_adds_substantially():
    record = one(evidence())
    assert (record.published_verdict, record.published_label, record.verdict) == (
        "pass",
        "substantial",
        "pass",
    )
    assert record.published_value == pytest.approx(0.75, abs=0.02)
    assert record.notes[0].startswith("substantial")


def test_delta_is_the_difference_of_ratios_of_means():
    docs = documents()
    clean = clean_of(docs)
    noise = np.random.default_rng(0).normal(0, 0.3, len(clean))
    set_intact(docs, "circuit", 0.87 * clean + noise)
    set_intact(docs, "top_k_norm", 0.72 * clean + noise)
    record = one(Evidence(docs, COMMON))
    assert record.published_value == pytest.approx(0.15)
    assert record.published_label == "substantial"
    # The same noise in both: pairing makes the difference exact.
    assert record.ci90 == pytest.approx((0.15, 0.15))


def test_a_harmful_baseline_is_no_easier_to_beat_than_nothing():
    record = one(evidence(faithfulness=0.6, baseline_faithfulness=-0.5))
    assert record.published_value == pytest.approx(1.1, abs=0.03)
    assert record.estimate == pytest.approx(0.6, abs=0.03)


def test_overshoot_does_not_beat_a_faithful_baseline():  # peer D30: F = 1.6 "beats" 1.0
    record = one(evidence(faithfulness=1.6, baseline_faithfulness=1.0))
    assert record.published_verdict == "pass"
    assert record.verdict == "fail" and record.reasons[0].startswith("over_faithful")
    assert record.p > 0.9


def test_a_baseline_as_good_is_a_fail_or_undecided():
    worse = one(evidence(faithfulness=0.8, baseline_faithfulness=0.95))
    level = one(evidence(faithfulness=0.9, baseline_faithfulness=0.9, noise=2.0))
    assert (worse.verdict, worse.published_verdict) == ("fail", "fail")
    assert level.verdict == "inconclusive"
    assert worse.p > 0.99


def test_identical_heads_fail_with_delta_zero():
    docs = documents()
    circuit = Evidence(docs, COMMON).circuit_heads
    docs["20"]["data"]["baselines"]["top_k_norm"] = [list(head) for head in reversed(circuit)]
    set_intact(docs, "top_k_norm", Evidence(docs, COMMON).data("20")["logit_diff"][1], ("mean",))
    index = next(i for i, c in enumerate(docs["20"]["data"]["conditions"]) if c["name"] == "circuit/mean/0")
    set_intact(docs, "top_k_norm", docs["20"]["data"]["logit_diff"][index], ("mean",))
    record = one(Evidence(docs, COMMON))
    assert record.published_value == 0.0 and record.published_verdict == "fail"
    assert record.verdict == "fail" and record.reasons == ("the baseline is the circuit itself",)


def test_a_null_circuit_with_a_negative_baseline_is_not_certified():
    """The hand-written null circuits gain .35 on a harmful baseline (models.md, section 5)."""
    record = one(evidence(faithfulness=0.01, baseline_faithfulness=-0.34))
    assert record.published_verdict == "pass"
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_faithful")


@pytest.mark.slow
def test_false_pass_rate_at_a_true_difference_of_zero():
    law = {
        "faithfulness": 0.9,
        "baseline_faithfulness": 0.9,
        "noise": 2.0,
        "n_evaluation": 120,
        "n_held_out": 0,
    }
    samples = (evidence(seed=seed, **law, n_random=20) for seed in range(60))
    passes = sum(one(subject, QUICK).verdict == "pass" for subject in samples)
    assert passes <= 8


def test_companions_by_hand():
    subject = evidence()
    record = one(subject)
    ours, theirs = subject.ablated("circuit") > 0, subject.ablated("top_k_norm") > 0
    assert record.companions["mcnemar"]["circuit_only"] == int((ours & ~theirs).sum())
    assert record.companions["random_circuits_p"] == pytest.approx(1 / 201)
    assert record.companions["baseline_selected_on"] == "discovery"
    assert record.companions["baseline_jaccard"] == pytest.approx(2 / 12)


def test_without_disagreement_mcnemar_has_no_number():
    record = one(evidence(baseline_faithfulness=0.7, noise=0.01))
    assert record.companions["mcnemar"]["insufficient"].startswith("zero_variance")


@pytest.mark.parametrize(
    ("law", "reason"),
    [({"n_evaluation": 19, "n_templates": 2}, "n_prompts"), ({"mean_clean": 0.1}, "denominator")],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_a_missing_baseline_is_not_run():
    docs = documents()
    data = docs["20"]["data"]
    keep = [i for i, condition in enumerate(data["conditions"]) if condition["subset"] != "top_k_norm"]
    data["conditions"], data["logit_diff"] = (
        [data["conditions"][i] for i in keep],
        [data["logit_diff"][i] for i in keep],
    )
    record = one(Evidence(docs, COMMON))
    assert record.published_value is None and record.reasons[0].startswith("not_run")


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(noise=2.0)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()


def test_the_pair_of_value_and_baseline_is_that_of_both_faithfulnesses():
    """The interval is that of the plain difference, without the floor of the verdict: noise .4 on D of mean 5, 400 prompts."""
    docs = documents()
    clean, rng = clean_of(docs), np.random.default_rng(0)
    set_intact(docs, "circuit", 0.9 * clean + rng.normal(0, 0.4, len(clean)))
    set_intact(docs, "top_k_norm", -0.3 * clean + rng.normal(0, 0.4, len(clean)))
    pair = one(Evidence(docs, COMMON)).against_baseline
    assert (pair["value"], pair["baseline"]) == pytest.approx((0.9, -0.3), abs=0.01)
    low, high = pair["ci95"]
    assert (low + high) / 2 == pytest.approx(1.2, abs=0.01)
    assert high - low == pytest.approx(2 * 1.96 * 0.4 * np.sqrt(2 / 400) / 5, rel=0.15)
