"""The page of a drift series: its alarms, tests and curves, made only from the manifests, which are public."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from meridian.figures import drift
from meridian.report.browsed_table import BrowsedTable, TableCell, plain
from meridian.report.folder_page import FolderPage, with_numbers
from meridian.report.sources import FieldSource
from result_types import DriftAlarm, DriftManifest, ManifestRow
from results_io import UserError
from suites.drift import analysis

Manifests = Mapping[str, DriftManifest]  # {file: manifest}, the earliest snapshot first


def of(folder: Path, title: str) -> FolderPage:
    """The page of the series in `folder`. UserError if it was not analysed; ResultError if a manifest cannot be read."""
    paths = sorted(Path(folder).glob(drift.MANIFESTS))
    read = {path.name: analysis.read(path) for path in paths}
    if not read:
        raise UserError(f"{folder} has no manifest of drift; run python run.py drift do=analyse series={title} first")
    order = max((one["snapshots"] for one in read.values()), key=len)
    places = {one: place for place, one in enumerate(order)}
    found = dict(sorted(read.items(), key=lambda item: places.get(item[1]["snapshot"], len(order))))
    file, last = list(found.items())[-1]
    alarms = sum(bool(one["alarms"]) for one in found.values())
    against = f", compared with {last['previous']}" if last["previous"] else ", with nothing to compare it with"
    lines = (
        f"{alarms} of {len(found)} snapshots have an alarm; the last, {last['snapshot']}{against}, has {len(last['alarms'])}.",
        "A change of what a model says is no change for the worse. A test that finds nothing shows only that no change above "
        "“could find” is likely.",
    )
    figures = with_numbers(drift.build(last), {last["number"]: file})
    return FolderPage("Drift", title, lines, (_alarms(found), _tests(file, last), _gaps(file, last)), figures)


def _alarms(found: Manifests) -> BrowsedTable:
    rows = tuple(
        (
            TableCell(one["snapshot"], source=FieldSource(file, f"alarms[{place}]")),
            TableCell(alarm["name"].replace("_", " ")),
            TableCell(alarm["axis"]),
            plain(alarm["difference"], FieldSource(file, f"alarms[{place}].difference")),
            plain(alarm["adjusted_p"], FieldSource(file, f"alarms[{place}].adjusted_p")),
            TableCell(alarm["reason"] or f"against {one['previous']}"),
        )
        for file, one in reversed(list(found.items()))
        for place, alarm in sorted(enumerate(one["alarms"]), key=lambda item: _p(item[1]))
    )
    columns = ("snapshot", "metric", "axis", "change", "adjusted p", "why")
    text = "The latest snapshot first, within it the smallest adjusted p."
    return BrowsedTable("alarms", "Alarms", text, columns, rows, ("snapshot", "metric", "axis"))


def _p(row: ManifestRow | DriftAlarm) -> float:
    return math.inf if (p := row.get("adjusted_p")) is None else p


def _tests(file: str, last: DriftManifest) -> BrowsedTable:
    tested = [(place, one) for place, one in enumerate(last["records"]) if one.get("adjusted_p") is not None]
    tested.sort(key=lambda item: (_p(item[1]), -abs(item[1].get("difference") or 0.0)))
    rows = tuple(_test(file, place, one) for place, one in tested)
    columns = ("metric", "axis", "level", "of", "before", "after", "change", "p", "adjusted p", "could find", "note")
    text = (
        f"Every test of {last['snapshot']}, the smallest adjusted p first. Tests of single prompts are exploratory; the smallest "
        "change that a test would have found stands under “could find”."
    )
    return BrowsedTable("tests", "Tests", text, columns, rows, ("metric", "axis", "level"))


def _test(file: str, place: int, one: ManifestRow) -> tuple[TableCell, ...]:
    values = [one.get(name) for name in ("before", "after", "difference", "p", "adjusted_p", "detectable")]
    fields = ("before", "after", "difference", "p", "adjusted_p", "detectable")
    return (
        TableCell(str(one["name"]).replace("_", " "), source=FieldSource(file, f"records[{place}]")),
        TableCell(one["axis"] or "–"),
        TableCell(str(one["level"]).replace("_", " ")),
        TableCell(str(one.get("prompt") or one.get("of") or "all prompts")),
        *(
            plain(value if isinstance(value, int | float) else None, FieldSource(file, f"records[{place}].{field}"))
            for value, field in zip(values, fields, strict=True)
        ),
        TableCell(one.get("flag") or one.get("reason") or "–"),
    )


def _gaps(file: str, last: DriftManifest) -> BrowsedTable:
    rows = tuple(
        (
            TableCell(gap["snapshot"], source=FieldSource(file, f"gaps[{place}]")),
            TableCell("all of it" if gap["whole"] else "some calls"),
            TableCell(gap["cause"]),
        )
        for place, gap in enumerate(last["gaps"])
    )
    text = "At a gap a line breaks; nothing is imputed."
    return BrowsedTable("gaps", "Known gaps", text, ("snapshot", "missing", "cause"), rows)
