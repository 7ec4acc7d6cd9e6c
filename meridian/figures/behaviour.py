"""What the behavioural suites found, and which heads carry a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import results_io
from meridian.figures.values import Forest, Interval
from meridian.run_folder import RunFolder

SUITES = "suites"
MODES = tuple(str(number) for number in range(101, 116))
VERDICTS = {"confirmed": "pass", "refuted": "fail", "undecided": "inconclusive"}


def build(run: RunFolder) -> Iterator[Forest]:
    """Failure rates of the model's suites, and for a circuit of failures the heads that carry the difference."""
    documents = suite_documents(run)
    rows = tuple(row for document in documents.values() for row in _rates(document))
    if rows:
        yield Forest(
            name="failure_rates",
            title="Failure rates of the behavioural suites",
            caption="Share of items that fail, with its 95 % interval (items of one cluster count together). A suite passes its "
            "gate if the whole interval lies below the gate. Results 101 to 115.",
            x_label="failure rate",
            rows=rows,
            level=0.95,
        )
    yield from _carriers(run)


def suite_documents(run: RunFolder) -> dict[str, Mapping[str, Any]]:
    """Results 101 to 115 of the same weights, by number: those in `suites` beside the run's task, none if there are none."""
    weights, found = run.certificate["subject"]["model_sha256"], {}
    for folder in _candidates(run.path):
        for number in MODES:
            path = results_io.find(folder, number)
            document = None if path is None else results_io.read(path)
            if document and document["subject"].get("identity", {}).get("weights") == weights:
                found[number] = document
        if found:
            return found
    return {}


def _candidates(path: Path) -> list[Path]:
    """A run lies in results/<model>/<task> or one variant below; a model's name may hold one slash, as planted/sound."""
    return [parent / SUITES for parent in (path.resolve().parent, path.resolve().parent.parent)]


def _rates(document: Mapping[str, Any]) -> Iterator[Interval]:
    for record in document["records"]:
        if record["metric_id"].endswith(".failure_rate") and record["value"] is not None:
            ci = record["ci"] or {}
            yield Interval(
                record["suite"],
                record["value"],
                ci.get("low"),
                ci.get("high"),
                {True: "pass", False: "fail", None: "inconclusive"}[record["passed"]],
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
    group = named["group"]
    yield Forest(
        name="failure_carriers",
        title="Heads that carry the difference between failing and passing prompts",
        caption=f"Share of the difference that the head's passing output restores in the failing prompt, with its interval; "
        f"{group['pairs']} pairs of {group['suite']}. Results 141 and 142.",
        x_label="share restored",
        rows=tuple(rows),
        lines={"0": 0.0},
        level=0.95,
    )
