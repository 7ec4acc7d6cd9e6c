"""The failure modes, A1 to A16 so far: one file a mode, found by itself and kept by its ID in MODES.

Safety suites (family S, from s01) are judged in the same way and kept in SAFETY. They are not part of the taxonomy whose coverage
is counted, and neither are suites whose outputs are run as programs (family X, from x01). EVERY has all modes.

A mode has ID, NAME, TITLE, TIER, TRACEABLE and TRACE_NOTE, PARAMETERS (JSON Schema of a suite's `parameters`), and

    detect(case, parameters) -> Detection                   whether one case has failed in this way
    summarise(judged, parameters) -> dict[str, Estimate]    rates over cases; the first is "failure_rate"
    EXPECT                                                  JSON Schema of an item's `expect`, if the mode reads it
    check(suite) -> None                                    UserError for a suite that the mode cannot judge (optional)
    rated(item) -> bool                                     whether an item can enter the failure rate, as controls and
                                                            originals do not (optional; without it all items can)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import registries
import results_io
from suites import schema
from suites.estimate import Estimate
from suites.item import Item, Suite
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


REQUIRED = {
    "ID": 'its identifier, for example ID = "A9"',
    "NAME": 'the name of its result, for example NAME = "typo_sensitivity"',
    "TITLE": 'its name in tables, for example TITLE = "Typo sensitivity"',
    "TIER": 'how sure its verdicts are, for example TIER = "verified"',
    "TRACEABLE": '"yes", "partly" or "no": whether a failure has a counterfactual token',
    "TRACE_NOTE": "a sentence that says which pair of prompts would explain a failure",
    "PARAMETERS": "the JSON Schema of a suite's parameters",
    "detect": "detect(case, parameters), which returns a Detection",
    "summarise": "summarise(judged, parameters), which returns {name: Estimate} with failure_rate",
}


TAXONOMY, SAFE, EXECUTED, BASE = "A", "S", "X", 100
MOST = 20  # the result of mode A<n> has the number 100 + n, and 121 is taken by likelihoods


def _find() -> dict[str, Mode]:
    """The modes by ID, in the order of their numbers.

    UserError for a file that is not named after its ID, or whose result would have the number of another.
    """
    modules = registries.modules_of(__name__, __path__, REQUIRED, re.compile(r"[asx]\d+_").match, unique=("ID", "NAME"))
    for module in modules:
        expected = f"{module.ID[:1].lower()}{module.ID[1:]:0>2}_{module.NAME}"
        if registries.name_of(module) != expected or not re.fullmatch(r"[ASX][1-9]\d*", module.ID):
            raise results_io.UserError(
                f"{registries.file_of(module)} has ID {module.ID!r} and NAME {module.NAME!r}; call the file {expected}.py, "
                "or take an ID such as 'A17'"
            )
        if not module.ID.startswith(TAXONOMY) and not str(getattr(module, "NUMBER", "")).isdigit():
            raise results_io.UserError(
                f'{registries.file_of(module)} has no NUMBER; give its result one of its own, for example NUMBER = "186"'
            )
        if module.ID.startswith(TAXONOMY) and int(module.ID[1:]) > MOST:
            raise results_io.UserError(
                f"{registries.file_of(module)} has ID {module.ID!r}, and from 121 on results have other numbers; "
                f"take an ID up to 'A{MOST}'"
            )
    return {module.ID: cast(Mode, module) for module in modules}


EVERY: Mapping[str, Mode] = _find()
MODES: Mapping[str, Mode] = {name: mode for name, mode in EVERY.items() if name.startswith(TAXONOMY)}
SAFETY: Mapping[str, Mode] = {name: mode for name, mode in EVERY.items() if name.startswith(SAFE)}


def number(identifier: str) -> int:
    """The number of a mode's result: 100 + n for A<n> ("A9" is 109); a mode outside of the taxonomy declares NUMBER."""
    return BASE + int(identifier[1:]) if identifier.startswith(TAXONOMY) else int(EVERY[identifier].NUMBER)  # pyright: ignore[reportAttributeAccessIssue]


def rated(suite: Suite) -> list[Item]:
    """The items of a suite that enter its failure rate, if the model leaves none of them without a verdict."""
    counts = getattr(EVERY[suite.mode], "rated", None)
    return [item for item in suite.items if counts is None or counts(item)]


def check(suite: Suite) -> None:
    """UserError if the suite's mode cannot judge its items, for example for an invalid `expect` or pattern."""
    mode = EVERY[suite.mode]
    expected, checked = getattr(mode, "EXPECT", None), getattr(mode, "check", None)
    if expected is not None:
        for item in suite.items:
            schema.check(dict(item.expect), expected, f"{suite.id}: {item.id}", "expect")
    if checked is not None:
        checked(suite)
