"""The statistics of suites on published and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suites.statistics import (
    agreement,
    bootstrap,
    calibration,
    detection,
    effect_size,
    multiplicity,
    paired,
    permutation,
    power,
    proportions,
    selective,
)

BH_1995 = (
    [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
)  # fmt: skip


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718), (0, 20, 0.0, 0.1611)],
)
def test_o1_wilson_of_newcombe(k: int, n: int, low: float, high: float) -> None:
    found = proportions.wilson(k, n)
    assert (found.ci.low, found.ci.high) == pytest.approx((low, high), abs=5e-5)
    assert found.value == pytest.approx(k / n)


@pytest.mark.parametrize(("k", "n", "low", "high"), [(50, 100, 0.40, 0.60), (15, 20, 0.55, 0.90)])
def test_o3_percentile_ends_are_binomial_quantiles(k: int, n: int, low: float, high: float) -> None:
    found = bootstrap.mean([1] * k + [0] * (n - k), seed=0)
    assert (found.ci.low, found.ci.high) == pytest.approx((low, high), abs=1 / n + 1e-9)
    exact = stats.binom(n, k / n).ppf([0.025, 0.975]) / n
    assert (found.ci.low, found.ci.high) == pytest.approx(tuple(exact), abs=1 / n + 1e-9)


def test_o3_all_right_is_degenerate_so_wilson_stands_in() -> None:
    found = bootstrap.mean([1] * 20, seed=0)
    assert found.value == 1
    assert found.ci == proportions.wilson(20, 20).ci
    assert found.ci.low == pytest.approx(0.8389, abs=5e-5)


def test_o4_approval_ratings() -> None:
    table = paired.Cells(both=794, only_a=150, only_b=86, neither=570)
    found = paired.difference(table)
    assert found.detail["chi2"] == pytest.approx(16.818, abs=5e-4)
    assert found.detail["chi2_p"] == pytest.approx(4.114e-5, rel=2e-4)
    z = (86 - 150) / (86 + 150) ** 0.5
    assert z == pytest.approx(-4.166, abs=5e-4)
    assert z**2 == pytest.approx(17.356, abs=5e-4)
    # The p of 3.099e-5 that goes with the published table is that of z; the exact binomial one is 3.716e-5.
    assert 2 * stats.norm.sf(abs(z)) == pytest.approx(3.099e-5, rel=2e-4)
    assert found.p_value == pytest.approx(3.716e-5, rel=2e-4)


@pytest.mark.parametrize(
    ("b", "c", "exact", "chi2", "chi2_p", "mid_p"),
    [
        (1, 8, 0.03906, 4.0, 0.0455, 0.02148),
        (5, 15, 0.04139, 4.05, 0.04417, 0.02660),
        (2, 10, 0.03857, None, None, None),
        (0, 5, 0.0625, None, None, None),
        (0, 6, 0.03125, None, None, None),
        (6, 6, 1.0, 0.0833, 0.7728, None),
        (10, 25, 0.01667, 5.6, 0.01796, None),
    ],
)
def test_o5_discordant_counts(
    b: int, c: int, exact: float, chi2: float | None, chi2_p: float | None, mid_p: float | None
) -> None:
    found = paired.mcnemar(b, c)
    assert found.p_value == pytest.approx(exact, abs=5e-6)
    for name, expected in (("chi2", chi2), ("chi2_p", chi2_p), ("mid_p", mid_p)):
        if expected is not None:
            assert found.detail[name] == pytest.approx(expected, abs=5e-5)
    assert found.detail["chi2_valid"] == (b + c >= 25)


def test_o6_no_discordance_is_p_one() -> None:
    found = paired.mcnemar(0, 0)
    assert (found.status, found.p_value, found.detail["note"]) == ("ok", 1.0, "no discordance")
    assert found.detail["chi2"] is None


def test_o7_cohen_and_hedges() -> None:
    found = effect_size.cohen_d([1, 2, 3, 4, 5], [3, 4, 5, 6, 7])
    assert found.detail["d"] == pytest.approx(1.264911, abs=5e-7)
    assert found.value == found.detail["g"] == pytest.approx(1.142500, abs=5e-7)
    assert found.unit == "Hedges' g"
    assert 2 / found.detail["d"] == pytest.approx(1.581139, abs=5e-7)
    for b in ([3, 3, 3], [4, 4, 4]):
        assert effect_size.cohen_d([3, 3, 3], b).status == "undefined"


def test_o8_cohen_h() -> None:
    assert effect_size.cohen_h(0.80, 0.85, 100, 100).value == pytest.approx(0.131896, abs=5e-7)


@pytest.mark.parametrize(
    ("n", "mean", "upper"),
    [(20, 0.156, 0.246), (50, 0.097, 0.158), (100, 0.070, 0.113), (300, 0.039, 0.063), (1000, 0.023, 0.035)],
)
def test_o9_a_perfect_model_has_an_ece(n: int, mean: float, upper: float) -> None:
    rng, found = np.random.default_rng(1), []
    for _ in range(2000):
        confidence = rng.uniform(0.5, 1, n)
        bins = calibration.equal_width_bins(confidence, calibration.BINS)
        outcome = (rng.random(n) < confidence).astype(float)
        found.append(calibration.errors_of(outcome[None], confidence, bins)[0])
    assert np.mean(found) == pytest.approx(mean, abs=0.01)
    assert np.quantile(found, 0.95) == pytest.approx(upper, abs=0.01)


def test_o9_the_null_of_a_run_says_so() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.5, 1, 20)
    ece = calibration.calibration(confidence, rng.random(20) < confidence, seed=1).ece
    assert ece.detail["null_mean"] == pytest.approx(0.156, abs=0.02)
    assert ece.detail["band"] is None


def test_o11_risk_coverage() -> None:
    curve = selective.risk_coverage([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0])
    assert curve.coverage.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert curve.risk.tolist() == pytest.approx([0, 0, 1 / 3, 0.25, 0.4])
    assert curve.area.value == pytest.approx(0.196667, abs=5e-7)
    assert curve.excess_area.value == pytest.approx(0.066667, abs=5e-7)
    assert curve.threshold[1] == pytest.approx(0.7)  # strictly above: .7 itself is not answered


@pytest.mark.parametrize(
    ("texts", "mode", "pairs", "modes"), [("AAABC", 0.6, 0.3, ["a"]), ("AABBC", 0.4, 0.2, ["a", "b"])]
)
def test_o12_agreement(texts: str, mode: float, pairs: float, modes: list[str]) -> None:
    consistency = agreement.mode_consistency(list(texts))
    assert consistency.value == pytest.approx(mode)
    assert consistency.detail["modes"] == modes
    assert agreement.pairwise_agreement(list(texts)).value == pytest.approx(pairs)


def test_o14_items_for_paired_runs() -> None:
    assert [power.items_for_paired(0.05, psi).value for psi in (0.1, 0.2, 0.3)] == [312, 626, 940]


@pytest.mark.parametrize(("n", "effect", "digits"), [(100, 0.124, 3), (400, 0.0625, 4), (1000, 0.0396, 4)])
def test_o14_minimum_detectable_effect(n: int, effect: float, digits: int) -> None:
    assert power.minimum_detectable_effect(n, 0.2).value == pytest.approx(effect, abs=0.5 * 10**-digits)


@pytest.mark.parametrize(("width", "n"), [(0.10, 381), (0.05, 1533)])
def test_o14_items_for_a_wilson_width(width: float, n: int) -> None:
    assert power.items_for_width(width).value == n


def test_o15_benjamini_hochberg_1995() -> None:
    p = {f"h{i}": value for i, value in enumerate(BH_1995)}
    found = multiplicity.adjust(p, "published")
    assert (found.m, len(found.rejected)) == (15, 4)
    adjusted = [found.adjusted[f"h{i}"] for i in range(6)]
    assert adjusted == pytest.approx([0.0015, 0.003, 0.0095, 0.035625, 0.0603, 0.063857], abs=5e-7)
    assert len(multiplicity.adjust(p, "published", method="bonferroni").rejected) == 3
    assert len(multiplicity.adjust(p, "published", method="by").rejected) == 3


def test_o15_ties_and_holm() -> None:
    equal = multiplicity.adjust(dict(zip("abcde", [0.01, 0.02, 0.03, 0.04, 0.05], strict=True)), "steps")
    assert list(equal.adjusted.values()) == pytest.approx([0.05] * 5)
    assert len(equal.rejected) == 5
    holm = multiplicity.adjust(dict(zip("abcd", [0.01, 0.04, 0.03, 0.005], strict=True)), "steps", method="holm")
    assert list(holm.adjusted.values()) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(("refusals", "p"), [(5, 0.047124), (6, 0.020196), (4, 0.106029)])
def test_o16_refusals(refusals: int, p: float) -> None:
    found = permutation.difference([0] * 20, [1] * refusals + [0] * (20 - refusals), seed=0)
    assert found.p_value == pytest.approx(p, abs=5e-7)
    assert found.value == pytest.approx(refusals / 20)


def test_o17_strata() -> None:
    a, b = [1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0]
    strata = (["x"] * 3 + ["y"] * 3, ["x"] * 3 + ["y"] * 3)
    found = permutation.difference(a, b, seed=0, strata=strata)
    assert found.value == pytest.approx(-4 / 3)  # B - A
    assert (found.p_value, found.detail["relabellings"]) == (pytest.approx(32 / 400), 400)
    for part in (slice(0, 3), slice(3, 6)):
        assert permutation.difference(a[part], b[part], seed=0).p_value == pytest.approx(0.4)


def test_o19_centroid_shift() -> None:
    found = permutation.centroid_shift([(1, 0), (1, 0.1), (1, -0.1)], [(0, 1), (0.1, 1), (-0.1, 1)], seed=0)
    assert found.value == pytest.approx(1.0)
    assert found.p_value == pytest.approx(0.1)


def test_o21_golden_set() -> None:
    found = detection.from_counts(48, 3, 2, 47)
    values = [estimate.value for estimate in (found.precision, found.recall, found.f1)]
    assert values == pytest.approx([0.941176, 0.96, 0.950495], abs=5e-7)
    assert found.specificity.value == pytest.approx(0.94)
    corrected = detection.rogan_gladen(proportions.wilson(30, 100), 0.96, 0.94)
    assert corrected.value == pytest.approx(0.266667, abs=5e-7)


def test_o29_answers_without_error_that_a_limit_needs() -> None:
    exact = [proportions.upper_bound(0, n).ci.high for n in (58, 59)]
    assert exact[0] >= 0.05 > exact[1]
    assert exact[1] == pytest.approx(0.0495, abs=5e-5)
    wilson = [proportions.wilson(0, n).ci.high for n in (72, 73)]
    assert wilson[0] >= 0.05 > wilson[1]
    assert wilson[1] == pytest.approx(0.04999, abs=5e-6)
