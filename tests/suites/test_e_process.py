"""E-processes: the specification's numbers, an integral, and streams that are looked at every day."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from calibrations.statistics import e_benjamini_hochberg
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


def test_daily_looks_alarm_in_at_most_5_percent_of_quiet_streams_where_a_z_test_alarms_in_28():
    rng, streams, p0 = np.random.default_rng(0), 2000, 0.1
    outcomes = rng.random((streams, 300)) < p0
    alarms = sum(e_process.watch(stream, p0).alarm is not None for stream in outcomes)
    assert alarms / streams <= 0.05
    hits, n = np.cumsum(outcomes, axis=1), np.arange(1, 301)
    z = (hits - n * p0) / np.sqrt(n * p0 * (1 - p0))
    assert (z >= stats.norm.isf(0.05))[:, 19:].any(axis=1).mean() == pytest.approx(0.28, abs=0.02)
    assert alarms / streams == pytest.approx(0.028, abs=0.008)


def quiet(rng, metrics: int, requests: int = 300):
    """(streams of metrics of which nothing changed, their times): half of the requests bear on each one, at random."""
    places = [np.flatnonzero(rng.random(requests) < 0.5) for _ in range(metrics)]
    return [e_process.watch(rng.random(own.size) < 0.5, 0.5) for own in places], places


@pytest.mark.parametrize("metrics", [3, 7])
def test_quiet_streams_of_several_metrics_give_any_alarm_in_at_most_5_percent(metrics):
    rng, alone, together = np.random.default_rng(metrics), 0, 0
    for _ in range(400):
        watched, places = quiet(rng, metrics)
        alone += any(one.alarm is not None for one in watched)
        together += any(e_process.alarms(watched, places))
    assert together / 400 <= 0.05 < alone / 400  # the alarm of one metric for itself is too often one of several


def test_alarms_are_those_of_e_bh_at_every_moment():
    rng = np.random.default_rng(5)
    streams = [rng.random(60) < share for share in (0.5, 0.75, 0.9, 0.1)]
    times = [np.sort(rng.choice(400, 60, replace=False)) for _ in streams]
    watched = [e_process.watch(one, 0.5) for one in streams]
    first: list[dict[str, e_process.FirstAlarm]] = [{} for _ in streams]
    for now in range(400):
        counts = [int(np.sum(own <= now)) for own in times]
        values = [e_process.e_value(int(np.sum(one[:n])), n, 0.5) for one, n in zip(streams, counts, strict=True)]
        for place, chosen in enumerate(e_benjamini_hochberg(values, 0.05)):
            if chosen:
                hits, n = int(np.sum(streams[place][: counts[place]])), counts[place]
                side = "above" if hits > n / 2 else "below"
                first[place].setdefault(side, e_process.FirstAlarm(n, now))
    assert e_process.alarms(watched, times) == first
    assert [list(one) for one in first] == [[], ["above"], ["above"], ["below"]]


def test_an_alarm_has_the_side_of_its_moment_and_is_not_turned_around():
    """15 in favour, then 17 against: e was past 20 with the rate below 1/2, and is .23 now, with the rate above it."""
    one = e_process.watch([False] * 15 + [True] * 17, 0.5)
    assert (one.direction, one.e) == ("above", pytest.approx(0.23, abs=0.005))
    assert e_process.alarms([one], [range(32)]) == [{"below": e_process.FirstAlarm(8, 7)}]
    back = e_process.watch([False] * 15 + [True] * 60, 0.5)
    found = e_process.alarms([back], [range(75)])[0]
    assert list(found) == ["below", "above"] and 40 < found["above"].n < 75


def test_times_are_one_for_each_item_and_rise():
    one = e_process.watch([True, False], 0.5)
    for times in ([1], [2, 1], [1, 1]):
        with pytest.raises(UserError, match="expected a rising time for each item"):
            e_process.alarms([one], [times])
    assert e_process.alarms([e_process.watch([], 0.5)], [[]]) == [{}] and e_process.alarms([], []) == []


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
