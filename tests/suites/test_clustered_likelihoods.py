"""Likelihood results of items that come in clusters: copies say no more than their original, and rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from suites import results
from suites.likelihood import ChoiceScores, summarise
from suites.modes import flips
from suites.statistics import calibration, proportions, selective

COPIES = 7


def scores(confidence: np.ndarray, correct: np.ndarray) -> list[ChoiceScores]:
    """Two choices each, the likelier with this confidence, and right or not."""
    return [
        ChoiceScores(("a", "b"), (float(np.log(p)), float(np.log1p(-p))), (1, 1), frozenset([0 if hit else 1]))
        for p, hit in zip(confidence, correct, strict=True)
    ]


def calibrated(
    rng: np.random.Generator, clusters: int, copies: int, share: float
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Confidences, equal within a cluster, of a calibrated model whose items share their luck with this probability."""
    p = np.repeat(rng.uniform(0.5, 0.99, clusters), copies)
    labels = np.repeat(np.arange(clusters), copies)
    (hit,) = next(
        calibration.calibrated_outcomes(p, seed=int(rng.integers(2**31)), resamples=1, clusters=labels, share=share)
    )
    return p, hit, labels.astype(str).tolist()


def test_copies_of_an_item_say_no_more_than_the_item():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 0.99, 80)
    hit = rng.random(80) < p
    once = results.likelihood_estimates(scores(p, hit), 0)
    labels = [str(i) for i in range(80) for _ in range(COPIES)]
    copied = results.likelihood_estimates(scores(np.repeat(p, COPIES), np.repeat(hit, COPIES)), 0, labels)
    for name in ("acc", "acc_token", "ece", "brier"):
        assert copied[name].value == pytest.approx(once[name].value, abs=1e-12)
        ends = (once[name].ci.low, once[name].ci.high)
        assert (copied[name].ci.low, copied[name].ci.high) == pytest.approx(ends, abs=1e-9), name
    assert copied["acc"].detail["design_effect"] == pytest.approx(COPIES)
    assert copied["acc"].p_value == pytest.approx(once["acc"].p_value, rel=1e-9)
    assert copied["ece"].detail["shared_luck"] == 1.0
    for name in ("ece", "brier", "aurc"):  # nulls drawn anew
        assert copied[name].p_value == pytest.approx(once[name].p_value, abs=0.03), name
    # a block of copies is answered together, so its risks differ a little from those of single items
    width = {name: found["aurc"].ci.high - found["aurc"].ci.low for name, found in (("once", once), ("copied", copied))}
    assert width["copied"] == pytest.approx(width["once"], rel=0.1)
    # the same items taken for independent: what 121 said before
    wrong = results.likelihood_estimates(scores(np.repeat(p, COPIES), np.repeat(hit, COPIES)), 0)
    for name in ("acc", "brier"):
        narrow = wrong[name].ci.high - wrong[name].ci.low
        assert narrow / (once[name].ci.high - once[name].ci.low) == pytest.approx(COPIES**-0.5, rel=0.06)
    assert wrong["ece"].p_value < once["ece"].p_value / 4


def test_items_of_their_own_have_the_null_of_independent_ones():
    rng = np.random.default_rng(1)
    p = rng.uniform(0.5, 1, 100)
    hit = rng.random(100) < p
    found = calibration.calibration(p, hit, seed=3)
    drawn = np.concatenate(list(calibration.calibrated_outcomes(p, seed=3, resamples=2000)))
    null = calibration.errors_of(drawn, p, calibration.equal_width_bins(p, 10))
    assert found.ece.p_value == (1 + int((null >= found.ece.value - 1e-12).sum())) / 2001
    assert "shared_luck" not in found.ece.detail


