"""The command line of `scripts/benchmark.py`: what to measure, where the rows go, what is there already."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kernels.roofline import DEVICES
from scripts.benchmarks import (
    clock,
    comparison,
    csv_rows,
    draws,
    engines,
    growth,
    predicted,
    subjects,
    tables,
    targets,
    workloads,
)
from scripts.benchmarks.comparison import EngineComparison, Machine, TimingBudget
from scripts.benchmarks.csv_rows import BenchmarkRow
from scripts.benchmarks.growth import Point
from scripts.benchmarks.kernels import Candidate
from scripts.benchmarks.plain import PlainModel

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "benchmark.py"
QUICK = TimingBudget(prompts=2, length=8, variants_fused=8, variants_slow=4, checked=4, repeats=1)
BUDGETS = {  # on CUDA, an H100 takes 180 s for the six works of gpt2-small, compilation included
    ("cpu", "pocket"): TimingBudget(prompts=16, length=16, variants_fused=400, variants_slow=32, checked=8, repeats=5),
    ("cpu", "gpt2-small"): TimingBudget(
        prompts=4, length=16, variants_fused=144, variants_slow=12, checked=6, repeats=5
    ),
    ("cuda", "pocket"): TimingBudget(prompts=64, length=16, variants_fused=400, variants_slow=12, checked=6, repeats=3),
    ("cuda", "gpt2-small"): TimingBudget(
        prompts=64, length=20, variants_fused=144, variants_slow=12, checked=6, repeats=3
    ),
}
DENSE = {  # for works in which every variant is nearly a whole forward pass: fewer variants, fewer repeats
    ("cpu", "gpt2-small"): {"variants_fused": 60, "repeats": 3},
    ("cuda", "gpt2-small"): {"variants_fused": 120, "repeats": 2},
}
LIGHT = ("all-heads patching", "all-heads patching, second half", "causal tracing by position")
CPU_INFO = Path("/proc/cpuinfo")
MEMORY_MODEL, MEMORY_WORK = "gpt2-small", "all-heads patching"
BATCH = draws.Batch(
    prompts=64, layers=12, draws=4, components=20 * 768
)  # noise for all heads of GPT-2 small on 64 prompts
DTYPES = ("float32", "float64", "float16", "bfloat16")
GROWTH_ENGINES = (engines.HOOK_LOOP, engines.EXPERT_LOOP, engines.FUSED)


def main(arguments: list[str]) -> None:
    """Measure what is missing, or do what an option asks for instead.

    These are predictions, tables, the page, a model for studies, the cost of draws, the targets and, in a fresh process, the
    peak memory of one engine or its first sweep.
    """
    options = _options(arguments)
    if options.predict:
        with tempfile.TemporaryDirectory() as scratch:
            print(predicted.table(DEVICES[options.predict], Path(scratch)))
    elif options.tables:
        print(tables.performance())
    elif options.update_page:
        tables.update_page(tables.PAGE)
    elif options.write_model:
        print(subjects.write_study_model(options.write_model))
    elif options.draws:
        print(draws.comparison(options.device, BATCH))
    elif options.first_sweep:
        print(targets.first_sweep(options.first_sweep, options.device, _amounts(options)))
    elif options.targets:
        with tempfile.TemporaryDirectory() as scratch:
            _measure_targets(options, Path(options.scratch or scratch))
    elif options.memory_of:
        print(_own_memory(options))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(options, Path(options.scratch or scratch))


def measure(options: argparse.Namespace, scratch: Path) -> None:
    """Measure every model on every work, then the growth."""
    started = time.monotonic()
    machine = _machine(options)
    path = _folder(options) / f"{options.name or _slug(machine.device, machine.device_name)}.csv"
    print(
        f"{machine.device_name}, threads {machine.threads}, GEMM {machine.gemm / 1e9:.0f} GFLOP/s -> {path}", flush=True
    )
    options.engines = engines.available(options.engines)
    for model in options.models:
        _measure_model(model, options, machine, path, scratch)
    if not options.no_growth:
        _measure_growth(options, machine, path, scratch)
    print(f"{time.monotonic() - started:.0f} s", flush=True)


def _measure_targets(options: argparse.Namespace, scratch: Path) -> None:
    """Measure the targets, each stored and printed as soon as it is known."""
    clock.strict_float32()
    name = _device_name(options.device)
    path = _folder(options) / f"{options.name or _slug(options.device, name)}.csv"
    for row in targets.measure(options.device, name, csv_rows.read(path), _amounts(options), scratch):
        targets.store(path.with_name(path.stem + tables.TARGETS), row)
        print(targets.reported(row), flush=True)


def _amounts(options: argparse.Namespace) -> targets.Amounts:
    return targets.QUICK if options.quick else targets.Amounts()


def _slug(device: str, name: str) -> str:
    """The file name of a device's rows."""
    return "-".join(name.lower().replace("/", " ").split()) if device != "cpu" else "cpu"


