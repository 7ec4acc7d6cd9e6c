"""Text as it is shown: untrusted text escaped for a spreadsheet, a terminal or a page, and long lists cut.

Names of models, tokens of prompts, answers and messages of servers are untrusted text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")  # start of a spreadsheet's formula, full-width signs included
NUMBER = re.compile(r"\s*[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%?\s*")
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


def first_of(names: Sequence[str], most: int) -> str:
    """The first `most` names for a sentence, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _acts(character: str) -> bool:
    return character in TURNING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
