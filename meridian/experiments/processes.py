"""Runs tasks in processes on all cores, and stops them when something goes wrong."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from threadpoolctl import threadpool_limits

import interruption

Task = tuple[Any, ...]  # a function of a module and its arguments


def results(tasks: Sequence[Task], workers: int | None = None) -> Iterator[tuple[int, Any]]:
    """(place, result) of every task as soon as it is done; each process has one thread.

    The first error, or an interruption, is raised at once, and tasks that have not begun are dropped.
    """
    pool = ProcessPoolExecutor(workers or cores(), mp_context=get_context("spawn"), initializer=_prepare)
    try:
        places = {pool.submit(*task): place for place, task in enumerate(tasks)}
        for future in as_completed(places):
            yield places[future], future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare() -> None:
    """Use one thread, because many processes with many threads would wait for each other. Only the parent reacts to Ctrl-C.

    scipy's warnings of lost precision are silenced: samples with almost no variance cause them, and their verdicts say so.
    """
    interruption.let_go()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore", message="Precision loss", category=RuntimeWarning)
    threadpool_limits(1)
