"""Simultaneous intervals: coverage of the largest of several equal quantities, and limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrations.statistics import percentile_interval, simultaneous_intervals


def test_one_quantity_gets_the_normal_interval():
    draws = np.random.default_rng(0).normal(2.0, 0.5, (20_000, 1))
    ((low, high),) = simultaneous_intervals(np.array([2.0]), draws, 0.95)
    assert (low, high) == pytest.approx((2 - 1.96 * 0.5, 2 + 1.96 * 0.5), abs=0.02)


def test_independent_quantities_share_the_error():
    """c of 4 independent ones at 95 %: the normal quantile of (1 + .95^(1/4)) / 2 = 2.491."""
    draws = np.random.default_rng(1).normal(0, 1, (40_000, 4))
    intervals = simultaneous_intervals(np.zeros(4), draws, 0.95)
    expected = stats.norm.ppf((1 + 0.95**0.25) / 2)
    assert expected == pytest.approx(2.491, abs=1e-3)
    np.testing.assert_allclose(intervals, [(-expected, expected)] * 4, rtol=0.02)


def test_the_largest_of_three_equal_differences_is_covered():
    """400 samples of three methods with equal means: its own interval misses 0 too often, the simultaneous one does not."""
    rng = np.random.default_rng(2)
    own = together = 0
    for _ in range(400):
        sample = rng.normal(0, 1, (60, 3))
        counts = rng.multinomial(60, np.full(60, 1 / 60), 400) / 60
        pairs = [(0, 1), (0, 2), (1, 2)]
        estimates = np.array([sample[:, i].mean() - sample[:, j].mean() for i, j in pairs])
        draws = np.stack([counts @ (sample[:, i] - sample[:, j]) for i, j in pairs], axis=1)
        widest = int(np.abs(estimates).argmax())
        low, high = percentile_interval(draws[:, widest], 0.95)
        own += low <= 0 <= high
        low, high = simultaneous_intervals(estimates, draws, 0.95)[widest]
        together += low <= 0 <= high
    assert own / 400 < 0.91
    assert together / 400 == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / 400))


def test_a_quantity_that_never_moves_is_its_estimate():
    draws = np.column_stack([np.full(200, 3.0), np.random.default_rng(3).normal(0, 1, 200)])
    intervals = simultaneous_intervals(np.array([3.0, 0.0]), draws, 0.9)
    assert intervals[0] == (3.0, 3.0) and intervals[1][0] < -1.2
