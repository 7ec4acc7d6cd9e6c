"""The behavioural suites in a table, with the worst failure of each in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meridian.run_folder import RunFolder


@dataclass(frozen=True)
class Suite:
    """One suite: how many items failed, and one that did."""

    mode: str
    name: str
    title: str
    applies: bool
    reason: str
    failed: int
    passed: int
    prompt: str
    output: str
    expected: str
    evidence: str


@dataclass(frozen=True)
class Traced:
    """What a circuit of failures was found on."""

    suite: str
    mode: str
    failures: int
    pairs: int
    gap: float


@dataclass(frozen=True)
class Failures:
    suites: tuple[Suite, ...]
    traced: Traced | None


def view(run: RunFolder) -> Failures:
    """The suites of the same weights, and the group of failures that this run's circuit is about, if it is."""
    suites = [
        _suite(document["data"], name, entry)
        for document in run.suites.values()
        for name, entry in document["data"]["suites"].items()
    ]
    trace = run.document("141")
    return Failures(tuple(suites), None if trace is None else _traced(trace))


def _suite(data: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> Suite:
    worst = entry["worst"][0] if entry["worst"] else {}
    return Suite(
        data["mode"],
        name,
        entry["title"],
        entry["applies"],
        entry["reason"],
        entry["counts"]["failed"],
        entry["counts"]["passed"],
        str(worst.get("prompt", "")),
        str(worst.get("output", "")),
        " or ".join(map(str, worst.get("expected") or ())),
        str(worst.get("evidence", "")),
    )


def _traced(trace: Mapping[str, Any]) -> Traced:
    group = trace["group"]
    return Traced(group["suite"], group["mode"], group["failures"], group["pairs"], trace["data"]["gap"])
