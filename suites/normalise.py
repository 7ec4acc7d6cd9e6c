"""Normalise texts so that those that differ only in form are equal; scoring, consistency and agreement share this equality."""

from __future__ import annotations

import unicodedata
from decimal import Decimal, InvalidOperation

import regex

MINUS = "\u2212"  # the sign that typesetting has for the hyphen
# a unit may follow directly ("5kg"), but no ordinal ("5th"), no letter for a magnitude ("5k") and no letter of a name ("3D")
NUMBER = regex.compile(
    rf"(?<![\w.]|\d,)[-+{MINUS}]?(?:(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+{MINUS}]?\d{{1,3}})?"
    r"(?!\p{L}*[\d_]|[.,]\d|(?:st|nd|rd|th|ST|ND|RD|TH|k|K|M|B|bn|mn|D|G)\b)"
)


def normalise(text: str, numeric: bool = False) -> str:
    """NFC, casefold, and every run of white space as one space, none at the ends.

    `numeric`: numbers take one written form as well, so that "1,000.0" and "1000" are equal.
    """
    # casefold can decompose characters, hence NFC again after it
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    if numeric:
        folded = NUMBER.sub(lambda match: canonical_number(match.group()), folded)
    return " ".join(folded.split())


def number(text: str) -> Decimal | None:
    """The text as a number, with or without commas between thousands; None if it is no finite number."""
    if not NUMBER.fullmatch(text.strip()):
        return None
    try:
        return Decimal(text.strip().replace(",", "").replace(MINUS, "-"))
    except InvalidOperation:
        return None


def canonical_number(text: str) -> str:
    """The number in plain digits without exponent, commas and trailing zeros; "-0" gives "0". A text that is no number stays."""
    value = number(text)
    if value is None:
        return text
    if not value:
        return "0"
    plain = format(value, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def numbers(text: str) -> list[Decimal]:
    """All numbers in the text, in order."""
    found = (number(match.group()) for match in NUMBER.finditer(text))
    return [value for value in found if value is not None]
