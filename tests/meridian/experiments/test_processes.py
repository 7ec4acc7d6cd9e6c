"""Work in processes: every result at its place, one thread each, and an end at the first error."""

from __future__ import annotations

import operator
import os
import time

import pytest
from threadpoolctl import threadpool_info

from meridian.experiments import processes


def test_every_result_comes_with_its_place():
    tasks = [(operator.pow, 2, exponent) for exponent in range(12)]
    assert sorted(processes.results(tasks, 2)) == [(place, 2**place) for place in range(12)]


def test_work_is_done_in_other_processes_of_one_thread():
    found = dict(processes.results([(os.getpid,), (threadpool_info,)], 1))
    assert found[0] != os.getpid()
    assert all(pool["num_threads"] == 1 for pool in found[1])


def test_the_first_error_ends_it_and_drops_what_has_not_begun():
    """A division by zero before 200 sleeps of half a second on two processes, 50 s in all: over long before."""
    tasks = [(operator.truediv, 1, 0), *[(time.sleep, 0.5)] * 200]
    started = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        list(processes.results(tasks, 2))
    assert time.monotonic() - started < 30


def test_a_caller_that_stops_drops_the_rest():
    running = processes.results([(operator.pow, 2, 1), *[(time.sleep, 0.5)] * 200], 2)
    started = time.monotonic()
    assert next(running) == (0, 2)
    running.close()
    assert time.monotonic() - started < 30


def test_cores_are_those_that_this_process_may_use():
    assert 1 <= processes.cores() <= (os.cpu_count() or 1)
