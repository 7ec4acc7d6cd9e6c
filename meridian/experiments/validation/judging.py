"""Judges samples of many pools on all cores, in processes that load no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from meridian.experiments import processes
from meridian.experiments.validation.coverage import coverage
from meridian.experiments.validation.rates import JudgedSample, outcome
from meridian.experiments.validation.replicates import samples
from meridian.experiments.validation.stored import Pool

AT_ONCE = 10  # samples in one task of a process; few enough to share the work evenly


@dataclass(frozen=True)
class SampleBatch:
    """Samples of one pool at one number of prompts."""

    pool: Pool
    prompts: int
    replicates: tuple[int, ...]


@dataclass(frozen=True)
class JudgingSettings:
    """How a sample is judged: the calibrations' settings, the certificate's rules, the seed of the samples."""

    calibration: Mapping[str, Any]
    certificate: Mapping[str, Any]
    seed: int


def sizes(prompts: int) -> dict[str, int]:
    """The sizes of a sample's splits: half as many held-out as evaluation prompts, as in a run."""
    return {"evaluation": prompts, "held_out": prompts // 2}


def judged(works: Sequence[SampleBatch], rules: JudgingSettings) -> Iterator[tuple[SampleBatch, list[JudgedSample]]]:
    """Every batch with its outcomes, in order of completion."""
    pieces = [
        SampleBatch(work.pool, work.prompts, work.replicates[start : start + AT_ONCE])
        for work in works
        for start in range(0, len(work.replicates), AT_ONCE)
    ]
    for place, outcomes in processes.results([(_judge, piece, rules) for piece in pieces]):
        yield pieces[place], outcomes


def simulated(settings: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Coverage of every interval, one list for each number of prompts, in order of completion.

    `settings` as for `meridian.experiments.validation.coverage.coverage`, plus `prompts`, `replicates` and `seed`.
    """
    longest_first = sorted(settings["prompts"], reverse=True)
    for _, rows in processes.results([(_simulate, settings, prompts) for prompts in longest_first]):
        yield rows


def _simulate(settings: Mapping[str, Any], prompts: int) -> list[dict[str, Any]]:
    found = coverage(settings, prompts, settings["replicates"], settings["seed"])
    return [one.to_dict() for one in found]


@cache
def _documents(pool: Pool) -> dict[str, dict[str, Any]]:
    return pool.documents()


def _judge(work: SampleBatch, rules: JudgingSettings) -> list[JudgedSample]:
    drawn = samples(
        _documents(work.pool), rules.calibration["common"], sizes(work.prompts), work.replicates, rules.seed
    )
    return [outcome(sample, rules.calibration, rules.certificate) for sample in drawn]
