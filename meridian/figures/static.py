"""Figures for a paper: the values of `meridian.figures.values` drawn by matplotlib as SVG, PDF or PNG.

The same figure gives the same bytes: there are no dates and no random identifiers, and the font is matplotlib's own. Text stays
text (SVG: <text>, PDF: TrueType), so that it can be searched and edited. Colours are those of the report (`colours`). A shape, a
line style or a word always carries the same information as a colour.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import results_io
from meridian.figures import colours, static_forest, static_graph, static_map
from meridian.figures.layout import INSET
from meridian.figures.names import human
from meridian.figures.static_panel import (
    DARK,
    DASHES,
    DPI,
    POINTS,
    SMALLEST,
    STYLE,
    TALLEST,
    legend,
    panel,
    percent,
    vertical_lines,
)
from meridian.figures.values import CircuitGraph, Curves, Distribution, Figure, Forest, HeatMap, OutputMap
from results_io import UserError

Width = Literal["single", "double"]
Theme = Literal["light", "dark"]
THEMES: dict[str, dict[Any, Any]] = {"light": {}, "dark": DARK}
WIDTHS = {"single": 3.3, "double": 6.9}  # inches, for one and two columns of a two-column page
FORMATS = ("svg", "pdf", "png")
NO_DATES = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
}
POSITION = "position"  # the axis whose labels are roles of positions
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DIVERGING = LinearSegmentedColormap.from_list("diverging", colours.DIVERGING)
SEQUENTIAL = LinearSegmentedColormap.from_list("sequential", colours.SEQUENTIAL)


def draw(figure: Figure, width: Width = "double", titled: bool = False, theme: Theme = "light") -> Canvas:
    """`figure` at the width of one or two columns; its height follows from its content.

    UserError for another width; TypeError for a kind of figure that this renderer does not know.
    """
    if width not in WIDTHS:
        raise UserError(f"width={width} is unknown; use {' or '.join(WIDTHS)}")
    if theme not in THEMES:
        raise UserError(f"theme={theme} is unknown; use {' or '.join(THEMES)}")
    with mpl.rc_context(STYLE | THEMES[theme]):
        canvas = _draw(figure, WIDTHS[width])
        if titled:
            canvas.suptitle(figure.title, fontsize=STYLE["axes.titlesize"], wrap=True)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out only once, so that all formats are the same
        return canvas


def render(canvas: Canvas, form: str) -> bytes:
    """The bytes of a drawn figure in one of `FORMATS`. UserError for another."""
    if form not in FORMATS:
        raise UserError(f"format {form} is unknown; use {', '.join(FORMATS)}")
    stream = io.BytesIO()
    with mpl.rc_context(STYLE):
        canvas.savefig(stream, format=form, dpi=DPI, metadata=NO_DATES[form], facecolor=canvas.get_facecolor())
    return stream.getvalue()


def write(
    figure: Figure,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    width: Width = "double",
    titled: bool = False,
    theme: Theme = "light",
) -> list[Path]:
    """Write <folder>/<name>.<format> for each format, each replaced in one step. Raises as `draw` and `render` do."""
    canvas = draw(figure, width, titled, theme)
    paths = [folder / f"{figure.name}.{form}" for form in formats]
    for path, form in zip(paths, formats, strict=True):
        results_io.write_bytes(path, render(canvas, form))
    return paths


@functools.singledispatch
def _draw(figure: Figure, width: float) -> Canvas:
    raise TypeError(f"{type(figure).__name__} has no static drawing; register one in meridian/figures/static.py")


_draw.register(Forest, static_forest.draw)
_draw.register(CircuitGraph, static_graph.draw)
_draw.register(OutputMap, static_map.draw)


# --- heat map ----------------------------------------------------------------------------------------------------


@_draw.register
def _heat_map(figure: HeatMap, width: float) -> Canvas:
    rows, columns = len(figure.y), len(figure.x)
    cell = min(0.32, (width - 1.5) / max(columns, 1))
    canvas, axes = panel(width, 0.75 + rows * (max(cell, 0.17) if figure.text is None else 0.22))
    values = np.array([[np.nan if v is None else v for v in row] for row in figure.values], dtype=float)
    low, high = colours.limits(figure)
    axes.set_facecolor(mpl.rcParams["figure.facecolor"])
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=DIVERGING if figure.diverging else SEQUENTIAL,
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    if figure.upwards:
        axes.invert_yaxis()
    _ticks(axes, figure, width)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    for y, x in np.argwhere(np.isnan(values)):
        axes.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours.MISSING, hatch="////", edgecolor="white", linewidth=0)
        )
    for y, x in figure.marked:
        axes.add_patch(
            Rectangle((x - INSET, y - INSET), 2 * INSET, 2 * INSET, fill=False, edgecolor=colours.FRAME, linewidth=1.1)
        )
    for spine in axes.spines.values():
        spine.set_visible(False)
    canvas.colorbar(image, ax=axes, label=figure.unit, aspect=25, pad=0.02).outline.set_visible(False)
    if figure.text is not None:
        _cell_text(canvas, axes, figure, figure.text, image)
    return canvas


def _ticks(axes: Axes, figure: HeatMap, width: float) -> None:
    """Tick labels that fit: long ones are turned, and only some are shown if there are many. Tokens are shown unchanged."""
    across = [human(name) for name in figure.x] if figure.x_label == POSITION else list(figure.x)
    room = (width - 1.5) * POINTS / max(len(across), 1)
    longest = max((len(label) for label in across), default=1)
    turned = longest * 4.2 > room
    step = max(1, math.ceil((8 if turned else longest * 4.2) / room))
    axes.set_xticks(range(0, len(across), step), across[::step])
    if turned:
        axes.set_xticklabels(across[::step], rotation=50, ha="right", rotation_mode="anchor")
    step = max(1, math.ceil(len(figure.y) * 8 / (TALLEST * POINTS)))
    axes.set_yticks(range(0, len(figure.y), step), figure.y[::step])
    axes.tick_params(length=0)


def _cell_text(canvas: Canvas, axes: Axes, figure: HeatMap, text: Sequence[Sequence[str]], image: AxesImage) -> None:
    """Words in the cells, shortened to fit, in black or white depending on the brightness behind them."""
    canvas.canvas.draw()  # lays out the axes, so that the size of a cell is known
    room = axes.get_window_extent().width / canvas.dpi * POINTS / len(figure.x)
    fits = max(1, int(room / (0.68 * SMALLEST)))
    behind = image.to_rgba(np.array([[value or 0.0 for value in row] for row in figure.values]))
    for y, row in enumerate(text):
        for x, word in enumerate(row):
            red, green, blue, _ = behind[y, x]
            bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue
            shown = word if len(word) <= fits else word[: max(fits - 1, 1)] + "…"
            colour = "black" if bright > 0.45 or figure.values[y][x] is None else "white"
            axes.text(x, y, shown, ha="center", va="center", color=colour, fontsize=SMALLEST)


# --- curves ------------------------------------------------------------------------------------------------------


@_draw.register
def _curves(figure: Curves, width: float) -> Canvas:
    canvas, axes = panel(width, 2.1 if width < 5 else 2.6)
    names = [name for name in figure.x if isinstance(name, str)]
    x = np.arange(len(names)) if names else np.array(figure.x, dtype=float)
    for place, series in enumerate(figure.series):
        colour = colours.series(place)
        axes.plot(
            x,
            _numbers(series.y),
            color=colour,
            markersize=2.6,
            label=series.label,
            linestyle=DASHES[place // len(colours.CATEGORIES) % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
        )
        if series.low is not None and series.high is not None:
            axes.fill_between(x, _numbers(series.low), _numbers(series.high), color=colour, alpha=0.18, linewidth=0)
    if names:
        long = max(map(len, names)) * len(names) * 4.2 > (width - 1) * POINTS
        axes.set_xticks(x, names, **({"rotation": 50, "ha": "right", "rotation_mode": "anchor"} if long else {}))
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    if len(figure.series) > 1 or any(series.label for series in figure.series):
        banded = any(series.low is not None for series in figure.series)
        title = f"bands: {percent(figure.level)} interval" if banded and figure.level is not None else None
        legend(canvas, axes.get_legend_handles_labels()[0], width, title)
    return canvas


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """The values [x], with NaN for missing ones, which matplotlib leaves out."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


