"""Figure values as Plotly figures, for the browser and for notebooks.

`specification` gives the plain data of Plotly's JSON; `draw` gives the same as an object of the library. Text of prompts,
models and roles is escaped, because Plotly interprets some HTML in its labels.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from calibrations.number_format import interval_text, number, three_digits
from meridian.figures import colours
from meridian.figures.layout import INSET, axis_ends, disc_shares, drawn_edges, level_name, place_nodes
from meridian.figures.values import (
    CircuitGraph,
    Curves,
    Distribution,
    EstimateMark,
    Figure,
    Forest,
    GraphEdge,
    GraphNode,
    HeatMap,
    OutputMap,
)

Specification = dict[str, Any]  # {"data": [traces], "layout": {...}}
Trace = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
BINS = 60
ROW = 26  # pixels of a forest plot's row
CELL = 22  # pixels of a heat map's row, and at least of its column
TEXT_CELL = 58  # pixels of a column with words in it, at least
NODE = 66  # pixels between two heads of one layer, at least
FACET = 86  # pixels of one facet
STRIP, SHADE, LIMIT = 24 / FACET, 9 / FACET, 12 / FACET  # the strip's height, half of its shade and of a limit, 0 to 1
LETTER, SMALL_LETTER = 7, 6  # pixels of a letter of a label, and of one of 11 pixels
BESIDE = 40  # pixels of a facet's margins
STRIP_WIDTH = 180  # pixels of a forest plot beside its labels, at least
ENTRY = 20  # pixels of a row of the legend
DISC = (30, 56)  # diameters in pixels, for no effect and for the largest
DASHES = {"q": "dash", "k": "dot", "v": "solid", None: "solid"}  # by the receiver's input that the edge enters
EDGE = 0.15  # a label this close to an end of its axis is placed on the inside
STROKES = 9  # fields into which strokes divide a hatched cell
LETTERS_OF_A_CELL = 14  # that fit on one line of a cell with text
LABELLED_CELLS = 400  # a larger table has no room for text in its cells


def draw(figure: Figure) -> go.Figure:
    """`figure` as a Plotly figure. TypeError for a kind that has no drawing."""
    return go.Figure(specification(figure)).update_layout(template="none")


@singledispatch
def specification(figure: Figure) -> Specification:
    """`figure` as the plain data of Plotly's JSON. TypeError for a kind that has no drawing.

    `layout.meta.least`: the width in pixels below which a page should scroll instead of shrinking the figure.
    """
    raise TypeError(f"{type(figure).__name__} has no drawing; expected one of the kinds in meridian.figures.values")


def _plain(text: object) -> str:
    """Text escaped from Plotly's HTML, with visible signs for line breaks and tabs, so that a token stays on its line."""
    shown = str(text).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return html.escape(shown, quote=False)


def _figure(traces: Sequence[Trace], height: int, least: int = 0, **layout: Any) -> Specification:
    """Traces with the look that all figures share."""
    shared = {
        "height": height,
        "meta": {"least": least},
        "font": {"family": FONT, "size": 13, "color": colours.INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "showlegend": False,
        "shapes": [],
        "annotations": [],
    }
    return {"data": list(traces), "layout": {**shared, **layout}}


def _axis(title: str | None = None, **others: Any) -> dict[str, Any]:
    grid = {"automargin": True, "gridcolor": colours.GRID, "zerolinecolor": colours.GRID}
    named = {} if title is None else {"title": {"text": _plain(title), "font": {"size": 13}}}
    return {**grid, **named, **others}


BARE = {"showticklabels": False, "showgrid": False, "zeroline": False, "showline": False, "ticks": ""}


# --- heat map ----------------------------------------------------------------------------------------------


@specification.register
def _(figure: HeatMap) -> Specification:
    low, high = colours.limits(figure, from_zero=True)
    wide = TEXT_CELL if figure.text else CELL
    trace = {
        "type": "heatmap",
        "z": figure.values,
        "x": list(range(len(figure.x))),
        "y": list(range(len(figure.y))),
        "hovertext": [[_cell_hover(figure, y, x) for x in range(len(figure.x))] for y in range(len(figure.y))],
        "hoverinfo": "text",
        "text": [list(map(_cell_text, row)) for row in figure.text] if figure.text else None,
        "texttemplate": "%{text}" if figure.text and len(figure.x) * len(figure.y) <= LABELLED_CELLS else None,
        "textfont": {"size": 11},
        "colorscale": colours.DIVERGING if figure.diverging else colours.SEQUENTIAL,
        "zmin": low,
        "zmax": high,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": _plain(figure.unit), "side": "right"},
            "thickness": 10,
            "outlinewidth": 0,
            "exponentformat": "e",
            "len": 1,
        },
    }
    frame = {"color": colours.FRAME, "width": 2}
    plain = {"showgrid": False, "zeroline": False}
    return _figure(
        [trace],
        110 + CELL * max(4, len(figure.y)),
        least=180 + wide * len(figure.x),
        xaxis=_axis(figure.x_label, **_names(figure.x), **plain),
        yaxis=_axis(figure.y_label, **_names(figure.y), **plain, autorange=True if figure.upwards else "reversed"),
        shapes=[
            {"type": "rect", "x0": x - INSET, "x1": x + INSET, "y0": y - INSET, "y1": y + INSET, "line": frame}
            for y, x in figure.marked
        ]
        + (_hatched(figure) if trace["texttemplate"] else []),
    )


