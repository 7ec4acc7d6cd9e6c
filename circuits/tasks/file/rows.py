"""Row: one prompt pair as it stands in a file, a data set or a Python list, checked without a tokenizer."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import results_io
from results_io import UserError

REQUIRED = ("clean", "corrupted", "answer")
OPTIONAL = ("wrong", "corrupted_answer", "template", "cluster", "split", "roles", "corrupted_roles")
ROLE_COLUMN = "role."  # role.subject holds the span of the role "subject"
CORRUPTED_ROLE_COLUMN = "corrupted_role."  # the same for the corrupted prompt
SEPARATOR = "|"  # between the answers in a CSV cell that is not a JSON list
SPLITS = ("discovery", "evaluation", "held_out", "reference")
RESERVED = ("end", "changed", "changed_first")  # roles that every row has
ROLE_NAME = re.compile(r"[^\W\d]\w*")
CONTENT = {  # of the columns that every row needs
    "clean": "the prompt that the answer continues",
    "corrupted": "a second prompt, whose answer is another, since patching compares two runs",
    "answer": "the word that continues the clean prompt",
}
LONGEST_PYTHON = 100_000  # characters of a cell that is read as a list in Python notation
COUNTED = 20  # occurrences of a part of a prompt are counted up to this number
SHOWN = 80  # characters of a value shown in an error, since a cell may hold a book

Span = tuple[int, int]


class RowError(UserError):
    """A row that cannot be read: `where` names it ("mine.csv, line 3"), `reason` says why and what to do."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason


class Unread(NamedTuple):
    """A row that cannot be read: its first line (None: it has no line), and why."""

    line: int | None
    reason: str


@dataclass(frozen=True)
class PairRow:
    """One pair. `number` counts rows from 1; `line` is its first line in the file (the number, if there are no lines).

    `answers`, `wrong` and `corrupted_answers` are words as written, with a leading space if there is one; the last two may be
    empty. `spans` are half-open character ranges of the clean prompt by role, `corrupted_spans` those of the corrupted prompt
    for some of these roles. None means that the file does not say.
    """

    number: int
    line: int
    clean: str
    corrupted: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    corrupted_answers: tuple[str, ...] = ()
    template: str | None = None
    cluster: str | None = None
    split: str | None = None
    spans: Mapping[str, Span] | None = None
    corrupted_spans: Mapping[str, Span] | None = None

    @property
    def content(self) -> dict[str, Any]:
        """All fields except the line, which depends on the file's format. Spans of the corrupted prompt are included only if
        there are any, so that rows without them keep the digest of earlier versions."""
        absent = ("line", *(["corrupted_spans"] if self.corrupted_spans is None else []))
        return {name: value for name, value in asdict(self).items() if name not in absent}


def sha256(rows: Sequence[PairRow]) -> str:
    """Digest of the rows and their order, the same for equal rows from CSV, from JSONL and in memory."""
    return results_io.sha256([row.content for row in rows])


