"""Targets: what is read from rows, what is measured, and that what was not measured is said in one line."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest
from transformers import GPT2Config

from scripts.benchmarks import command, csv_rows, engines, subjects, tables, targets
from scripts.benchmarks.targets import TARGETS, TargetRow
from tests.scripts.test_benchmark_records import row

GPU = "NVIDIA H200"
HEADS = {"model": "gpt2-small", "roofline": 0.65, "max_abs_difference": 4e-6, "times_hook_loop": 18.0}
ROWS = [
    row(engines.FUSED, 0.3, device=GPU, prompts=64, **HEADS),
    row(engines.FUSED, 0.005, device=GPU, prompts=64, work=targets.BATTERY),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder in which the benchmark's model is one of two layers."""
    scratch = tmp_path_factory.mktemp("targets")
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=900, bos_token_id=1, eos_token_id=1)
    subjects.save_random(scratch / "gpt2-small", config)
    return scratch


def test_half_of_them_are_in_the_rows_of_the_benchmark() -> None:
    found = targets.of_rows([*ROWS, replace(ROWS[0], prompts=4, seconds=1.0), replace(ROWS[0], dtype="bfloat16")], GPU)
    assert found == {
        targets.HEADS_SECONDS: 0.3,
        targets.HEADS_SHARE: 0.65,
        targets.HEADS_ERROR: 4e-6,
        targets.HOOK_LOOP: 18.0,
        targets.POCKET: 0.005,
    }
    assert [target.met(value) for target, value in found.items()] == [True, False, True, False, True]
    assert targets.of_rows(ROWS, "NVIDIA A100") == {}


@pytest.mark.slow
def test_the_others_are_measured_but_for_those_that_need_a_gpu(tiny, tmp_path, monkeypatch, capsys) -> None:
    """Two fresh processes, whose results are the same bytes, and a part of a study's sweep."""
    monkeypatch.setattr(command, "_cpu_name", lambda: GPU)
    csv_rows.write(tmp_path / "cpu.csv", ROWS)
    command.main(["--targets", "--quick", "--device", "cpu", "--scratch", str(tiny), "--folder", str(tmp_path)])
    stored = csv_rows.read_rows(tmp_path / "cpu-targets.csv", TargetRow)
    here = [one.name for one in TARGETS if one not in (targets.BUSY, targets.SPLIT)]
    assert [one.target for one in stored] == here
    assert len(capsys.readouterr().out.splitlines()) == len(here)
    values = {one.target: one for one in stored}
    assert values[targets.DIFFERENT.name].value == 0 and values[targets.DIFFERENT.name].met
    assert all(values[one.name].value > 0 for one in (targets.COLD, targets.SECOND, targets.STUDY))
    table = next(text for text in tables.performance(tmp_path).split("\n\n") if text.startswith("| target"))
    assert len(table.splitlines()) == 2 + len(here) and "| 0.3 s | yes |" in table and "| 18x | no |" in table


def test_what_was_not_measured_is_one_line(tmp_path) -> None:
    csv_rows.write(tmp_path / "gpu.csv", ROWS)
    (line,) = [text for text in tables.performance(tmp_path).splitlines() if text.startswith(f"On {GPU}")]
    assert all((one.name in line) is (one not in targets.of_rows(ROWS, GPU)) for one in TARGETS)


def test_results_that_differ_are_a_target_missed(tiny, monkeypatch) -> None:
    found = iter([targets.FirstSweep(1.0, b"abcd"), targets.FirstSweep(2.0, b"abXY")])
    monkeypatch.setattr(targets, "_first_sweep_in_a_process", lambda *_: next(found))
    measured = targets._measured("cpu", targets.QUICK, tiny)
    assert [next(measured) for _ in range(3)] == [(targets.COLD, 1.0), (targets.SECOND, 2.0), (targets.DIFFERENT, 2.0)]


def test_split_products_are_timed_only_if_they_agree(tiny, monkeypatch, capsys) -> None:
    run = targets.AllHeads.of(tiny / "gpt2-small", "cpu", targets.QUICK)
    assert targets._split_speed(run) is not None  # the kernel by the interpreter, which multiplies in full float32
    assert run.engine.decoder.products.name == "ieee"
    monkeypatch.setattr(targets, "split_product", lambda x, weights, bias: x @ weights.T * 1.01)
    assert targets._split_speed(run) is None
    assert "of the largest logit difference, and at most 1e-05 is allowed" in capsys.readouterr().out


def test_a_measured_row_replaces_the_older_one(tmp_path) -> None:
    path = tmp_path / "gpu-targets.csv"
    made = [
        TargetRow(GPU, one.name, one.aim, value, one.met(value), "")
        for one, value in ((TARGETS[7], 0.5), (TARGETS[0], 0.4))
    ]
    for one in (*made, replace(made[0], value=0.95, met=True)):
        targets.store(path, one)
    with path.open(newline="") as stream:
        assert [(line["target"], line["value"], line["met"]) for line in csv.DictReader(stream)] == [
            (TARGETS[0].name, "0.4", "False"),
            (TARGETS[7].name, "0.95", "True"),
        ]
