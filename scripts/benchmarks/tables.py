"""The tables of docs/performance.md, generated from the CSVs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from meridian import generated_parts
from scripts.benchmarks import csv_rows, engines, growth, kernels, subjects, targets, workloads
from scripts.benchmarks.csv_rows import FOLDER, BenchmarkRow
from scripts.benchmarks.growth import Point
from scripts.benchmarks.kernels import Candidate
from scripts.benchmarks.targets import TargetRow

PAGE = FOLDER.parents[1] / "docs" / "performance.md"
PART = "performance"  # the generated part of the page
GROWTH, KERNELS, TARGETS = "-growth.csv", "-kernels.csv", "-targets.csv"
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
    files = sorted(path for path in folder.glob("*.csv") if not path.name.endswith((GROWTH, KERNELS, TARGETS)))
    rows = [row for path in files for row in csv_rows.read(path)]
    points = [p for path in sorted(folder.glob(f"*{GROWTH}")) for p in csv_rows.read_rows(path, Point)]
    measured = [c for path in sorted(folder.glob(f"*{KERNELS}")) for c in csv_rows.read_rows(path, Candidate)]
    reached = [row for path in sorted(folder.glob(f"*{TARGETS}")) for row in csv_rows.read_rows(path, TargetRow)]
    parts = (_machines(rows), _targets(rows, reached), _exponents(points), _kernels(measured), _missing(rows))
    return "\n\n".join([_legend(), *(text for part in parts for text in part)])


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


def _targets(rows: Sequence[BenchmarkRow], reached: Sequence[TargetRow]) -> list[str]:
    """What every GPU reached, and in one line what was not measured there."""
    found = []
    for device in dict.fromkeys(row.device for row in (*rows, *reached) if row.device.startswith("NVIDIA")):
        values = {target.name: value for target, value in targets.of_rows(rows, device).items()}
        values |= {row.target: row.value for row in reached if row.device == device}
        lines = [
            [
                one.name,
                one.aim,
                f"{csv_rows.rounded(values[one.name]):g}{one.unit}",
                "yes" if one.met(values[one.name]) else "no",
            ]
            for one in targets.TARGETS
            if one.name in values
        ]
        left = [one.name for one in targets.TARGETS if one.name not in values]
        found.append(f"Targets, {device}:\n\n{generated_parts.table(('target', 'aim', 'measured', 'met'), lines)}")
        if left:
            found.append(f"On {device}, {UNMEASURED} (`bash scripts/gpu_check.sh` measures them): {'; '.join(left)}.")
    return found


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