# --- distribution ------------------------------------------------------------------------------------------------


@_draw.register
def _distribution(figure: Distribution, width: float) -> Canvas:
    canvas, axes = panel(width, 2.0 if width < 5 else 2.3)
    samples = {label: draws for label, draws in figure.samples.items() if len(draws)}
    handles = []
    if samples:
        edges = bins(list(samples.values())).tolist()
        for place, (label, draws) in enumerate(samples.items()):
            colour, style = colours.series(place), DASHES[place % len(DASHES)]
            weights = np.full(len(draws), 1 / len(draws))
            axes.hist(draws, edges, weights=weights, color=colour, alpha=0.25)
            axes.hist(draws, edges, weights=weights, histtype="step", color=colour, linestyle=style, linewidth=0.9)
            handles.append(Line2D([], [], color=colour, linestyle=style, label=f"{label} ({len(draws):,})"))
    handles += vertical_lines(axes, figure.lines)
    axes.set(xlabel=figure.x_label, ylabel="share of draws")
    axes.margins(x=0.03)
    legend(canvas, handles, width)
    return canvas


def bins(samples: Sequence[Sequence[float]]) -> np.ndarray:
    """Common bin edges by the rule of Freedman & Diaconis (1981) for the narrowest sample.

    There are 10 to 60 bins, or one if all draws are equal.
    """
    drawn = np.concatenate([np.asarray(draws, dtype=float) for draws in samples])
    low, high = float(drawn.min()), float(drawn.max())
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        half = 0.005 * (abs(low) or 1.0)
        return np.array([low - half, low + half])
    spreads = [float(np.subtract(*np.quantile(draws, [0.75, 0.25]))) / len(draws) ** (1 / 3) for draws in samples]
    step = 2 * min((spread for spread in spreads if spread > 0), default=(high - low) / 60)
    return np.linspace(low, high, int(np.clip(math.ceil((high - low) / step), 10, 60)) + 1)
