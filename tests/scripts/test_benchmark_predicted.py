"""The table of predicted times: counted on a sample, multiplied, and nothing hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from circuits.engine.launches import DeviceWork
from kernels.roofline import DEVICES, KernelWork
from scripts.benchmarks import command, predicted, workloads

H200 = DEVICES["h200"]


@pytest.mark.slow
def test_a_sample_stands_for_all_prompts(tmp_path) -> None:
    """Half of the prompts, twice, against all of them: where the blocks end is all that differs, so launches are no fewer."""
    job = replace(predicted.JOBS[0], prompts=128, sample=128)
    whole, part = predicted.count(job, tmp_path), predicted.count(replace(job, sample=64), tmp_path)
    assert part.flops == pytest.approx(whole.flops, rel=1e-4)
    assert whole.launches <= part.launches <= 1.5 * whole.launches
    assert part.roofline(H200) == pytest.approx(whole.roofline(H200), rel=0.05)


@pytest.mark.slow
def test_a_stand_in_is_counted_at_the_widths_of_gpt2(tmp_path) -> None:
    """All heads of GPT-2 on a prompt of 20 tokens take 490 GFLOP / 2.55, as the specification's own trie counts."""
    job = replace(predicted.JOBS[2], prompts=8, sample=8)
    found = predicted.count(job, tmp_path)
    assert found.flops / 8 == pytest.approx(220e9, rel=0.06)


def test_a_row_by_hand() -> None:
    work = DeviceWork(
        {KernelWork(67 * 10**10, 0): 3, KernelWork(0, 48 * 10**8): 1}, 100
    )  # 3 x 10 ms and 1 ms; 2 ms of waits
    row = predicted._row(predicted.JOBS[0], work, H200)
    assert row[1:5] == ("4", "100", "31 ms", "43 ms")
    assert row[5] == "math 95%, syncs 5%, launches 0%"


def test_the_table_names_every_job_and_every_assumption(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(
        predicted, "count", lambda job, scratch: DeviceWork({KernelWork(10**12, 10**9): job.prompts}, 7)
    )
    text = predicted.table(H200, tmp_path)
    assert [line.split(" | ")[0][2:] for line in text.splitlines()[2:6]] == [job.name for job in predicted.JOBS]
    for fact in (
        "67 TFLOP/s",
        "4.8 TB/s",
        "5 us a launch",
        "20 us a sync",
        "75%",
        "No number of this table is measured",
        "a lower bound",
    ):
        assert fact in text


def test_the_battery_with_random_circuits_is_that_of_a_study() -> None:
    sweep = workloads.battery_and_random_circuits(predicted.DecoderShape(12, 12, 768, 3072, 50257))
    assert len(sweep) == 240
    assert {len(variant.on_nodes[0].nodes) for variant in sweep.variants[77:]} == {144 - 26}


def test_an_unknown_gpu_is_refused(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--predict", "tpu"])
    assert stopped.value.code == 2
    assert "h200" in capsys.readouterr().err
