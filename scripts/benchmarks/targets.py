"""Targets on a GPU: what the fused engine should reach there, and what it reached.

Half of them are read from the benchmark's rows, the others are measured here. Without a GPU, those that need one are left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from circuits.engine import FusedEngine, products
from circuits.interventions import Effects, Sweep
from circuits.models import Model
from circuits.prompts import PromptSet
from kernels.split_product import split_product
from results_io import UserError
from scripts.benchmarks import clock, comparison, csv_rows, engines, subjects, workloads
from scripts.benchmarks.csv_rows import BenchmarkRow

MODEL, HEADS, BATTERY = "gpt2-small", "all-heads patching", "ablation battery"
CACHES = ("MERIDIAN_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")  # of choices and of compiled kernels
FIRST_SWEEP = "--first-sweep"
PRODUCTS_TOLERANCE = 1e-5  # of the largest logit difference


@dataclass(frozen=True)
class Target:
    """A number that a GPU should reach: at most `limit` if `at_most`, else at least. `unit` follows the number."""

    name: str
    limit: float
    unit: str
    at_most: bool = True

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    @property
    def aim(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.limit:g}{self.unit}"


HEADS_SECONDS = Target("GPT-2 small's shape, all heads x 64 prompts of 20 tokens, warm", 0.35, " s")
HEADS_SHARE = Target("its share of the measured matrix-product peak", 0.7, "", at_most=False)
HEADS_ERROR = Target("its largest difference to float64", 1e-5, " nats")
HOOK_LOOP = Target("its speed over the TransformerLens loop of the same run", 20, "x", at_most=False)
POCKET = Target("pocket, ablation battery x 64 prompts", 0.006, " s")
SPLIT = Target("tf32x3 products, speed over IEEE float32", 1.8, "x", at_most=False)
STUDY = Target("GPT-2 small's shape, battery and random circuits, 240 x 600", 10, " s")
BUSY = Target("share of the time of all heads in which the GPU computes", 0.9, "", at_most=False)
COLD = Target("first sweep of a process that finds no choices and no compiled kernels", 60, " s")
SECOND = Target("first sweep of the next process", 5, " s")
DIFFERENT = Target("bytes in which the results of the two processes differ", 0, "")
TARGETS = (HEADS_SECONDS, HEADS_SHARE, HEADS_ERROR, HOOK_LOOP, POCKET, SPLIT, STUDY, BUSY, COLD, SECOND, DIFFERENT)


@dataclass(frozen=True)
class TargetRow:
    """What a device reached."""

    device: str
    target: str
    aim: str
    value: float
    met: bool
    versions: str


@dataclass(frozen=True)
class Amounts:
    """How much is timed. A part of the sweep of all heads is for tests alone."""

    prompts: int = 64
    study_prompts: int = 600
    length: int = 20
    variants: int = 10**6
    repeats: int = 5


QUICK = Amounts(prompts=2, study_prompts=3, length=8, variants=6, repeats=1)


def measure(
    device: str, name: str, rows: Sequence[BenchmarkRow], amounts: Amounts, scratch: Path
) -> Iterator[TargetRow]:
    """Every target that can be measured on `device`, as soon as it is; `rows` are those of the benchmark on it.

    `name` is the device's product name.
    """
    versions = csv_rows.versions()
    for target, value in (*of_rows(rows, name).items(), *_measured(device, amounts, scratch)):
        yield TargetRow(name, target.name, target.aim, value, target.met(value), versions)


def of_rows(rows: Sequence[BenchmarkRow], device: str) -> dict[Target, float]:
    """The targets that the benchmark's rows of a device show: float32, 64 prompts."""
    ours = [row for row in rows if (row.device, row.dtype, row.prompts) == (device, "float32", 64)]
    fused = {(row.model, row.work): row for row in ours if row.engine == engines.FUSED}
    found: dict[Target, float | None] = {}
    if (heads := fused.get((MODEL, HEADS))) is not None:
        found |= {HEADS_SECONDS: heads.seconds, HEADS_SHARE: heads.roofline, HEADS_ERROR: heads.max_abs_difference}
        found[HOOK_LOOP] = heads.times_hook_loop
    if (battery := fused.get(("pocket", BATTERY))) is not None:
        found[POCKET] = battery.seconds
    return {target: value for target, value in found.items() if value is not None}


def _measured(device: str, amounts: Amounts, scratch: Path) -> Iterator[tuple[Target, float]]:
    """The targets that are measured here, fresh processes first, since they find what this one has cached."""
    folder = subjects.folder_of(MODEL, scratch)
    cold, second = (_first_sweep_in_a_process(folder, device, amounts, scratch / "caches") for _ in range(2))
    yield COLD, cold.seconds
    yield SECOND, second.seconds
    yield DIFFERENT, float(sum(a != b for a, b in zip(cold.content, second.content, strict=True)))
    run = AllHeads.of(folder, device, amounts)
    run()
    if device.startswith("cuda"):
        yield BUSY, busy_share(run)
        if (faster := _split_speed(run)) is not None:
            yield SPLIT, faster
    yield STUDY, _study_seconds(run)


