"""judge.json: the judge, its rubric, the labels that it was compared with, and whether it may be deployed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import results_io
from result_types import JudgePassport

NAME, KIND = "judge.json", "judge_passport"
NOT_VALIDATED = "judge not validated"


@dataclass(frozen=True)
class Passport:
    """The content of judge.json. It is looked up by `judge` (a fingerprint) and `rubric` (a hash)."""

    judge: str
    rubric: str
    deploy: bool
    reason: str
    path: Path


def write(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write the passport of a judge in its folder; returns its path."""
    path = Path(folder) / NAME
    results_io.write(path, {"kind": KIND, **document})
    return path


def find(root: Path, judge: str, rubric: str) -> Passport | None:
    """The passport of exactly this judge and rubric below `root` (results/judging), or None. Another hash is another judge.

    ResultError for an invalid or edited passport.
    """
    for path in sorted(Path(root).rglob(NAME)):
        data = cast(JudgePassport, results_io.read(path, KIND))
        found = Passport(data["judge"], data["rubric"]["sha256"], data["deploy"], data["reason"], path)
        if (found.judge, found.rubric) == (judge, rubric):
            return found
    return None


def why_not(root: Path, judge: str, rubric: str) -> str | None:
    """Why this judge's verdicts may not decide anything; None for a deployed judge."""
    found = find(root, judge, rubric)
    if found is None:
        return NOT_VALIDATED
    return None if found.deploy else f"judge refused: {found.reason}"
