"""The failure modes A1 to A15: one file a mode, found by its ID in MODES.

A mode has ID, NAME, TITLE, TIER, TRACEABLE and TRACE_NOTE, PARAMETERS (JSON Schema of a suite's `parameters`), and

    detect(case, parameters) -> Detection                   whether one case has failed in this way
    summarise(judged, parameters) -> dict[str, Estimate]    rates over cases; the first is "failure_rate"
    EXPECT                                                  JSON Schema of an item's `expect`; a mode without it reads none
    check(suite) -> None                                    UserError for a suite that the mode cannot judge; not
    every mode has it
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from suites import schema
from suites.estimate import Estimate
from suites.item import Suite
from suites.outcome import Case, Detection


class Mode(Protocol):
    """A module of this package."""

    ID: str
    NAME: str
    TITLE: str
    TIER: str
    TRACEABLE: str
    TRACE_NOTE: str
    PARAMETERS: Mapping[str, Any]

    def detect(self, case: Case, parameters: Mapping[str, Any]) -> Detection: ...

    def summarise(
        self, judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]
    ) -> dict[str, Estimate]: ...


def _modes() -> dict[str, Mode]:
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name[:3].strip("0123456789") == "a")
    return {module.ID: module for module in (importlib.import_module(f"{__name__}.{name}") for name in names)}


MODES: Mapping[str, Mode] = _modes()


def check(suite: Suite) -> None:
    """UserError if the suite's mode cannot judge its items: an `expect` of another form, a pattern that does not compile."""
    mode = MODES[suite.mode]
    expected = getattr(mode, "EXPECT", None)
    for item in suite.items if expected is not None else ():
        schema.check(dict(item.expect), expected, f"{suite.id}: {item.id}", "expect")
    checked = getattr(mode, "check", None)
    if checked is not None:
        checked(suite)
