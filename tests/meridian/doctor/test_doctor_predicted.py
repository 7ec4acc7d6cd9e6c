"""What doctor says about a GPU that is not here: counted, multiplied and refused as it should be."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from circuits.engine.launches import DeviceWork
from kernels.roofline import DEVICES, KernelWork
from meridian.doctor import predicted, rates, tables, work
from meridian.doctor.estimate import estimate
from results_io import UserError

H200 = DEVICES["h200"]


def test_minutes_are_pairs_times_what_one_takes(study, monkeypatch) -> None:
    """Two launches, a sync and 67 GFLOP (1 ms at the peak) for four pairs of every kind."""
    found = DeviceWork({KernelWork(67 * 10**9, 0): 1, KernelWork(0, 0): 1}, 1)
    monkeypatch.setattr(predicted, "_dry", lambda kind, study: (found, 4))
    monkeypatch.setattr(predicted, "_counted", lambda kind, study, prompts: (found, 4))
    todo = (
        work.PlannedWork("02", "heads", 600),
        work.PlannedWork("20", "heads", 400),
        work.PlannedWork("10", "chains", 10),
    )
    run = predicted.predict(H200, study, todo, ("heads", "chains"), lambda step: None)
    each = (1e-3 / 0.75 + 2 * 5e-6 + 20e-6) / 4 / 60
    assert run.by_kind == pytest.approx({"heads": 1000 * each, "chains": 10 * each})
    assert run.minutes == pytest.approx(1010 * each) == pytest.approx(sum(run.by_part.values()))
    assert run.by_part["syncs"] == pytest.approx(2 * run.by_part["launches"])


@pytest.mark.slow
def test_every_kind_of_work_is_predicted(study, monkeypatch) -> None:
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    said: list[str] = []
    found = estimate(study, study.circuit, said.append, H200)
    run = found.predicted
    assert run is not None and set(run.by_kind) == set(found.rates) == set(work.KINDS)
    assert all(minutes > 0 for minutes in run.by_kind.values())
    assert run.minutes == pytest.approx(sum(run.by_kind.values())) == pytest.approx(sum(run.by_part.values()))
    assert run.by_part["launches"] > run.by_part["math"]  # a toy is nothing but launches
    assert [step for step in said if step.startswith("counting")] == [f"counting {kind}" for kind in found.rates]
    slower = estimate(study, study.circuit, lambda step: None, DEVICES["a100"]).predicted
    assert slower is not None
    assert slower.by_part["math"] > run.by_part["math"]
    assert slower.by_part["launches"] == pytest.approx(run.by_part["launches"])


def test_a_dry_count_is_that_of_any_number_of_prompts_that_fill_the_blocks(study, monkeypatch) -> None:
    """Operations of a pair do not depend on how many prompts are counted."""
    flops = []
    for most in (4, 8):
        monkeypatch.setattr(predicted, "DRY_PROMPTS", most)
        done, pairs = predicted._dry("circuits", study)
        flops.append(done.flops / pairs)
    assert flops[0] == pytest.approx(flops[1], rel=0.1)


def test_which_gpu() -> None:
    assert predicted.device_of("h200", None) is H200
    assert predicted.device_of(None, "NVIDIA H200") is H200
    assert predicted.device_of("a100", "NVIDIA H200") is DEVICES["a100"]
    assert predicted.device_of(None, None) is None
    assert predicted.device_of(None, "NVIDIA GeForce RTX 4090") is None
    for wrong in ("H200 ", "", "tpu", "größte"):
        with pytest.raises(UserError, match=r"doctor\.device=.* use one of a100, h100, h200"):
            predicted.device_of(wrong, "NVIDIA H200")


@pytest.mark.slow
def test_the_prediction_is_said_to_be_one(study, monkeypatch) -> None:
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    lines = list(tables._predicted_lines(estimate(study, study.circuit, lambda step: None, H200)))
    assert len(lines) == 1
    assert lines[0].startswith("On NVIDIA H200 ") and "not measured" in lines[0]
    assert "one head or site patched" in lines[0] and "launches" in lines[0]
    console = Console(file=io.StringIO())
    console.print(lines[0])
