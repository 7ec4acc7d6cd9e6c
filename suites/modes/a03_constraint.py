"""A3: the output breaks a pattern that it was told to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import results_io
from suites import patterns, schema
from suites.item import Item, Suite
from suites.modes import rates
from suites.outcome import Case, Detection

ID = "A3"
NAME = "constraint"
TITLE = "Constraint violation"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = (
    "For a prefix, a suffix or a forbidden word at a known place: the required token against the emitted one; a "
    "pattern over the whole output has no such place."
)
EACH = {"type": "array", "items": schema.text("a regular expression")}
PARAMETERS = schema.object_of(
    must={
        **EACH,
        "description": "regular expressions that every output must match; an item's expect.must adds its own",
    },
    must_not={**EACH, "description": "regular expressions that no output may match; an item's expect.must_not adds"},
)
LISTED = {**EACH, "description": "a list of regular expressions"}
EXPECT = schema.object_of(must=LISTED, must_not=LISTED)
summarise = rates.by_subtype


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails unless all `must` patterns match the stripped output and no `must_not` pattern does.

    Subtypes: "missing", "forbidden". A pattern that takes longer than a second is an error, not a failure.
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    text, start = case.first.text.strip(), len(case.first.text) - len(case.first.text.lstrip())
    try:
        for pattern in _wanted(case.item, parameters, "must_not"):
            if (match := patterns.search(pattern, text)) is not None:
                span = (start + match.start(), start + match.end())
                return Detection(
                    True, "verified", subtype="forbidden", span=span, evidence=f"{match.group()!r} is forbidden"
                )
        for pattern in _wanted(case.item, parameters, "must"):
            if patterns.search(pattern, text) is None:
                return Detection(True, "verified", subtype="missing", evidence=f"nothing matches {pattern}")
    except TimeoutError:
        return rates.unjudged("error", f"a pattern took longer than {patterns.TIMEOUT:g} s", "verified")
    return Detection(False, "verified")


def check(suite: Suite) -> None:
    """UserError if a pattern does not compile, or an item has none."""
    for item in suite.items:
        wanted = [*_wanted(item, suite.parameters, "must"), *_wanted(item, suite.parameters, "must_not")]
        if not wanted:
            raise results_io.UserError(
                f"{suite.id}: {item.id}: no pattern; give must or must_not in the parameters or in its expect"
            )
        for pattern in wanted:
            patterns.compiled(pattern)


def _wanted(item: Item, parameters: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return (*parameters.get(key, ()), *item.expect.get(key, ()))
