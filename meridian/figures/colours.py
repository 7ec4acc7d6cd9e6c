"""Colours that people with a colour vision deficiency can tell apart, and symbols that carry the same meaning without colour.

The categorical colours are those of Okabe and Ito 2008 (jfly.uni-koeln.de/color); the diverging scale is ColorBrewer's RdBu.
"""

from __future__ import annotations

from collections.abc import Iterable

from meridian.figures.values import GraphNode, HeatMap

INK = "#1f2933"
GRID = "rgba(125,125,125,0.25)"
ACCENT = "#0072b2"
FAINT = "#808080"  # visible on light and on dark pages
FRAME = "#000000"
MISSING = "#dddddd"  # of a cell without a value
POSITIVE = "#0072b2"
NEGATIVE = "#d55e00"
ESTIMATE = (
    ACCENT  # an estimate that was not judged; others have their verdict's colour. Intervals and limits are in INK
)
PASSING, PASSING_OPACITY = ACCENT, 0.24  # the side of a limit on which a quantity passes
PLAIN = "#ffffff"  # of nodes that are not heads
ON_DARK = {INK: "#e6eaf0", POSITIVE: "#56b4e9", NEGATIVE: "#ff8647"}  # replaces colours too dark for a dark page
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
LIGHT = ("#9fd3f5", "#f6cf7a", "#8fd9c1", "#e8bcd5", "#f3b48a", "#e5e5e5", "#f0e442", "#c9c4e8")
OBSERVED = (
    "circuit",
    "estimate",
    "faithfulness",
    "median",
)  # vertical lines that show findings; all others are limits
OBSERVED_LINE = "#d55e00"

VERDICTS = {
    "pass": "#009e73",
    "fail": "#d55e00",
    "inconclusive": "#e69f00",
    "insufficient": "#56b4e9",
    "not run": "#999999",
}
SYMBOLS = {  # names of Plotly's markers
    "pass": "circle",
    "fail": "x",
    "inconclusive": "diamond",
    "insufficient": "square",
    "not run": "line-ew-open",
}
MARKS = {"pass": "●", "fail": "✕", "inconclusive": "◆", "insufficient": "■", "not run": "–", "none": "–"}

DIVERGING = [
    [0.0, "#b2182b"], [0.125, "#d6604d"], [0.25, "#f4a582"], [0.375, "#fddbc7"], [0.5, "#f7f7f7"],
    [0.625, "#d1e5f0"], [0.75, "#92c5de"], [0.875, "#4393c3"], [1.0, "#2166ac"],
]  # fmt: skip
SEQUENTIAL = [[0.0, "#f7fbff"], [0.25, "#c6dbef"], [0.5, "#6baed6"], [0.75, "#4292c6"], [1.0, "#2171b5"]]


def series(place: int) -> str:
    """The colour of the curve or sample at this place."""
    return CATEGORIES[place % len(CATEGORIES)]


def line(label: str) -> str:
    """The colour of a vertical line by its label: OBSERVED_LINE for findings, INK for limits and references."""
    return OBSERVED_LINE if label in OBSERVED else INK


def faded(colour: str, opacity: float) -> str:
    """`colour`, written #rrggbb, as CSS with an opacity from 0 to 1."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def estimate(verdict: str | None) -> str:
    """The colour of an estimate's marker."""
    return VERDICTS.get(verdict or "", ESTIMATE)


def passing() -> str:
    """The shade for the passing side of a limit, as CSS."""
    red, green, blue = (int(PASSING[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{PASSING_OPACITY})"


def role_fills(nodes: Iterable[GraphNode]) -> dict[str, str]:
    """A tint for every role of heads; roles are in order of first appearance from the lowest layer up."""
    heads = [node for node in sorted(nodes, key=lambda node: node.layer) if node.name not in (node.role, "")]
    roles = dict.fromkeys(node.role for node in heads)
    return {role: LIGHT[place % len(LIGHT)] for place, role in enumerate(roles)}


def limits(figure: HeatMap, from_zero: bool = False) -> tuple[float, float]:
    """Ends of the colour scale: the given ones, else the smallest and the largest value, symmetric about 0 if diverging.

    `from_zero`: whether a scale that is not diverging must include 0.
    """
    if figure.limits is not None:
        return figure.limits
    values = [value for row in figure.values for value in row if value is not None] or [0.0]
    if figure.diverging:
        most = max(map(abs, values)) or 1.0
        return -most, most
    low, high = min(0.0, *values) if from_zero else min(values), max(values)
    return low, high if high > low else low + 1.0
