"""How long a whole run will take here, what takes longest, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from circuits.circuit import Circuit
from circuits.engine.workers import worker_count
from circuits.interventions import Sweep, denoise
from circuits.measurements import MEASUREMENTS
from circuits.study import Study
from kernels.roofline import Device
from meridian.doctor import predicted, rates, work
from meridian.doctor.predicted import PredictedRun
from meridian.doctor.work import SHRINK, SHRINKS_ALL

DOMINANT = 3  # how many measurements the advice names
MIB = 2**20


@dataclass(frozen=True)
class TimedWork:
    """One measurement's work of one kind, and the minutes that it takes at the measured rate."""

    number: str
    name: str
    kind: str
    pairs: int
    bound: str
    minutes: float


@dataclass(frozen=True)
class Memory:
    """Memory in MiB. `activations`: what 03 keeps on the CPU, more than any other measurement.

    `room`: what the engine may hold beside the weights. `sweep`: what it plans to hold when every head is patched.
    """

    weights: float
    room: float
    sweep: float
    rows_per_forward: int
    activations: float
    peak: float | None
    peak_of: str


@dataclass(frozen=True)
class RunEstimate:
    """`circuit`: the circuit that the estimate is for; `assumed`: whether it is only assumed, because none is known yet.

    `rates`: {kind: (variant, prompt) pairs or passes per second}. `left_out`: {kind of work: why this architecture does not
    allow it}. `predicted`: the prediction for the GPU that was asked for, or for the model's own.
    """

    items: tuple[TimedWork, ...]
    rates: Mapping[str, float]
    left_out: Mapping[str, str]
    circuit: str
    assumed: bool
    pairs: int
    minutes: float
    advice: tuple[str, ...]
    memory: Memory
    predicted: PredictedRun | None = None


def estimate(
    study: Study,
    circuit: Circuit | None,
    say: Callable[[str], object],
    device: Device | None = None,
) -> RunEstimate:
    """Count the work of `task=... calibration=all`, and time each kind of it on a few prompts.

    With `device`, the time on that GPU is predicted as well.
    """
    study, assumed = work.with_circuit(study, circuit)
    todo = work.of(study)
    with rates.peak_memory(study.model) as peak:
        measured, left_out = rates.measure(study, todo, say)
    items = tuple(
        TimedWork(
            number=one.number,
            name=MEASUREMENTS[one.number].ID.replace("_", " "),
            kind=one.kind,
            pairs=one.pairs,
            bound=one.bound,
            minutes=one.pairs / measured[one.kind].per_second / 60,
        )
        for one in todo
        if one.kind in measured and one.pairs
    )
    workers = worker_count(study.model.device) if study.engine.describe()["backend"] == "fused" else 1
    every_head = Sweep(tuple(denoise([head], str(head)) for head in study.model.heads), probabilities=True)
    return RunEstimate(
        items=items,
        rates={kind: rate.per_second for kind, rate in measured.items()},
        left_out=left_out,
        circuit=f"{study.claim.name}, {len(study.claim.heads)} heads in {len(study.claim.roles)} roles",
        assumed=assumed,
        pairs=sum(one.pairs for one in items),
        minutes=sum(one.minutes for one in items),
        advice=_advice(items),
        memory=Memory(
            weights=sum(weight.numel() * weight.element_size() for weight in study.model.bridge.parameters()) / MIB,
            room=study.engine.room * workers / MIB,
            sweep=study.engine.planned(every_head, study.prompts) / MIB,
            rows_per_forward=study.engine.rows_per_forward,
            activations=stored_activations(study) / MIB,
            peak=peak.mib,
            peak_of=peak.where,
        ),
        predicted=None if device is None else predicted.predict(device, study, todo, tuple(measured), say),
    )


def stored_activations(study: Study) -> int:
    """Bytes of head outputs, attention and MLP outputs of all layers at all positions of the scored prompts (03)."""
    cfg, positions = study.model.bridge.cfg, study.prompts.clean.numel()
    each = len(study.model.heads) * int(cfg.d_head) + 2 * study.model.n_layers * int(cfg.d_model)
    return positions * each * study.model.dtype.itemsize


def _advice(items: tuple[TimedWork, ...]) -> tuple[str, ...]:
    """The measurements that take longest, and the settings that shorten them."""
    minutes: dict[str, float] = {}
    for one in items:
        minutes[one.number] = minutes.get(one.number, 0.0) + one.minutes
    total = sum(minutes.values())
    longest = sorted(minutes, key=lambda number: -minutes[number])[:DOMINANT]
    names = {one.number: one.name for one in items}
    return tuple(
        f"{number} {names[number]} is {minutes[number] / total:.0%} of it; shrink it with {SHRINK.get(number, SHRINKS_ALL)}"
        for number in longest
    )