def _cell_text(text: str) -> str:
    """A cell's text, on two lines if it is longer than a cell is wide."""
    shown = _plain(text)
    return shown.replace(" ", "<br>", 1) if len(text) > LETTERS_OF_A_CELL else shown


def _hatched(figure: HeatMap) -> list[dict[str, Any]]:
    """For each cell without a value, a grey field with white strokes below the table, on which the cell's word is readable."""
    found = []
    for y, row in enumerate(figure.values):
        for x in (x for x, value in enumerate(row) if value is None):
            field = {"type": "rect", "x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.5, "y1": y + 0.5}
            found.append({**field, "fillcolor": colours.MISSING, "line": {"width": 0}, "layer": "below"})
            found += [
                {"type": "line", **ends, "line": {"color": "#ffffff", "width": 1}, "layer": "below"}
                for ends in _strokes(x, y)
            ]
    return found


def _strokes(x: int, y: int) -> list[dict[str, float]]:
    """The ends of parallel diagonal strokes across the cell at (x, y): on each stroke, x + y is constant."""
    sums = [2 * step / STROKES for step in range(1, STROKES)]
    ends = [(max(0.0, total - 1) - 0.5, min(1.0, total) - 0.5) for total in sums]
    return [{"x0": x + low, "y0": y + high, "x1": x + high, "y1": y + low} for low, high in ends]


def _names(names: Sequence[str]) -> dict[str, Any]:
    """Tick labels by place, so that a token that occurs twice has two columns."""
    return {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [_plain(name) for name in names]}


def _cell_hover(figure: HeatMap, y: int, x: int) -> str:
    where = f"{_plain(figure.y_label)} {_plain(figure.y[y])}, {_plain(figure.x_label)} {_plain(figure.x[x])}"
    value = figure.values[y][x]
    if value is None:
        return f"{where}<br>no value"
    said = f"<br>{_plain(figure.text[y][x])}" if figure.text else ""
    low, high = (None if side is None else side[y][x] for side in (figure.low, figure.high))
    return f"{where}{said}<br>{three_digits(value)} {_plain(figure.unit)}{_interval_hover(low, high, figure.level)}"


def _interval_hover(low: float | None, high: float | None, level: float | None) -> str:
    """A line with the interval; nothing if it has no level or an end is missing."""
    if level is None or low is None or high is None:
        return ""
    return f"<br>{level:.0%} interval {three_digits(low)} to {three_digits(high)}"


# --- forest ------------------------------------------------------------------------------------------------


@specification.register
def _(figure: Forest) -> Specification:
    return _facets(figure) if figure.own_scales else _one_axis(figure)


def _one_axis(figure: Forest) -> Specification:
    places = list(range(len(figure.rows)))
    ends = axis_ends([*(value for row in figure.rows for value in row.shown), *figure.lines.values()])
    labels = [row.label for row in figure.rows]
    texts = [row.label if labels.count(row.label) == 1 else f"{row.label} · {row.group}" for row in figure.rows]
    drawn = _figure(
        [_estimates(figure.rows, places, figure.level)],
        90 + ROW * len(places) + (24 if figure.lines else 0),
        least=LETTER * max(map(len, texts), default=0) + STRIP_WIDTH,
        xaxis=_axis(figure.x_label, range=ends),
        yaxis=_axis(**_names(texts), range=[len(places) - 0.4, -0.6], showgrid=False, zeroline=False),
        shapes=[
            _line(limit, place - 0.4, place + 0.4, colours.INK, "dot")
            for place, row in enumerate(figure.rows)
            for limit in row.limits
        ],
    )
    return _with_lines(drawn, figure.lines, ends)


def _line(x: float, y0: float, y1: float, colour: str, dash: str = "dash", **where: Any) -> dict[str, Any]:
    line = {"color": colour, "dash": dash, "width": 2 if where else 1.5}
    return {"type": "line", "x0": x, "x1": x, "y0": y0, "y1": y1, "line": line, **where}


def _estimates(rows: Sequence[EstimateMark], places: Sequence[float], level: float | None) -> Trace:
    kept = [(row, row.estimate, place) for row, place in zip(rows, places, strict=True) if row.estimate is not None]
    verdicts = [row.verdict or "" for row, _, _ in kept]
    return {
        "type": "scatter",
        "x": [estimate for _, estimate, _ in kept],
        "y": [place for _, _, place in kept],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [0 if row.high is None else row.high - estimate for row, estimate, _ in kept],
            "arrayminus": [0 if row.low is None else estimate - row.low for row, estimate, _ in kept],
            "color": colours.INK,
            "thickness": 1.5,
            "width": 4,
        },
        "mode": "markers",
        "marker": {
            "size": 10,
            "color": [colours.estimate(verdict) for verdict in verdicts],
            "symbol": [colours.SYMBOLS.get(verdict, "circle") for verdict in verdicts],
            "line": {"color": colours.INK, "width": 0.5},
        },
        "hovertext": [_row_hover(row, level) for row, _, _ in kept],
        "hoverinfo": "text",
        "showlegend": False,
        "cliponaxis": False,
    }


