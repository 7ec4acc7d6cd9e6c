"""What the behavioural suites found, and which heads carry a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meridian import run_folder
from meridian.figures.values import Forest, Interval
from meridian.run_folder import RunFolder

VERDICTS = {"confirmed": "pass", "refuted": "fail", "undecided": "inconclusive"}


def build(run: RunFolder) -> Iterator[Forest]:
    """Failure rates of the model's suites, and for a circuit of failures the heads that carry the difference."""
    rates = failure_rates(run.suites)
    if rates.rows:
        yield rates
    yield from failure_carriers(run)


def failure_rates(documents: Mapping[str, Mapping[str, Any]]) -> Forest:
    """The failure rates of results 101 to 115, by number, each with its own gate."""
    from suites.judgement import VERDICT_FROM  # imported here: the suites' statistics take a while

    return Forest(
        name="failure_rates",
        title="Failure rates of the behavioural suites",
        caption="Share of items that fail, with its 95 % interval (items of one cluster count together). A suite passes its "
        "gate (dotted) if the whole interval lies at or below it and fails if it lies above; insufficient: fewer than "
        f"{VERDICT_FROM} cases, or a heuristic that is not trusted; a suite without a gate has no verdict. Results 101 to 115.",
        x_label="failure rate",
        rows=tuple(_rate(data, record) for data, record in run_folder.failure_rates(documents)),
        level=0.95,
    )


def gate_verdict(record: Mapping[str, Any], suite: Mapping[str, Any]) -> str | None:
    """What became of a failure rate's gate; None without a gate. `suite`: the stored one that the record is about.

    `passed` is None for an interval that holds the gate, and also where nothing may be said (`suites.results.gate`): too few
    cases for an interval, or verdicts of a heuristic that is below its target.
    """
    if record["threshold"] is None:
        return None
    if record["passed"] is not None:
        return "pass" if record["passed"] else "fail"
    distrusted = (suite.get("gate") or {}).get("distrust") is not None
    return "insufficient" if distrusted or record["ci"] is None else "inconclusive"


def _rate(data: Mapping[str, Any], record: Mapping[str, Any]) -> Interval:
    interval = record["ci"] or {}
    return Interval(
        record["suite"],
        record["value"],
        interval.get("low"),
        interval.get("high"),
        gate_verdict(record, data["suites"].get(record["suite"], {})),
        group=f"{data['mode']} {data['title']}",
        below=record["threshold"],
    )


def failure_carriers(run: RunFolder) -> Iterator[Forest]:
    """Heads named on the discovery half of the pairs of failures, with what the confirmation half says of them.

    Nothing for a run that is not about failures.
    """
    traced = run.document("141")
    if traced is None:
        return
    rows = [
        Interval(one.head, one.estimate, one.low, one.high, VERDICTS.get(one.verdict or ""), f"{one.half} half")
        for one in run_folder.carriers_of(run)
    ]
    group, level = traced["group"], float(traced["subject"]["settings"]["difference"]["level"])
    yield Forest(
        name="failure_carriers",
        title="Heads that carry the difference between failing and passing prompts",
        caption=f"Share of the difference that the head's passing output restores in the failing prompt, with its "
        f"{level:.0%} interval, simultaneous over all heads (discovery) or "
        f"the named ones (confirmation); {group['pairs']} pairs of {group['suite']}. Results 141 and 142.",
        x_label="share restored",
        rows=tuple(rows),
        lines={"0": 0.0},
        level=level,
    )
