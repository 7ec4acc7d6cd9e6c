"""M98: divergence of zero, mean and resample, two one-sided tests, and the group knock-outs."""

import json

import numpy as np
import pytest

from calibrations import m98_ablation_invariance as m98
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


@pytest.mark.slow
def test_noise_ablation_is_e1bs_and_does_not_count_here():
    assert one(exact(zero=0.9, mean=0.9, resample=0.9, noise=0.6)).published_value == pytest.approx(0.0)
    assert len(one(evidence()).companions["all_pairs"]) == 6


def test_a_planted_circuit_is_invariant():
    record = one(evidence())
    assert (record.verdict, record.gating) == ("pass", True)
    assert record.p == pytest.approx(1 / 10000)
    assert record.p_kind.startswith("bootstrap (two one-sided tests")


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


@pytest.mark.slow
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
    assert published >= 12  # the point estimate passes 38 to 50 % of such circuits


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


def without(role, noise=0.0, seed=0, law=None, **kept):
    """LD without `role` = kept[method] x D + N(0, noise)."""
    docs = documents(**(law or {}))
    clean, rng = clean_of(docs), np.random.default_rng(seed)
    for method, share in kept.items():
        set_intact(docs, f"without:{role}", share * clean + rng.normal(0, noise, len(clean)), (method,))
    return Evidence(docs, COMMON)


def test_a_role_s_knock_outs_are_shown_and_decide_nothing():
    """Without the movers .99 of the effect is left under zero, .02 under the mean. P.completeness judges that, without labels."""
    record = one(without("late", zero=0.99, mean_pooled=0.02))
    assert (record.published_verdict, record.verdict, record.reasons) == ("pass", "pass", ())
    assert record.estimate < 0.02  # the faithfulness of the circuit does not depend on the method at all
    found = record.companions["knockouts"]
    assert found["late"]["excess"] == pytest.approx(0.97) and found["late"]["excess_90"] == pytest.approx((0.97, 0.97))
    assert {role: row["verdict"] for role, row in found.items()} == {"early": "pass", "late": "fail", "middle": "pass"}


@pytest.mark.parametrize(
    ("kept", "excess"),
    [
        ({"zero": 0.0, "mean_pooled": 0.9}, -0.9),  # zero removes a constant that others read
        ({"zero": 0.6, "mean_pooled": 0.55}, 0.05),
        ({"zero": 0.1, "mean_pooled": -0.6}, 0.1),  # the answer turned round is not less kept than 0
        ({"zero": 1.6, "mean_pooled": 1.1}, 0.0),  # a negative role: nothing stands in for it
        ({"zero": 0.5, "mean_pooled": 0.5}, 0.0),  # parallel heads, kept whatever the recipe
    ],
)
def test_what_is_no_backup_is_not_shown_as_one(kept, excess):
    found = one(without("late", **kept)).companions["knockouts"]["late"]
    assert found["excess"] == pytest.approx(excess) and found["verdict"] == "pass"


def test_position_means_do_not_hide_a_backup():
    """Means by position leak the position of the repeated name: a role may be kept under them and still have a backup."""
    record = one(without("late", zero=0.95, mean=0.9, mean_pooled=0.05))
    assert record.companions["knockouts"]["late"]["verdict"] == "fail"


def test_a_backup_that_noise_leaves_open_is_undecided():
    law = {"n_evaluation": 40, "n_held_out": 0, "n_templates": 4}
    subject = without("late", noise=2.0, law=law, zero=0.35, mean_pooled=0.1)
    assert m98.backups(subject, QUICK)["late"]["verdict"] == "inconclusive"


@pytest.mark.slow
def test_an_excess_of_exactly_the_margin_is_seldom_called_a_backup():
    law = {"n_evaluation": 100, "n_held_out": 0, "n_templates": 4, "n_random": 20}
    kept = {"zero": 0.5, "mean_pooled": 0.3}
    samples = (without("late", noise=1.5, seed=seed, law={**law, "seed": seed}, **kept) for seed in range(60))
    fails = sum(m98.backups(subject, QUICK)["late"]["verdict"] == "fail" for subject in samples)
    assert fails <= 3 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_excess_by_hand():
    """Kept under zero minus kept under the mean over positions, each ratio of sums held in [0, 1]."""
    subject = without("late", noise=1.0, zero=0.5, mean_pooled=0.2)
    found = one(subject).companions["knockouts"]["late"]
    zero, pooled = (
        subject.ablated("without:late", method).sum() / subject.clean.sum() for method in ("zero", "mean_pooled")
    )
    assert (found["zero"], found["mean_pooled"]) == pytest.approx((zero, pooled))
    assert found["excess"] == pytest.approx(zero - pooled)
    assert found["excess_90"][0] < found["excess"] < found["excess_90"][1]


@pytest.mark.slow
def test_an_excess_of_exactly_the_margin_is_seldom_said_to_be_none():
    law = {"n_evaluation": 100, "n_held_out": 0, "n_templates": 4, "n_random": 20}
    kept = {"zero": 0.5, "mean_pooled": 0.3}
    samples = (without("late", noise=1.5, seed=seed, law={**law, "seed": seed}, **kept) for seed in range(100))
    passes = sum(m98.backups(subject, QUICK)["late"]["verdict"] == "pass" for subject in samples)
    assert passes <= 5 + 3 * np.sqrt(100 * 0.05 * 0.95)


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
