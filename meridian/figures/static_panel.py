"""What every figure for a paper shares: the style, a canvas with one panel, its legend and vertical lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from meridian.figures import colours

POINTS = 72  # per inch
DPI = 300  # of PNG, as journals require
SMALLEST = 5.0  # points; text inside cells is shortened rather than made smaller
TALLEST = 9.0  # inches, for one page
KEY_WIDTH, LETTER_WIDTH = 34, 3.7  # points of a legend's line with its space, and of a letter in it
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 8,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "meridian",  # instead of a random salt
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a token with dollar signs is not a formula
}
DARK: dict[Any, Any] = {  # overrides STYLE, for slides and dark pages
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#14181d"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#e8eaed"),
}
DASHES = ("-", "--", "-.", ":")
FAINT = "#666666"


def panel(width: float, height: float) -> tuple[Canvas, Axes]:
    """A canvas of one panel, in inches."""
    canvas = Canvas(figsize=(width, min(height, TALLEST)), dpi=DPI, layout="constrained")
    return canvas, canvas.subplots()


def legend(canvas: Canvas, handles: Sequence[Artist], width: float, title: str | None = None) -> None:
    """Put a legend below the panel, with as many columns as the longest label allows. Does nothing without handles."""
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = int(width * POINTS / (KEY_WIDTH + LETTER_WIDTH * longest))
    canvas.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(max(columns, 1), len(handles)),
        title=title,
        title_fontsize=STYLE["legend.fontsize"],
        handlelength=2.4,
    )


def ink() -> str:
    """The colour of marks that belong to no category: dark on a light page, light on a dark one."""
    on_dark = mpl.rcParams["text.color"] == DARK["text.color"]
    return DARK["text.color"] if on_dark else colours.INK


def percent(level: float) -> str:
    """0.95 as "95 %"."""
    return f"{100 * level:g} %"


def vertical_lines(axes: Axes, lines: Mapping[str, float]) -> list[Line2D]:
    """Draw named vertical lines and return their legend entries."""
    handles = []
    for place, (label, value) in enumerate(lines.items()):
        colour = found if (found := colours.line(label)) != colours.INK else ink()
        style: dict[str, Any] = {"color": colour, "linestyle": DASHES[(place + 1) % len(DASHES)]}
        axes.axvline(value, linewidth=0.9, zorder=3, **style)
        handles.append(Line2D([], [], linewidth=0.9, label=label, **style))
    return handles
