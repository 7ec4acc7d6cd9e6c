"""Geometry in the terminal: one row per metric over all constructs, with the paper's number beside the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shown_text import WIDTH
from suites.estimate import Estimate
from suites.geometry import coverage, framing, languages, matrix, metric, mtmm, paraphrase
from suites.geometry.findings import MetricFinding
from suites.geometry.matrix import MatrixCell
from suites.geometry.measure import GeometryRun

CAPTION = (
    "published: the paper's formula in its unit, no verdict. estimate: corrected for noise; d² where only the square has no bias",
    "d: distance of the coordinates, in units of the fixed scale if the set has one; d²: its square",
    "found: constructs with p below .05 of those tested; a twentieth is expected where nothing moves",
)
ALPHA = 0.05


UNITS = {metric.UNIT: "d", metric.SQUARED: "d²", metric.RATIO: "ratio", coverage.UNIT: "share"}
PUBLISHED_UNITS = {paraphrase.NUMBER: "d", framing.NUMBER: "ratio", languages.NUMBER: "ratio"}  # where they differ


def published_unit(number: str, unit: str) -> str:
    """The unit of the paper's formula of a metric whose estimate is in `unit` by itself, as the tables write it."""
    return PUBLISHED_UNITS.get(number, UNITS[unit])


def show(
    run: GeometryRun, found: Sequence[MetricFinding], console: Console, folder: Path, notes: Sequence[str] = ()
) -> None:
    """Print the tables of every set, why metrics have no number, and where the results in `folder` and the record are."""
    put = partial(console.print, highlight=False, markup=False, width=min(console.width, WIDTH))
    put()
    put(Text(f"Geometry  {run.model}", style="bold"))
    for own in run.sets:
        put()
        if own.reason is not None:
            put(f"{own.constructs.name}: not applicable, {own.reason}")
            continue
        draws = "exact likelihoods" if own.coordinates and own.coordinates.exact else "sampled outputs"
        draws = (
            draws if not own.deterministic or own.coordinates is None or own.coordinates.exact else "one greedy output"
        )
        kind = own.coordinates.kind if own.coordinates else "-"
        put(f"{own.constructs.name}: {len(own.constructs.constructs)} constructs, coordinates of kind {kind}, {draws}")
        rows, reasons = rows_of([one for one in found if one.set == own.constructs.name])
        put(rows)
        for line in dict.fromkeys(reasons):
            put(line, style="dim")
        put(f"{mtmm.NUMBER} {mtmm.NAME}: means over constructs, corrected (published), d")
        put(matrix_of(matrix.cells(own, [one for one in found if one.set == own.constructs.name])))
    for line in (*CAPTION, *notes):
        put(line, style="dim" if line in CAPTION else None)
    put()
    put(f"Results {folder}")
    put(f"Figures: python run.py figures from={folder}")
    put(f"Record {run.log}")
    put(f"{run.asked} outputs or choices asked, {run.reused} known before")


def rows_of(found: Sequence[MetricFinding]) -> tuple[Table, list[str]]:
    """The table of one set, and the reasons of metrics without a number."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("metric", "", "published", "", "estimate", "", "interval", "n", "found"):
        table.add_column(column, justify="right" if column in ("published", "estimate", "n", "found") else "left")
    reasons = []
    for one in sorted((own for own in found if own.construct is None), key=lambda own: own.metric.NUMBER):
        estimate = one.found.estimate
        parts = [own for own in found if own.construct and own.metric is one.metric and own.label == one.label]
        tested = [own for own in parts if own.found.estimate.p_value is not None]
        hits = sum((own.found.estimate.p_value or 0) < ALPHA for own in tested)
        published = one.found.published.value
        table.add_row(
            f"{one.metric.NUMBER} {one.metric.NAME}",
            one.label or "",
            "-" if published is None else f"{published:.3f}",
            "" if published is None else published_unit(one.metric.NUMBER, one.metric.UNIT),
            "-" if estimate.value is None else f"{estimate.value:.3f}",
            "" if estimate.value is None else UNITS[estimate.unit],
            interval(estimate) if estimate.status == "ok" else estimate.status.replace("_", " "),
            str(estimate.n),
            f"{hits}/{len(tested)}" if tested else "",
        )
        if estimate.status != "ok":
            reasons.append(f"{one.metric.NAME}: {estimate.reason}")
        reasons += [f"{one.metric.NAME}: {note}" for note in estimate.assumptions if note.startswith("no interval:")]
    return table, reasons


def matrix_of(cells: Sequence[MatrixCell]) -> Table:
    """Table 179: the corrected value of each cell with the paper's formula in brackets, or its status."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", *mtmm.METHODS):
        table.add_column(column)
    for trait in mtmm.TRAITS:
        table.add_row(trait, *(_shown(cell) for cell in cells if cell.trait == trait))
    return table


def _shown(cell: MatrixCell) -> str:
    published = "" if cell.published is None else f" ({cell.published:.3f})"
    share = "" if cell.share is None else f" · PS {cell.share:.2f}"
    return (cell.status.replace("_", " ") if cell.value is None else f"{cell.value:.3f}") + published + share


def interval(estimate: Estimate) -> str:
    """[low, high], or "none"."""
    return "none" if estimate.ci is None else f"[{estimate.ci.low:.3f}, {estimate.ci.high:.3f}]"
