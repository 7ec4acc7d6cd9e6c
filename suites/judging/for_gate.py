"""What the gate uses of judges: the grades of the two runs and their comparison, only by a judge that may be deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import results_io
from result_types import PairwiseResult
from results_io import UserError
from suites.estimate import Estimate
from suites.judging import answers, grades, limits, pairs, passport
from suites.statistics import bootstrap

NONE = "no judge compared these two runs; do so: python run.py judge do=pairs a=... b=... suite=..."
STALE = "the grades are of other answers than the run now has; grade it again: python run.py judge do=grade"
UNREADABLE = "more pairs than judge.most_invalid could not be read"
UNGRADED = "more of the baseline's answers than judge.most_invalid have no grade that can be read"
OWN = "the judge graded its own answers (judge.self=true)"
POINTS = {"A": 1.0, "tie": 0.5, "B": 0.0, None: 0.0}
OF_PASSPORT = ("judge not validated", "judge refused")  # beginnings of doubts that are looked up again


@dataclass(frozen=True)
class Wins:
    """The candidate's win rate over the baseline on one suite.

    `rate`: over pairs with a verdict. `with_losses`: with missing verdicts as losses; None if none is missing. `doubt`: why the
    win rate decides nothing; None if it does.
    """

    rate: Estimate | None
    with_losses: Estimate | None = None
    doubt: str | None = None


@dataclass(frozen=True)
class GateGrades:
    """By suite: the grades ({item: passed} of the baseline, and of the candidate), why they decide nothing, and win rates."""

    grades: Mapping[str, tuple[Mapping[str, bool | None], Mapping[str, bool | None]]] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    wins: Mapping[str, Wins] = field(default_factory=dict)


def collect(baseline: Path, candidate: Path, root: Path, seed: int = 0, level: float = 0.9) -> GateGrades:
    """The recorded grades and win rates of two runs. `root`: results/judging, with passports and comparisons.

    `level`: of the intervals of win rates, 1 - 2 alpha of the gate.

    UserError if the grades of one suite are by two judges or rubrics, or a file was edited.
    """
    graded = [_by_suite(grades.read(folder)) for folder in (baseline, candidate)]
    shared = {suite: _of_both(suite, graded[0][suite], graded[1][suite]) for suite in graded[0] if suite in graded[1]}
    before, after = answers.digests(baseline), answers.digests(candidate)
    doubts = {suite: UNGRADED for suite in shared if _unreadable(graded[0][suite])}  # the candidate's count as losses
    doubts |= {suite: OWN for suite in shared if any("own" in line for one in graded for line in one[suite])}
    doubts |= {suite: why for suite in shared if (why := passport.why_not(root, *_judges(graded[0][suite]).pop()))}
    for lines, known in zip(graded, (before, after), strict=True):
        doubts |= {suite: STALE for suite in shared if {line["answers"] for line in lines[suite]} != {known.get(suite)}}
    wins = {suite: wins_of(root, before[suite], after[suite], seed, level) for suite in before if suite in after}
    return GateGrades(shared, doubts, wins)


def _unreadable(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether more of the baseline's answers than `most_invalid` have no grade that can be read: the rest may not be random."""
    most = limits.standard()["most_invalid"]
    return sum(line["label"] is None for line in lines) > most * len(lines)


def _by_suite(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["suite_id"], []).append(line)
    return found


def _judges(lines: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(line["judge"], line["rubric"]) for line in lines}


def _of_both(
    suite: str, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> tuple[dict[str, bool | None], dict[str, bool | None]]:
    if len(both := _judges(before) | _judges(after)) > 1:
        what = "judges" if len({judge for judge, _ in both}) > 1 else "rubrics"
        raise UserError(f"the grades of {suite} in the two runs are by different {what}; grade both by the same one")
    first, second = ({line["item_id"]: line["passed"] for line in lines} for lines in (before, after))
    return first, second


def wins_of(root: Path, before: str, after: str, seed: int = 0, level: float = 0.9) -> Wins:
    """The win rate of these two runs by a judge that may be deployed; without one, a win rate with its doubt.

    Of several comparisons, in either analysis the one that speaks most against the candidate counts: whoever asks many judges
    cannot choose.
    """
    paths = sorted(root.rglob(f"{pairs.NUMBER}_{pairs.ID}.json"))
    found = [cast(PairwiseResult, results_io.read(path)) for path in paths]
    sides = {(before, after): False, (after, before): True}
    known = [
        (one, sides[key])
        for one in found
        if (key := (one["subject"]["a"]["answers_sha256"], one["subject"]["b"]["answers_sha256"])) in sides
    ]
    if not known:
        return Wins(None, doubt=NONE)
    of_all = [_of_comparison(root, one, first, seed, level) for one, first in known]
    fit = [one for one in of_all if one.doubt is None]
    if not fit:
        return of_all[0]
    lost = [one.with_losses for one in fit if one.with_losses is not None]
    return Wins(min((one.rate for one in fit), key=_lowest), min(lost, key=_lowest) if lost else None)


def _lowest(rate: Estimate | None) -> float:
    """The lower end of a win rate; of one without an interval, which can pass nothing, less than any."""
    return -1.0 if rate is None or rate.ci is None else rate.ci.low


def _of_comparison(root: Path, document: PairwiseResult, candidate_is_a: bool, seed: int, level: float) -> Wins:
    subject, shown = document["subject"], document["data"]["pairs"]
    doubts = [one for one in document["exploratory"] if not one.startswith(OF_PASSPORT)]
    if why := passport.why_not(root, subject["judge"], subject["rubric"]["sha256"]):
        doubts.insert(0, why)
    missing = sum(pair["merged"] is None for pair in shown)
    if missing > document["data"]["settings"]["most_invalid"] * len(shown):
        doubts.append(UNREADABLE)
    lost = sum(document["n"]["excluded"].values())
    points = [(_points(pair["merged"], candidate_is_a), pair["cluster"]) for pair in shown]
    valid = [one for one, pair in zip(points, shown, strict=True) if pair["merged"] is not None]
    with_losses = [*points, *((0.0, f"not judged {k}") for k in range(lost))]
    rate, worst = (
        bootstrap.mean(*_columns(rows), seed=seed, level=level, unit="share of pairs") for rows in (valid, with_losses)
    )
    return Wins(rate, worst if missing or lost else None, "; ".join(doubts) or None)


def _points(merged: str | None, candidate_is_a: bool) -> float:
    """The candidate's points; a pair without a verdict counts as its loss, whichever side it is on."""
    return POINTS[merged] if candidate_is_a or merged is None else 1 - POINTS[merged]


def _columns(rows: list[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [value for value, _ in rows], [cluster for _, cluster in rows]
