"""Rubric: a judge's criteria, in a file with a hash, and the closed set of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from results_io import UserError
from suites import bounded_yaml, lock, schema
from suites.statistics.judging import VERDICTS

FOLDER = Path(__file__).parent / "rubrics"
KINDS = ("pairs", "grade")
SCHEMA: Mapping[str, Any] = schema.object_of(
    ["name", "kind", "text", "reworded", "labels"],
    name={"type": "string", "pattern": "^[a-z0-9_-]+$"},
    kind=schema.one_of(list(KINDS), "pairs: which of two answers is better; grade: how good one answer is"),
    text={"type": "string", "minLength": 1, "description": "by what the judge decides"},
    reworded={
        "type": "string",
        "minLength": 1,
        "description": "the same in other words: a judge's verdict may not hang on them",
    },
    labels={"type": "object", "minProperties": 2, "additionalProperties": {"type": "string"}},
    passes={"type": "array", "minItems": 1, "items": {"type": "string"}},
)


@dataclass(frozen=True)
class Rubric:
    """`text` is what the judge reads, `labels` {label: meaning}; `passes`: for grades, the labels that count as passed."""

    name: str
    kind: Literal["pairs", "grade"]
    text: str
    reworded: str
    labels: Mapping[str, str]
    passes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of everything that a judge reads of it."""
        return lock.digest([self.kind, self.text, dict(self.labels), list(self.passes)])

    def in_other_words(self) -> Rubric:
        """The same rubric in its alternative wording."""
        return replace(self, text=self.reworded, reworded=self.text)

    def passed(self, label: str | None) -> bool | None:
        """Whether a grade counts as passed; None for an unreadable one."""
        return None if label is None else label in self.passes


def names() -> list[str]:
    """The names of the rubrics that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Rubric:
    """The rubric of that name (see `names`), or of that file. UserError for an unknown or malformed one."""
    path = FOLDER / f"{name}.yaml" if name in names() else Path(name)
    if not path.is_file():
        raise UserError(
            f"judge.rubric={name} is no rubric; use {', '.join(names())}, or the path of a file like theirs"
        )
    where = schema.shown_path(path)
    data = _read(path, where)
    schema.check(data, SCHEMA, where)
    labels = {label: " ".join(text.split()) for label, text in data["labels"].items()}
    if data["kind"] == "pairs" and (set(labels) != set(VERDICTS) or "passes" in data):
        raise UserError(
            f"{where}: a rubric of pairs has the labels {', '.join(labels)}; expected A, B and tie, and no passes"
        )
    passes = tuple(data.get("passes", ()))
    if (data["kind"] == "grade" and not set(passes) < set(labels)) or (data["kind"] == "grade" and not passes):
        raise UserError(
            f"{where}: passes is {list(passes)}; expected some of the labels {', '.join(labels)}, and not all"
        )
    texts = {key: " ".join(data[key].split()) for key in ("text", "reworded")}
    return Rubric(data["name"], data["kind"], **texts, labels=labels, passes=passes)


def _read(path: Path, where: str) -> Any:
    try:
        return bounded_yaml.read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where} cannot be read ({reason}); give a YAML file like the rubrics that ship") from None
