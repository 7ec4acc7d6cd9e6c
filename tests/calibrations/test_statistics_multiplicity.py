from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from statsmodels.stats.multitest import multipletests

from calibrations import statistics as st
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("mine", "theirs"), [("bonferroni", "bonferroni"), ("holm", "holm"), ("bh", "fdr_bh"), ("by", "fdr_by")]
)
def test_adjusted_p_equals_statsmodels(mine: str, theirs: str) -> None:
    p = np.concatenate([RNG.uniform(0, 0.02, 8), RNG.uniform(size=12), [0.5, 0.5]])
    np.testing.assert_allclose(st.adjusted_p(p, mine), multipletests(p, method=theirs)[1], atol=1e-12)


def test_scipy_agrees_on_the_false_discovery_rate() -> None:
    p = RNG.uniform(size=30) ** 2
    np.testing.assert_allclose(st.adjusted_p(p, "bh"), stats.false_discovery_control(p), atol=1e-12)
    np.testing.assert_allclose(st.adjusted_p(p, "by"), stats.false_discovery_control(p, method="by"), atol=1e-12)
    factor = float((1 / np.arange(1, 17)).sum())
    assert factor == pytest.approx(3.38, abs=0.005)  # m = 16


def test_missing_p_values_neither_help_nor_hurt() -> None:
    p = np.array([0.01, np.nan, 0.04, 0.2, np.nan])
    for method in ("bonferroni", "holm", "bh", "by"):
        adjusted = st.adjusted_p(p, method)
        assert np.isnan(adjusted).tolist() == [False, True, False, False, True]
        np.testing.assert_allclose(adjusted[[0, 2, 3]], st.adjusted_p([0.01, 0.04, 0.2], method))
    assert st.survival([0.01, 0.9, np.nan]).nominal == 1


def test_bad_p_values() -> None:
    with pytest.raises(ValueError, match="outside"):
        st.adjusted_p([0.1, 1.2], "holm")
    with pytest.raises(Insufficient):
        st.adjusted_p([np.nan], "holm")
    with pytest.raises(ValueError, match="method is 'hs'"):
        st.adjusted_p([0.1], "hs")


def test_or_and_intersection_and_partial_conjunction() -> None:
    p = [0.04, 0.001, 0.3, 0.02]
    assert st.or_clause_p(p) == pytest.approx(0.004) and st.or_clause_p([0.9, 0.8]) == 1.0
    assert st.intersection_union_p(p) == 0.3
    assert st.partial_conjunction_p(p, 1) == pytest.approx(st.or_clause_p(p))
    assert st.partial_conjunction_p(p, 4) == st.intersection_union_p(p)
    assert st.partial_conjunction_p(p, 2) == pytest.approx(3 * 0.02)
    with pytest.raises(Insufficient) as raised:
        st.intersection_union_p([0.01, np.nan])
    assert raised.value.reason == "not_run"
    with pytest.raises(Insufficient):
        st.partial_conjunction_p(p, 5)


def test_partial_conjunction_under_positive_dependence() -> None:
    """(n - u + 1)/(i - u + 1) p_(i) by hand; equal p-values are one test; it never falls as more is claimed."""
    p = [0.04, 0.001, 0.3, 0.02]
    assert st.partial_conjunction_p(p, 2, "positive") == pytest.approx(min(3 * 0.02, 1.5 * 0.04, 0.3))
    assert st.partial_conjunction_p(p, 4, "positive") == st.intersection_union_p(p)
    assert st.partial_conjunction_p([0.03] * 5, 2, "positive") == pytest.approx(0.03)
    drawn = np.random.default_rng(1).uniform(size=(200, 6)) ** 3
    for row in drawn:
        found = [st.partial_conjunction_p(row, u, "positive") for u in range(1, 7)]
        assert np.all(np.diff(found) >= -1e-15)
        assert all(mine <= st.partial_conjunction_p(row, u) for u, mine in enumerate(found, 1))


def test_false_hypotheses_is_a_lower_bound() -> None:
    """Two of five false: more than two are claimed in at most 5 % of samples (and 3 standard errors of 2,000)."""
    assert st.false_hypotheses([0.001, 0.002, 0.9, 0.8], 0.05) == 2
    assert st.false_hypotheses([0.04] * 4, 0.05) == 4 and st.false_hypotheses([0.2, 0.9], 0.05) == 0
    p = np.random.default_rng(0).uniform(size=(2000, 5))
    p[:, :2] = 1e-9
    claimed = np.array([st.false_hypotheses(row, 0.05) for row in p])
    assert (claimed >= 2).all() and 0.03 < (claimed > 2).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def brute_step_down(t: np.ndarray, law: np.ndarray) -> np.ndarray:
    adjusted, remaining, floor = np.empty(t.size), list(np.argsort(-t)), 0.0
    while remaining:
        p = (1 + int((law[:, remaining].max(axis=1) >= t[remaining[0]]).sum())) / (len(law) + 1)
        floor = max(floor, p)
        adjusted[remaining.pop(0)] = floor
    return adjusted


def test_step_down_max_t_equals_a_loop() -> None:
    data = RNG.normal([0.5, 0.2, 0.0, 0.35], 1, (40, 4))
    draws = st.bootstrap_means(st.bootstrap_counts(40, 999, seed=0), data)
    result = st.step_down_max_t(data.mean(0), draws)
    sd = draws.std(axis=0, ddof=1)
    np.testing.assert_allclose(result.t, data.mean(0) / sd)
    np.testing.assert_allclose(result.adjusted_p, brute_step_down(result.t, (draws - data.mean(0)) / sd))


def test_max_t_controls_family_wise_error_and_knows_dependence() -> None:
    rng, false, n = np.random.default_rng(0), 0, 60
    for i in range(300):
        data = rng.normal(size=(n, 1)) + 0.2 * rng.normal(size=(n, 10))
        draws = st.bootstrap_means(st.bootstrap_counts(n, 299, seed=i), data)
        false += st.step_down_max_t(data.mean(0), draws).adjusted_p.min() <= 0.05
    assert false / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300) + 0.01
    assert false / 300 > 0.01  # Bonferroni over ten copies of one test would be near .005


def test_max_t_refusals() -> None:
    with pytest.raises(Insufficient) as raised:
        st.step_down_max_t([1.0, 1.0], np.column_stack([RNG.normal(size=10), np.ones(10)]))
    assert raised.value.reason == "zero_variance"
    with pytest.raises(ValueError, match="expected"):
        st.step_down_max_t([1.0], RNG.normal(size=(10, 2)))


def test_storey_share_of_nulls() -> None:
    p = np.concatenate([(np.arange(80) + 0.5) / 80, np.full(20, 1e-4)])
    assert st.storey_pi0(p) == pytest.approx(0.8)
    with pytest.raises(Insufficient):
        st.storey_pi0(p[:49])


def test_e_values() -> None:
    expectation, _ = integrate.quad(st.p_to_e, 0, 1)
    assert expectation == pytest.approx(1, abs=1e-6)  # under the null p is uniform
    assert st.p_to_e(2.44e-6) == pytest.approx(320, rel=0.01)
    e = np.ones(16)
    for value, rejections in ((319.0, 0), (320.0, 1)):
        e[3] = value
        assert st.e_benjamini_hochberg(e).sum() == rejections
    assert st.e_benjamini_hochberg([160.0] * 2 + [1.0] * 14).sum() == 2