def _folder(options: argparse.Namespace) -> Path:
    """The folder for the rows. A quick run only tests, so by default its rows go to a new temporary folder."""
    if options.folder is not None:
        return options.folder
    return Path(tempfile.mkdtemp(prefix="benchmark-quick-")) if options.quick else csv_rows.FOLDER


def _measure_model(model: str, options: argparse.Namespace, machine: Machine, path: Path, scratch: Path) -> None:
    """Measure the works for which the file lacks some of the requested engines."""
    todo = _todo(model, options, machine, csv_rows.read(path))
    if not todo:
        return
    folder = subjects.folder_of(model, scratch)
    subject = subjects.load(model, folder, machine.device, machine.dtype)
    exact = PlainModel.load(folder, machine.device, torch.float64)
    for name, names in todo.items():
        started = time.monotonic()
        found = comparison.compare(subject, exact, workloads.get(name), names, _budget(model, name, options), machine)
        _store(path, found)
        _report(found.records)
        if machine.device == "cpu" and (model, name) == (MEMORY_MODEL, MEMORY_WORK):
            rows = [replace(row, peak_memory_mib=_memory(row.engine, model, options, scratch)) for row in found.records]
            _store(path, replace(found, records=rows))
        print(f"{'':11} {time.monotonic() - started:.0f} s", flush=True)


def _todo(
    model: str, options: argparse.Namespace, machine: Machine, rows: Sequence[BenchmarkRow]
) -> dict[str, list[str]]:
    """{work: engines to measure} for works that lack a requested engine in the current setting.

    All engines that the file has are then measured again with it, because ratios need times of the same run.
    """
    todo = {}
    for work in options.work:
        budget = _budget(model, work, options)
        setting = (machine.device_name, machine.threads, machine.dtype, model, work, budget.prompts, budget.length)
        present = {row.engine for row in rows if _setting(row) == setting}
        if not set(options.engines) <= present:
            wanted = {*options.engines, *engines.available(sorted(present))}
            todo[work] = [name for name in engines.ENGINES if name in wanted]
    return todo


def _setting(row: BenchmarkRow) -> tuple:
    """What two rows must have in common to be compared with each other."""
    return (row.device, row.threads, row.dtype, row.model, row.work, row.prompts, row.length)


def _store(path: Path, found: EngineComparison) -> None:
    """Replace older rows of the same setting by those of this comparison, and likewise the rows of its kernels."""
    settings = {_setting(row) for row in found.records}
    csv_rows.write(path, [*(row for row in csv_rows.read(path) if _setting(row) not in settings), *found.records])
    if not found.candidates:
        return
    own = path.with_name(path.stem + tables.KERNELS)
    works = {(row.device, row.model, row.work) for row in found.candidates}
    dtypes = {row.signature.split()[0] for row in found.candidates}
    kept = [
        row
        for row in csv_rows.read_rows(own, Candidate)
        if (row.device, row.model, row.work) not in works or row.signature.split()[0] not in dtypes
    ]
    csv_rows.write(own, [*kept, *found.candidates])


def _report(rows: Sequence[BenchmarkRow]) -> None:
    for row in rows:
        print(
            f"{row.model:11} {row.work:32} {row.engine:13} {row.seconds:9.3f} s  x{row.times_hook_loop or 0:6.2f}  "
            f"{100 * row.roofline:5.1f} %  {row.max_abs_difference:.1e}",
            flush=True,
        )


def _measure_growth(options: argparse.Namespace, machine: Machine, path: Path, scratch: Path) -> None:
    """Measure the missing points, then plot all points."""
    own = path.with_name(path.stem + tables.GROWTH)
    done = {(p.axis, p.value, p.engine) for p in csv_rows.read_rows(own, Point) if p.device == machine.device_name}
    names = [name for name in GROWTH_ENGINES if name in options.engines]
    repeats = 1 if options.quick else 3
    for point in growth.measure(machine, names, repeats, scratch, options.quick, done):
        csv_rows.append(own, [point])
    points = csv_rows.read_rows(own, Point)
    if points:
        growth.plot(points, own.with_suffix(".svg"))
    else:
        print(f"no growth: it is measured for {', '.join(GROWTH_ENGINES)}", flush=True)


