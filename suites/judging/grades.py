"""Grades: each answer of a run judged alone, and the share that passed; stored beside the run for the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from shown_progress import Progress
from suites import bounded_text
from suites.estimate import Estimate, missing
from suites.judging.answers import FAILED, Answers
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.judging.validation import grades
from suites.log import chain
from suites.statistics import proportions

NAME = "judged.jsonl"  # beside scores.jsonl
SEAL = "sha256"  # of a line's other keys
KEYS = ("suite_id", "item_id", "item_hash", "cluster", "judge", "rubric", "label", "passed", "answers")


@dataclass(frozen=True)
class Graded:
    """Labels of one run by item (None: unreadable), the share that passed, and the reasons against a verdict."""

    labels: Mapping[str, str | None]
    rate: Estimate
    reasons: tuple[str, ...]


def grade(
    judge: Judge, answers: Answers, record: JudgementRecord, bar: Progress, settings: Mapping[str, Any]
) -> Graded:
    """Grade every answer of a run. The interval allows for clusters of items. There is no verdict if more than the share
    `most_invalid` is unreadable."""
    said = grades(judge, answers, list(answers.texts), record, bar)
    read = {item: label for item, label in said.items() if label is not None}
    invalid, lost = len(said) - len(read), len(answers.asked) - len(said)
    excluded = {name: count for name, count in (("invalid", invalid), (FAILED, lost)) if count}
    passed = [bool(judge.rubric.passed(label)) for label in read.values()]
    rate = proportions.clustered(passed, [answers.asked[item].cluster for item in read], unit="share of answers")
    reasons = []
    if said and invalid > settings["most_invalid"] * len(said):
        reasons.append(
            f"{invalid} of {len(said)} answers could not be graded, more than {settings['most_invalid']:.0%}"
        )
    if not read:
        rate = missing("undefined", "no answer was graded", "share of answers")
    return Graded(said, replace(rate, excluded=excluded), tuple(reasons))


def write(folder: Path, judge: Judge, answers: Answers, graded: Graded, own: bool = False) -> Path:
    """Write judged.jsonl beside the run, a line per graded answer; earlier lines of the suite by any judge are replaced.

    `own`: the judge graded its own answers, so no gate may rest on them.
    """
    path = Path(folder) / NAME
    kept = [line for line in read(folder) if line["suite_id"] != answers.suite]
    new = [
        {
            "suite_id": answers.suite,
            "item_id": item,
            "item_hash": answers.asked[item].hash,
            "cluster": answers.asked[item].cluster,
            "judge": judge.fingerprint,
            "rubric": judge.rubric.sha256,
            "label": label,
            "passed": judge.rubric.passed(label),
            "answers": answers.sha256,
            **({"own": True} if own else {}),
        }
        for item, label in graded.labels.items()
    ]
    lines = ({**line, SEAL: results_io.sha256(line)} for line in (*kept, *new))
    results_io.write_text(path, "".join(f"{chain.canonical_line(line)}\n" for line in lines))
    return path


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of judged.jsonl; [] if there is no such file. UserError for a line that is no grade or was edited."""
    path = Path(folder) / NAME
    if not path.is_file():
        return []
    found = []
    given = bounded_text.given(path, "grade the run again")
    for number, text in enumerate(given.rstrip("\n").split("\n"), 1):
        try:
            line = bounded_text.value(text)
            found.append({**{key: line[key] for key in KEYS}, **({"own": True} if line.get("own") else {})})
            seal = line.get(SEAL)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"line {number} of {path} is no grade ({error}); grade the run again") from None
        if seal is not None and seal != results_io.sha256(found[-1]):
            raise UserError(f"line {number} of {path} was edited after it was written; grade the run again")
    return found
