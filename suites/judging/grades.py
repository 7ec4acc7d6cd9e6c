"""Grades: each answer of a run judged alone, and the share that passed; stored beside the run for the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from shown_progress import Progress
from suites import bounded_text, schema
from suites.estimate import Estimate, missing
from suites.judging.answers import FAILED, Answers
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.judging.validation import grades
from suites.log import chain, line_form
from suites.log.line_form import MAYBE_TEXT, Form
from suites.statistics import proportions

NAME = "judged.jsonl"  # beside scores.jsonl
SEAL = "sha256"  # of a line's other keys
WHOLE = "grades"  # hash of all labels of the suite; lines of earlier versions have none
FORM: Mapping[str, Form] = {
    **dict.fromkeys(("suite_id", "item_id", "item_hash", "cluster", "judge", "rubric", "answers", SEAL), str),
    **{"label": MAYBE_TEXT, "passed": (bool, type(None))},
}
OPTIONAL: Mapping[str, Form] = {"own": bool, WHOLE: str}


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
            WHOLE: results_io.sha256(dict(graded.labels)),
            **({"own": True} if own else {}),
        }
        for item, label in graded.labels.items()
    ]
    lines = ({**line, SEAL: results_io.sha256(line)} for line in (*kept, *new))
    results_io.write_text(path, "".join(f"{chain.canonical_line(line)}\n" for line in lines))
    return path


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of judged.jsonl without their seals; [] if there is no such file.

    UserError for a line that is no grade, is not sealed or was edited, for a second line of an item, and where lines are missing.
    """
    path = Path(folder) / NAME
    if not path.is_file():
        return []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    given = bounded_text.given(path, "grade the run again")
    for number, text in enumerate(given.rstrip("\n").split("\n") if given else [], 1):
        where = f"line {number} of {path}"
        line = _line(text, where)
        if (key := (line["suite_id"], line["item_id"])) in found:
            raise UserError(
                f"{where} is a second grade of {line['item_id']} of {line['suite_id']}; grade the run again"
            )
        found[key] = line
    lines = list(found.values())
    for suite in dict.fromkeys(line["suite_id"] for line in lines):
        _require_whole([line for line in lines if line["suite_id"] == suite], f"{path}: the grades of {suite}")
    return lines


def _line(text: str, where: str) -> dict[str, Any]:
    """A line of judged.jsonl without its seal."""
    try:
        line = bounded_text.value(text)
    except ValueError as error:
        raise UserError(f"{where} is no grade ({error}); grade the run again") from None
    at = line_form.misfit(line, FORM)
    if at is None:
        at = line_form.misfit(line, {key: form for key, form in OPTIONAL.items() if key in line})
    if at is not None:
        raise UserError(f"{where} is no grade: its {at or 'value'} is missing or of another type; grade the run again")
    if unknown := sorted(line.keys() - FORM.keys() - OPTIONAL.keys()):
        raise UserError(f"{where} is no grade: it has the key {schema.shown(unknown[0])}; grade the run again")
    seal = line.pop(SEAL)
    if seal != results_io.sha256(line):
        raise UserError(f"{where} was edited after it was written; grade the run again")
    return line


def _require_whole(lines: Sequence[Mapping[str, Any]], what: str) -> None:
    """UserError unless the lines of one suite are those that were written, and a label has one meaning."""
    whole = results_io.sha256({line["item_id"]: line["label"] for line in lines})
    if any(line.get(WHOLE, whole) != whole for line in lines):
        raise UserError(f"{what} are not those that were written: lines are missing or added; grade the run again")
    passed: dict[str | None, bool | None] = {None: None}
    for line in lines:
        if passed.setdefault(line["label"], line["passed"]) is not line["passed"]:
            raise UserError(f"{what} do not agree on whether {schema.shown(line['label'])} passes; grade the run again")
