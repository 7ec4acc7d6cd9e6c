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
from suites.judging import answers, grades, judgement_record, limits, pairs, passport
from suites.judging import rubric as rubrics_of
from suites.judging.answers import Finished
from suites.judging.judge import same_model
from suites.judging.judgement_record import OnRecord
from suites.statistics import bootstrap

NONE = "no judge compared these two runs; do so: python run.py judge do=pairs a=... b=... suite=..."
AGAIN = "grade the run again: python run.py judge do=grade"
STALE = f"the grades are of other answers than the run now has; {AGAIN}"
UNREADABLE = "more pairs than judge.most_invalid could not be read"
UNGRADED = "more of the baseline's answers than judge.most_invalid have no grade that can be read"
UNRECORDED = f"grades are not on the judge's record below results/judging, where its passport is; {AGAIN}, with the same results="
OWN = "the judge graded its own answers (judge.self=true)"
Lines = Sequence[Mapping[str, Any]]  # of judged.jsonl
Run = Finished | None  # None: the folder has no finished run of the suite
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
    """By suite: the grades ({item: passed} of the baseline, and of the candidate), why they decide nothing, and win rates.

    `rubrics`: the hash of the rubric that the grades are by.
    """

    grades: Mapping[str, tuple[Mapping[str, bool | None], Mapping[str, bool | None]]] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    wins: Mapping[str, Wins] = field(default_factory=dict)
    rubrics: Mapping[str, str] = field(default_factory=dict)


def collect(baseline: Path, candidate: Path, root: Path, seed: int = 0, level: float = 0.9) -> GateGrades:
    """The recorded grades and win rates of two runs. `root`: results/judging, with passports and comparisons.

    `level`: of the intervals of win rates, 1 - 2 alpha of the gate.

    UserError if the grades of one suite are by two judges or rubrics, a file was edited, or the judge's record says otherwise.
    """
    before, after = (_by_suite(grades.read(folder)) for folder in (baseline, candidate))
    runs = answers.finished(baseline), answers.finished(candidate)
    shared, doubts, rubrics = {}, {}, {}
    for suite in [name for name in before if name in after]:
        sides = before[suite], after[suite]
        shared[suite] = _of_both(suite, *sides)
        ((judge, rubrics[suite]),) = _judges(sides[0])
        if doubt := _doubt(root, suite, sides, (runs[0].get(suite), runs[1].get(suite)), judge, rubrics[suite]):
            doubts[suite] = doubt
    both = [suite for suite in runs[0] if suite in runs[1]]
    wins = {suite: wins_of(root, runs[0][suite].sha256, runs[1][suite].sha256, seed, level) for suite in both}
    return GateGrades(shared, doubts, wins, rubrics)


def _doubt(
    root: Path, suite: str, sides: tuple[Lines, Lines], runs: tuple[Run, Run], judge: str, rubric: str
) -> str | None:
    """Why the grades of one suite decide nothing; None if they do. UserError for a grade that the judge's record contradicts."""
    for lines, run in zip(sides, runs, strict=True):
        if {line["answers"] for line in lines} != {None if run is None else run.sha256}:
            return STALE
    if why := passport.why_not(root, judge, rubric):
        return why
    known = judgement_record.on_record(root, judge, rubric)
    for lines, run in zip(sides, runs, strict=True):
        _require_as_on_record(suite, lines, run, known, rubric)
    identities = [*known.identities, *passport.identities(root, judge)]
    own = any(same_model(one["model"], run.identity) for one in identities for run in runs if run and one.get("model"))
    if own or any(line.get("own") for lines in sides for line in lines):
        return OWN
    both = [(line, run) for lines, run in zip(sides, runs, strict=True) for line in lines]
    if any(line["label"] is not None and not _said(known, line, run) for line, run in both):
        return UNRECORDED
    return UNGRADED if _unreadable(sides[0], runs[0]) else None  # the candidate's count as losses


def _require_as_on_record(suite: str, lines: Lines, run: Run, known: OnRecord, rubric: str) -> None:
    """UserError for a label that is not the judge's verdict on record, and for one that passes against its rubric."""
    shipped = rubrics_of.shipped().get(rubric)
    passes = known.passes if shipped is None else shipped.passes
    for line in lines:
        item, label = line["item_id"], line["label"]
        said = _said(known, line, run)
        if said and label not in said:
            raise UserError(
                f"the grade of {item} of {suite} is {label}, and the judge's record says otherwise; {AGAIN}"
            )
        if passes is not None and line["passed"] != (None if label is None else label in passes):
            raise UserError(f"the grade of {item} of {suite} passes against its rubric; {AGAIN}")


def _said(known: OnRecord, line: Mapping[str, Any], run: Run | None) -> set[str | None]:
    """The judge's verdicts on record about the answer of this grade; empty if it has none, or the run has no such answer."""
    item = line["item_id"]
    return known.verdicts.get((item, results_io.sha256(run.texts[item])), set()) if run and item in run.texts else set()


def _unreadable(lines: Lines, run: Run) -> bool:
    """Whether more of the baseline's answers than `most_invalid` have no grade that can be read: the rest may not be random.

    A failed call is no answer.
    """
    read = {line["item_id"] for line in lines if line["label"] is not None}
    answered = run.texts.keys() if run else set()
    return len(answered - read) > limits.standard()["most_invalid"] * len(answered)


def _by_suite(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["suite_id"], []).append(line)
    return found


def _judges(lines: Lines) -> set[tuple[str, str]]:
    return {(line["judge"], line["rubric"]) for line in lines}


def _of_both(suite: str, before: Lines, after: Lines) -> tuple[dict[str, bool | None], dict[str, bool | None]]:
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
