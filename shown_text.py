"""Text as it is shown: untrusted text escaped for a spreadsheet, a terminal or a page, and long lists cut.

Names of models, tokens of prompts, answers and messages of servers are untrusted text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, chop_cells

FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")  # start of a spreadsheet's formula, full-width signs included
NUMBER = re.compile(r"\s*[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%?\s*")
WIDTH = 100  # columns of the terminal at most, also in a wider one or a pipe: longer lines are hard to read
COMMAND = "python run.py "
PATH = re.compile(r"\S*/\S+/\S+")
APOSTROPHE = "'"  # before a cell: spreadsheets show the cell as text and hide the sign
KEPT = "\n\t"  # control characters that are kept in a text of several lines
TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # characters that set the direction of the following text


def cell(value: Any) -> Any:
    """A value as a CSV field: text that a spreadsheet would run as a formula gets an apostrophe before it, and control characters
    are escaped. Numbers, and texts that are numbers, stay unchanged.
    """
    if not isinstance(value, str):
        return value
    text = visible(value, kept="\n")
    formula = FORMULA.match(value) is not None and NUMBER.fullmatch(value) is None
    return f"{APOSTROPHE}{text}" if formula else text


def visible(text: str, kept: str = KEPT) -> str:
    """The text with every control character except `kept` escaped ("\\u001b"): none can move a cursor or turn a line around."""
    if text.isprintable() and not TURNING & set(text):
        return text
    return "".join(one if one in kept or not _acts(one) else f"\\u{ord(one):04x}" for one in text)


def folded(text: str, width: int = WIDTH) -> str:
    """`text` in lines of at most `width` columns, broken between words; a longer word is broken where the line ends.

    A line with a command stays whole, to be copied. Paths, which have no place to break, are not counted.
    """
    return "\n".join(_filled(line, width) if is_too_wide(line, width) else line for line in text.split("\n"))


def name_lines(name: str, width: int) -> str:
    """A long name in lines of at most `width` columns, broken after "_", "." or "-"; only a piece that is longer stays longer."""
    lines = [""]
    for piece in re.findall(r"[^_.-]*[_.-]|[^_.-]+", name):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append(piece)
        else:
            lines[-1] += piece
    return "\n".join(lines)


def _filled(line: str, width: int) -> str:
    words = line.split(" ")
    whole = [part for word in words for part in (chop_cells(word, width) if is_too_wide(word, width) else [word])]
    lines = whole[:1]
    for word in whole[1:]:
        longer = f"{lines[-1]} {word}"
        if is_too_wide(longer, width):
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def is_too_wide(line: str, width: int = WIDTH) -> bool:
    """Whether a line without a command has more than `width` columns, paths not counted."""
    return COMMAND not in line and cell_len(PATH.sub("", line)) > width


def first_of(names: Sequence[str], most: int) -> str:
    """The first `most` names for a sentence, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _acts(character: str) -> bool:
    return character in TURNING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
