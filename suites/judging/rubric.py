"""Rubric: a judge's criteria, in a file with a hash, and the closed set of its labels.

Labels that are whole numbers are a scale, of which the largest or the smallest pass. Other labels stand from the worst to the
best, so that those that pass come last; if only one passes, the order is free.
"""

from __future__ import annotations

import functools
import re
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
WHOLE = re.compile(r"-?[0-9]{1,9}")
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
        """Hash of the whole rubric with its other wording and the order of its labels, by which a passport is looked up."""
        return lock.digest([self.kind, self.text, self.reworded, list(self.labels.items()), list(self.passes)])

    @property
    def read_sha256(self) -> str:
        """Hash of what a judge reads of it, by which judgements are looked up."""
        return lock.digest([self.kind, self.text, dict(self.labels), list(self.passes)])

    @property
    def best(self) -> str:
        """The best grade: of whole numbers the one farthest from those that fail, of other labels the last one that passes."""
        passing = [label for label in self.labels if label in self.passes]
        if not all(WHOLE.fullmatch(label) for label in self.labels):
            return passing[-1]
        failing = [int(label) for label in self.labels if label not in self.passes]
        return (max if int(passing[0]) > max(failing) else min)(passing, key=int)

    def in_other_words(self) -> Rubric:
        """The same rubric in its alternative wording."""
        return replace(self, text=self.reworded, reworded=self.text)

    def passed(self, label: str | None) -> bool | None:
        """Whether a grade counts as passed; None for an unreadable one."""
        return None if label is None else label in self.passes


def names() -> list[str]:
    """The names of the rubrics that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@functools.cache
def shipped() -> Mapping[str, Rubric]:
    """The rubrics that come with the project, by their hash."""
    found = [load(name) for name in names()]
    return {one.sha256: one for one in found}


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
    if data["kind"] == "grade" and not _in_order(list(labels), passes):
        raise UserError(
            f"{where}: the labels {', '.join(labels)} with passes {list(passes)} are in no order from worst to best; of "
            "whole numbers let the largest or the smallest pass, and put other labels that pass last"
        )
    texts = {key: " ".join(data[key].split()) for key in ("text", "reworded")}
    if texts["text"].casefold() == texts["reworded"].casefold():
        raise UserError(
            f"{where}: reworded is the same as text; say it in other words, since a judge's verdict may not hang on them"
        )
    return Rubric(data["name"], data["kind"], **texts, labels=labels, passes=passes)


def _in_order(labels: list[str], passes: tuple[str, ...]) -> bool:
    """Whether the labels tell which one is the best."""
    if all(WHOLE.fullmatch(label) for label in labels):
        passing = sorted(int(label) for label in passes)
        failing = [int(label) for label in labels if label not in passes]
        return passing[0] > max(failing) or passing[-1] < min(failing)
    return len(passes) == 1 or set(labels[-len(passes) :]) == set(passes)


def _read(path: Path, where: str) -> Any:
    try:
        return bounded_yaml.read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where} cannot be read ({reason}); give a YAML file like the rubrics that ship") from None
