"""Judge samples of many pools on all cores: processes that load no model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any

from calibrations.validation.coverage import coverage
from calibrations.validation.rates import Outcome, outcome
from calibrations.validation.replicates import samples
from scripts.experiments.stored import Pool

AT_ONCE = 10  # samples in one task of a process: small enough to share the work evenly


@dataclass(frozen=True)
class Work:
    """Samples of one pool at one number of prompts."""

    pool: Pool
    prompts: int
    replicates: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """How a sample is judged: the calibrations' settings, the certificate's rules, the seed of the samples."""

    calibration: Mapping[str, Any]
    certificate: Mapping[str, Any]
    seed: int


def sizes(prompts: int) -> dict[str, int]:
    """Prompts of a sample: held out are half as many as evaluated, as in a run."""
    return {"evaluation": prompts, "held_out": prompts // 2}


def judged(works: Sequence[Work], rules: Rules) -> Iterator[tuple[Work, list[Outcome]]]:
    """Every piece of work with its outcomes, in the order in which they are done."""
    pieces = [piece for work in works for piece in _pieces(work)]
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn"), initializer=one_thread) as pool:
        futures: dict[Future[list[Outcome]], Work] = {pool.submit(_judge, piece, rules): piece for piece in pieces}
        for future in as_completed(futures):
            yield futures[future], future.result()


def simulated(settings: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Coverage of every interval, one list for each number of prompts in the order in which they are done.

    `settings` as `calibrations.validation.coverage.coverage`, and `prompts`, `replicates` and `seed` of the simulation.
    """
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn"), initializer=one_thread) as pool:
        sizes_ = sorted(settings["prompts"], reverse=True)  # the longest first
        for future in as_completed([pool.submit(_simulate, settings, prompts) for prompts in sizes_]):
            yield future.result()


def _simulate(settings: Mapping[str, Any], prompts: int) -> list[dict[str, Any]]:
    found = coverage(settings, prompts, settings["replicates"], settings["seed"])
    return [one.to_dict() for one in found]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pieces(work: Work) -> Iterator[Work]:
    for start in range(0, len(work.replicates), AT_ONCE):
        yield Work(work.pool, work.prompts, work.replicates[start : start + AT_ONCE])


def one_thread() -> None:
    """As many processes as cores, each with as many threads, would wait for each other."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


@cache
def _documents(pool: Pool) -> dict[str, dict[str, Any]]:
    return pool.documents()


def _judge(work: Work, rules: Rules) -> list[Outcome]:
    drawn = samples(
        _documents(work.pool), rules.calibration["common"], sizes(work.prompts), work.replicates, rules.seed
    )
    return [outcome(sample, rules.calibration, rules.certificate) for sample in drawn]
