"""184 ranking: a Bradley-Terry ranking of several models on the same items, each pair of models judged in both orders."""

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
    """The ranking, with the verdicts by pair of systems, and the number of pairs and of unreadable ones."""

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
    """Judge every two runs on the items that both answered. UserError for fewer than two runs, or for different suites."""
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
    """[cluster, winner, loser]: merged verdicts, a tie half each way, summed within clusters of items."""
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
