"""Cases of one output, made short, for the tests of the failure modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suites.item import Item, ItemVariant, SamplingLeg, Suite
from suites.modes import EVERY
from suites.outcome import Case, Detection, Outcome

ERROR = Outcome("greedy", 0, "", finish="error", error="time-out")


def said(text: str, correct: bool | None = None, parent: Case | None = None, finish: str = "stop", **item: Any) -> Case:
    """A case with one greedy output."""
    outcome = Outcome("greedy", 0, text, finish=finish, correct=correct)
    return Case(Item(**({"id": "x", "prompt": ""} | item)), (outcome,), parent)


def failed_call(**item: Any) -> Case:
    return Case(Item(**({"id": "x", "prompt": ""} | item)), (ERROR,))


def pair(clean: bool, changed: bool, number: int, kind: str = "swap") -> Case:
    """A variant and its original, with a verdict each."""
    parent = said("a", clean, id=str(number))
    return said("b", changed, parent, id=f"{number}-{kind}", variant=ItemVariant(kind, str(number)))


def judge(
    mode: str, cases: Sequence[Case], parameters: Mapping[str, Any] | None = None
) -> list[tuple[Case, Detection]]:
    return [(case, EVERY[mode].detect(case, parameters or {})) for case in cases]


def summary(mode: str, cases: Sequence[Case], parameters: Mapping[str, Any] | None = None):
    return EVERY[mode].summarise(judge(mode, cases, parameters), parameters or {})


def suite(mode: str, items: Sequence[Item], legs: Sequence[SamplingLeg] = (SamplingLeg(),), **parameters: Any) -> Suite:
    return Suite(
        "s", "1.0.0", "", "", mode, (), (), tuple(legs), {"kind": "none"}, parameters, {}, 1, None, tuple(items), ""
    )
