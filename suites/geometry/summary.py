"""Geometry in the terminal: one row a metric over all constructs, the paper's number beside the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suites.estimate import Estimate
from suites.geometry.findings import MetricFinding
from suites.geometry.measure import GeometryRun

WIDTH = 110
CAPTION = (
    "published: the paper's formula, no verdict. estimate: corrected for noise, squared where that is what is unbiased",
    "found: constructs with p below .05 of those tested; a twentieth is expected where nothing moves",
)
ALPHA = 0.05


def show(run: GeometryRun, found: Sequence[MetricFinding], console: Console, notes: Sequence[str] = ()) -> None:
    """Print the table of every set, why metrics have no number, and where the record is."""
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
    for line in (*CAPTION, *notes):
        put(line, style="dim" if line in CAPTION else None)
    put()
    put(f"Record {run.log} · {run.asked} outputs or choices asked, {run.reused} known before")


def rows_of(found: Sequence[MetricFinding]) -> tuple[Table, list[str]]:
    """The table of one set, and the reasons of what has no number."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("metric", "", "published", "estimate", "interval", "n", "found", "status"):
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
            "-" if estimate.value is None else f"{estimate.value:.3f}",
            interval(estimate),
            str(estimate.n),
            f"{hits}/{len(tested)}" if tested else "",
            estimate.status.replace("_", " "),
        )
        if estimate.status != "ok":
            reasons.append(f"{one.metric.NAME}: {estimate.reason}")
    return table, reasons


def interval(estimate: Estimate) -> str:
    """[low, high], or nothing."""
    return "" if estimate.ci is None else f"[{estimate.ci.low:.3f}, {estimate.ci.high:.3f}]"