def test_shared_luck_is_the_ratio_over_pairs():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(30), rng.permutation([2, 3, 4, 5, 6] * 6))
    p = rng.uniform(0.2, 0.9, 120)
    (hit,) = next(calibration.calibrated_outcomes(p, seed=1, resamples=1, clusters=labels, share=0.5))
    residual = hit - p - (hit - p).mean()
    pairs = [(i, j) for i in range(120) for j in range(120) if i != j and labels[i] == labels[j]]
    most = sum(min(p[i], p[j]) - p[i] * p[j] for i, j in pairs)
    assert calibration._most_shared(p, labels) == pytest.approx(most)
    count = labels.max() + 1
    wider = count / (count - 1) * (2.0452296 / 1.9599640) ** 2  # t of 29 degrees of freedom
    expected = wider * sum(residual[i] * residual[j] for i, j in pairs) / most
    assert 0 < expected < 1 and count == 30
    assert calibration.shared_luck(p, hit, labels)[0] == pytest.approx(expected, rel=1e-6)


def test_outcomes_keep_their_chances_and_share_their_luck():
    p, labels = np.array([0.3, 0.8, 0.3]), np.array([0, 0, 1])
    outcomes = np.concatenate(
        list(calibration.calibrated_outcomes(p, seed=0, resamples=40_000, clusters=labels, share=0.5))
    )
    assert outcomes.mean(0) == pytest.approx(p, abs=0.01)
    covariance = np.cov(outcomes.T)
    assert covariance[0, 1] == pytest.approx(0.5 * (0.3 - 0.24), abs=0.005)
    assert covariance[0, 2] == pytest.approx(0, abs=0.005)


