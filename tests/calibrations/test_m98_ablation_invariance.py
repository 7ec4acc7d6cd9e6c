"""M98: divergence of zero, mean and resample, two one-sided tests, and the group knock-outs."""

import json

import pytest

from calibrations.evidence import Evidence
from calibrations.m98_ablation_invariance import calibrate
from tests.calibrations.settings import clean_of, config_of, set_intact, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("m98")
QUICK = {**CONFIG, "bootstrap_resamples_p": 499}  # for rates over many samples


def one(subject, config=CONFIG):
    (record,) = calibrate(subject, config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def exact(**thetas):
    """F = theta x D under each method."""
    docs = documents(n_held_out=0)
    for method, theta in thetas.items():
        set_intact(docs, "circuit", theta * clean_of(docs), (method,))
    return Evidence(docs, COMMON)


def test_divergence_is_max_minus_min_of_the_ratios():
    record = one(exact(zero=0.85, mean=0.80, resample=0.70))
    assert record.published_value == pytest.approx(0.15) and record.published_verdict == "pass"
    assert record.estimate == pytest.approx(0.15)
    assert record.verdict == "pass" and record.ci90 == pytest.approx((0.15, 0.15))
    assert set(record.companions["pairs"]) == {"zero - mean", "zero - resample", "mean - resample"}


def test_noise_ablation_is_e1bs_and_does_not_count_here():
    assert one(exact(zero=0.9, mean=0.9, resample=0.9, noise=0.6)).published_value == pytest.approx(0.0)
    assert len(one(evidence()).companions["all_pairs"]) == 6


def test_a_planted_circuit_is_invariant():
    record = one(evidence())
    assert (record.verdict, record.gating) == ("pass", True)
    assert record.p == pytest.approx(1 / 10000) and record.p_kind == "bootstrap (two one-sided tests)"


def test_a_circuit_that_needs_a_constant_from_outside_fails_under_zero():
    """bias_gate of models.md: 0.00 under zero, 1.01 under mean."""
    record = one(evidence(by_method={"zero": 0.0}, faithfulness=1.0))
    assert (record.published_verdict, record.verdict) == ("fail", "fail")
    assert record.estimate == pytest.approx(1.0, abs=0.03)
    assert len(record.reasons) == 2 and all("zero" in reason for reason in record.reasons)
    assert record.p > 0.99


def test_a_borderline_difference_with_noise_is_undecided_and_says_what_it_takes():
    record = one(evidence(by_method={"zero": 0.80}, faithfulness=0.95, noise=6.0, n_evaluation=60, n_templates=3))
    assert record.verdict == "inconclusive"
    wide = one(evidence(noise=3.0, n_evaluation=60, n_templates=3))
    assert wide.verdict == "inconclusive" and int(wide.needs.split()[1]) > 60


def test_false_pass_rate_at_a_true_gap_of_exactly_the_margin():
    passes = published = 0
    for seed in range(60):
        law = {
            "by_method": {"zero": 0.75},
            "faithfulness": 0.95,
            "noise": 2.0,
            "n_evaluation": 120,
            "n_held_out": 0,
        }
        record = one(evidence(seed=seed, **law, n_random=20, n_templates=3), QUICK)
        passes += record.verdict == "pass"
        published += record.published_verdict == "pass"
    assert passes <= 8
    assert published >= 12  # the point estimate passes 38 to 50 % of such circuits (spec M98)


def test_thetas_above_one_are_not_clipped():
    assert one(exact(zero=1.5, mean=1.1, resample=1.1)).published_value == pytest.approx(0.4)


def test_a_missing_method_gives_no_verdict_but_shows_the_others():
    docs = documents()
    for method, theta in {"zero": 0.85, "mean": 0.80}.items():
        set_intact(docs, "circuit", theta * clean_of(docs), (method,))
    data = docs["20"]["data"]
    keep = [i for i, c in enumerate(data["conditions"]) if not (c["subset"] == "circuit" and c["method"] == "resample")]
    data["conditions"], data["logit_diff"] = (
        [data["conditions"][i] for i in keep],
        [data["logit_diff"][i] for i in keep],
    )
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_run: no theta for resample")
    assert "max - min of the others is 0.05" in record.reasons[0]
    assert record.published_value is None


def test_fewer_than_four_draws_are_not_enough():
    docs = documents()
    data = docs["20"]["data"]
    keep = [i for i, c in enumerate(data["conditions"]) if c["name"] != "circuit/resample/3"]
    data["conditions"], data["logit_diff"] = (
        [data["conditions"][i] for i in keep],
        [data["logit_diff"][i] for i in keep],
    )
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "insufficient" and record.needs == "4 draws of resample"


def test_a_left_out_backup_shows_in_the_group_knock_out():
    """backup of models.md: without the movers .99 of the effect is left under zero, .02 under mean."""
    docs = documents()
    set_intact(docs, "without:late", 0.99 * clean_of(docs), ("zero",))
    set_intact(docs, "without:late", 0.02 * clean_of(docs), ("mean",))
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "pass"
    assert record.notes == (
        "knocking out late leaves 0.99 under zero and 0.02 under mean: a backup may have been left out",
    )
    assert record.companions["knockouts"]["late"]["differs"] and not record.companions["knockouts"]["early"]["differs"]


def test_position_means_stand_beside_and_are_not_judged():
    record = one(evidence(by_method={"mean_pooled": 0.3}))
    assert record.verdict == "pass"
    assert record.companions["by_method"]["mean_pooled"]["faithfulness"] == pytest.approx(0.3, abs=0.02)


def test_normalised_divergence():
    docs = documents()
    clean = clean_of(docs)
    set_intact(docs, "empty", 0.5 * clean)
    for method, theta in {"zero": 0.9, "mean": 0.8, "resample": 0.8}.items():
        set_intact(docs, "circuit", theta * clean, (method,))
    found = one(Evidence(docs, COMMON)).companions["normalised"]
    assert found["by_method"] == pytest.approx({"zero": 0.8, "mean": 0.6, "resample": 0.6})
    assert found["divergence"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ({"n_evaluation": 29, "n_templates": 2}, "n_prompts"),
        ({"faithfulness": 0.01}, "not_faithful"),
        ({"mean_clean": -1.0}, "behaviour_absent"),
    ],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(noise=2.0)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()
