"""The page of a geometry folder: metrics and constructs beside the maps, largest movements first, then the heads of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from meridian.figures import geometry
from meridian.report import geometry_heads
from meridian.report.browsed_table import BrowsedTable, TableCell, estimate, plain
from meridian.report.folder_page import FolderPage, with_numbers
from meridian.report.sources import FieldSource, numbered
from result_types import GeometryRecord
from suites.geometry import findings, summary

METRICS = {metric.NUMBER: metric for metric in findings.METRICS}
NAMES = {number: metric.NAME for number, metric in METRICS.items()}
Found = tuple[str, int, GeometryRecord]  # (number of the result, index of the record in it, the record)


def of(folder: Path, title: str) -> FolderPage:
    """The page of the geometry in `folder`. UserError if there is none."""
    documents, files = geometry.documents(folder), numbered(folder)
    found: list[Found] = [
        (number, place, record)
        for number in NAMES
        if number in documents
        for place, record in enumerate(documents[number]["records"])
    ]
    overall = [one for one in found if not one[2]["construct"]]
    single = [one for one in found if one[2]["construct"]]
    tested = [one for one in single if one[2]["p_value"] is not None]
    moved = sum(_movement(one)[0] < geometry.ALPHA for one in tested)
    lines = (
        f"{moved} of {len(tested)} tests of a construct have a p below {geometry.ALPHA:g}; "
        "a twentieth is expected where nothing moves.",
        "The paper's thresholds give no verdict here. The published number counts the noise of draws and "
        "wordings as movement; the estimate does not. d: distance of the coordinates, in units of the fixed scale if the set has "
        "one; d²: its square.",
    )
    tables = (
        _table("metrics", "Metrics", "Over all constructs of a set.", overall, files),
        _table(
            "constructs", "Constructs", "Each construct by itself: the smallest p, then what moves most.", single, files
        ),
    )
    tables = (*tables, *geometry_heads.tables(folder))
    return FolderPage("Geometry of outputs", title, lines, tables, with_numbers(geometry.build(folder), files))


def _table(name: str, title: str, text: str, found: list[Found], files: Mapping[str, str]) -> BrowsedTable:
    rows = tuple(_row(one, files[one[0]]) for one in sorted(found, key=_movement))
    columns = ("construct", "metric", "of", "set", "published", "unit", "estimate [95 %]", "unit", "p", "n")
    kept = columns if name == "constructs" else columns[1:]
    rows = rows if name == "constructs" else tuple(row[1:] for row in rows)
    return BrowsedTable(name, title, text, kept, rows, ("metric", "set"))


def _published_unit(number: str, record: GeometryRecord) -> str:
    """Of the paper's number, which is no square where the estimate is one."""
    return "–" if record["published"]["value"] is None else summary.published_unit(number, METRICS[number].UNIT)


def _movement(one: Found) -> tuple[float, float]:
    """A sort key: small p first, then large values; records without p or value come last."""
    p, value = one[2]["p_value"], one[2]["value"]
    return (math.inf if p is None else p, math.inf if value is None else -value)


def _row(one: Found, file: str) -> tuple[TableCell, ...]:
    number, place, record = one
    at = f"records[{place}]"
    return (
        TableCell((record["construct"] or "all").replace("_", " ")),
        TableCell(NAMES[number]),
        TableCell((record["label"] or "–").replace("_", " ")),
        TableCell(record["suite"]),
        plain(record["published"]["value"], FieldSource(file, f"{at}.published.value")),
        TableCell(_published_unit(number, record)),
        estimate(record, FieldSource(file, f"{at}.value", "in brackets: ci, beside it")),
        TableCell("–" if record["value"] is None else summary.UNITS.get(record["unit"], record["unit"])),
        plain(record["p_value"], FieldSource(file, f"{at}.p_value")),
        plain(record["n"], FieldSource(file, f"{at}.n")),
    )
