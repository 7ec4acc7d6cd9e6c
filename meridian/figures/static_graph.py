"""A circuit for a paper: heads as discs by layer and role, edges by the size and sign of their direct effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from meridian.figures import colours
from meridian.figures.layout import HELPS, OPPOSES, disc_shares, drawn_edges, level_name, place_nodes
from meridian.figures.static_panel import FAINT, legend, panel
from meridian.figures.values import CircuitGraph, GraphEdge, GraphNode

INPUTS: Mapping[str | None, Any] = {
    "q": "--",
    "k": ":",
    "v": "-",
    None: "-",
}  # line style by the receiver's input that the edge enters
INPUT_NAMES = {"q": "into queries", "k": "into keys", "v": "into values or logits"}
THICKEST, THINNEST = 2.6, 0.15  # points, for the largest weight and for weight 0
LETTERS, ROOM = 5.5, 3.0  # points: the size of a disc's name, and the room beside it
WIDE, NARROW = 0.66, 0.48  # widths of a capital or digit and of a small letter, relative to the font size
GROWTH = 420.0  # square points by which the largest disc exceeds the smallest, which holds the longest name
FAINTEST = 0.35  # opacity of the smallest edge that is drawn
LAYER_HEIGHT = 0.85  # inches
Places = Mapping[str, tuple[float, float]]


def draw(figure: CircuitGraph, width: float) -> Canvas:
    """Layers from the bottom up. A disc's area grows with |effect|, an edge's width with |weight|; colour shows the sign.

    Discs and drawn edges are those of `layout`, as in the browser.
    """
    places = place_nodes(figure)
    layers = sorted({node.layer for node in figure.nodes})
    canvas, axes = panel(width, 1.0 + LAYER_HEIGHT * max(len(layers), 2))
    largest = max((abs(edge.weight) for edge in figure.edges), default=0.0) or 1.0
    radii = {name: area**0.5 / 2 for name, area in disc_areas(figure.nodes).items()}
    for edge, share in drawn_edges(figure).items():  # the largest are drawn last, on top
        _arrow(axes, places, edge, share, radii)
    fills = colours.role_fills(figure.nodes)
    _discs(axes, places, figure.nodes, fills)
    across = [x for x, _ in places.values()] or [0.0]
    axes.set(
        xlim=(min(across) - 0.6, max(across) + 0.6), ylim=(min(layers, default=0) - 0.45, max(layers, default=0) + 0.45)
    )
    axes.set_yticks(layers, [level_name(layer, figure.n_layers) for layer in layers])
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    legend(canvas, _legend(figure, fills, largest), width)
    return canvas


def disc_areas(nodes: Iterable[GraphNode]) -> dict[str, float]:
    """{name: square of its disc's diameter, in square points}, linear in |effect| from the smallest disc, which fits any name."""
    shares = disc_shares(nodes)
    smallest = (LETTERS * max(map(_width, shares), default=0.0) + ROOM) ** 2
    return {name: smallest + GROWTH * share for name, share in shares.items()}


def _width(name: str) -> float:
    return sum(NARROW if letter.islower() else WIDE for letter in name)


def _discs(axes: Axes, places: Places, nodes: Iterable[GraphNode], fills: Mapping[str, str]) -> None:
    areas = disc_areas(nodes)
    for node in nodes:
        x, y = places[node.name]
        fill = fills.get(node.role, colours.PLAIN)
        axes.scatter([x], [y], s=areas[node.name], color=fill, edgecolor=FAINT, linewidth=0.4, zorder=4)
        axes.text(x, y, node.name, ha="center", va="center", fontsize=LETTERS, zorder=5)


def _arrow(axes: Axes, places: Places, edge: GraphEdge, share: float, radii: Mapping[str, float]) -> None:
    """An arrow between the discs of sender and receiver; its dashes show the input, and it bends to keep q, k and v apart."""
    start, end = places[edge.sender], places[edge.receiver]
    bend = (0.14 if end[1] - start[1] > 1.5 else 0.03) + {"q": 0.06, "v": -0.06}.get(edge.input or "", 0.0)
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={bend if start[0] <= end[0] else -bend}",
            arrowstyle="-|>,head_length=2.2,head_width=1.2",
            shrinkA=radii[edge.sender],
            shrinkB=radii[edge.receiver] + 1,
            linewidth=THINNEST + (THICKEST - THINNEST) * share,
            linestyle=INPUTS[edge.input],
            color=colours.POSITIVE if edge.weight >= 0 else colours.NEGATIVE,
            alpha=FAINTEST + (0.92 - FAINTEST) * share,  # so that the many small edges stay in the background
            zorder=1 + share,
        )
    )


def _legend(figure: CircuitGraph, fills: Mapping[str, str], largest: float) -> list[Line2D]:
    """Legend entries: roles, then the meaning of the edges' colour, width and line style."""
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=6, markerfacecolor=fill, markeredgecolor=colours.INK,
               markeredgewidth=0.6, label=role.replace("_", " "))
        for role, fill in fills.items()
    ]  # fmt: skip
    drawn = drawn_edges(figure)
    if not drawn:
        return handles
    for sign, colour, name in ((1, colours.POSITIVE, HELPS), (-1, colours.NEGATIVE, OPPOSES)):
        if any(edge.weight * sign > 0 for edge in drawn):
            handles.append(Line2D([], [], color=colour, linewidth=1.4, label=name))
    handles.append(Line2D([], [], color=FAINT, linewidth=THICKEST, label=f"{largest:.2g} {figure.unit}"))
    present = {"v" if edge.input is None else edge.input for edge in drawn}
    for key in (key for key in INPUT_NAMES if key in present):
        handles.append(Line2D([], [], color=FAINT, linestyle=INPUTS[key], linewidth=1.0, label=INPUT_NAMES[key]))
    return handles
