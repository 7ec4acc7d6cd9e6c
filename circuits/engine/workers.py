"""Independent pieces of work in parallel on a CPU: one thread for each piece, instead of several threads within a piece.

A second thread speeds up a matrix product of some thousand rows only a little, but it can run a second product at full speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def worker_count(device: torch.device) -> int:
    """How many items run in parallel."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def run_parallel(
    work: Callable[[Item], Iterable[Result]], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """The results of `work(item)` for every item, in order; on a CPU as many items at a time as torch has threads.

    `work` must not change shared state, such as hooks on a model's own modules. An error in one item is raised here, and items
    that have not begun are skipped.
    """
    threads, items = worker_count(device), list(items)
    if threads == 1 or len(items) == 1:
        for item in items:
            yield from work(item)
        return
    with_gradient = torch.is_grad_enabled()

    def alone(item: Item) -> list[Result]:
        with torch.set_grad_enabled(with_gradient):  # a thread starts with torch's default
            return list(work(item))

    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for results in pool.map(alone, items):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
