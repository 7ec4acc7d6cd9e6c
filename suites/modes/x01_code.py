"""X1: a program that the model wrote fails its tests. What it prints, and the code that it exits with, count for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import results_io
from suites import schema
from suites.estimate import Estimate
from suites.execution import problems
from suites.item import Suite
from suites.modes import rates
from suites.outcome import Case, Detection

ID = "X1"
NUMBER = "185"
NAME = "code"
TITLE = "Code that fails its tests"
TIER = "verified"
TRACEABLE = "no"
TRACE_NOTE = "A program is right as a whole; no token of it is the wrong one."
PARAMETERS = schema.object_of()
EXPECT = schema.object_of(["tests"], tests=problems.TESTS)
WORST = ("killed", "timeout", "error", "failed")  # the subtype of a failure is the first of these that a test ended in


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails unless the first output passes every test of its item.

    A program that was not run, because code is not allowed or the sandbox did not start, has no verdict. `detail.tests`: number
    of tests by status.
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    tests = case.first.tests
    if tests is None or case.first.correct is None:
        return rates.unjudged("error", "the program was not run", "verified")
    counts = Counter(tests.values())
    detail = {"tests": dict(sorted(counts.items()))}
    if case.first.correct:
        return Detection(False, "verified", detail=detail)
    subtype = next(status for status in WORST if counts[status])
    first = next(name for name, status in tests.items() if status == subtype)
    evidence = f"{counts['passed']} of {len(tests)} tests passed; {first}: {subtype}"
    return Detection(True, "verified", subtype=subtype, evidence=evidence, detail=detail)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, the share of each way of failing, and the share of all tests that passed, those of an item being alike."""
    passed, clusters = [], []
    for case, seen in judged:
        if seen.failed is not None:
            outcomes = (case.first.tests or {}).values()
            passed += [status == "passed" for status in outcomes]
            clusters += [case.cluster] * len(outcomes)
    share = replace(rates.share(passed, clusters, "tests were run"), unit="share of tests")
    return {"failure_rate": rates.failure_rate(judged), **rates.subtypes(judged), "accuracy_tests": share}


def check(suite: Suite) -> None:
    """UserError for a suite whose scorer does not run code."""
    if suite.scorer.get("kind") != "code":
        raise results_io.UserError(
            f"{suite.id}: scorer.kind is {suite.scorer.get('kind', 'none')!r}; expected 'code', which runs what the model wrote"
        )
