"""The numbers of a geometry figure as CSV with full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import shown_text
from meridian.figures.values import Curves, Figure, Forest, HeatMap, OutputMap


def of(figure: Figure) -> str:
    """The numbers of a figure, one per row. TypeError for a kind of figure that geometry does not use."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(
        [shown_text.cell(value) for value in row] for row in _rows(figure)
    )
    return stream.getvalue()


def _rows(figure: Figure) -> Iterator[list[Any]]:
    if isinstance(figure, OutputMap):
        yield ["what", "label", figure.x_label, figure.y_label]
        shown = (
            ("output", figure.draws),
            ("wording", figure.wordings),
            ("hull", figure.hull),
            ("ellipse", figure.ellipse),
        )
        for what, points in shown:
            yield from ([what, "", *point] for point in points)
        yield ["centre", "", *figure.centre]
        yield from (["framed", arrow.label, arrow.x1, arrow.y1] for arrow in figure.arrows)
        if figure.reference is not None:
            yield ["reference", "", *figure.reference]
    elif isinstance(figure, HeatMap):
        yield [figure.y_label, figure.x_label, figure.unit, "text"]
        for y, values in enumerate(figure.values):
            for x, value in enumerate(values):
                yield [figure.y[y], figure.x[x], value, figure.text[y][x] if figure.text else ""]
    elif isinstance(figure, Curves):
        yield [figure.x_label, "series", figure.y_label, "low", "high"]
        for one in figure.series:
            for place, value in enumerate(one.y):
                ends = [None if band is None else band[place] for band in (one.low, one.high)]
                yield [figure.x[place], one.label, value, *ends]
    elif isinstance(figure, Forest):
        yield ["metric", "number", figure.x_label, "low", "high"]
        yield from ([row.group, row.label, row.estimate, row.low, row.high] for row in figure.rows)
    else:
        raise TypeError(f"{type(figure).__name__} is not a figure of geometry")
