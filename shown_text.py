"""Anybody's text where something would act on it: a spreadsheet, a terminal, a page.

Names of models, tokens of prompts, answers and what servers say are anybody's text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")  # what a spreadsheet takes for a formula, full-width signs as well
NUMBER = re.compile(r"\s*[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%?\s*")
APOSTROPHE = "'"  # before a cell: spreadsheets show the cell as text and hide the sign
KEPT = "\n\t"  # of control characters in a text that goes over several lines
TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # the direction of what follows


def cell(value: Any) -> Any:
    """A value as a CSV field: text that a spreadsheet would run as a formula has an apostrophe before it, and control characters
    are written out. Numbers, and texts that are one, stay as they are.
    """
    if not isinstance(value, str):
        return value
    text = visible(value, kept="\n")
    formula = FORMULA.match(value) is not None and NUMBER.fullmatch(value) is None
    return f"{APOSTROPHE}{text}" if formula else text


def visible(text: str, kept: str = KEPT) -> str:
    """The text with every control character but those `kept` written out ("\\u001b"): none moves a cursor or turns a line."""
    if text.isprintable() and not TURNING & set(text):
        return text
    return "".join(one if one in kept or not _acts(one) else f"\\u{ord(one):04x}" for one in text)


def _acts(character: str) -> bool:
    return character in TURNING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
