"""Bounded text: reads an untrusted file whole, and a line of JSON. A pipe or a device, which may never end, is refused, and so is
a huge file; so are JSON nested too deep, numbers of thousands of digits, and half a character."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from results_io import UserError

MOST_BYTES = 1 << 30  # a suite's lock has less than 1 MB, a year of traffic less than 1 GB


def given(path: Path, remedy: str, setting: str = "") -> str:
    """The text of a file that somebody gave, as the value of a setting if there is one.

    UserError, with the remedy, unless it is a file of UTF-8 text.
    """
    try:
        return read(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"{setting and setting + '='}{path} cannot be read ({reason}); {remedy}") from None


def read(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a file. ValueError as `content`, and for bytes that are not UTF-8; OSError."""
    try:
        return content(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None


def value(line: str) -> Any:
    """The value of a line of JSON. ValueError if it is none, is nested too deep, or holds half a character (a lone surrogate).

    Half a character is no text: it can neither be written in UTF-8 nor be read by a tokenizer.
    """
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    try:
        if "\\u" in line:  # only an escape can bring one: the file is UTF-8
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character, a lone surrogate such as \\ud800") from None
    return found


def content(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file. ValueError if it is no file or has more than `most`; the message fits into "cannot be read (...)"."""
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is a folder, a pipe or a device and not a file")
    with path.open("rb") as stream:
        found = stream.read(most + 1)
    if len(found) > most:
        raise ValueError(f"it has more than {most} bytes, which is the most that is read")
    return found
