"""A forest plot for a paper: estimates with intervals below each other, on one axis or each on its own."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from calibrations.number_format import interval_text, three_digits
from meridian.figures import colours
from meridian.figures.layout import axis_ends
from meridian.figures.names import human
from meridian.figures.static_panel import ink, legend, panel, percent, vertical_lines
from meridian.figures.values import EstimateMark, Forest

LINE = 0.155  # inches
OWN_LINE = 0.23  # inches of a row that has its limit's number above its line
NARROW = 5.0  # inches; in narrower figures the unit has no room beside the numbers
MARGIN = 0.12  # of a row's own scale, on each side
VERDICT_MARKERS = {"pass": "o", "fail": "X", "inconclusive": "D", "insufficient": "s", "not run": "_"}
Line = EstimateMark | str  # a string is the heading of a group


def draw(figure: Forest, width: float) -> Canvas:
    """Rows by group, from the top. Markers and colours show the verdict; a row without an estimate says so in words."""
    lines = with_headings(figure)
    height = 0.75 + (OWN_LINE if figure.own_scales else LINE) * len(lines) + 0.14 * len(figure.lines)
    canvas, axes = panel(width, height)
    for place, line in enumerate(lines):
        if isinstance(line, str):
            continue
        if figure.own_scales:
            _own_scale(axes, place, line, width)
        else:
            _estimate(axes, place, line)
            for limit in line.limits:
                axes.plot([limit] * 2, [place - 0.4, place + 0.4], color=ink(), linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(lines)), [human(line if isinstance(line, str) else line.label) for line in lines])
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if isinstance(line, str) else "normal")
    interval = "" if figure.level is None else f", {percent(figure.level)} interval"
    axes.set(xlabel=figure.x_label + interval, ylim=(len(lines) - 0.4, -0.7))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if figure.own_scales:
        axes.set(xlim=(0, 1), xticks=[])
        axes.spines["bottom"].set_visible(False)
    legend(canvas, _legend(figure, axes), width)
    return canvas


def with_headings(figure: Forest) -> list[Line]:
    """The rows by group, below a heading with the group's name unless their labels begin with it."""
    groups = list(dict.fromkeys(row.group for row in figure.rows))
    lines: list[Line] = []
    for group in groups:
        members = [row for row in figure.rows if row.group == group]
        said = all(row.label.startswith(group) for row in members)
        lines += members if said else [group, *members]
    return lines


def _own_scale(axes: Axes, place: int, row: EstimateMark, width: float) -> None:
    """One row on its own axis: limits with their numbers, the passing side shaded, and the estimate's numbers at the right."""
    start, end = axis_ends(row.shown or (0.0, 1.0), MARGIN)

    def at(value: float) -> float:
        return (value - start) / (end - start)

    if row.limits:
        left = 0.0 if row.above is None else at(row.above)
        right = 1.0 if row.below is None else at(row.below)
        axes.add_patch(
            Rectangle(
                (left, place - 0.32),
                right - left,
                0.64,
                facecolor=(colours.PASSING, colours.PASSING_OPACITY),
                linewidth=0,
                zorder=0,
            )
        )
    if row.estimate is not None:
        axes.plot([0, 1], [place, place], color="#CCCCCC", linewidth=0.5, zorder=1)
    for limit in row.limits:
        axes.plot([at(limit)] * 2, [place - 0.32, place + 0.32], color=ink(), linewidth=0.9, zorder=2)
        axes.text(at(limit), place - 0.36, three_digits(limit), ha="center", va="bottom", fontsize=5, color=ink())
    moved = [None if value is None else at(value) for value in (row.estimate, row.low, row.high)]
    _estimate(axes, place, EstimateMark(row.label, *moved, verdict=row.verdict))
    axes.text(
        1.02,
        place,
        in_figures(row, with_unit=width > NARROW),
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=6,
    )


def in_figures(row: EstimateMark, with_unit: bool) -> str:
    """ "0.97 [0.93, 1.01] nats", or nothing without an estimate."""
    if row.estimate is None:
        return ""
    unit = f" {row.unit}" if with_unit and row.unit else ""
    return three_digits(row.estimate) + interval_text(row.low, row.high, three_digits) + unit


def _estimate(axes: Axes, place: int, row: EstimateMark) -> None:
    """Interval and marker by verdict; words if there is no estimate."""
    colour, marker = _style(row.verdict)
    if row.estimate is None:
        words = row.verdict if row.verdict in ("insufficient", "not run") else "no estimate"
        at = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(0.01, place, words, fontsize=6, fontstyle="italic", color=ink(), **at)
        return
    if row.low is not None or row.high is not None:
        ends = [row.estimate if end is None else end for end in (row.low, row.high)]
        axes.plot(ends, [place, place], color=ink(), linewidth=1.2, solid_capstyle="butt")
    axes.plot([row.estimate], [place], marker=marker, color=colour, markersize=3.6, linestyle="none")


def _style(verdict: str | None) -> tuple[str, str]:
    """Colour and marker of a verdict; without a verdict, those of an estimate that was not judged."""
    return colours.estimate(verdict), VERDICT_MARKERS.get(verdict or "", "o")


def _legend(figure: Forest, axes: Axes) -> list[Line2D | Patch]:
    """Legend entries: the verdicts that occur with an estimate, the vertical lines, and the meaning of the shade."""
    handles: list[Line2D | Patch] = []
    for verdict in dict.fromkeys(row.verdict for row in figure.rows if row.verdict and row.estimate is not None):
        colour, marker = _style(verdict)
        marked = {"markerfacecolor": colour, "markeredgecolor": colour, "marker": marker, "markersize": 3.6}
        handles.append(Line2D([], [], color=ink(), linewidth=1.2, label=verdict, **marked))
    if figure.own_scales and any(row.limits for row in figure.rows):
        handles.append(Patch(facecolor=(colours.PASSING, colours.PASSING_OPACITY), label="where it has to be"))
    return handles + vertical_lines(axes, figure.lines)