def _budget(model: str, work: str, options: argparse.Namespace) -> TimingBudget:
    """How much to time; `--repeats` overrides the number of repeats."""
    if options.quick:
        return replace(QUICK, repeats=options.repeats or QUICK.repeats)
    kind = options.device.split(":")[0]
    budget = BUDGETS[kind, model]
    if work not in LIGHT:
        budget = replace(budget, **DENSE.get((kind, model), {}))
    return replace(budget, repeats=options.repeats or budget.repeats)


def _machine(options: argparse.Namespace) -> Machine:
    """The device, with its matrix-product peak, which is measured now."""
    clock.strict_float32()
    torch.set_num_threads(options.threads)
    on_gpu = options.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(torch.device(options.device).index or 0)  # kernels launch on the current device
    name = _device_name(options.device)
    gemm = clock.gemm_peak(options.device, getattr(torch, options.dtype))
    datasheet = clock.datasheet_peak(name) if options.dtype == "float32" else None
    return Machine(options.device, name, options.threads, options.dtype, gemm, datasheet)


def _device_name(device: str) -> str:
    """The product name of a GPU or of the processor."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu_name()


def _cpu_name() -> str:
    """The processor's product name, if the system provides it."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    product = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"CPU ({product})" if product else "CPU"


def _memory(engine: str, model: str, options: argparse.Namespace, scratch: Path) -> float | None:
    """Peak memory in MiB of one run of an engine, in a separate process; None if it could not be measured."""
    command = [sys.executable, str(SCRIPT), "--memory-of", engine, "--models", model, "--work", MEMORY_WORK]
    command += ["--device", "cpu", "--dtype", options.dtype, "--threads", str(options.threads)]
    command += ["--scratch", str(scratch), *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:  # the timings are still useful without it
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]  # a killed process prints nothing
        print(f"peak memory of {engine} not measured: {said[-1]}", flush=True)
        return None
    last = done.stdout.strip().splitlines()[-1]
    return None if last == "None" else float(last)


def _own_memory(options: argparse.Namespace) -> float | None:
    """MiB that building one engine and running it once add to this process, after every weight has been read."""
    clock.strict_float32()
    torch.set_num_threads(options.threads)
    model, work = options.models[0], workloads.get(options.work[0])
    budget = _budget(model, work.name, options)
    subject = subjects.load(model, subjects.folder_of(model, Path(options.scratch)), "cpu", options.dtype)
    prompts, reference = comparison.random_prompts(subject, work, budget)
    sweep = workloads.spread(work.build(subject.shape), comparison.variants_of(options.memory_of, budget))
    with torch.no_grad():  # weights are memory-mapped, and count only after they have been touched
        subject.plain.logits(prompts.clean[:1], {})
        subject.model.bridge(prompts.clean[:1].to(subject.model.device))
    return clock.peak_memory(lambda: engines.build(options.memory_of, subject, reference)(sweep, prompts), "cpu")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmark", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(subjects.MODELS), choices=subjects.MODELS)
    parser.add_argument("--work", nargs="+", default=list(workloads.WORKLOADS), choices=list(workloads.WORKLOADS))
    parser.add_argument("--engines", nargs="+", default=list(engines.ENGINES), choices=engines.ENGINES)
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default: 5, fewer where a run is long)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="torch threads (default 2)")
    parser.add_argument("--name", help="file name without .csv (default: the device's)")
    parser.add_argument("--folder", type=Path, help="where the CSV goes (default: results/benchmarks)")
    parser.add_argument("--scratch", help="where random weights are written (default: a temporary folder)")
    parser.add_argument("--no-growth", action="store_true", help="leave out the growth curves")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes: shows that it runs, measures nothing of use; rows go to a temporary folder",
    )
    parser.add_argument(
        "--predict", choices=sorted(DEVICES), help="print what sweeps would take on this GPU, from counts, and stop"
    )
    parser.add_argument("--tables", action="store_true", help="print the tables of docs/performance.md and stop")
    parser.add_argument("--update-page", action="store_true", help="write the tables into docs/performance.md and stop")
    parser.add_argument(
        "--write-model", type=Path, help="write the random GPT-2-small shape with claims there and stop"
    )
    parser.add_argument("--draws", action="store_true", help="time the drawing of noise and stop")
    parser.add_argument("--targets", action="store_true", help="measure what a GPU should reach and stop")
    parser.add_argument(targets.FIRST_SWEEP, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=engines.ENGINES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)