def _row_hover(row: EstimateMark, level: float | None) -> str:
    unit = f" ({_plain(row.unit)})" if row.unit else ""
    sides = {"above": row.above, "below": row.below}
    limits = "".join(f"<br>{side} {three_digits(at)} passes" for side, at in sides.items() if at is not None)
    verdict = f"<br>{row.verdict}" if row.verdict else ""
    interval = _interval_hover(row.low, row.high, level)
    return f"{_plain(row.label)}{unit}<br>{three_digits(row.estimate)}{interval}{limits}{verdict}"


def _with_lines(drawn: Specification, lines: Mapping[str, float], ends: tuple[float, float]) -> Specification:
    """`drawn` with labelled vertical lines. Labels stay inside the axis and alternate in height, so that they do not collide."""
    layout = drawn["layout"]
    for place, (label, x) in enumerate(sorted(lines.items(), key=lambda item: item[1])):
        colour, share = colours.line(label), (x - ends[0]) / (ends[1] - ends[0])
        layout["shapes"].append(_line(x, 0, 1, colour, yref="paper"))
        layout["annotations"].append(
            {
                "x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 2 + 15 * (place % 3), "text": _plain(label),
                "showarrow": False, "font": {"size": 11, "color": colour},
                "xanchor": "left" if share < EDGE else "right" if share > 1 - EDGE else "center",
            }
        )  # fmt: skip
    if lines:
        layout["margin"] = {**layout["margin"], "t": 14 + 15 * min(3, len(lines))}
    return drawn


def _facets(figure: Forest) -> Specification:
    """One small axis per row, with the row's own scale: name, quantity and numbers above, the strip below."""
    n = len(figure.rows)
    drawn = _figure([], 30 + FACET * n, least=max((_facet_width(row) for row in figure.rows), default=0))
    for place, row in enumerate(figure.rows):
        n_axis, ends = "" if place == 0 else str(place + 1), axis_ends(row.shown, 0.2)
        axes = {"xref": f"x{n_axis}", "yref": f"y{n_axis}"}
        layout = drawn["layout"]
        drawn["data"].append({**_estimates([row], [STRIP], figure.level), "xaxis": axes["xref"], "yaxis": axes["yref"]})
        layout[f"xaxis{n_axis}"] = {**BARE, "range": ends, "anchor": axes["yref"]}
        domain = [1 - (place + 1) / n, 1 - place / n]
        layout[f"yaxis{n_axis}"] = {**BARE, "range": [0, 1], "anchor": axes["xref"], "domain": domain}
        layout["shapes"] += _passing(row, ends, axes)
        below = {"y": STRIP - LIMIT, "yanchor": "top", "showarrow": False, "font": {"size": 11}, **axes}
        layout["annotations"] += [{"x": limit, "text": three_digits(limit), **below} for limit in row.limits]
        layout["annotations"] += _labels(row, axes)
    return drawn


