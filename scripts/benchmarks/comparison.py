"""All engines on one work and one model, with interleaved timing and a check against float64."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from circuits.interventions import Sweep
from circuits.prompts import PromptSet
from scripts.benchmarks import baselines, clock, csv_rows, engines, flops, kernels, subjects, workloads
from scripts.benchmarks.clock import Timing
from scripts.benchmarks.csv_rows import BenchmarkRow
from scripts.benchmarks.kernels import Candidate
from scripts.benchmarks.plain import PlainModel
from scripts.benchmarks.subjects import BenchmarkModel
from scripts.benchmarks.workloads import Workload

PROMPT_SEED, REFERENCE_SEED = 0, 1


@dataclass(frozen=True)
class TimingBudget:
    """How much of a work is timed: prompts, their length, and variants for the fused engine and for the slower ones.

    `checked`: the number of variants that are compared with float64 before timing.
    """

    prompts: int
    length: int
    variants_fused: int
    variants_slow: int
    checked: int
    repeats: int


@dataclass(frozen=True)
class Machine:
    """The machine. `gemm` and `datasheet` are operations per second; `device_name` is a product name, not a host name."""

    device: str
    device_name: str
    threads: int
    dtype: str
    gemm: float
    datasheet: float | None


@dataclass(frozen=True)
class EngineComparison:
    """One row for every engine, and the measured candidates of the fused engine's kernels (none on a CPU)."""

    records: list[BenchmarkRow]
    candidates: list[Candidate]


def compare(
    subject: BenchmarkModel,
    exact: PlainModel,
    work: Workload,
    names: Sequence[str],
    budget: TimingBudget,
    machine: Machine,
) -> EngineComparison:
    """Build, check, warm up, time in turns and count every engine of `names`."""
    prompts, reference = random_prompts(subject, work, budget)
    sweep = work.build(subject.shape)
    built = {name: engines.build(name, subject, reference) for name in names}
    checked = workloads.spread(sweep, budget.checked)
    truth = baselines.Exact(exact, reference)(checked, prompts)
    differences = {name: float(np.abs(engine(checked, prompts) - truth).max()) for name, engine in built.items()}
    parts = {name: workloads.spread(sweep, variants_of(name, budget)) for name in names}
    runs = {name: partial(engine, parts[name], prompts) for name, engine in built.items()}
    memory = {name: _warm_up(run, machine.device) for name, run in runs.items()}
    before = {name: engines.counter(engine) for name, engine in built.items()}
    timings = clock.interleaved(runs, budget.repeats, machine.device)
    counted = {  # operations of one timed run, if the engine counts its own
        name: None if count is None else (engines.counter(built[name]) - count) / budget.repeats
        for name, count in before.items()
    }
    rows = [
        _row(subject, work, name, parts[name], len(sweep), prompts, timings[name], counted[name], machine)
        | {"max_abs_difference": differences[name], "variants_checked": min(budget.checked, len(sweep))}
        | {"peak_memory_mib": memory[name]}
        for name in names
    ]
    chosen = built[engines.FUSED].chosen if engines.FUSED in built else {}
    candidates = kernels.candidates(machine.device_name, subject.name, work.name, chosen)
    return EngineComparison([BenchmarkRow(**row) for row in _with_ratios(rows)], candidates)


def random_prompts(subject: BenchmarkModel, work: Workload, budget: TimingBudget) -> tuple[PromptSet, PromptSet]:
    """The prompts of a work, and reference prompts for means and donors."""
    first = work.first_changed(budget.length)
    draw = partial(
        subjects.random_prompts, length=budget.length, first_changed=first, vocabulary=subject.shape.vocabulary
    )
    return draw(budget.prompts, seed=PROMPT_SEED), draw(subjects.REFERENCE_PROMPTS, seed=REFERENCE_SEED)


def variants_of(name: str, budget: TimingBudget) -> int:
    """How many variants of a work an engine runs."""
    return budget.variants_fused if name == engines.FUSED else budget.variants_slow


def _warm_up(run: partial, device: str) -> float | None:
    """One untimed run. On a GPU, a second one gives the peak memory in MiB; on a CPU that needs a fresh process."""
    run()
    return clock.peak_memory(run, device) if device.startswith("cuda") else None


def _row(
    subject: BenchmarkModel,
    work: Workload,
    name: str,
    part: Sweep,
    variants: int,
    prompts: PromptSet,
    timings: Sequence[Timing],
    counted: float | None,
    machine: Machine,
) -> dict:
    """The row of one engine, scaled from the timed variants to all variants."""
    length = int(prompts.end[0]) + 1
    return {
        "device": machine.device_name,
        "threads": machine.threads,
        "dtype": machine.dtype,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "model": subject.name,
        "work": work.name,
        "engine": name,
        "prompts": len(prompts),
        "length": length,
        "first_changed": work.first_changed(length),
        "variants": variants,
        "variants_timed": len(part),
        "repeats": len(timings),
        "versions": csv_rows.versions(),
    } | _speed(
        variants / len(part),
        timings,
        counted or engines.by_formula(name, subject.shape, part, prompts),
        len(prompts) * flops.floor(subject.shape, part, prompts),
        variants * len(prompts),
        len(prompts) * flops.naive(subject.shape, variants, length, length),
        machine,
    )


def _speed(
    scale: float, timings: Sequence[Timing], executed: float, least: float, pairs: int, whole: float, machine: Machine
) -> dict:
    """Seconds and operations of the timed part times `scale`; `pairs` and `whole` (naive operations) are for all variants."""
    wall = [scale * timing.wall for timing in timings]
    seconds = statistics.median(wall)
    rate = scale * executed / seconds
    return {
        "seconds": seconds,
        "seconds_min": min(wall),
        "seconds_max": max(wall),
        "cpu_seconds": scale * statistics.median(timing.cpu for timing in timings),
        "pairs_per_second": pairs / seconds,
        "gflop": scale * executed / 1e9,
        "gflop_naive": whole / 1e9,
        "gflop_floor": scale * least / 1e9,
        "over_floor": executed / least,
        "gemm_gflops": machine.gemm / 1e9,
        "roofline": rate / machine.gemm,
        "datasheet_gflops": machine.datasheet and machine.datasheet / 1e9,
        "roofline_datasheet": machine.datasheet and rate / machine.datasheet,
    }


def _with_ratios(rows: list[dict]) -> list[dict]:
    """Each row with its speed relative to the hook loop of the same run; None if the hook loop was not timed."""
    loop = next((row for row in rows if row["engine"] == engines.HOOK_LOOP), None)
    return [
        row
        | {
            "times_hook_loop": loop and loop["seconds"] / row["seconds"],
            "times_hook_loop_cpu": loop and loop["cpu_seconds"] / max(row["cpu_seconds"], 1e-9),
        }
        for row in rows
    ]
