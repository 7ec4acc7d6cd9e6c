"""184 ranking: several models' answers to the same items, every two of them judged in both orders, by Bradley-Terry."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from results_io import UserError
from shown_progress import Progress
from suites.judging import answers, pairs
from suites.judging.answers import Answers
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.judging.pairs import JudgedPairs
from suites.statistics import bradley_terry
from suites.statistics.bradley_terry import SystemRanking

NUMBER, ID = "184", "ranking"
POINTS = {"A": (1.0, 0.0), "B": (0.0, 1.0), "tie": (0.5, 0.5)}


@dataclass(frozen=True)
class Ranked:
    """The ranking with what it rests on: verdicts by pair of systems."""

    ranking: SystemRanking
    judged: Mapping[tuple[str, str], JudgedPairs]
    invalid: int
    pairs: int


def rank(
    judge: Judge,
    runs: Sequence[Answers],
    record: JudgementRecord,
    bar: Progress,
    settings: Mapping[str, Any],
    seed: int,
) -> Ranked:
    """Every two runs judged on the items that both answered. UserError for fewer than two runs, or of different suites."""
    if len(runs) < 2:
        raise UserError(f"runs names {len(runs)} runs; a ranking needs at least two: runs=[DIR,DIR,DIR]")
    names = answers.named_apart(runs)
    judged: dict[tuple[str, str], JudgedPairs] = {}
    for (one, first), (other, second) in itertools.combinations(zip(names, runs, strict=True), 2):
        found, lost = answers.pairs(first, second)
        of_both = pairs.judge_all(judge, found, record, bar)
        judged[one, other] = replace(
            of_both, excluded={answers.FAILED: sum((*lost.values(), *of_both.excluded.values()))}
        )
    verdicts = [verdict for found in judged.values() for verdict in found.verdicts]
    ranking = bradley_terry.rank(
        wins(judged, names),
        names,
        seed=seed,
        resamples=settings["resamples"],
        alpha=settings["alpha"],
        half_wins=settings["half_wins"],
    )
    return Ranked(ranking, judged, sum(one.merged is None for one in verdicts), len(verdicts))


def wins(judged: Mapping[tuple[str, str], JudgedPairs], names: Sequence[str]) -> np.ndarray:
    """[cluster of items, winner, loser]: merged verdicts, ties half each way; items of one cluster are resampled together."""
    clusters = sorted({pair.asked.cluster for found in judged.values() for pair in found.pairs})
    place = {cluster: k for k, cluster in enumerate(clusters)}
    system = {name: k for k, name in enumerate(names)}
    table = np.zeros((len(clusters), len(names), len(names)))
    for (one, other), found in judged.items():
        for pair, verdict in zip(found.pairs, found.verdicts, strict=True):
            if verdict.merged is not None:
                first, second = POINTS[verdict.merged]
                table[place[pair.asked.cluster], system[one], system[other]] += first
                table[place[pair.asked.cluster], system[other], system[one]] += second
    return table
