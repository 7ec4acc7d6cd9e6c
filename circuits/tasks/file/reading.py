"""Rows from a CSV or JSONL file; every error names the line."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from circuits.tasks.file import columns
from circuits.tasks.file.rows import (
    PairRow,
    RowError,
    Unread,
    first_twice,
    no_json,
    of_cells,
    require_alike,
    require_columns,
    shown,
)
from results_io import UserError

LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".txt")
NO_FILE = "does not exist; give a CSV or JSONL file"
DELIMITERS = (",", ";", "\t")
LIST_OF_OBJECTS = re.compile(r"\s*\[\s*\{")
BYTE_ORDER_MARK = "\ufeff"  # some programs write it before a text, and joining two files puts it in between
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16; that of UTF-8 is skipped
FORMATS = {  # {first bytes of a file that is not text: what to do about it}
    b"PK\x03\x04": "is an Excel workbook or a ZIP archive; save the sheet as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "is an old Excel workbook; save the sheet as CSV",
    b"\x1f\x8b": "is packed by gzip; unpack it",
    b"PAR1": "is Parquet; give the folder that it is in as task.dataset",
}
MOST_BYTES = 1 << 28  # per file, a million long rows; a run uses a few thousand
AS_TABLE = "a header such as clean,corrupted,answer and one prompt pair a line below it"
AS_LINES = 'one JSON object a line, such as {"clean": "...", "corrupted": "...", "answer": "..."}'
SEPARATOR_LINE = re.compile(r"sep=.\s*", re.IGNORECASE)  # written by Excel


def read(
    path: Path, chosen: Mapping[str, str] | None = None, unread: dict[int, Unread] | None = None
) -> tuple[PairRow, ...]:
    """The rows of a file, by its suffix: CSV (comma, semicolon or tab, by its header) or one JSON object per line.

    `chosen`: {our column: its place in the file}; other columns of the file are then not read. `unread` collects rows that
    cannot be read, by their numbers. Raises UserError, with the line and the remedy, for anything else that cannot be read, and
    also for such rows if `unread` is None.
    """
    text = _text(path)
    is_lines = path.suffix.lower() in LINES or (
        path.suffix.lower() not in TABLES and text.lstrip().startswith(("{", "["))
    )
    if is_lines and LIST_OF_OBJECTS.match(text):
        raise UserError(
            f"{path} is one JSON list; write one object a line (JSONL), as pandas does with to_json(path, orient='records', "
            "lines=True)"
        )
    found = []
    for number, (line, cells) in enumerate(_objects(text, path) if is_lines else _table(text, path, chosen), 1):
        where = f"{path}, line {line}"
        try:
            if isinstance(cells, RowError):
                raise cells
            if chosen:
                cells = columns.picked(cells, chosen, where)
            elif is_lines:
                require_columns(list(cells), where)
            found.append(of_cells(cells, number, line, where, text=not is_lines))
        except RowError as reason:
            if unread is None:
                raise
            unread[number] = Unread(line, reason.reason)
    if unread and not found:
        first = min(unread)
        line, reason = unread[first]
        raise UserError(f"{path}: none of the {len(unread)} rows can be read; line {line} (row {first}) {reason}")
    require_alike(found, str(path))
    return tuple(found)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise UserError(
                f"task.path={path} is a folder; give a CSV or JSONL file, or a folder of Hugging Face datasets as task.dataset"
            )
        if not path.is_file():
            what = "is a pipe or a device; write it to a file, and give that" if path.exists() else NO_FILE
            raise UserError(f"task.path={path} {what}")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UserError(
                f"task.path={path} has {size:,} bytes, and {MOST_BYTES:,} are allowed; take fewer rows, or give them as "
                "task.dataset"
            )
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"task.path={shown(str(path))} cannot be read ({error.strerror}); give a file that can be"
        ) from error
    if known := next((what for start, what in FORMATS.items() if content.startswith(start)), None):
        raise UserError(f"{path} {known}")
    if content.startswith(BYTE_ORDER_MARKS):
        raise UserError(f"{path}, line 1: is UTF-16; save the file as UTF-8")
    try:
        text = content.decode("utf-8").lstrip(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}, line {line}: the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{path}, line {line}: holds a NUL character, so this is no text file; save it as UTF-8 text")
    if not text.strip():
        raise UserError(f"{path} is empty; write {AS_LINES if path.suffix.lower() in LINES else AS_TABLE}")
    return text


def _table(text: str, path: Path, chosen: Mapping[str, str] | None) -> Iterator[tuple[int, dict[str, str] | RowError]]:
    """(line, {column: cell} or an error) of every line of a CSV file that is not blank."""
    csv.field_size_limit(sys.maxsize)
    lines = _delimited(text, path)
    first, header = next(lines, (1, None))
    if header is None:
        raise UserError(f"{path} has only empty cells; write {AS_TABLE}")
    names = [name.strip() for name in header]
    if not chosen:
        require_columns(names, f"{path}, line {first}")
    rows = 0
    for line, cells in lines:
        rows += 1
        if len(cells) != len(names):
            yield (
                line,
                RowError(
                    f"{path}, line {line}",
                    f"has {len(cells)} cells, and the header has {len(names)}; put a cell that holds the separator or a line "
                    "break into double quotes, with no space before them",
                ),
            )
            continue
        yield line, dict(zip(names, cells, strict=True))
    if not rows:
        raise UserError(f"{path} has a header and no rows; write one prompt pair a line below it")


def _delimited(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of every record that is not blank."""
    header = next(line for line in io.StringIO(text) if line.strip())
    if SEPARATOR_LINE.fullmatch(header):
        raise UserError(f"{path}, line 1: {header.strip()} is a line of Excel's own; take it away")
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=max(DELIMITERS, key=lambda one: (header.count(one), one == ",")),
        strict=True,
    )
    begins = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {begins}: is no CSV ({error}); close every double quote, and write one inside a cell twice"
        ) from error


def _objects(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """(line, object or an error) of every line of a JSONL file that is not blank."""
    for line, written in enumerate(text.split("\n"), 1):
        if not written.strip():
            continue
        where = f"{path}, line {line}"
        try:
            found = json.loads(written.lstrip(BYTE_ORDER_MARK), object_pairs_hook=_once, parse_constant=_refused)
        except (ValueError, RecursionError) as error:
            yield line, RowError(where, f"is no JSON ({no_json(error)}); write one object a line")
            continue
        if isinstance(found, dict):
            yield line, found
        else:
            yield line, RowError(where, f"is no JSON object; write {AS_LINES}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {shown(first_twice(name for name, _ in pairs))} is there twice")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")
