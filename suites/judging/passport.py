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


def find(root: Path, judge: str, rubric: str) -> list[Passport]:
    """The passports of exactly this judge and rubric below `root` (results/judging). Another hash is another judge.

    ResultError for an invalid or edited passport.
    """
    found = []
    for path in sorted(Path(root).rglob(NAME)):
        data = cast(JudgePassport, results_io.read(path, KIND))
        found.append(Passport(data["judge"], data["rubric"]["sha256"], data["deploy"], data["reason"], path))
    return [one for one in found if (one.judge, one.rubric) == (judge, rubric)]


def why_not(root: Path, judge: str, rubric: str) -> str | None:
    """Why the verdicts of this judge decide nothing; None for a deployed one. Of several passports one that refuses counts."""
    found = find(root, judge, rubric)
    if not found:
        return NOT_VALIDATED
    refused = [one for one in found if not one.deploy]
    if not refused:
        return None
    beside = ""
    if len(refused) < len(found):
        other = next(one for one in found if one.deploy).path.relative_to(root)
        beside = f" (by {refused[0].path.relative_to(root)}, which counts more than {other})"
    return f"judge refused: {refused[0].reason}{beside}"


def identities(root: Path, judge: str) -> list[Mapping[str, Any]]:
    """The judge's identity from its passports, where it has the fingerprint `judge`."""
    known = [cast(JudgePassport, results_io.read(path, KIND))["identity"] for path in sorted(Path(root).rglob(NAME))]
    return [one for one in known if results_io.sha256(one) == judge]
