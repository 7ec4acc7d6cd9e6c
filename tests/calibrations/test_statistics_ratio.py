from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient


def sample(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    d = rng.normal(3, 1, n)
    return 0.85 * d + rng.normal(0, 0.5, n), d


def test_scores_have_mean_theta_and_the_delta_method_standard_error() -> None:
    f, d = sample()
    ratio = st.ratio_of_means(f, d)
    gradient = np.array([1 / d.mean(), -f.mean() / d.mean() ** 2])
    delta_variance = gradient @ np.cov(f, d) @ gradient / f.size
    assert ratio.scores.mean() == pytest.approx(f.sum() / d.sum(), abs=1e-14)
    assert ratio.standard_error == pytest.approx(math.sqrt(delta_variance), rel=1e-12)
    assert ratio.score_sd / math.sqrt(f.size) == pytest.approx(ratio.standard_error, rel=1e-12)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_fieller_ends_are_where_the_paired_t_test_stops_rejecting(level: float) -> None:
    f, d = sample(12, seed=3)
    quantile = stats.t.ppf((1 + level) / 2, 11)

    def margin(theta: float) -> float:
        return abs(stats.ttest_1samp(f - theta * d, 0).statistic) - quantile

    ratio = st.ratio_of_means(f, d)
    ends = (
        optimize.brentq(margin, ratio.value - 1, ratio.value),
        optimize.brentq(margin, ratio.value, ratio.value + 1),
    )
    assert ratio.fieller(level) == pytest.approx(ends, abs=1e-9)


def test_proportional_prompts_have_exactly_no_spread() -> None:
    d = np.random.default_rng(0).normal(3, 0.5, 50)
    ratio = st.ratio_of_means(0.7 * d, d)
    assert ratio.standard_error < 1e-15
    low, high = ratio.fieller()
    assert high - low < 1e-14


def test_without_denominator_noise_fieller_is_the_t_interval() -> None:
    f = sample()[0]
    ratio = st.ratio_of_means(f, np.full(f.size, 2.0))
    t_interval = stats.t.interval(0.95, f.size - 1, f.mean() / 2, stats.sem(f) / 2)
    assert ratio.fieller() == pytest.approx(t_interval, abs=1e-12)
    assert ratio.denominator_t == math.inf


def test_singleton_clusters_change_nothing_and_copies_add_no_information() -> None:
    f, d = sample()
    plain = st.ratio_of_means(f, d)
    singleton = st.ratio_of_means(f, d, clusters=np.arange(f.size))
    copied = st.ratio_of_means(np.repeat(f, 3), np.repeat(d, 3), clusters=np.repeat(np.arange(f.size), 3))
    for other in (singleton, copied):
        assert other.value == pytest.approx(plain.value, rel=1e-14)
        assert other.standard_error == pytest.approx(plain.standard_error, rel=1e-12)
        assert other.denominator_t == pytest.approx(plain.denominator_t, rel=1e-12)
        assert other.fieller() == pytest.approx(plain.fieller(), rel=1e-12)
    assert st.ratio_of_means(np.repeat(f, 3), np.repeat(d, 3)).standard_error < 0.6 * plain.standard_error


def test_completeness_and_differences_are_ratios_too() -> None:
    f, d = sample()
    assert st.ratio_of_means(d - f, d).value == pytest.approx(1 - f.sum() / d.sum(), abs=1e-14)
    difference = st.ratio_of_means(f - 0.3 * d, d)
    assert difference.value == pytest.approx(f.sum() / d.sum() - 0.3, abs=1e-14)


def test_theta_is_scale_free_order_free_and_never_clipped() -> None:
    f, d = sample()
    order = np.random.default_rng(1).permutation(f.size)
    for scaled in (st.ratio_of_means(5 * f, 5 * d), st.ratio_of_means(f[order], d[order])):
        assert scaled.value == pytest.approx(st.ratio_of_means(f, d).value, rel=1e-13)
        assert scaled.fieller() == pytest.approx(st.ratio_of_means(f, d).fieller(), rel=1e-12)
    assert st.ratio_of_means(-2 * d, d).value == pytest.approx(-2)
    assert st.ratio_of_means(3 * d, d).value == pytest.approx(3)


def test_gates() -> None:
    rng = np.random.default_rng(0)
    weak = rng.normal(0, 1, 30)
    weak += 0.2 - weak.mean()  # mean / SE about 1.1
    with pytest.raises(Insufficient) as raised:
        st.reportable_ratio(weak, weak)
    assert raised.value.reason == "denominator"
    with pytest.raises(Insufficient) as raised:
        st.ratio_of_means(weak, weak).fieller()
    assert raised.value.reason == "denominator"
    with pytest.raises(Insufficient) as raised:
        st.ratio_of_means(weak, -np.abs(weak))
    assert raised.value.reason == "behaviour_absent"
    with pytest.raises(Insufficient) as raised:
        st.ratio_of_means([1.0, 2.0], [1.0, 2.0], clusters=["a", "a"])
    assert raised.value.reason == "n_clusters"
    with pytest.raises(ValueError, match="denominator has 2"):
        st.ratio_of_means([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not finite"):
        st.ratio_of_means([1.0, np.nan], [1.0, 2.0])


def test_a_t_of_exactly_the_gate_passes_it() -> None:
    ratio = st.ratio_of_means([1.0, 2.0], [2.0, 1.0])
    assert ratio.denominator_t == pytest.approx(3.0)
    ratio.require_denominator(3.0)


def test_mean_of_ratios_counts_small_denominators() -> None:
    result = st.mean_of_ratios([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 2.0, 0.05])
    assert result.near_zero_denominators == 1
    assert result.value == pytest.approx((1 + 1 + 0.5 + 20) / 4)
    with pytest.raises(Insufficient):
        st.mean_of_ratios([1.0, 1.0], [1.0, 0.0])


def test_fieller_covers_the_truth() -> None:
    hits = [low < 0.85 < high for low, high in (st.ratio_of_means(*sample(20, s)).fieller() for s in range(600))]
    assert np.mean(hits) == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 600))
