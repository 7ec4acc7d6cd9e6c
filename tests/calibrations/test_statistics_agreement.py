"""Concordance, kappas and overlap of head sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import cohen_kappa_score, jaccard_score

from calibrations import statistics as st
from calibrations.head_scores import kappa_of_selections
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)

# Hayes & Krippendorff 2007, four observers and twelve units.
HAYES = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, np.nan, np.nan, np.nan],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, np.nan, 3],
        [np.nan, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, np.nan],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, np.nan],
    ]
)


def test_w_is_an_increasing_function_of_mean_rho_without_ties() -> None:
    ratings = RNG.normal(size=(4, 20)) + RNG.normal(size=20)
    rho = st.mean_spearman(ratings.T)
    assert st.kendall_w(ratings).w == pytest.approx((1 + 3 * rho) / 4, abs=1e-12)


def test_w_with_ties_equals_friedman() -> None:
    ratings = RNG.integers(0, 5, size=(3, 25)).astype(float)
    chi2, p = stats.friedmanchisquare(*ratings.T)
    result = st.kendall_w(ratings)
    assert (result.chi2, result.p) == pytest.approx((chi2, p), rel=1e-10)
    assert result.w > result.w_uncorrected


@pytest.mark.parametrize(("items", "critical"), [(12, 0.596), (20, 0.529), (48, 0.454), (144, 0.401), (384, 0.374)])
def test_critical_w_of_the_specification(items: int, critical: float) -> None:
    assert st.kendall_w_p(critical - 6e-4, 3, items) > 0.05 > st.kendall_w_p(critical + 6e-4, 3, items)


def test_w_refusals() -> None:
    for table, reason in (
        (RNG.normal(size=(2, 10)), "missing_rater"),
        (RNG.normal(size=(3, 2)), "n_heads"),
        (np.ones((3, 10)), "zero_variance"),
    ):
        with pytest.raises(Insufficient) as raised:
            st.kendall_w(table)
        assert raised.value.reason == reason


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_krippendorff_of_hayes_and_krippendorff_2007(level: str, alpha: float) -> None:
    assert st.krippendorff_alpha(HAYES, level) == pytest.approx(alpha, abs=6e-4)


def test_krippendorff_limits() -> None:
    perfect = np.tile(np.arange(5.0), (3, 1))
    assert st.krippendorff_alpha(perfect, "ordinal") == 1.0
    assert abs(st.krippendorff_alpha(RNG.normal(size=(2, 500)))) < 0.1
    for ratings, reason in (
        (np.ones((2, 4)), "zero_variance"),
        ([[1, np.nan], [np.nan, 1]], "missing_rater"),
    ):
        with pytest.raises(Insufficient) as raised:
            st.krippendorff_alpha(ratings)
        assert raised.value.reason == reason


def test_top_k_breaks_ties_by_index_and_always_selects_k() -> None:
    scores = np.array([1.0, 3.0, 3.0, 3.0, 0.0])
    np.testing.assert_array_equal(st.top_k_mask(scores, 2), [False, True, True, False, False])
    stack = np.round(RNG.normal(size=(7, 4, 20)), 1)
    assert (st.top_k_mask(stack, 6).sum(-1) == 6).all()


def test_agreement_of_two_top_k_sets_equals_general_formulas() -> None:
    a, b = RNG.normal(size=144), RNG.normal(size=144)
    b += a
    first, second = st.top_k_mask(a, 26), st.top_k_mask(b, 26)
    assert kappa_of_selections(first, second) == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
    sets = st.set_overlap(np.flatnonzero(first).tolist(), np.flatnonzero(second).tolist())
    assert sets.jaccard == pytest.approx(jaccard_score(first, second), abs=1e-12)
    assert sets.dice == pytest.approx(2 * sets.jaccard / (1 + sets.jaccard))
    shared = int((first & second).sum())
    table = [[shared, 26 - shared], [26 - shared, 118 - 26 + shared]]
    p = st.overlap_p(shared, 144, 26, 26)
    assert p == pytest.approx(stats.fisher_exact(table, "greater").pvalue, rel=1e-9)


def test_kappa_above_two_fifths_needs_fourteen_of_twenty_six() -> None:
    first = np.arange(144) < 26
    kappas = np.array([kappa_of_selections(first, np.roll(first, 26 - shared)) for shared in range(27)])
    assert int(np.flatnonzero(kappas > 0.4)[0]) == 14
    assert st.overlap_p(14, 144, 26, 26) == pytest.approx(3e-6, rel=0.3)


def test_set_overlap() -> None:
    result = st.set_overlap({(0, 1), (5, 5)}, [(5, 5), (9, 9), (9, 6), (10, 7)])
    assert (result.size_ratio, result.jaccard, result.dice) == (0.5, 0.2, 1 / 3)
