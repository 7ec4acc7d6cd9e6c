"""A2: the output is too long or too short."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import regex

import results_io
from suites.estimate import Estimate
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
PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["unit"],
    "properties": {
        "unit": {"enum": ["token", "word", "char", "sentence", "line"]},
        "min": {
            "type": "integer",
            "minimum": 0,
            "description": "smallest length that passes; expect.min of an item wins",
        },
        "max": {
            "type": "integer",
            "minimum": 0,
            "description": "largest length that passes; expect.max of an item wins",
        },
        "truncation": {
            "enum": ["fails", "allowed"],
            "description": "whether an output that the token limit cut off has failed (default: fails)",
        },
    },
}
EXPECT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "unit": PARAMETERS["properties"]["unit"],
        "min": {"type": "integer", "minimum": 0, "description": "a whole number of at least 0"},
        "max": {"type": "integer", "minimum": 0, "description": "a whole number of at least 0"},
    },
}
WORD = regex.compile(r"\w+(?:['’-]\w+)*")
SENTENCE_END = regex.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)")


def count(text: str, unit: str) -> int:
    """Length of the text, stripped and in NFC, in words, characters, sentences or lines that are not empty.

    Word: \\w+(?:['-]\\w+)*, so "don't stop" has 2. Sentence: what ends in . ! ? before white space, and an unfinished last one;
    abbreviations count as ends. Character: a code point. Source: spec A2.
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


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, and the share of each way of failing."""
    return {"failure_rate": rates.failure_rate(judged), **rates.subtypes(judged)}


def check(suite: Suite) -> None:
    """UserError if an item has no limits, or limits that no length can meet."""
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
    return Detection(
        True,
        "verified",
        subtype=subtype,
        span=(0, len(case.first.text)),
        evidence=evidence,
        severity="low",
        detail=detail,
    )
