"""E-processes: the specification's numbers, an integral, and streams that are looked at every day."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from results_io import UserError
from suites.statistics import e_process


@pytest.mark.parametrize(
    ("hits", "n", "p0", "e"), [(5, 8, 0.2, 12.110150), (12, 40, 0.1, 83.417774), (4, 40, 0.1, 0.118464)]
)
def test_oracle_11(hits, n, p0, e):
    assert e_process.e_value(hits, n, p0) == pytest.approx(e, abs=5e-7)
    ratio, _ = integrate.quad(lambda p: stats.binom.pmf(hits, n, p), 0, 1)
    assert e_process.e_value(hits, n, p0) == pytest.approx(ratio / stats.binom.pmf(hits, n, p0))


def test_on_average_it_is_1_under_the_hypothesis():
    for p0 in (0.1, 0.5):
        mean = sum(stats.binom.pmf(k, 30, p0) * e_process.e_value(k, 30, p0) for k in range(31))
        assert mean == pytest.approx(1)


def test_a_stream_is_its_counts():
    found = e_process.watch([True, False, True, True], 0.2)
    assert found.path == pytest.approx([e_process.e_value(k, n, 0.2) for k, n in ((1, 1), (1, 2), (2, 3), (3, 4))])
    assert (found.n, found.successes, found.e, found.direction, found.alarm) == (4, 3, found.path[-1], "above", None)
    assert e_process.watch([], 0.2).e == 1 and e_process.watch([], 0.2).direction == "equal"
    assert e_process.watch([False] * 100, 0.2).direction == "below"
    assert e_process.watch([True] * 5000, 0.2).e < np.inf


def test_daily_looks_alarm_in_at_most_5_percent_of_quiet_streams_where_a_test_alarms_in_a_quarter():
    rng, streams, p0 = np.random.default_rng(0), 400, 0.1
    outcomes = rng.random((streams, 300)) < p0
    alarms = sum(e_process.watch(stream, p0).alarm is not None for stream in outcomes)
    assert alarms / streams <= 0.05
    hits, n = np.cumsum(outcomes, axis=1), np.arange(1, 301)
    naive = (stats.binom.sf(hits - 1, n, p0) <= 0.05)[:, 19:].any(axis=1).mean()
    assert naive > 0.2


def test_a_planted_regression_is_found():
    rng = np.random.default_rng(1)
    found = [e_process.watch(rng.random(300) < 0.25, 0.1) for _ in range(50)]
    assert all(one.alarm is not None and one.direction == "above" for one in found)
    late = [e_process.watch(np.r_[rng.random(100) < 0.1, rng.random(200) < 0.4], 0.1).alarm for _ in range(50)]
    assert all(alarm is not None for alarm in late) and np.median(late) > 100


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="6 successes of 5"):
        e_process.e_value(6, 5, 0.1)
    with pytest.raises(UserError, match="compare with is 0"):
        e_process.watch([True], 0.0)
    with pytest.raises(UserError, match="alpha is 1"):
        e_process.watch([True], 0.1, 1.0)
