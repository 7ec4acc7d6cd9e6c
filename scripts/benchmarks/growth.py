"""How time grows with variants, prompts, layers and sequence length, fitted and plotted.

Small random models are used (with the pocket's width; GPT-2 small's on a GPU), because only the exponents matter here.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from transformers import GPT2Config

from results_io import UserError
from scripts.benchmarks import clock, csv_rows, engines, subjects, workloads
from scripts.benchmarks.comparison import Machine

AXES = ("variants", "prompts", "layers", "length")
EXPECTED = {"variants": 1.0, "prompts": 1.0, "layers": 2.0, "length": 1.0}
REASON = {
    "variants": "random halves of the heads share almost no prefix",
    "prompts": "rows of a matrix product",
    "layers": "all heads: as many variants as layers, times the layers after each",
    "length": "rows of a matrix product; attention's square is small below 64 tokens",
}
GRIDS = {
    "cpu": {
        "variants": (16, 32, 64, 128),
        "prompts": (4, 8, 16, 32),
        "layers": (2, 4, 8, 12),
        "length": (8, 16, 32, 64),
    },
    "cuda": {
        "variants": (32, 128, 512),
        "prompts": (8, 32, 128),
        "layers": (3, 6, 12),
        "length": (8, 16, 32, 64),
    },
}
WIDTH = {  # one model width for each kind of device, wide enough to keep it busy
    "cpu": {"n_embd": 192, "n_head": 8, "n_inner": 384, "vocab_size": 680, "n_positions": 64},
    "cuda": {"n_embd": 768, "n_head": 12, "n_inner": 3072, "vocab_size": 50257, "n_positions": 64},
}
COLOURS = ("#0072B2", "#D55E00", "#009E73")  # Okabe and Ito (2008), distinct without red-green vision
MARKERS = ("o", "s", "^")


@dataclass(frozen=True)
class Point:
    """Median seconds of one engine at one value of one axis, with everything else at the middle of its grid."""

    device: str
    axis: str
    value: int
    engine: str
    prompts: int
    length: int
    variants: int
    layers: int
    seconds: float
    versions: str


@dataclass(frozen=True)
class GridCell:
    """The sizes at which one point is measured."""

    variants: int
    prompts: int
    layers: int
    length: int


def measure(
    machine: Machine,
    names: Sequence[str],
    repeats: int,
    scratch: Path,
    quick: bool,
    done: Collection[tuple[str, int, str]] = (),
) -> Iterator[Point]:
    """Measure every point of the grids, axis by axis, except the (axis, value, engine) in `done`."""
    kind = machine.device.split(":")[0]
    grids = {axis: grid[:2] if quick else grid for axis, grid in GRIDS[kind].items()}
    middle = GridCell(**{axis: grid[len(grid) // 2 - 1] for axis, grid in grids.items()})
    for axis, grid in grids.items():
        for value in grid:
            missing = [name for name in names if (axis, value, name) not in done]
            if missing:
                yield from _points(axis, value, replace(middle, **{axis: value}), machine, missing, repeats, scratch)


def _points(
    axis: str, value: int, cell: GridCell, machine: Machine, names: Sequence[str], repeats: int, scratch: Path
) -> Iterator[Point]:
    width = WIDTH[machine.device.split(":")[0]]
    folder = scratch / f"growth-{width['n_embd']}-{cell.layers}"
    if not (folder / "config.json").is_file():
        ids = {"bos_token_id": subjects.BOS, "eos_token_id": subjects.BOS, "tie_word_embeddings": False}
        subjects.save_random(folder, GPT2Config(n_layer=cell.layers, **width, **ids))
    subject = subjects.load("growth", folder, machine.device, machine.dtype)
    draw = partial(subjects.random_prompts, length=cell.length, first_changed=1, vocabulary=width["vocab_size"])
    prompts, reference = draw(cell.prompts, seed=0), draw(subjects.REFERENCE_PROMPTS, seed=1)
    if axis == "layers":  # the sweep of all heads grows with the layers
        sweep = workloads.all_heads(subject.shape)
    else:
        sweep = workloads.spread(workloads.random_halves(subject.shape), cell.variants)
    runs = {name: partial(engines.build(name, subject, reference), sweep, prompts) for name in names}
    clock.interleaved(runs, 1, machine.device)
    for name, timings in clock.interleaved(runs, repeats, machine.device).items():
        seconds = statistics.median(timing.wall for timing in timings)
        size = (len(prompts), cell.length, len(sweep), cell.layers)
        yield Point(machine.device_name, axis, value, name, *size, seconds, csv_rows.versions())


def exponent(values: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(b, a) in seconds = a values^b, by least squares of log seconds on log values.

    UserError for fewer than two distinct values.
    """
    if len(set(values)) < 2:
        raise UserError(f"an exponent cannot be fitted to {len(set(values))} distinct value; measure at least two")
    slope, intercept = np.polyfit(np.log(values), np.log(seconds), 1)
    return float(slope), float(np.exp(intercept))


def fits(points: Sequence[Point]) -> dict[tuple[str, str], tuple[float, float]]:
    """{(axis, engine): (exponent, factor)} of every curve with two points or more."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for point in points:
        curves.setdefault((point.axis, point.engine), {})[point.value] = point.seconds
    return {key: exponent(list(curve), list(curve.values())) for key, curve in curves.items() if len(curve) > 1}


def plot(points: Sequence[Point], path: Path) -> None:
    """One panel for each axis, both scales logarithmic; the format follows the suffix of `path`.

    UserError if there are no points.
    """
    if not points:
        raise UserError(f"{path.name} cannot be drawn from 0 points; measure the growth of at least one engine first")
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "benchmark"  # so that the same points give the same file
    from matplotlib import pyplot

    fitted = fits(points)
    figure, panels = pyplot.subplots(1, len(AXES), figsize=(12, 3.4), layout="constrained")
    for axis, panel in zip(AXES, panels, strict=True):
        _plot_axis(panel, axis, [point for point in points if point.axis == axis], fitted)
    panels[0].set_ylabel("seconds")
    figure.suptitle(f"Time against size, {points[0].device}; slope = fitted exponent", fontsize=10)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _plot_axis(panel: object, axis: str, points: Sequence[Point], fitted: dict) -> None:
    if not points:  # a run that ended early
        panel.set(title="not measured")
        return
    names = list(dict.fromkeys(point.engine for point in points))
    for i, name in enumerate(names):
        own = sorted((point.value, point.seconds) for point in points if point.engine == name)
        values, seconds = zip(*own, strict=True)
        slope, factor = fitted.get((axis, name), (float("nan"), float("nan")))
        look = {"color": COLOURS[i % len(COLOURS)]}
        panel.plot(values, seconds, MARKERS[i % len(MARKERS)], label=f"{name}: slope {slope:.2f}", **look)
        panel.plot(values, [factor * value**slope for value in values], **look, linewidth=1)
    panel.set(xscale="log", yscale="log", xlabel=axis, title=f"expected slope {EXPECTED[axis]:g}")
    values = sorted({point.value for point in points})
    panel.set_xticks(values, [str(value) for value in values])
    panel.minorticks_off()
    panel.legend(fontsize=7, frameon=False)
    panel.grid(alpha=0.3)
