"""The numbers behind a figure as a table, for readers without a mouse or without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from calibrations.number_format import interval_text, three_digits
from meridian.figures.values import CircuitGraph, Curves, Distribution, EstimateMark, Figure, Forest, HeatMap, OutputMap

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class NumberTable:
    """A header and rows of text; the first cell of a row is the row's name."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@singledispatch
def numbers_of(figure: Figure) -> NumberTable:
    """The numbers of `figure`; TypeError for a kind that has none."""
    raise TypeError(f"{type(figure).__name__} has no table; expected one of the kinds in meridian.figures.values")


@numbers_of.register
def _(figure: HeatMap) -> NumberTable:
    rows = []
    for y, name in enumerate(figure.y):
        cells = [_cell(figure, y, x) for x in range(len(figure.x))]
        rows.append((name, *cells))
    return NumberTable((f"{figure.y_label} \\ {figure.x_label}", *figure.x), tuple(rows))


def _cell(figure: HeatMap, y: int, x: int) -> str:
    value = figure.values[y][x]
    if value is None:
        return (figure.text[y][x] if figure.text else "") or "–"
    low, high = (None if side is None else side[y][x] for side in (figure.low, figure.high))
    said = f"{figure.text[y][x]} " if figure.text else ""
    return f"{said}{three_digits(value)}{interval_text(low, high, three_digits)}"


@numbers_of.register
def _(figure: Forest) -> NumberTable:
    level = "interval" if figure.level is None else f"{figure.level:.0%} interval"
    rows = tuple(
        (
            row.label,
            row.unit or figure.x_label,
            three_digits(row.estimate),
            "–" if row.low is None else f"{three_digits(row.low)} to {three_digits(row.high)}",
            _limits(row),
            row.verdict or "–",
        )
        for row in figure.rows
    )
    return NumberTable(("", "quantity", "estimate", level, "limit", "verdict"), rows)


def _limits(row: EstimateMark) -> str:
    sides = {"above": row.above, "below": row.below}
    return " and ".join(f"{side} {three_digits(at)}" for side, at in sides.items() if at is not None) or "–"


@numbers_of.register
def _(figure: Curves) -> NumberTable:
    header = (figure.x_label, *(f"{series.label} ({figure.y_label})" for series in figure.series))
    rows = []
    for place, x in enumerate(figure.x):
        cells = []
        for series in figure.series:
            low, high = (None if side is None else side[place] for side in (series.low, series.high))
            cells.append(three_digits(series.y[place]) + interval_text(low, high, three_digits))
        rows.append((str(x), *cells))
    return NumberTable(header, tuple(rows))


@numbers_of.register
def _(figure: Distribution) -> NumberTable:
    rows = [
        (label, str(len(values)), *(three_digits(float(q)) for q in np.quantile(values, QUANTILES)))
        for label, values in figure.samples.items()
        if values
    ]
    blank = [""] * (len(QUANTILES) - 1)
    rows += [(label, "line at", three_digits(value), *blank) for label, value in figure.lines.items()]
    return NumberTable(("", "draws", "least", "5 %", "25 %", "median", "75 %", "95 %", "most"), tuple(rows))


@numbers_of.register
def _(figure: CircuitGraph) -> NumberTable:
    nodes = [("head", n.name, n.role.replace("_", " "), "", three_digits(n.effect), "") for n in figure.nodes]
    edges = [
        (
            "edge",
            e.sender,
            e.receiver,
            e.input or "",
            three_digits(e.weight),
            "" if e.low is None else f"{three_digits(e.low)} to {three_digits(e.high)}",
        )
        for e in sorted(figure.edges, key=lambda e: -abs(e.weight))
    ]
    header = ("", "head or sender", "role or receiver", "input", f"effect ({figure.unit})", "95 % interval")
    return NumberTable(header, tuple(nodes + edges))


@numbers_of.register
def _(figure: OutputMap) -> NumberTable:
    points = [("centre of the neutral wordings", figure.centre)]
    points += [(f"framed: {arrow.label}", (arrow.x1, arrow.y1)) for arrow in figure.arrows]
    points += [("reference", figure.reference)] if figure.reference is not None else []
    points += [(f"wording {place}", at) for place, at in enumerate(figure.wordings, start=1)]
    rows = [(name, three_digits(x), three_digits(y)) for name, (x, y) in points]
    return NumberTable(("", figure.x_label, figure.y_label), tuple(rows))
