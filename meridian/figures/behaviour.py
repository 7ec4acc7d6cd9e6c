"""What the behavioural suites found, and which heads carry a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meridian.figures.values import Forest, Interval
from meridian.run_folder import RunFolder
from suites.scores import VERDICT_FROM

VERDICTS = {"confirmed": "pass", "refuted": "fail", "undecided": "inconclusive"}


def build(run: RunFolder) -> Iterator[Forest]:
    """Failure rates of the model's suites, and for a circuit of failures the heads that carry the difference."""
    rates = failure_rates(run.suites)
    if rates.rows:
        yield rates
    yield from _carriers(run)


def failure_rates(documents: Mapping[str, Mapping[str, Any]]) -> Forest:
    """The failure rates of results 101 to 115, by number, each with its own gate."""
    return Forest(
        name="failure_rates",
        title="Failure rates of the behavioural suites",
        caption="Share of items that fail, with its 95 % interval (items of one cluster count together). A suite passes its "
        "gate (dotted) if the whole interval lies at or below it and fails if it lies above; insufficient: fewer than "
        f"{VERDICT_FROM} cases, or a heuristic that is not trusted; a suite without a gate has no verdict. Results 101 to 115.",
        x_label="failure rate",
        rows=tuple(row for document in documents.values() for row in _rates(document)),
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


def _rates(document: Mapping[str, Any]) -> Iterator[Interval]:
    for record in document["records"]:
        if record["metric_id"].endswith(".failure_rate") and record["value"] is not None:
            ci = record["ci"] or {}
            yield Interval(
                record["suite"],
                record["value"],
                ci.get("low"),
                ci.get("high"),
                gate_verdict(record, document["data"]["suites"].get(record["suite"], {})),
                group=f"{document['data']['mode']} {document['data']['title']}",
                below=record["threshold"],
            )


def _carriers(run: RunFolder) -> Iterator[Forest]:
    named, judged = run.document("141"), run.document("142")
    if named is None:
        return
    rows = [Interval(h["head"], h["restored"], h["low"], h["high"], group="discovery half") for h in named["named"]]
    rows += [
        Interval(
            h["head"], h["restored"], *(h["interval"] or (None, None)), VERDICTS[h["verdict"]], "confirmation half"
        )
        for h in (judged["records"] if judged else ())
    ]
    group, level = named["group"], float(named["subject"]["settings"]["difference"]["level"])
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