def test_accuracy_at_chance_is_no_evidence():
    rng = np.random.default_rng(0)
    found = summarise(scores(np.full(200, 0.6), np.arange(200) % 2 == 0))
    assert found["acc"].value == 0.5 and found["acc"].p_value == pytest.approx(0.5)
    better = summarise(scores(np.full(200, 0.6), np.arange(200) < 120))
    assert better["acc"].p_value == pytest.approx(0.00234, abs=2e-5)  # z = .1 / sqrt(.25 / 200)
    labels = [str(i // 4) for i in rng.permutation(200)]
    alike = summarise(scores(np.full(200, 0.6), np.array([int(label) < 30 for label in labels])), labels)
    assert alike["acc"].detail["design_effect"] == 4
    assert alike["acc"].p_value == pytest.approx(0.0786, abs=5e-5)  # z / 2


def test_the_record_of_mcnemar_in_109_flips_whole_clusters():
    """Nine of ten changed clusters lose all four variants: p .0215 over clusters, 3e-8 over items taken for independent."""
    pairs = [(True, False)] * 36 + [(False, True)] * 4 + [(True, True)] * 40
    clusters = [str(i // 4) for i in range(80)]
    found = flips.mcnemar(pairs, clusters)
    assert found.p_value == pytest.approx(22 / 1024)
    assert found.detail["p_items"] == flips.mcnemar(pairs).p_value < 3e-7
    assert (found.test, found.detail["clusters"]) == ("sign flips of whole clusters", 20)
    assert flips.mcnemar(pairs, [str(i) for i in range(80)]) == flips.mcnemar(pairs)


def test_a_threshold_counts_clusters_for_its_bound():
    """60 right answers of 60 originals hold a risk of .05 (59 are needed); the same in 20 clusters of three do not."""
    p, right = np.linspace(0.5, 1, 120), np.ones(120, dtype=bool)
    alone = selective.threshold(p, right, 0.05, seed=0)
    assert alone.detail["holds"] and alone.detail["checked"]["answered"] == 60
    assert alone.detail["checked"]["risk_upper"] == pytest.approx(1 - 0.05 ** (1 / 60))
    labels = [str(i // 3) for i in range(120)]
    assert selective.threshold(p, right, 0.05, seed=0, clusters=labels).status == "insufficient_data"
    enough = selective.threshold(np.tile(p, 3), np.tile(right, 3), 0.05, seed=0, clusters=np.tile(np.arange(120), 3))
    assert enough.detail["checked"]["risk_upper"] == pytest.approx(alone.detail["checked"]["risk_upper"])


def test_areas_with_weights_are_areas_of_copies():
    rng = np.random.default_rng(5)
    p, hit = rng.choice(np.linspace(0.5, 1, 9), 40), rng.random(40) < 0.7
    weights = rng.integers(0, 4, 40)
    area, excess = selective._areas(p, hit[None].astype(float), weights[None].astype(float))
    repeated = selective.risk_coverage(np.repeat(p, weights), np.repeat(hit, weights))
    assert (area[0], excess[0]) == pytest.approx((repeated.area.value, repeated.excess_area.value))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_calibrated_models_are_called_uncalibrated_at_the_nominal_rate(share):
    """60 clusters of 7. Independent items' null rejects up to nine in ten of these calibrated models."""
    rng, runs = np.random.default_rng(7), 200
    rejected = dict.fromkeys(("ece", "mce", "ece_equal_mass", "brier", "aurc", "independent"), 0)
    for _ in range(runs):
        p, hit, labels = calibrated(rng, 60, COPIES, share)
        found = calibration.calibration(p, hit, seed=1, clusters=labels, resamples=400)
        areas = selective.areas(p, hit, labels, seed=1)
        for name in ("ece", "mce", "ece_equal_mass", "brier"):
            rejected[name] += getattr(found, name).p_value <= 0.05
        rejected["aurc"] += areas["aurc"].p_value <= 0.05
        rejected["independent"] += calibration.calibration(p, hit, seed=1, resamples=400).ece.p_value <= 0.05
    rates = {name: count / runs for name, count in rejected.items()}
    print(share, rates)
    assert all(rate <= 0.09 for name, rate in rates.items() if name != "independent"), rates
    if share == 1.0:
        assert rates["independent"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_intervals_over_clusters_hold_the_truth(share):
    """Overconfident by .1 everywhere: the true ECE is .1, the true Brier and accuracy are known; 60 clusters of 7."""
    rng, runs = np.random.default_rng(8), 100
    kept = dict.fromkeys(("acc", "ece", "brier", "aurc"), 0)
    narrow = 0
    big, _, _ = calibrated(rng, 200_000, 1, 0)
    truth = {"ece": 0.1, "acc": float((big - 0.1).mean())}
    truth["brier"] = float((big**2 - 2 * big * (big - 0.1) + (big - 0.1)).mean())
    order = np.sort(1 - (big - 0.1))
    truth["aurc"] = float((np.cumsum(order) / np.arange(1, len(order) + 1)).mean())
    for run in range(runs):
        p = np.repeat(rng.uniform(0.5, 0.99, 60), COPIES)
        labels = np.repeat(np.arange(60), COPIES)
        (hit,) = next(calibration.calibrated_outcomes(p - 0.1, seed=run, resamples=1, clusters=labels, share=share))
        found = results.likelihood_estimates(scores(p, hit), 0, labels.astype(str).tolist())
        for name in kept:
            kept[name] += found[name].ci.low <= truth[name] <= found[name].ci.high
        plain = proportions.wilson(int(hit.sum()), len(hit)).ci
        narrow += plain.low <= truth["acc"] <= plain.high
    rates = {name: count / runs for name, count in kept.items()}
    print(share, rates, narrow / runs)
    assert all(rate >= 0.9 for rate in rates.values()), rates
    if share == 1.0:
        assert narrow / runs < 0.7


def test_the_threshold_for_an_sla_stands_beside_the_accuracies_if_one_is_asked_for():
    """Of 800 items the confident half is right and the other half wrong: half of them can be answered at a risk of .05."""
    sure, unsure = np.linspace(0.8, 0.99, 400), np.linspace(0.51, 0.6, 400)
    p, hit = np.r_[sure, unsure], np.r_[np.ones(400, bool), np.zeros(400, bool)]
    order = np.random.default_rng(0).permutation(800)
    found = results.likelihood_estimates(scores(p[order], hit[order]), 0, sla=0.05)
    assert found[results.AT_SLA].value == pytest.approx(0.5, abs=0.05)
    assert found[results.AT_SLA].detail["holds"] is True
    assert found[results.AT_SLA].detail["checked"]["risk_upper"] <= 0.05  # on the half that only tests
    assert results.AT_SLA not in results.likelihood_estimates(scores(p, hit), 0)
    assert results.likelihood_estimates(scores(p, ~hit), 0, sla=0.05)[results.AT_SLA].value in (None, 0)