def require_columns(names: Sequence[str], where: str) -> None:
    """Raises UserError for a column that is missing, unknown or repeated."""
    known = [*REQUIRED, *OPTIONAL]
    for name in REQUIRED:
        if name not in names:
            raise UserError(_lacks(name, names, where))
    twice = first_twice(names)
    if twice is not None:
        raise UserError(f"{where} has the column {shown(twice)} twice; keep one of them")
    for name in names:
        if not name:
            raise UserError(
                f"{where} has a column without a name; take it away (pandas writes its index so, unless with index=False), or "
                "name the columns to read with task.columns"
            )
        if name not in known and not ROLE_NAME.fullmatch(name.partition(".")[2] if is_role(name) else ""):
            raise UserError(
                f"{where} has the unknown column {shown(name)}; use {', '.join(known)} or {ROLE_COLUMN}<name>, delete it, or "
                "name the columns to read with task.columns"
            )


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that occurs more than once, or None."""
    counts = Counter(names := list(names))
    return next((name for name in names if counts[name] > 1), None)


def _lacks(name: str, names: Sequence[str], where: str) -> str:
    """The error text for a missing column, with what to do about it."""
    there = textwrap.shorten(", ".join(names), SHOWN, placeholder=" ...") or "none"
    near = next((one for one in names if one.strip().lower() == name), None)
    if near is not None:
        remedy = f"call {shortened(near)} {name}"
    elif len(names) == 1 and re.search(r"\W", there):
        remedy = "the first line names the columns, with a comma, a semicolon or a tab between them"
    else:
        remedy = f"add it with {CONTENT[name]}, or say with task.columns={{{name}: <its column>}} which one it is"
    return f"{where} has no column {name} (it has: {there}); {remedy}"


def no_json(error: Exception) -> str:
    """Why a text is no JSON, without the reader's own line numbers and settings."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.partition(' (')[0]} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return "it holds a number of thousands of digits" if "digits" in str(error) else str(error)


def shown(value: Any) -> str:
    """A value for an error message: its Python representation, shortened."""
    try:
        text = repr(value[: SHOWN + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):
        return "a value of thousands of signs"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def shortened(text: str) -> str:
    """A name for an error message, shortened and without quotation marks."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_empty(value: Any) -> bool:
    """True for a cell without a value: None, an empty text, or a missing value of pandas (NaN, NA)."""
    if value is None or isinstance(value, str):
        return not value
    return (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"


def is_role(column: str) -> bool:
    return column.startswith((ROLE_COLUMN, CORRUPTED_ROLE_COLUMN))


def of_cells(cells: Mapping[str, Any], number: int, line: int, where: str, text: bool) -> PairRow:
    """The row from one line's cells. Raises RowError for a required cell that is empty, or a cell of the wrong type.

    `text`: the cells come from a CSV file, in which lists and objects are written as JSON and an empty cell is no value.
    """
    clean, corrupted = (_prompt(cells.get(name), name, where) for name in ("clean", "corrupted"))
    answers = _words(cells.get("answer"), "answer", where, text)
    if not answers:
        raise RowError(where, f"has no answer; write into its answer {CONTENT['answer']}")
    spans = _spans(cells, clean, where, text)
    return PairRow(
        number=number,
        line=line,
        clean=clean,
        corrupted=corrupted,
        answers=answers,
        wrong=_words(cells.get("wrong"), "wrong", where, text),
        corrupted_answers=_words(cells.get("corrupted_answer"), "corrupted_answer", where, text),
        template=_label(cells.get("template"), "template", where),
        cluster=_label(cells.get("cluster"), "cluster", where),
        split=_split(_label(cells.get("split"), "split", where), where),
        spans=spans,
        corrupted_spans=_corrupted_spans(cells, corrupted, spans or {}, where, text),
    )


def require_alike(rows: Sequence[PairRow], where: str) -> None:
    """Raises UserError if only some rows give their split, or only some name roles, since the rest would be a guess."""
    if not rows:
        raise UserError(f"{where} has no rows; write one prompt pair a line")
    first = rows[0]
    for row in rows:
        if (row.split is None) != (first.split is None):
            without, with_ = (row, first) if row.split is None else (first, row)
            raise UserError(
                f"{where}, line {without.line}: has no split, and line {with_.line} has one; give every row its split, or "
                "none"
            )
        if set(row.spans or {}) != set(first.spans or {}):
            own, other = (shortened(", ".join(sorted(one.spans or {}))) or "none" for one in (row, first))
            raise UserError(
                f"{where}, line {row.line}: names the roles {own}, and line {first.line} {other}; give every row the same roles"
            )


def _prompt(value: Any, name: str, where: str) -> str:
    if is_empty(value):
        raise RowError(where, f"has no {name} prompt; write into its {name} {CONTENT[name]}")
    if not isinstance(value, str):
        raise RowError(where, f"has {name} {shown(value)}, which is no text; write it in quotation marks")
    if not value.strip():
        raise RowError(where, f"has a {name} prompt of spaces alone; write into its {name} {CONTENT[name]}")
    return _unicode(value, name, where)


def _unicode(value: str, name: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(where, f"has half of a character in {name} ({shown(value)}); write the whole of it") from error
    return value


def _label(value: Any, name: str, where: str) -> str | None:
    if is_empty(value):
        return None
    if type(value) not in (str, int):
        raise RowError(where, f"has {name} {shown(value)}; write a text")
    return _unicode(_as_text(value, name, where), name, where)


def _words(value: Any, name: str, where: str, text: bool) -> tuple[str, ...]:
    """The answers in a cell; in a CSV file a list in JSON or Python notation, or words separated by SEPARATOR."""
    if is_empty(value):
        return ()
    written, listed = value, _list_in(value) if text else value
    if text:
        value = listed or value.split(SEPARATOR)
    given = value if isinstance(value, (list, tuple)) else [value]
    for one in given:
        if type(one) not in (str, int):
            raise RowError(where, f"has {name} {shown(one)}; write a word in quotation marks, or a list of them")
        if not _as_text(one, name, where).strip(" "):
            remedy = "take it out" if listed else f"write words with one {SEPARATOR} between two of them"
            raise RowError(where, f"has {name} {shown(written)}, in which a word is empty; {remedy}")
    return tuple(dict.fromkeys(_unicode(_as_text(one, name, where), name, where) for one in given))


def _as_text(value: str | int, name: str, where: str) -> str:
    """`value` as text. Raises RowError for an integer with too many digits to be meant as a word."""
    if isinstance(value, int) and abs(value) >= 10**results_io.MOST_DIGITS:
        raise RowError(
            where,
            f"has a number of more than {results_io.MOST_DIGITS} digits as its {name}; write it in quotation marks",
        )
    return str(value)


def _list_in(cell: str) -> list[Any] | None:
    """The list in a cell, in JSON or Python notation (as pandas writes it); None if it is not a list.

    Python notation is read up to LONGEST_PYTHON characters: its parser takes seconds and a gigabyte for a million brackets.
    """
    if not cell.lstrip().startswith("["):
        return None
    for read in (json.loads, ast.literal_eval) if len(cell) <= LONGEST_PYTHON else (json.loads,):
        try:
            found = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list) and found else None
    return None


def _split(name: str | None, where: str) -> str | None:
    if name is not None and name not in SPLITS:
        raise RowError(where, f"has the split {shown(name)}; use {', '.join(SPLITS)}")
    return name


def _spans(cells: Mapping[str, Any], clean: str, where: str, text: bool) -> dict[str, Span] | None:
    """Character ranges by role, from the column `roles` and the columns `role.NAME`; None if there are none."""
    places = _places(cells, "roles", ROLE_COLUMN, where, text)
    return {role: _span(role, place, clean, "clean", where) for role, place in places.items()} or None


def _corrupted_spans(
    cells: Mapping[str, Any], corrupted: str, spans: Mapping[str, Span], where: str, text: bool
) -> dict[str, Span] | None:
    """`_spans` of the corrupted prompt, from `corrupted_roles` and `corrupted_role.NAME`, only for roles of the clean prompt."""
    places = _places(cells, "corrupted_roles", CORRUPTED_ROLE_COLUMN, where, text)
    for role in places:
        if role not in spans:
            raise RowError(
                where,
                f"names the role {shortened(str(role))} in its corrupted prompt alone; name it in the clean one too",
            )
    return {role: _span(role, place, corrupted, "corrupted", where) for role, place in places.items()} or None


def _places(cells: Mapping[str, Any], column: str, prefix: str, where: str, text: bool) -> dict[str, Any]:
    """The place of each role as the row gives it, in one column `column` or in columns that begin with `prefix`."""
    given = cells.get(column)
    if text and isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise RowError(
                where, f'has {column} that are not JSON ({no_json(error)}); write {{"subject": "Mary"}}'
            ) from error
    if is_empty(given):
        given = {}
    if not isinstance(given, Mapping):
        raise RowError(
            where, f'has {column} {shown(given)}; write an object such as {{"subject": "Mary", "verb": [5, 9]}}'
        )
    named = {name.removeprefix(prefix): value for name, value in cells.items() if name.startswith(prefix)}
    both = sorted(set(given) & set(named))
    if both:
        raise RowError(where, f"gives the role {shown(both[0])} in two columns; keep one")
    return {**given, **{name: _list_in(v) or v if isinstance(v, str) else v for name, v in named.items()}}


def _span(role: str, place: Any, prompt: str, side: str, where: str) -> Span:
    if role in RESERVED:
        raise RowError(where, f"names a role {shown(role)}, which every prompt has anyway; call it something else")
    if not ROLE_NAME.fullmatch(role):
        raise RowError(where, f"names a role {shown(role)}; use letters, digits and underscores, a letter first")
    named = shortened(role)
    if isinstance(place, str) and place:
        first, count = prompt.find(place), _occurrences(place, prompt)
        if count == 0:
            raise RowError(
                where,
                f"has the role {named} at {shown(place)}, which the {side} prompt {shown(prompt)} does not contain",
            )
        if count > 1:
            more = " or more" if count == COUNTED else ""
            raise RowError(
                where,
                f"has the role {named} at {shown(place)}, which the {side} prompt contains {count} times{more}; give its "
                f"characters, the first time [{first}, {first + len(place)}]",
            )
        return first, first + len(place)
    if isinstance(place, (list, tuple)) and len(place) == 2 and all(type(one) is int for one in place):
        start, end = place
        if 0 <= start < end <= len(prompt):
            return start, end
        raise RowError(
            where,
            f"has the role {named} at {shown([start, end])}, outside its {len(prompt)} characters; use 0 <= start < end",
        )
    raise RowError(where, f"has the role {named} at {shown(place)}; write a part of the {side} prompt, or [start, end]")


def _occurrences(part: str, text: str) -> int:
    """How often `part` occurs in `text`, with overlaps, up to COUNTED, because each occurrence takes another search."""
    count, place = 0, text.find(part)
    while place >= 0 and count < COUNTED:
        count, place = count + 1, text.find(part, place + 1)
    return count


def of_records(records: Iterable[Mapping[str, Any]], where: str) -> tuple[PairRow, ...]:
    """The rows of records in memory, with the keys of a JSONL file. Raises as `circuits.tasks.file.reading.read`."""
    if hasattr(records, "columns") and hasattr(records, "to_dict"):  # a pandas DataFrame
        records = records.to_dict("records")  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(records, Iterable) or isinstance(records, Mapping | str | bytes):
        raise UserError(f"{where} are a {type(records).__name__}; give a list of mappings, or a table of pandas")
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise UserError(
                f"{where}, row {number}: is a {kind}; give mappings such as {{'clean': ..., 'answer': ...}}"
            )
        if number == 1:
            require_columns(list(map(str, record)), where)
        rows.append(of_cells(record, number, number, f"{where}, row {number}", text=False))
    require_alike(rows, where)
    return tuple(rows)
