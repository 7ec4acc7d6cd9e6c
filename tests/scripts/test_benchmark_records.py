"""Rows, tables, fits and the clock: what the benchmark does with its numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from meridian import generated_parts
from results_io import UserError
from scripts.benchmarks import clock, command, comparison, csv_rows, draws, engines, growth, kernels, tables, workloads
from scripts.benchmarks.comparison import EngineComparison, Machine
from scripts.benchmarks.csv_rows import FOLDER, BenchmarkRow
from scripts.benchmarks.flops import DecoderShape
from scripts.benchmarks.growth import Point
from scripts.benchmarks.kernels import Candidate

ROOT = FOLDER.parents[1]
GPT2_SMALL = DecoderShape(12, 12, 768, 3072, 50257)
MACHINE = Machine("cpu", "CPU (test)", 2, "float32", gemm=1e11, datasheet=None)
WORK = "all-heads patching"
START, END = "<!-- performance -->", "<!-- /performance -->"
CHOSEN = {  # as `kernels.choice.Operations.chosen` gives it
    "packed_attention": {
        "float32 B=1024 H=12 S=20 D=64 G=12": {
            "chosen": "compiled",
            "why": "fastest of 3 that agree",
            "seconds": {"reference": 4e-4, "compiled": 2e-4, "triton": 3e-4},
            "difference": {"reference": 0.0, "compiled": 1e-7, "triton": 2e-6},
            "dropped": {},
        },
        "float32 B=512 H=12 S=20 D=64 G=12": {
            "chosen": "reference",
            "why": "no other candidate agrees",
            "seconds": {"reference": 1e-4},
            "difference": {"reference": 0.0, "compiled": None, "triton": 0.5},
            "dropped": {"compiled": "out of memory", "triton": "differs by 5.0e-01, more than 1.0e-05"},
        },
    },
    "logit_difference": {
        "float32 U=64 n=64 M=768 V=64": {
            "chosen": "triton",
            "why": "fastest of 2 that agree",
            "seconds": {"reference": 4e-5, "triton": 1e-5},
            "difference": {"reference": 0.0, "triton": 1e-6},
            "dropped": {"compiled": "RuntimeError: no compiler"},
        }
    },
}


def row(engine: str, seconds: float, **changes) -> BenchmarkRow:
    values = {
        "device": "CPU (test)",
        "threads": 2,
        "dtype": "float32",
        "tf32": False,
        "model": "pocket",
        "work": "all-heads patching",
        "engine": engine,
        "prompts": 4,
        "length": 16,
        "first_changed": 1,
        "variants": 32,
        "variants_timed": 8,
        "repeats": 5,
        "seconds": seconds,
        "seconds_min": seconds,
        "seconds_max": 1.25 * seconds,
        "cpu_seconds": 2 * seconds,
        "pairs_per_second": 128 / seconds,
        "times_hook_loop": 1.5,
        "times_hook_loop_cpu": None,
        "gflop": 10.0,
        "gflop_naive": 40.0,
        "gflop_floor": 8.0,
        "over_floor": 1.25,
        "gemm_gflops": 100.0,
        "roofline": 0.375,
        "datasheet_gflops": None,
        "roofline_datasheet": None,
        "max_abs_difference": 1.5e-06,
        "variants_checked": 6,
        "peak_memory_mib": None,
        "versions": "python 3.11; torch 2.13",
    }
    return BenchmarkRow(**(values | changes))


def point(axis: str, value: int, engine: str, seconds: float) -> Point:
    return Point("CPU (test)", axis, value, engine, 4, 16, 32, 4, seconds, "python 3.11")


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "cpu.csv"
    first, second = row("hook loop", 2.0), row("fused", 0.5, tf32=True, peak_memory_mib=120.5, times_hook_loop=None)
    csv_rows.append(path, [first])
    csv_rows.append(path, [second])
    assert csv_rows.read(path) == [first, second]
    assert path.read_text().count("seconds_min") == 1  # one header


def test_numbers_are_stored_with_four_digits(tmp_path):
    path = tmp_path / "cpu.csv"
    csv_rows.append(path, [row("fused", 0.123456)])
    assert csv_rows.read(path)[0].seconds == 0.1235


def test_other_columns_are_refused(tmp_path):
    path = tmp_path / "cpu.csv"
    path.write_text("device,seconds\ncpu,1\n")
    with pytest.raises(UserError, match="other columns"):
        csv_rows.read(path)
    assert csv_rows.read(tmp_path / "none.csv") == []


def test_every_column_is_documented():
    document = (FOLDER / "README.md").read_text()
    names = {field.name for kind in (BenchmarkRow, Point, Candidate) for field in fields(kind)}
    assert {name for name in names if f"`{name}`" not in document} == set()


def test_exponent_of_a_power_law():
    values = [2, 5, 11, 40]
    slope, factor = growth.exponent(values, [3 * value**1.7 for value in values])
    assert (slope, factor) == pytest.approx((1.7, 3.0), rel=1e-10)


def test_exponent_under_noise_is_the_least_squares_one():
    values = np.array([1.0, 2, 4, 8, 16])
    noise = np.random.default_rng(0).normal(0, 0.1, 5)
    x, y = np.log(values), np.log(0.2 * values**2) + noise
    expected = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert growth.exponent(values, np.exp(y))[0] == pytest.approx(expected, rel=1e-10)
    with pytest.raises(UserError, match="1 distinct value"):
        growth.exponent([3, 3], [1, 2])


def test_plot_is_the_same_file_for_the_same_points(tmp_path):
    points = [point(axis, value, "fused", 0.1 * value) for axis in growth.AXES for value in (2, 4, 8)]
    for name in ("a.svg", "b.svg"):
        growth.plot(points, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_table_has_the_ratios(tmp_path):
    csv_rows.append(tmp_path / "cpu.csv", [row("hook loop", 2.0), row("expert loop", 1.0), row("fused", 0.5)])
    text = tables.performance(tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("| all-heads patching |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "all-heads patching", "64", "128", "–", "–", "–", "256", "4.0x", "2.0x", "1.25", "38 %", "1.5e-06", "–",
    ]  # fmt: skip
    (missing,) = [line for line in text.splitlines() if line.startswith(f"On a GPU, {tables.UNMEASURED}")]
    assert all(missing.count(work) >= 2 for work in workloads.WORKLOADS)
    assert text.count(tables.UNMEASURED) == 2  # in one line, and the kernels


def test_measured_gpu_rows_are_no_longer_missing(tmp_path):
    csv_rows.append(tmp_path / "gpu.csv", [row("fused", 0.5, device="NVIDIA H100 80GB HBM3")])
    text = tables.performance(tmp_path)
    (missing,) = [line for line in text.splitlines() if line.startswith(f"On a GPU, {tables.UNMEASURED}")]
    counts = {part.rsplit(": ", 1)[0]: part.count("all-heads patching") for part in missing.split("; ")}
    (pocket,) = [count for name, count in counts.items() if name.endswith("pocket")]
    assert len(counts) == 2 and pocket == max(counts.values()) - 1
    assert "NVIDIA H100 80GB HBM3, float32" in text


def test_growth_exponents_are_in_the_table(tmp_path):
    points = [point("layers", value, "fused", value**2 / 8) for value in (2, 4, 8)]
    csv_rows.append(tmp_path / "cpu-growth.csv", points)
    line = next(line for line in tables.performance(tmp_path).splitlines() if line.startswith("| layers |"))
    assert line.endswith("| 2.00 |")


@pytest.mark.parametrize("folder", ["committed", "synthetic"])
def test_updating_the_page_twice_changes_nothing(tmp_path, folder):
    source = FOLDER
    if folder == "synthetic":
        source = tmp_path
        csv_rows.append(tmp_path / "cpu.csv", [row("hook loop", 2.0), row("fused", 0.5)])
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{START}\nold\n{END}\n\nafter\n")
    tables.update_page(page, source)
    once = page.read_text()
    tables.update_page(page, source)
    assert page.read_text() == once
    assert once.startswith(f"before\n\n{START}\n")
    assert once.endswith(f"{END}\n\nafter\n")
    assert "old" not in once


def test_a_page_without_markers_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{END} {START}")
    with pytest.raises(UserError, match="in this order"):
        tables.update_page(page, tmp_path)


def test_repeats_are_taken_in_turns():
    seen: list[str] = []
    timings = clock.interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 3, "cpu")
    assert seen == ["a", "b"] * 3
    assert {name: len(found) for name, found in timings.items()} == {"a": 3, "b": 3}


@pytest.mark.slow
def test_peak_memory_sees_an_allocation():
    """512 MiB, written and freed before the measurement ends, in a fresh process: this one may reuse what it has freed."""
    program = (
        "import torch\nfrom scripts.benchmarks import clock\n"
        "print(clock.peak_memory(lambda: torch.ones(2**27).sum(), 'cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    if done.stdout.strip() == "None":
        pytest.skip("this system does not let a process reset its peak memory")
    assert 480 < float(done.stdout) < 600


def test_the_page_s_tables_are_those_of_the_committed_files():
    assert generated_parts.part(tables.PAGE, tables.PART) == tables.performance().strip()


def test_datasheet_peaks():
    assert clock.datasheet_peak("NVIDIA H200") == clock.datasheet_peak("NVIDIA H100 80GB HBM3") == 67e12
    assert clock.datasheet_peak("CPU") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_every_workload_intervenes_on_what_it_says(name):
    work = workloads.get(name)
    sweep = work.build(GPT2_SMALL)
    sizes = {
        "all-heads patching": 144,
        "all-heads patching, second half": 144,
        "1,000 random subsets": 1000,
        "1,000 random halves": 1000,
        "ablation battery": 7 * 11,
        "causal tracing by position": 3 * 12 * 3,
    }
    assert len(sweep) == sizes[name]
    assert work.first_changed(16) == (8 if work.unchanged_share else 1)
    assert sweep.sha256 == work.build(GPT2_SMALL).sha256


def test_subset_sizes_are_equally_frequent_in_a_part_too():
    part = workloads.spread(workloads.random_subsets(GPT2_SMALL), 60)
    counts = np.unique([len(variant.on_nodes[0].nodes) for variant in part.variants], return_counts=True)
    assert {int(size): int(n) for size, n in zip(*counts, strict=True)} == {2: 12, 5: 12, 10: 12, 20: 12, 72: 12}


def test_a_part_of_the_heads_has_every_layer_once():
    part = workloads.spread(workloads.all_heads(GPT2_SMALL), 12)
    assert [variant.on_nodes[0].nodes[0].layer for variant in part.variants] == list(range(12))
    assert workloads.spread(part, 20) is part


def test_ratios_are_to_the_hook_loop_of_the_same_run():
    rows = [
        {"engine": name, "seconds": s, "cpu_seconds": 2 * s}
        for name, s in ((engines.HOOK_LOOP, 6.0), (engines.FUSED, 1.5))
    ]
    assert [found["times_hook_loop"] for found in comparison._with_ratios(rows)] == [1.0, 4.0]
    assert [found["times_hook_loop"] for found in comparison._with_ratios(rows[1:])] == [None]


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="work 'heads' is unknown"):
        workloads.get("heads")
    with pytest.raises(UserError, match="engine 'vmap' is unknown"):
        engines.build("vmap", None, None)


def test_gpu_rows_are_told_by_their_device():
    assert replace(row("fused", 1.0), device="NVIDIA H200").on_gpu
    assert not row("fused", 1.0).on_gpu


# --- what a second run does ----------------------------------------------------------------------------------------


def pocket_row(engine: str, seconds: float, **changes) -> BenchmarkRow:
    return row(engine, seconds, prompts=16, length=16, **changes)


def options(*arguments: str):
    return command._options(["--device", "cpu", "--threads", "2", "--work", WORK, *arguments])


def test_only_missing_works_are_measured_again_with_all_their_engines():
    loop, fused = pocket_row("hook loop", 2.0), pocket_row("fused", 0.5)
    asked = options("--engines", "fused", "lens")
    assert command._todo("pocket", asked, MACHINE, [loop, fused]) == {WORK: ["hook loop", "lens", "fused"]}
    assert command._todo("pocket", asked, MACHINE, [loop, fused, pocket_row("lens", 1.0)]) == {}
    assert command._todo("pocket", asked, MACHINE, []) == {WORK: ["lens", "fused"]}


@pytest.mark.parametrize("change", [{"threads": 1}, {"dtype": "float64"}, {"prompts": 2}, {"length": 8}])
def test_a_row_of_another_setting_does_not_count(change):
    other = replace(pocket_row("fused", 0.5), **change)
    assert command._todo("pocket", options("--engines", "fused"), MACHINE, [other]) == {WORK: ["fused"]}


def test_rows_of_the_same_setting_are_replaced(tmp_path):
    path = tmp_path / "cpu.csv"
    old, other, new = pocket_row("fused", 0.5), pocket_row("fused", 8.0, threads=1), pocket_row("fused", 0.25)
    csv_rows.append(path, [old, other])
    command._store(path, EngineComparison([new], []))
    assert csv_rows.read(path) == [other, new]
    assert not (tmp_path / "cpu-kernels.csv").exists()


def test_quick_rows_go_to_a_folder_of_their_own(tmp_path):
    assert command._folder(options()) == FOLDER
    assert command._folder(options("--quick", "--folder", str(tmp_path))) == tmp_path
    own = command._folder(options("--quick"))
    assert own != FOLDER
    assert list(own.iterdir()) == []
    own.rmdir()


def test_growth_measures_the_missing_points_alone(tmp_path, monkeypatch):
    path, seen = tmp_path / "cpu.csv", []

    def measured(axis, value, setting, machine, names, repeats, scratch):
        seen.append((axis, value, tuple(names)))
        return [point(axis, value, name, 0.1 * value) for name in names]

    monkeypatch.setattr(growth, "_points", measured)
    csv_rows.append(tmp_path / "cpu-growth.csv", [point("layers", 2, "fused", 1.0)])
    asked = options("--engines", "fused", "hook loop", "--quick")
    command._measure_growth(asked, MACHINE, path, tmp_path)
    assert ("layers", 2, ("hook loop",)) in seen
    assert ("layers", 4, ("hook loop", "fused")) in seen
    assert len(seen) == 2 * len(growth.AXES)
    command._measure_growth(asked, MACHINE, path, tmp_path)
    assert len(seen) == 2 * len(growth.AXES)
    assert len(csv_rows.read_rows(tmp_path / "cpu-growth.csv", Point)) == 4 * len(growth.AXES)


def test_growth_without_a_point_is_said(tmp_path, capsys):
    command._measure_growth(options("--engines", "nnsight"), MACHINE, tmp_path / "cpu.csv", tmp_path)
    assert "no growth" in capsys.readouterr().out
    with pytest.raises(UserError, match="0 points"):
        growth.plot([], tmp_path / "a.svg")
    growth.plot([point("layers", value, "fused", 1.0) for value in (2, 4)], tmp_path / "a.svg")  # three empty panels


def test_a_killed_memory_measurement_is_said(monkeypatch, capsys, tmp_path):
    killed = subprocess.CompletedProcess([], -9, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **others: killed)
    assert command._memory("fused", "pocket", options(), tmp_path) is None
    assert capsys.readouterr().out == "peak memory of fused not measured: exit code -9\n"


def test_an_unknown_dtype_is_refused(capsys):
    with pytest.raises(SystemExit):
        options("--dtype", "int8")
    assert "invalid choice: 'int8'" in capsys.readouterr().err


def test_without_nnsight_the_other_engines_run(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert engines.available(["hook loop", "nnsight", "fused"]) == ["hook loop", "fused"]
    assert "nnsight is not installed" in capsys.readouterr().out


# --- kernels -------------------------------------------------------------------------------------------------------


def test_kernel_rows_say_what_was_measured(tmp_path):
    rows = kernels.candidates("NVIDIA H200", "gpt2-small", WORK, CHOSEN)
    assert len(rows) == 3 + 3 + 3
    assert [r.candidate for r in rows if r.chosen] == ["compiled", "reference", "triton"]
    dropped = {r.candidate: (r.seconds, r.difference, r.dropped) for r in rows[3:6]}
    assert dropped["compiled"] == (None, None, "out of memory")
    assert dropped["triton"][:2] == (None, 0.5)
    assert kernels.against_others(rows, "triton") == pytest.approx([1.5, 0.25], rel=1e-12)
    csv_rows.append(tmp_path / "gpu-kernels.csv", rows)
    assert csv_rows.read_rows(tmp_path / "gpu-kernels.csv", Candidate) == rows
    fixed = {"chosen": "reference", "why": "fixed by name", "seconds": {}, "difference": {}, "dropped": {}}
    assert kernels.candidates("CPU", "pocket", WORK, {"logit_difference": {"float32": fixed}}) == []


def test_kernel_table_says_which_implementation_is_the_default(tmp_path):
    command._store(
        tmp_path / "gpu.csv",
        EngineComparison(
            [row("fused", 0.5, device="NVIDIA H200")], kernels.candidates("NVIDIA H200", "pocket", WORK, CHOSEN)
        ),
    )
    lines = tables.performance(tmp_path).splitlines()
    attention = next(line for line in lines if line.startswith("| packed_attention |"))
    assert attention.startswith(
        "| packed_attention | 2 | 1 | 1 | 0 | 1.50 | no | 5.0e-01 | compiled: out of memory (1); "
    )
    last = next(line for line in lines if line.startswith("| logit_difference |"))
    assert last.startswith("| logit_difference | 1 | 0 | 0 | 1 | 0.25 | yes | 1.0e-06 | ")


def test_kernels_of_a_work_measured_again_are_replaced(tmp_path):
    path, rows = tmp_path / "gpu.csv", [row("fused", 0.5, device="NVIDIA H200")]
    for seconds in (4e-4, 8e-4):
        choice = CHOSEN["packed_attention"]["float32 B=1024 H=12 S=20 D=64 G=12"]
        changed = choice | {"seconds": choice["seconds"] | {"reference": seconds}}
        chosen = {"packed_attention": {"float32 B=1024 H=12 S=20 D=64 G=12": changed}}
        command._store(path, EngineComparison(rows, kernels.candidates("NVIDIA H200", "pocket", WORK, chosen)))
    found = csv_rows.read_rows(tmp_path / "gpu-kernels.csv", Candidate)
    assert [(r.candidate, r.seconds) for r in found] == [("reference", 8e-4), ("compiled", 2e-4), ("triton", 3e-4)]


def test_draws_are_timed_both_ways():
    """Nanoseconds of each, and their ratio."""
    line = draws.comparison("cpu", draws.Batch(prompts=2, layers=2, draws=1, components=50))
    found = re.search(r"200 of them: Philox ([0-9.]+) ns .* copied ([0-9.]+) ns [(]([0-9.]+) times[)]", line)
    philox, randn, ratio = map(float, found.groups())
    assert philox > 0 and randn > 0
    assert ratio == pytest.approx(philox / randn, rel=0.05)
