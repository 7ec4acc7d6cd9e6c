"""A map of outputs for a paper: draws, wordings, centre with its ellipse, reference, hull, and arrows of framings."""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon

from meridian.figures import colours
from meridian.figures.static_panel import ink, legend, panel
from meridian.figures.values import OutputMap

DOT, DISC = 5.0, 18.0  # square points


def draw(figure: OutputMap, width: float) -> Canvas:
    """Markers differ in shape as well as in colour."""
    canvas, axes = panel(width, 2.9 if width < 5 else 4.0)
    axes.add_patch(Polygon(figure.hull, closed=True, fill=False, edgecolor=colours.FAINT, linestyle=":", linewidth=0.9))
    axes.scatter(*zip(*figure.draws, strict=True), s=DOT, color=colours.FAINT, alpha=0.8, linewidth=0, zorder=2)
    axes.scatter(
        *zip(*figure.wordings, strict=True), s=DISC, facecolor="none", edgecolor=colours.ACCENT, linewidth=0.9, zorder=3
    )
    axes.add_patch(Polygon(figure.ellipse, closed=True, facecolor=colours.ACCENT, alpha=0.2, linewidth=0, zorder=2))
    axes.plot(*figure.centre, marker="D", markersize=4.5, color=colours.ACCENT, zorder=5)
    handles = [
        Line2D([], [], linestyle="none", marker=".", color=colours.FAINT, label="output"),
        Line2D(
            [], [], linestyle="none", marker="o", markerfacecolor="none", color=colours.ACCENT, label="neutral wording"
        ),
        Line2D(
            [],
            [],
            linestyle="none",
            marker="D",
            markersize=4.5,
            color=colours.ACCENT,
            label="their centre, 95 % ellipse",
        ),
        Line2D([], [], linestyle=":", color=colours.FAINT, label="hull of nine tenths"),
    ]
    for place, arrow in enumerate(figure.arrows):
        colour, marker = colours.series(place + 1), "^v<>"[place % 4]
        axes.annotate(
            "",
            (arrow.x1, arrow.y1),
            (arrow.x0, arrow.y0),
            arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 2},
            zorder=6,
        )
        axes.plot(arrow.x1, arrow.y1, marker=marker, markersize=5, color=colour, zorder=6, linestyle="none")
        handles.append(Line2D([], [], marker=marker, color=colour, label=f"framed: {arrow.label}"))
    if figure.reference is not None:
        axes.plot(*figure.reference, marker="x", markersize=7, markeredgewidth=1.6, color=ink(), zorder=7)
        handles.append(
            Line2D([], [], linestyle="none", marker="x", markeredgewidth=1.6, color=ink(), label="reference")
        )
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    axes.set_aspect("equal", adjustable="box")
    legend(canvas, handles, width)
    return canvas