def _passing(row: EstimateMark, ends: tuple[float, float], axes: Mapping[str, str]) -> list[dict[str, Any]]:
    """The passing side of the limits as a shade, and the limits as dashed lines."""
    if not row.limits:
        return []
    shade = {
        "type": "rect", "x0": ends[0] if row.above is None else row.above, "x1": ends[1] if row.below is None else row.below,
        "y0": STRIP - SHADE, "y1": STRIP + SHADE, "fillcolor": colours.passing(), "line": {"width": 0}, "layer": "below", **axes,
    }  # fmt: skip
    return [shade, *(_line(limit, STRIP - LIMIT, STRIP + LIMIT, colours.INK, **axes) for limit in row.limits)]


def _facet_width(row: EstimateMark) -> int:
    """The pixels that the longest line of a facet's text needs."""
    return max(LETTER * max(len(row.label), len(_estimate_text(row))), SMALL_LETTER * len(row.unit)) + BESIDE


def _estimate_text(row: EstimateMark) -> str:
    """Verdict and estimate with its interval: "pass, 0.90 [0.85, 0.95]"."""
    said = "" if row.estimate is None else number(row.estimate) + interval_text(row.low, row.high)
    return ", ".join(filter(None, (row.verdict, said)))


def _labels(row: EstimateMark, axes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Name, quantity, and verdict with estimate and interval, a line each: on a phone they have no room beside each other."""
    name = _plain(row.label.replace(".", " ", 1).replace("_", " "))
    text = f"<b>{name}</b><br><span style='font-size:11px'>{_plain(row.unit)}</span><br>{_estimate_text(row)}"
    domain = {axis: f"{name} domain" for axis, name in axes.items()}
    return [
        {
            "x": 0, "y": 1, **domain, "xanchor": "left", "yanchor": "top", "align": "left", "text": text, "showarrow": False,
            "font": {"size": 12},
        }
    ]  # fmt: skip


# --- curves and distributions -------------------------------------------------------------------------------


@specification.register
def _(figure: Curves) -> Specification:
    traces = []
    for place, series in enumerate(figure.series):
        colour = colours.series(place)
        x = [_plain(value) if isinstance(value, str) else value for value in figure.x]
        if series.low is not None and series.high is not None and None not in series.low:
            traces.append(
                {"type": "scatter", "mode": "lines",
                    "x": [*x, *reversed(x)], "y": [*series.high, *reversed(series.low)], "fill": "toself", "opacity": 0.25,
                    "fillcolor": colour, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter",
                "x": x,
                "y": series.y,
                "name": _plain(series.label),
                "mode": "lines+markers",
                "line": {"color": colour, "width": 2},
            }
        )
    words = {"type": "category"} if all(isinstance(value, str) for value in figure.x) else {}  # "0", "1" are words too
    below, beside = _axis(figure.x_label, **words), _axis(figure.y_label)
    return _figure(traces, 320, showlegend=len(figure.series) > 1, xaxis=below, yaxis=beside)


@specification.register
def _(figure: Distribution) -> Specification:
    every = [value for values in figure.samples.values() for value in values]
    if not every:
        return _figure([], 120)
    low, high = min(every), max(every)
    edges = np.linspace(low, high if high > low else low + 1e-9, BINS + 1)
    traces = [
        _histogram(label, values, edges, colours.series(place))
        for place, (label, values) in enumerate(figure.samples.items())
    ]
    below = ENTRY * len(traces) + 12
    legend = {"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left", "tracegroupgap": 0}
    ends = axis_ends([low, high, *figure.lines.values()])
    drawn = _figure(
        traces,
        270 + below,
        barmode="overlay",
        bargap=0,
        legend=legend,
        showlegend=True,
        margin={"l": 10, "r": 10, "t": 10, "b": 52 + below},
        xaxis=_axis(figure.x_label, range=ends, automargin=False),
        yaxis=_axis("draws", rangemode="tozero"),
    )
    return _with_lines(drawn, figure.lines, ends)


def _histogram(label: str, values: Sequence[float], edges: np.ndarray, colour: str) -> Trace:
    counts, _ = np.histogram(values, edges)
    return {
        "type": "bar",
        "x": [float((a + b) / 2) for a, b in pairwise(edges)],
        "y": counts.tolist(),
        "width": float(edges[1] - edges[0]),
        "name": _plain(label),
        "marker": {"color": colour, "opacity": 0.6, "line": {"width": 0}},
        "hovertext": [
            f"{_plain(label)}<br>{three_digits(a)} to {three_digits(b)}: {c}"
            for (a, b), c in zip(pairwise(edges), counts, strict=True)
        ],
        "hoverinfo": "text",
    }


# --- graph -------------------------------------------------------------------------------------------------


@specification.register
def _(figure: CircuitGraph) -> Specification:
    places = place_nodes(figure)
    shown = drawn_edges(figure)
    traces: list[Trace] = [_edge(edge, places, share) for edge, share in shown.items()]
    traces.append(_edge_hover(tuple(shown), places, figure.unit))
    traces.extend(_nodes(figure.nodes, places, figure.unit))
    layers = sorted({node.layer for node in figure.nodes})
    widest = max(sum(node.layer == layer for node in figure.nodes) for layer in layers)
    names = [level_name(layer, figure.n_layers) for layer in layers]
    most = max((abs(x) for x, _ in places.values()), default=1.0)
    levels = {"tickmode": "array", "tickvals": layers, "ticktext": names, "zeroline": False}
    return _figure(
        traces,
        150 + 110 * len(layers),
        least=140 + NODE * widest,
        hovermode="closest",
        showlegend=True,
        legend={"orientation": "h", "y": -0.02, "yanchor": "top", "x": 0},
        xaxis={"visible": False, "range": [-most - 0.6, most + 0.6]},
        yaxis=_axis(**levels, range=[min(layers) - 0.5, max(layers) + 0.5]),
    )


def _curve(edge: GraphEdge, places: Mapping[str, tuple[float, float]]) -> tuple[list[float], list[float]]:
    """A quadratic curve from sender to receiver; q, k and v bend differently, so that they do not overlap."""
    (x0, y0), (x1, y1) = places[edge.sender], places[edge.receiver]
    bend = {"q": -0.22, "k": 0.0, "v": 0.22, None: 0.0}[edge.input]
    t = np.linspace(0, 1, 13)
    mid = (x0 + x1) / 2 + bend, (y0 + y1) / 2
    x = (1 - t) ** 2 * x0 + 2 * t * (1 - t) * mid[0] + t**2 * x1
    y = (1 - t) ** 2 * y0 + 2 * t * (1 - t) * mid[1] + t**2 * y1
    return [round(float(v), 3) for v in x], [round(float(v), 3) for v in y]


def _edge(edge: GraphEdge, places: Mapping[str, tuple[float, float]], share: float) -> Trace:
    x, y = _curve(edge, places)
    colour = colours.POSITIVE if edge.weight >= 0 else colours.NEGATIVE
    return {"type": "scatter", 
        "x": x, "y": y, "mode": "lines", "hoverinfo": "skip", "showlegend": False, "opacity": round(0.25 + 0.7 * share, 3),
        "line": {"color": colour, "width": round(0.6 + 7 * share, 2), "dash": DASHES[edge.input]},
    }  # fmt: skip


def _edge_hover(edges: Sequence[GraphEdge], places: Mapping[str, tuple[float, float]], unit: str) -> Trace:
    """Invisible marks at the middle of each edge, whose hover text describes the edge."""
    middles = [tuple(axis[6] for axis in _curve(edge, places)) for edge in edges]
    return {"type": "scatter", 
        "x": [x for x, _ in middles], "y": [y for _, y in middles], "mode": "markers", "showlegend": False, "hoverinfo": "text",
        "marker": {"size": 12, "color": "rgba(0,0,0,0)"}, "hovertext": [_edge_text(edge, unit) for edge in edges],
    }  # fmt: skip


def _edge_text(edge: GraphEdge, unit: str) -> str:
    into = f" ({edge.input})" if edge.input else ""
    ends = f"<br>95 % interval {three_digits(edge.low)} to {three_digits(edge.high)}" if edge.low is not None else ""
    return f"{_plain(edge.sender)} to {_plain(edge.receiver)}{into}<br>{three_digits(edge.weight)} {_plain(unit)}{ends}"


def _nodes(nodes: Sequence[GraphNode], places: Mapping[str, tuple[float, float]], unit: str) -> list[Trace]:
    shares, (least, most), fills = disc_shares(nodes), DISC, colours.role_fills(nodes)
    traces = []
    for role in dict.fromkeys(node.role for node in nodes):
        own = [node for node in nodes if node.role == role]
        sizes = [(least**2 + (most**2 - least**2) * shares[node.name]) ** 0.5 for node in own]
        traces.append(
            {
                "type": "scatter",
                "x": [places[node.name][0] for node in own],
                "y": [places[node.name][1] for node in own],
                "mode": "markers+text",
                "text": [_plain(node.name) for node in own],
                "textfont": {"size": 11, "color": "#000"},
                "marker": {
                    "size": sizes,
                    "color": fills.get(role, colours.PLAIN),
                    "line": {"color": colours.INK, "width": 1.5},
                    "opacity": 1,
                },
                "name": _plain(role.replace("_", " ")),
                "hovertext": [_node_text(node, unit) for node in own],
                "hoverinfo": "text",
            }
        )
    return traces


def _node_text(node: GraphNode, unit: str) -> str:
    effect = "" if node.effect is None else f"<br>patching effect {three_digits(node.effect)} {_plain(unit)}"
    return f"{_plain(node.name)}<br>{_plain(node.role.replace('_', ' '))}{effect}"


# --- map of outputs ----------------------------------------------------------------------------------------


@specification.register
def _(figure: OutputMap) -> Specification:
    grey, accent = {"color": colours.FAINT}, {"color": colours.ACCENT}
    shade = colours.faded(colours.PASSING, colours.PASSING_OPACITY)
    traces = [
        _marks(figure.draws, "output", {"size": 5, "opacity": 0.6, **grey}),
        _outline(figure.hull, "hull of nine tenths", {"line": {"dash": "dot", "width": 1, **grey}}),
        _outline(
            figure.ellipse, "95 % ellipse", {"line": {"width": 1, **accent}, "fill": "toself", "fillcolor": shade}
        ),
        _marks(
            figure.wordings, "neutral wording", {"size": 8, "symbol": "circle-open", "line": {"width": 2}, **accent}
        ),
        _marks([figure.centre], "their centre", {"size": 9, "symbol": "diamond", "color": colours.ACCENT}),
    ]
    for place, arrow in enumerate(figure.arrows):
        colour = colours.series(place + 1)
        symbols = ["circle", f"triangle-{('up', 'down', 'left', 'right')[place % 4]}"]
        shaft = {
            "mode": "lines+markers",
            "line": {"color": colour},
            "marker": {"color": colour, "size": [1, 11], "symbol": symbols, "opacity": 1},
        }
        ends = [(arrow.x0, arrow.y0), (arrow.x1, arrow.y1)]
        traces.append({**_marks(ends, f"framed: {arrow.label}", {}), **shaft})
    if figure.reference is not None:
        traces.append(_marks([figure.reference], "reference", {"size": 11, "symbol": "x", "color": colours.NEGATIVE}))
    equal = {"scaleanchor": "x", "scaleratio": 1}
    legend = {"orientation": "h", "y": -0.2}
    return _figure(
        traces,
        460,
        300,
        showlegend=True,
        legend=legend,
        xaxis=_axis(figure.x_label, constrain="domain"),
        yaxis=_axis(figure.y_label, **equal),
    )


def _marks(points: Sequence[tuple[float, float]], name: str, marker: Trace) -> Trace:
    x, y = ([point[k] for point in points] for k in (0, 1))
    hover = f"{_plain(name)}: %{{x:.3g}}, %{{y:.3g}}<extra></extra>"
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "name": _plain(name),
        "mode": "markers",
        "marker": marker,
        "hovertemplate": hover,
    }


def _outline(points: Sequence[tuple[float, float]], name: str, how: Trace) -> Trace:
    closed = [*points, *points[:1]]
    x, y = ([point[k] for point in closed] for k in (0, 1))
    return {"type": "scatter", "x": x, "y": y, "name": _plain(name), "mode": "lines", "hoverinfo": "skip", **how}
