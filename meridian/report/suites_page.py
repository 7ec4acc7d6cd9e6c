"""The page of a folder of suites: failure rates, failures, likelihoods, and pairs whose circuit could be traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import results_io
from meridian.figures import behaviour
from meridian.report.browsed_table import BrowsedTable, TableCell, estimate, plain
from meridian.report.folder_page import FolderPage, with_numbers
from meridian.report.sources import FieldSource, numbered
from meridian.suite_folder import PAIRS, SuiteFolder
from result_types import (
    EstimateRecord,
    FailureMode,
    FailureModeResult,
    StoredSuitePairs,
    SuitesResult,
    TracePairsResult,
)

SEVERITY = ("fail", "inconclusive", "insufficient", "none", "pass")  # in the order in which readers should see them
LIKELIHOOD = "121"
UP = "higher is better"
Row = tuple[TableCell, ...]
LIKELIHOODS = {
    "acc": "accuracy",
    "acc_norm": "accuracy, likelihood per character",
    "acc_bytes": "accuracy, likelihood per byte",
    "acc_token": "accuracy, likelihood per token",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
    "ece_equal_mass": "calibration error, bins of equal size",
    "mce": "largest calibration error (MCE)",
    "aurc": "area under risk and coverage (AURC)",
    "e_aurc": "AURC above that of the best order",
}


def of(folder: Path, title: str) -> FolderPage:
    """The page of the suites in `folder`. ResultError if a result cannot be read."""
    documents, files = SuiteFolder(folder).documents, numbered(folder)
    rates = _rates(documents, files)
    tables = (
        rates,
        _failures(documents, files, [row[0].text for row in rates.rows]),
        _unfit(documents, files),
        _likelihoods(folder, files),
        _pairs(folder, files),
    )
    return FolderPage(
        "Behavioural suites", title, _lines(rates), tables, with_numbers(behaviour.of_suites(folder), files)
    )


def _lines(rates: BrowsedTable) -> tuple[str, ...]:
    gated = [row for row in rates.rows if row[4].text != "none"]
    if not rates.rows:
        return ("No suite applied to the model.",)
    worst = rates.rows[0]
    allowed = f", where {worst[3].text} may" if worst in gated else ""
    return (
        _of_gates([row[4].text for row in gated]),
        f"The worst is {worst[0].text}: {worst[2].text} of its items fail{allowed}.",
    )


def _of_gates(verdicts: Sequence[str]) -> str:
    """How many suites fail their gates, in a sentence."""
    if not verdicts:
        return "No suite has a gate."
    if len(verdicts) == 1:
        said = {"fail": "fails its gate", "pass": "passes its gate"}
        return f"The suite {said.get(verdicts[0], 'has a gate, of which nothing is decided')}."
    failed, passed = verdicts.count("fail"), verdicts.count("pass")
    open_ones = len(verdicts) - failed - passed
    more = f"; of {open_ones} nothing is decided" if open_ones else ""
    fail = "1 fails" if failed == 1 else f"{failed or 'none'} fail"
    return f"Of {len(verdicts)} suites with a gate {fail} it and {passed} pass{more}."


def _rates(documents: Mapping[str, FailureModeResult], files: Mapping[str, str]) -> BrowsedTable:
    found = []
    for number, document in documents.items():
        for place, record in enumerate(document["records"]):
            if record["metric_id"].endswith(".failure_rate") and record["value"] is not None:
                found.append((record, _rate(document["data"], record, files[number], place)))
    found.sort(key=lambda one: (SEVERITY.index(one[1][4].text), -(one[0]["value"] or 0.0)))
    return BrowsedTable(
        "rates",
        "Failure rates",
        "Share of items that fail, with its 95 % interval. A suite fails if the whole interval lies above its gate. Those that "
        "fail come first, the highest rate before others.",
        ("suite", "mode", "failed [95 %]", "gate", "verdict", "items"),
        tuple(row for _, row in found),
        ("mode", "verdict"),
    )


def _rate(data: FailureMode, record: EstimateRecord, file: str, place: int) -> Row:
    name, at = record["suite"] or "all suites", f"records[{place}]"
    suite = data["suites"].get(name)
    return (
        TableCell(name, note="" if suite is None else suite["title"]),
        TableCell(f"{data['mode']} {data['title']}"),
        estimate(record, FieldSource(file, f"{at}.value", "in brackets: ci, beside it")),
        plain(record["threshold"], FieldSource(file, f"{at}.threshold")),
        TableCell(behaviour.gate_verdict(record, suite) or "none", verdict=True),
        plain(record["n"], FieldSource(file, f"{at}.n")),
    )


def _failures(
    documents: Mapping[str, FailureModeResult], files: Mapping[str, str], order: Sequence[str]
) -> BrowsedTable:
    """The stored failures, with suites ordered by their rates."""
    rows = [
        (
            TableCell(str(worst["item"]), source=FieldSource(files[number], f'data.suites["{name}"].worst[{place}]')),
            TableCell(name),
            TableCell(worst["prompt"] or "–"),
            TableCell(worst["output"] or "–"),
            TableCell(" or ".join(worst["expected"]) or "–"),
            TableCell(worst["evidence"] or worst["subtype"] or "–"),
        )
        for number, document in documents.items()
        for name, suite in document["data"]["suites"].items()
        for place, worst in enumerate(suite["worst"])
    ]
    rows.sort(key=lambda row: order.index(row[1].text) if row[1].text in order else len(order))
    return BrowsedTable(
        "failures",
        "Failures",
        "The worst failures of every suite in full, suites in the order above; all others are named in the results.",
        ("item", "suite", "prompt", "said", "expected", "why it fails"),
        tuple(rows),
        ("suite",),
    )


def _unfit(documents: Mapping[str, FailureModeResult], files: Mapping[str, str]) -> BrowsedTable:
    rows = tuple(
        (
            TableCell(name, source=FieldSource(files[number], f'data.suites["{name}"].reason'), note=suite["title"]),
            TableCell(f"{document['data']['mode']} {document['data']['title']}"),
            TableCell(suite["reason"]),
        )
        for number, document in documents.items()
        for name, suite in document["data"]["suites"].items()
        if not suite["applies"]
    )
    return BrowsedTable(
        "unfit", "Not applicable", "Suites that say nothing of this model.", ("suite", "mode", "why"), rows, ("mode",)
    )


def _likelihoods(folder: Path, files: Mapping[str, str]) -> BrowsedTable:
    """Every record of 121, grouped by metric; the worst comes first if the metric has a better direction."""
    read = cast(SuitesResult, results_io.read(folder / files[LIKELIHOOD]))["records"] if LIKELIHOOD in files else ()
    kept = [(place, one) for place, one in enumerate(read) if one["value"] is not None]
    kept.sort(
        key=lambda item: (_metric(item[1]), (item[1]["value"] or 0.0) * (1 if item[1]["direction"] == UP else -1))
    )
    rows = tuple(
        (
            TableCell(one["suite"] or "all suites"),
            TableCell(_metric(one)),
            estimate(one, FieldSource(files[LIKELIHOOD], f"records[{place}].value", "in brackets: ci, beside it")),
            plain(one["n"], FieldSource(files[LIKELIHOOD], f"records[{place}].n")),
            TableCell(one["direction"] or "–"),
        )
        for place, one in kept
    )
    return BrowsedTable(
        "likelihoods",
        "Likelihoods",
        "Accuracy, calibration and confidence from the likelihoods of the choices; within a metric the worst first.",
        ("suite", "metric", "value [95 %]", "items", "better"),
        rows,
        ("metric", "suite"),
    )


def _metric(record: EstimateRecord) -> str:
    name = record["metric_id"].rpartition(".")[2]
    return LIKELIHOODS.get(name, name.replace("_", " "))


def _pairs(folder: Path, files: Mapping[str, str]) -> BrowsedTable:
    groups = cast(TracePairsResult, results_io.read(folder / files[PAIRS]))["data"]["groups"] if PAIRS in files else ()
    found = sorted(enumerate(groups), key=lambda one: (-len(one[1]["pairs"]), one[1]["suite"]))
    rows = tuple(tuple(_group(place, group, files[PAIRS])) for place, group in found)
    return BrowsedTable(
        "pairs",
        "Traceable failures",
        "Failing prompts beside passing ones of the same length, which python run.py task=failures traces to heads.",
        ("suite", "mode", "failures", "pairs", "without a pair"),
        rows,
    )


def _group(place: int, group: StoredSuitePairs, file: str) -> Iterator[TableCell]:
    at = f"data.groups[{place}]"
    yield TableCell(group["suite"], note=group.get("title", ""))
    yield TableCell(group["mode"])
    yield plain(group["failures"], FieldSource(file, f"{at}.failures"))
    yield plain(len(group["pairs"]), FieldSource(file, f"{at}.pairs", "their number"))
    reasons = "; ".join(
        f"{count} {why}" for why, count in sorted(group["rejected"].items(), key=lambda one: (-one[1], one[0]))
    )
    yield TableCell(reasons or "–", source=FieldSource(file, f"{at}.rejected") if reasons else None)
