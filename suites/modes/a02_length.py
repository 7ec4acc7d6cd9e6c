"""A2: the output is too long or too short."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import regex

import results_io
from suites import schema
from suites.item import Suite
from suites.modes import rates
from suites.outcome import Case, Detection

ID = "A2"
NAME = "length"
TITLE = "Length violation"
TIER = "verified"
TRACEABLE = "partly"
TRACE_NOTE = (
    "Only the decision to stop: a sibling that stops in time against the failing prefix, the end token against what "
    "came instead."
)
UNIT = {"enum": ["token", "word", "char", "sentence", "line"]}
PARAMETERS = schema.object_of(
    ["unit"],
    unit=UNIT,
    min=schema.whole("smallest length that passes; expect.min of an item wins", least=0),
    max=schema.whole("largest length that passes; expect.max of an item wins", least=0),
    truncation=schema.one_of(
        ["fails", "allowed"], "whether an output that the token limit cut off has failed (default: fails)"
    ),
)
LIMIT = schema.whole("a whole number of at least 0", least=0)
EXPECT = schema.object_of(unit=UNIT, min=LIMIT, max=LIMIT)
summarise = rates.by_subtype
WORD = regex.compile(r"\w+(?:['’-]\w+)*")
SENTENCE_END = regex.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)")


def count(text: str, unit: str) -> int:
    """Length of the text, stripped and in NFC, in words, characters, sentences or lines that are not empty.

    Word: \\w+(?:['-]\\w+)*, so "don't stop" has 2. Sentence: a text that ends in . ! ? before white space, or an unfinished last
    one; abbreviations count as ends. Character: a code point.
    """
    text = unicodedata.normalize("NFC", text).strip()
    if unit == "word":
        return len(WORD.findall(text))
    if unit == "char":
        return len(text)
    if unit == "line":
        return sum(bool(line.strip()) for line in text.splitlines())
    if unit == "sentence":
        return sum(bool(WORD.search(part)) for part in SENTENCE_END.split(text))
    raise ValueError(f"no unit {unit!r}")


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the length is outside [min, max], or if the token limit cut the output off.

    Subtypes: "too_long", "too_short", "truncated". Lengths in tokens are the model's own; where it does not say, not applicable.
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    unit, low, high = (case.item.expect.get(key, parameters.get(key)) for key in ("unit", "min", "max"))
    length = case.first.tokens if unit == "token" else count(case.first.text, unit)
    if length is None:
        return rates.unjudged("not_applicable", "the model does not say how many tokens its output has", "verified")
    truncated = case.first.finish == "length"
    detail = {"length": length, "unit": unit, "min": low, "max": high, "truncated": truncated}
    if high is not None and length > high:
        return _failed("too_long", f"{length} {unit}s; at most {high}", case, detail)
    if truncated and parameters.get("truncation", "fails") == "fails":
        return _failed("truncated", f"cut off at the token limit after {length} {unit}s", case, detail)
    if low is not None and length < low:
        return _failed("too_short", f"{length} {unit}s; at least {low}", case, detail)
    return Detection(False, "verified", detail=detail)


def check(suite: Suite) -> None:
    """UserError if an item has no limits, or limits that no length can satisfy."""
    for item in suite.items:
        low, high = (item.expect.get(key, suite.parameters.get(key)) for key in ("min", "max"))
        if low is None and high is None:
            raise results_io.UserError(
                f"{suite.id}: {item.id}: no length limit; give min or max in the parameters or in its expect"
            )
        if low is not None and high is not None and low > high:
            raise results_io.UserError(
                f"{suite.id}: {item.id}: min {low} is above max {high}; no output can have that length"
            )


def _failed(subtype: str, evidence: str, case: Case, detail: Mapping[str, Any]) -> Detection:
    span = (0, len(case.first.text))
    return Detection(True, "verified", subtype=subtype, span=span, evidence=evidence, severity="low", detail=detail)
