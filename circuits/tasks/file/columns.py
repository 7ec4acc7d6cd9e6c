"""The places of our columns in a file or a data set: names, and paths into nested records.

`prompt`, `metadata.subject` and `choices.label[answerKey]` (the element of `choices.label` whose index or key is the value of
`answerKey`) are such paths. A path in brackets starts at the record itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from circuits.tasks.file.rows import OPTIONAL, REQUIRED, RowError, is_role, shortened, shown
from results_io import UserError

PATH = re.compile(r"(?P<base>[^\[\]]+)(?:\[(?P<key>[^\[\]]+)\])?")


def check(chosen: Mapping[str, str]) -> None:
    """Raises UserError for an unknown column, or for a needed one that is not named."""
    if not isinstance(chosen, Mapping):
        raise UserError(
            f"task.columns={chosen} names no columns; write for example 'task.columns={{clean: prompt, ...}}'"
        )
    known = (*REQUIRED, *OPTIONAL)
    for name, place in chosen.items():
        if name not in known and not is_role(name):
            raise UserError(f"task.columns names {shown(name)}; use {', '.join(known)} or role.<name>")
        if not isinstance(place, str) or PATH.fullmatch(place) is None:
            raise UserError(
                f"task.columns.{name}={place} is no column; write a name, a.b for a nested one, or a[b] for the element b of a"
            )
    missing = [name for name in REQUIRED if name not in chosen]
    if missing:
        raise UserError(f"task.columns lacks {missing[0]}; name {', '.join(REQUIRED)}, and what else is to be read")


def picked(record: Mapping[str, Any], chosen: Mapping[str, str], where: str) -> dict[str, Any]:
    """The cells of our columns; a missing value is None. Raises RowError if the record lacks a column."""
    return {name: _at(record, place, where) for name, place in chosen.items()}


def _at(record: Mapping[str, Any], place: str, where: str) -> Any:
    found = PATH.fullmatch(place)
    assert found is not None  # because `check` has passed
    value = _inside(record, found["base"], where)
    if found["key"] is None or value is None:
        return value
    key = _inside(record, found["key"], where)
    try:
        return None if key is None else value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise RowError(
            where, f"has no {shortened(place)}: {shortened(found['key'])} is {shown(key)}; correct task.columns"
        ) from error


def _inside(record: Any, path: str, where: str) -> Any:
    value = record
    for part in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            has = shortened(", ".join(map(str, value))) if isinstance(value, Mapping) else "none"
            raise RowError(where, f"has no column {shortened(path)} (it has: {has}); correct task.columns")
        value = value[part]
    return value
