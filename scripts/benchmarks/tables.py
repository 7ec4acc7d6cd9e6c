"""The tables of docs/performance.md, generated from the CSVs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from meridian import generated_parts
from scripts.benchmarks import csv_rows, engines, growth, kernels, subjects, workloads
from scripts.benchmarks.csv_rows import FOLDER, BenchmarkRow
from scripts.benchmarks.growth import Point
from scripts.benchmarks.kernels import Candidate

PAGE = FOLDER.parents[1] / "docs" / "performance.md"
PART = "performance"  # the generated part of the page
GROWTH, KERNELS = "-growth.csv", "-kernels.csv"
UNMEASURED = "not measured"
HEADER = (
    "work",
    *engines.ENGINES,
    "fused / hook loop",
    "fused / expert loop",
    "FLOP / floor",
    "of GEMM peak",
    "largest difference to float64",
    "peak MiB",
)
CANDIDATES = ("reference", "compiled", "triton")
KERNEL_HEADER = (
    "operation",
    "signatures",
    *(f"{name} fastest" for name in CANDIDATES),
    "triton's time / fastest other's, median",
    "triton a default",
    "largest relative difference",
    "dropped",
)


def performance(folder: Path = FOLDER) -> str:
    """The whole section in markdown: a table for each machine and model, growth exponents, and what is missing."""
    files = sorted(path for path in folder.glob("*.csv") if not path.name.endswith((GROWTH, KERNELS)))
    rows = [row for path in files for row in csv_rows.read(path)]
    points = [p for path in sorted(folder.glob(f"*{GROWTH}")) for p in csv_rows.read_rows(path, Point)]
    measured = [c for path in sorted(folder.glob(f"*{KERNELS}")) for c in csv_rows.read_rows(path, Candidate)]
    return "\n\n".join([_legend(), *_machines(rows), *_exponents(points), *_kernels(measured), *_missing(rows)])


def update_page(path: Path, folder: Path = FOLDER) -> None:
    """Replace the text between the performance markers of a page. UserError unless each marker occurs once."""
    generated_parts.update(path, {PART: performance(folder)})


def _legend() -> str:
    lines = [f"- **{name}**: {meaning}." for name, meaning in engines.MEANING.items()]
    return (
        "Each engine's column is (variant, prompt) pairs per second; more is better. All have the same weights, tokens and "
        "dtype, and IEEE float32 without TF32. The largest difference is over all engines.\n\n" + "\n".join(lines)
    )


def _machines(rows: Sequence[BenchmarkRow]) -> list[str]:
    """A titled table for every machine and model."""
    found = []
    for device, threads, dtype, model in dict.fromkeys((r.device, r.threads, r.dtype, r.model) for r in rows):
        own = [r for r in rows if (r.device, r.threads, r.dtype, r.model) == (device, threads, dtype, model)]
        cores = "" if own[0].on_gpu else f", {threads} thread{'s' * (threads > 1)}"
        title = f"**{_title(model)}**, {device}{cores}, {dtype}, {own[0].prompts} prompts of {own[0].length} tokens"
        works = dict.fromkeys(row.work for row in own)
        table = generated_parts.table(
            HEADER, [_line(work, {r.engine: r for r in own if r.work == work}) for work in works]
        )
        found.append(f"{title}\n\n{table}")
    return found


def _line(work: str, rows: dict[str, BenchmarkRow]) -> list[str]:
    fused, loop, expert = (rows.get(name) for name in (engines.FUSED, engines.HOOK_LOOP, engines.EXPERT_LOOP))
    speeds = [_number(rows[name].pairs_per_second) if name in rows else "–" for name in engines.ENGINES]
    return [
        work,
        *speeds,
        _ratio(fused, loop),
        _ratio(fused, expert),
        f"{fused.over_floor:.2f}" if fused else "–",
        f"{100 * fused.roofline:.0f} %" if fused else "–",
        f"{max(row.max_abs_difference for row in rows.values()):.1e}",
        f"{fused.peak_memory_mib:.0f}" if fused and fused.peak_memory_mib is not None else "–",
    ]


def _ratio(fast: BenchmarkRow | None, slow: BenchmarkRow | None) -> str:
    return f"{slow.seconds / fast.seconds:.1f}x" if fast and slow else "–"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _exponents(points: Sequence[Point]) -> list[str]:
    """Fitted growth exponents of every machine."""
    found = []
    for device in dict.fromkeys(point.device for point in points):
        fitted = growth.fits([point for point in points if point.device == device])
        names = list(dict.fromkeys(engine for _, engine in fitted))
        lines = [
            [axis, f"{growth.EXPECTED[axis]:g} ({growth.REASON[axis]})"]
            + [f"{fitted[axis, name][0]:.2f}" if (axis, name) in fitted else "–" for name in names]
            for axis in growth.AXES
        ]
        table = generated_parts.table(("time grows with", "expected exponent", *names), lines)
        found.append(f"Fitted growth exponents, {device}:\n\n{table}")
    return found


def _kernels(rows: Sequence[Candidate]) -> list[str]:
    """For every device and operation: how often each implementation was the fastest, and how the Triton kernel compares."""
    if not rows:
        return [f"Triton kernels against the torch reference and torch.compile of it: {UNMEASURED} on a GPU."]
    found = []
    for device in dict.fromkeys(row.device for row in rows):
        own = [row for row in rows if row.device == device]
        operations = dict.fromkeys(row.operation for row in own)
        table = generated_parts.table(
            KERNEL_HEADER, [_kernel([r for r in own if r.operation == name]) for name in operations]
        )
        title = f"Implementations chosen, {device}; the default is what is fastest at a signature (dtype and shape)"
        found.append(f"{title}:\n\n{table}")
    return found


def _kernel(rows: Sequence[Candidate]) -> list[str]:
    """One operation's line."""
    wins = Counter(row.candidate for row in rows if row.chosen)
    ratios = kernels.against_others(rows, "triton")
    differences = [row.difference for row in rows if row.difference is not None]
    dropped = Counter(f"{row.candidate}: {row.dropped}" for row in rows if row.dropped)
    return [
        rows[0].operation,
        str(sum(wins.values())),
        *(str(wins[name]) for name in CANDIDATES),
        f"{statistics.median(ratios):.2f}" if ratios else "–",
        "yes" if wins["triton"] else "no",
        f"{max(differences):.1e}" if differences else "–",
        "; ".join(f"{reason.replace('|', '/')} ({count})" for reason, count in dropped.items()) or "–",
    ]


def _missing(rows: Sequence[BenchmarkRow]) -> list[str]:
    """The GPU measurements that no CSV has, in one line."""
    measured = {(row.model, row.work) for row in rows if row.on_gpu}
    left = {model: [work for work in workloads.WORKLOADS if (model, work) not in measured] for model in subjects.MODELS}
    named = "; ".join(f"{_title(model)}: {', '.join(works)}" for model, works in left.items() if works)
    return [f"On a GPU, {UNMEASURED} (`bash scripts/gpu_check.sh` measures them): {named}."] if named else []


def _title(model: str) -> str:
    return "GPT-2-small shape, random weights" if model == "gpt2-small" else model
