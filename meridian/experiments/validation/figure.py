"""The figure of error rates: published verdicts and Meridian's verdicts, subjects by calibrations."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results_io
from meridian.experiments.validation import page
from meridian.experiments.validation.declared import TRUTHS

PANELS = {"published_pass": "published rule, point estimate", "verdict_pass": "verdict, from an interval or a test"}
COLOURS = "cividis"  # keeps its order for all kinds of colour vision and in print
MISSED = "#d7191c"


def save(document: Mapping[str, Any], path: Path) -> None:
    """Write the figure as SVG without dates."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "error rates", "font.size": 9}):
        drawn = draw(document, plt)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
        plt.close(drawn)
    results_io.write_text(path, "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n")


def draw(document: Mapping[str, Any], plt: Any) -> Any:
    """Two heat maps of the share of samples that pass, at a run's size. Declared cells have a frame, red if missed."""
    data, prompts = document["data"], document["subject"]["settings"]["default_prompts"]
    names = sorted(data["subjects"], key=lambda name: (TRUTHS.index(data["subjects"][name]["truth"]), name))
    cells = {(c["subject"], c["row"]): c for c in data["cells"] if c["prompts"] == prompts}
    rows = page.judged(data)
    figure, axes = plt.subplots(1, 2, figsize=(13, 0.32 * len(names) + 1.6), sharey=True, layout="constrained")
    for axis, (which, title) in zip(axes, PANELS.items(), strict=True):
        values = [[cells[name, row][which]["rate"] for row in rows] for name in names]
        image = axis.imshow(values, vmin=0, vmax=1, cmap=COLOURS, aspect="auto")
        axis.set(title=title, xticks=range(len(rows)), yticks=range(len(names)))
        axis.set_xticklabels(rows, rotation=60)
        axis.set_yticklabels([f"{name.replace('_', ' ')} ({data['subjects'][name]['truth']})" for name in names])
        _numbers(axis, values)
    _frames(axes[1], names, rows, cells, plt)
    figure.colorbar(image, ax=axes, shrink=0.8, label=f"share of samples of {prompts} prompts that pass")
    return figure


def _numbers(axis: Any, values: list[list[float]]) -> None:
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = "white" if value < 0.5 else "black"
            axis.text(x, y, f"{value:.2f}".lstrip("0") or "0", ha="center", va="center", color=colour, fontsize=6)


def _frames(axis: Any, names: list[str], rows: list[str], cells: Mapping[tuple[str, str], Any], plt: Any) -> None:
    for y, name in enumerate(names):
        for x, row in enumerate(rows):
            met = cells[name, row]["met"]
            if met is not None:
                seen = "white" if cells[name, row]["verdict_pass"]["rate"] < 0.5 else "black"
                edge = {"edgecolor": seen if met else MISSED, "linewidth": 1.0 if met else 2.5}
                axis.add_patch(plt.Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, fill=False, **edge))
