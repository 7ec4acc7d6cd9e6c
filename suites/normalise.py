"""Texts that differ only in form, made equal: the one equality that scoring, consistency and agreement share."""

from __future__ import annotations

import unicodedata
from decimal import Decimal, InvalidOperation

import regex

NUMBER = regex.compile(r"(?<![\w.]|\d,)[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?![\w]|[.,]\d)")


def normalise(text: str, numeric: bool = False) -> str:
    """NFC, casefold, and every run of white space as one space, none at the ends. Source: spec B1.

    `numeric`: numbers take one written form as well, so that "1,000.0" and "1000" are equal.
    """
    # casefold can leave a text that is no longer composed, hence NFC again after it
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    if numeric:
        folded = NUMBER.sub(lambda match: canonical_number(match.group()), folded)
    return " ".join(folded.split())


def number(text: str) -> Decimal | None:
    """The number that the text is, with or without commas between thousands; None if it is no finite number."""
    if not NUMBER.fullmatch(text.strip()):
        return None
    try:
        return Decimal(text.strip().replace(",", ""))
    except InvalidOperation:
        return None


def canonical_number(text: str) -> str:
    """The number in plain digits without exponent, commas and trailing zeros; "-0" is "0"."""
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
