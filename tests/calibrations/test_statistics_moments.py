"""Moments, coefficient of variation, effective rank, paired tests, change points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import contingency_tables

from calibrations import statistics as st
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)


def test_skewness_and_kurtosis_equal_scipy() -> None:
    x = RNG.gamma(2, size=50)
    for kind, bias in ((1, True), (2, False)):
        assert st.skewness(x, kind) == pytest.approx(stats.skew(x, bias=bias), rel=1e-10)
        assert st.excess_kurtosis(x, kind) == pytest.approx(stats.kurtosis(x, bias=bias), rel=1e-10)
    m3, m4 = ((x - x.mean()) ** 3).mean(), ((x - x.mean()) ** 4).mean()
    assert st.skewness(x, 3) == pytest.approx(m3 / x.std(ddof=1) ** 3, rel=1e-10)
    assert st.excess_kurtosis(x, 3) == pytest.approx(m4 / x.std(ddof=1) ** 4 - 3, rel=1e-10)


def test_pool_correction_recovers_the_independent_spread() -> None:
    pool = RNG.normal(10, 2, 90)
    draws = np.array([RNG.choice(pool, 30, replace=False).mean() for _ in range(4000)])
    corrected = st.coefficient_of_variation(draws, ddof=1, pool_fraction=1 / 3)
    assert corrected == pytest.approx(pool.std(ddof=1) / math.sqrt(30) / pool.mean(), rel=0.04)
    assert st.coefficient_of_variation(-draws) == pytest.approx(st.coefficient_of_variation(draws))


def test_sd_bounds_cover_at_their_level() -> None:
    sds = RNG.normal(size=(4000, 12)).std(axis=1, ddof=1)
    factor = np.array(st.sd_bounds(1.0, 11, 0.90))
    covered = (sds * factor[0] < 1) & (sds * factor[1] > 1)
    assert covered.mean() == pytest.approx(0.90, abs=3 * math.sqrt(0.09 / 4000))
    assert (sds * factor[1] < 1).mean() == pytest.approx(0.05, abs=3 * math.sqrt(0.0475 / 4000))
    assert st.cv_interval(0.04, 4) == pytest.approx(st.sd_bounds(0.04, 4))


def test_cv_of_variance_is_that_of_normal_samples() -> None:
    variances = RNG.normal(size=(20_000, 51)).var(axis=1, ddof=1)
    assert variances.std() / variances.mean() == pytest.approx(st.cv_of_variance(51), rel=0.03)
    assert st.cv_of_variance(51) == pytest.approx(0.2)


def test_hodges_lehmann_resists_an_outlier_and_is_equivariant() -> None:
    x = RNG.normal(size=31)
    spoiled = np.append(x[:-1], 1e6)
    assert abs(st.hodges_lehmann(spoiled) - st.hodges_lehmann(x)) < 0.3
    assert st.hodges_lehmann(2 * x + 3) == pytest.approx(2 * st.hodges_lehmann(x) + 3)


def test_effective_ranks_of_a_flat_spectrum_are_its_size() -> None:
    rank = st.effective_rank_of_spectrum(np.full(5, 0.3))
    assert (
        rank.entropy,
        rank.participation_singular,
        rank.participation_eigen,
        rank.stable,
    ) == pytest.approx((5,) * 4)
    scaled = st.effective_rank_of_spectrum([300.0, 100.0])
    assert scaled.entropy == pytest.approx(st.effective_rank_of_spectrum([3.0, 1.0]).entropy)


def test_moment_refusals() -> None:
    for compute, reason in (
        (lambda: st.skewness([1.0, 2.0]), "n_prompts"),
        (lambda: st.excess_kurtosis([1.0, 1.0, 1.0, 1.0]), "zero_variance"),
        (lambda: st.coefficient_of_variation([1.0]), "n_seeds"),
        (lambda: st.coefficient_of_variation([0.0, 0.0]), "ratio_undefined"),
        (lambda: st.sd_bounds(1.0, 0), "n_seeds"),
        (lambda: st.cv_of_variance(1), "n_prompts"),
    ):
        with pytest.raises(Insufficient) as raised:
            compute()
        assert raised.value.reason == reason
    with pytest.raises(ValueError, match="pool_fraction"):
        st.coefficient_of_variation([1.0, 2.0], pool_fraction=1.0)


@pytest.mark.parametrize(("b", "c"), [(1, 9), (12, 30), (7, 7)])
def test_mcnemar_equals_statsmodels(b: int, c: int) -> None:
    table = [[50, b], [c, 40]]
    result = st.mcnemar(b, c)
    assert result.p_exact == pytest.approx(contingency_tables.mcnemar(table, exact=True).pvalue, abs=1e-12)
    for corrected, value in ((True, result.chi2_corrected), (False, result.chi2_uncorrected)):
        reference = contingency_tables.mcnemar(table, exact=False, correction=corrected)
        assert value == pytest.approx(reference.statistic, abs=1e-12)


def test_mean_test_of_independent_prompts_equals_scipy_for_every_head() -> None:
    x = RNG.normal(0.2, 1, (30, 5))
    result, reference = st.mean_test(x), stats.ttest_1samp(x, 0, alternative="greater")
    np.testing.assert_allclose(result.t, reference.statistic, rtol=1e-12)
    np.testing.assert_allclose(result.p, reference.pvalue, rtol=1e-10)
    both = stats.ttest_1samp(x, 0).confidence_interval(0.90)
    np.testing.assert_allclose(result.interval(0.90), (both.low, both.high), rtol=1e-10)


def test_change_point_needs_not_lie_on_a_multiple_of_five() -> None:
    signal = np.concatenate([np.zeros(13), np.full(14, 4.0)])
    assert st.change_points(signal, penalty=3) == [13, 27]
    assert st.change_points(np.zeros(20), penalty=3) == [20]


def test_missing_ruptures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ruptures", None)
    with pytest.raises(ImportError, match="pip install ruptures"):
        st.change_points(np.zeros(10), penalty=3)


def test_student_kurtoses_are_those_of_samples() -> None:
    """Normal samples of 400: mean -6/(n+1), SD near sqrt(24/n). Heavier tails raise them, far less than the true excess."""
    normal = st.student_kurtoses(400, 0.0, 4000, 0)
    assert (np.diff(normal) >= 0).all() and len(normal) == 4000 and not normal.flags.writeable
    assert normal.mean() == pytest.approx(-6 / 401, abs=3 * 0.245 / 4000**0.5)
    assert normal.std() == pytest.approx((24 / 400) ** 0.5, rel=0.1)
    heavy = st.student_kurtoses(400, 1.5, 4000, 0)  # 8 degrees of freedom
    assert 0.9 < np.median(heavy) < 1.1 < heavy.mean() < 1.5
    with pytest.raises(ValueError, match="no Student t"):
        st.student_kurtoses(400, -0.1, 10, 0)