@dataclass(frozen=True, eq=False)
class AllHeads:
    """The sweep of all heads, ready to run."""

    engine: FusedEngine
    sweep: Sweep
    prompts: PromptSet
    amounts: Amounts

    @classmethod
    def of(cls, folder: Path, device: str, amounts: Amounts) -> AllHeads:
        settings = {"name": MODEL, "kind": "local", "path": str(folder), "device": device, "dtype": "float32"}
        return cls.on(subjects.models.load(settings), amounts)

    @classmethod
    def on(cls, model: Model, amounts: Amounts) -> AllHeads:
        shape = subjects.shape_of(model.bridge.original_model.config)
        draw = partial(subjects.random_prompts, length=amounts.length, first_changed=1, vocabulary=shape.vocabulary)
        reference = draw(subjects.REFERENCE_PROMPTS, seed=comparison.REFERENCE_SEED)
        sweep = workloads.spread(workloads.all_heads(shape), amounts.variants)
        return cls(FusedEngine(model, reference), sweep, draw(amounts.prompts, seed=comparison.PROMPT_SEED), amounts)

    def __call__(self) -> Effects:
        return self.engine.run(self.sweep, self.prompts)

    def seconds(self) -> float:
        """Median time of a run."""
        timings = clock.interleaved({"run": self}, self.amounts.repeats, str(self.engine.model.device))["run"]
        return statistics.median(timing.wall for timing in timings)


def busy_share(run: Callable[[], object]) -> float:
    """The time of all kernels over the wall time of a run, on one stream, where no two kernels overlap."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
    return sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6 / wall


def _split_speed(run: AllHeads) -> float | None:
    """How many times faster all heads are with split products; None, and said, if they do not agree with IEEE."""
    before, own = run.seconds(), run.engine.decoder.products
    try:
        if own.adopt(products.TF32X3, split_product, lambda: run().logit_diff, PRODUCTS_TOLERANCE):
            run()
            return before / run.seconds()
        print(own.why, flush=True)
        return None
    finally:
        run.engine.decoder = replace(run.engine.decoder, products=products.Products())


def _study_seconds(run: AllHeads) -> float:
    """Seconds of the battery with random circuits on as many prompts as a study has; the kernels for it are chosen before."""
    shape = subjects.shape_of(run.engine.model.bridge.original_model.config)
    sweep = workloads.spread(workloads.battery_and_random_circuits(shape), run.amounts.variants)
    prompts = subjects.random_prompts(run.amounts.study_prompts, run.amounts.length, 1, shape.vocabulary, seed=2)
    run.engine.run(sweep, prompts)
    return clock.timed(lambda: run.engine.run(sweep, prompts), str(run.engine.model.device)).wall


# --- fresh processes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstSweep:
    """The first sweep of a process: its seconds, model loaded, and its results' bytes."""

    seconds: float
    content: bytes


def first_sweep(folder: Path, device: str, amounts: Amounts) -> str:
    """The first sweep of this process, as one line of JSON."""
    run = AllHeads.of(folder, device, amounts)
    started = time.perf_counter()
    effects = run()
    return json.dumps({"seconds": time.perf_counter() - started, "content": effects.logit_diff.tobytes().hex()})


def _first_sweep_in_a_process(folder: Path, device: str, amounts: Amounts, caches: Path) -> FirstSweep:
    """`first_sweep` in a process that keeps choices and compiled kernels in `caches` alone."""
    script = Path(__file__).parents[1] / "benchmark.py"
    command = [sys.executable, str(script), FIRST_SWEEP, str(folder), "--device", device]
    command += ["--quick"] if amounts == QUICK else []
    variables: Mapping[str, str] = {**os.environ, **{name: str(caches / name) for name in CACHES}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(
            f"the first sweep of a fresh process failed ({said[-1]}); run {' '.join(command[1:])} to see why"
        )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return FirstSweep(found["seconds"], bytes.fromhex(found["content"]))


def store(path: Path, row: TargetRow) -> None:
    """Add a row to a file in place of an older one of the same target."""
    others = [old for old in csv_rows.read_rows(path, TargetRow) if old.target != row.target]
    csv_rows.write(path, sorted([*others, row], key=lambda one: [t.name for t in TARGETS].index(one.target)))


def reported(row: TargetRow) -> str:
    """A row in one line."""
    return f"{row.target:75} {csv_rows.rounded(row.value):>10g}  {row.aim:18} {'met' if row.met else 'MISSED'}"
