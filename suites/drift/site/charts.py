"""Charts of a series as SVG: numbers as %.6g, no dates, no random ids, so that the same data give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from result_types import SeriesPoint

WIDTH, HEIGHT = 360, 190  # of the picture; pages scale it
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34
MOST_LABELS = 6  # below the chart


def number(value: float) -> str:
    """A number as every chart and table writes it."""
    return f"{value:.6g}"


def segments(points: Sequence[SeriesPoint]) -> list[list[tuple[int, float]]]:
    """Runs of consecutive values with their places; a line breaks where a value is missing."""
    parts: list[list[tuple[int, float]]] = [[]]
    for place, point in enumerate(points):
        if point["value"] is None:
            parts.append([])
        else:
            parts[-1].append((place, point["value"]))
    return [part for part in parts if part]


def line(points: Sequence[SeriesPoint], breaks: Sequence[str] = (), title: str = "") -> str:
    """The chart of a series: dots with intervals, lines that break at gaps, marks at change points. "" without a value."""
    known = [value for point in points for value in (point["value"], point["low"], point["high"]) if value is not None]
    if not known:
        return ""
    low, high = _range(known)
    x = [LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(points) for place in range(len(points))]

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>']
    for tick in (low, (low + high) / 2, high):
        parts.append(_line("grid", LEFT, y(tick), WIDTH - RIGHT, y(tick)))
        parts.append(_text(LEFT - 5, y(tick) + 3.5, f"{tick:.3g}", "end"))
    for place in range(0, len(points), -(-len(points) // MOST_LABELS)):
        parts.append(_text(x[place], HEIGHT - 18, _short(points[place]["snapshot"]), "middle"))
    for place, point in enumerate(points):
        if point["value"] is None and point.get("status") != "insufficient_data":  # the first has nothing before it
            parts.append(_line("gap", x[place], TOP, x[place], HEIGHT - BOTTOM))
        if point["snapshot"] in breaks:
            parts.append(_line("break", x[place] - _step(x), TOP, x[place] - _step(x), HEIGHT - BOTTOM))
    for part in segments(points):
        path = " ".join(f"{number(x[place])},{number(y(value))}" for place, value in part)
        parts.append(f'<polyline class="series" points="{path}"/>')
        parts += [_dot(points[place], value, x[place], y) for place, value in part]
    return "".join(parts) + "</svg>"


def _step(x: Sequence[float]) -> float:
    return (x[1] - x[0]) / 2 if len(x) > 1 else 0.0


def _dot(point: SeriesPoint, value: float, x: float, y: Any) -> str:
    said = f"{point['snapshot']}: {number(value)}"
    bar = ""
    if point["low"] is not None and point["high"] is not None:
        bar = _line("interval", x, y(point["low"]), x, y(point["high"]))
        said += f" [{number(point['low'])}, {number(point['high'])}]"
    dot = f'<circle class="dot" cx="{number(x)}" cy="{number(y(value))}" r="3.5"><title>{escape(said)}</title></circle>'
    return bar + dot


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the vertical axis: the range of the values with a margin that stops at 0 and at 1; wider around a constant."""
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) / 2 or 1.0
        return (low if low == 0 else low - room), high + room
    room = (high - low) * 0.08
    return (0.0 if 0 <= low <= room else low - room), (1.0 if high <= 1 < high + room else high + room)


def _short(snapshot: str) -> str:
    """The label of a snapshot: its week, or the order of a checkpoint."""
    return snapshot if "-W" in snapshot else str(int(snapshot[1:9]))


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return f'<line class="{kind}" ' + " ".join(f'{name}="{number(value)}"' for name, value in ends) + "/>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def readable(value: Any) -> str:
    """A cell of a table: numbers with four digits, an empty text for a missing value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else ""
    return str(value)
