"""The time that a run would take on a GPU, predicted from counted launches, syncs and operations and the GPU's data sheet.

Sweeps of heads and circuits are counted in a dry run on many prompts. The other kinds of work run on a few prompts on the
model's device. Their operations are assumed to grow with the prompts, and their launches to stay constant until a batch is full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from circuits.engine.dry_run import DryEngine
from circuits.engine.fused import FusedEngine
from circuits.engine.gradients import PROMPTS_PER_BACKWARD
from circuits.engine.launches import DeviceWork, LaunchCount
from circuits.prompts import PromptSet
from circuits.study import Study
from kernels.roofline import DEVICES, Device
from meridian.doctor import rates
from meridian.doctor.work import PlannedWork
from results_io import UserError

DRY = ("heads", "circuits")  # sweeps that a dry run can count
DRY_PROMPTS = 64  # enough for blocks that are as full as those of a run


@dataclass(frozen=True)
class PredictedRun:
    """Minutes on `device`: in total, by kind of work, and by what they are spent on (math, launches, syncs)."""

    device: str
    minutes: float
    by_kind: Mapping[str, float]
    by_part: Mapping[str, float]


def device_of(name: str | None, on_gpu: str | None) -> Device | None:
    """The GPU to predict for: the one asked for, else the model's own if its data sheet is known. UserError for another name."""
    if name is None:
        return next((one for key, one in DEVICES.items() if on_gpu and key.upper() in on_gpu.upper()), None)
    if name not in DEVICES:
        raise UserError(f"doctor.device={name} is no GPU whose data sheet is known; use one of {', '.join(DEVICES)}")
    return DEVICES[name]


def predict(
    device: Device, study: Study, todo: tuple[PlannedWork, ...], kinds: tuple[str, ...], say: Callable[[str], object]
) -> PredictedRun:
    """The minutes of all planned work of `kinds`, the kinds that the architecture allows."""
    by_kind, by_part = {}, dict.fromkeys(DeviceWork().parts(device), 0.0)
    for kind in kinds:
        say(f"counting {kind}")
        per_pair = _seconds(device, kind, study)
        pairs = sum(one.pairs for one in todo if one.kind == kind)
        minutes = {part: pairs * seconds / 60 for part, seconds in per_pair.items()}
        by_kind[kind] = sum(minutes.values())
        by_part = {part: by_part[part] + minutes[part] for part in by_part}
    return PredictedRun(device.name, sum(by_kind.values()), by_kind, by_part)


def _seconds(device: Device, kind: str, study: Study) -> dict[str, float]:
    """Seconds of one pair, by what they are spent on."""
    if kind in DRY and isinstance(study.engine, FusedEngine):
        work, pairs = _dry(kind, study)
        return {part: seconds / pairs for part, seconds in work.parts(device).items()}
    prompts = study.prompts.select(rates.alike(study)[: rates.FEWEST_PROMPTS])
    work, pairs = _counted(kind, study, prompts)
    fuller = max(1.0, _full_batch(kind, study) / len(prompts))
    return {part: seconds / pairs / (1 if part == "math" else fuller) for part, seconds in work.parts(device).items()}


def _dry(kind: str, study: Study) -> tuple[DeviceWork, int]:
    """(work, pairs) of a dry run of a sweep, on enough prompts to fill its blocks."""
    assert isinstance(study.engine, FusedEngine)
    count = LaunchCount()
    run = rates.work_of(kind, replace(study, engine=DryEngine(study.engine, count)))
    prompts = study.prompts.select(rates.alike(study)[:DRY_PROMPTS])
    with count:
        run(prompts.select([0]))  # so that the reference prompts, which run once in any sweep, are not counted
        before = count.work
        pairs = run(prompts)
    return count.work - before, pairs


def _counted(kind: str, study: Study, prompts: PromptSet) -> tuple[DeviceWork, int]:
    """(work, pairs) of work on the model's device. It runs on one thread, because a torch mode sees only its own thread."""
    run, count, threads = rates.work_of(kind, study), LaunchCount(study.model.device.type), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with count:
            pairs = run(prompts)
    finally:
        torch.set_num_threads(threads)
    return count.work, pairs


def _full_batch(kind: str, study: Study) -> float:
    """Prompts in a full batch of a run, at the number of variants that is counted; 0 for sampling, which has its own batches."""
    rows = study.engine.rows_per_forward
    return {
        "heads": rows / rates.VARIANTS,
        "circuits": rows / rates.VARIANTS,
        "paths": rows / rates.VARIANTS,
        "scrubs": min(study.engine.prompts_per_batch, rows),
        "gradients": min(PROMPTS_PER_BACKWARD, rows),
        "edges": min(PROMPTS_PER_BACKWARD, rows),
    }.get(kind, 0.0)
