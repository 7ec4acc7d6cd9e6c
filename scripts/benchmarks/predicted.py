"""Predicted times of sweeps on a GPU, from the work that the engine would launch and the GPU's data sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import GPT2Config

from circuits import models
from circuits.engine import dry_run
from circuits.engine.dry_run import Widths
from circuits.engine.fused import FusedEngine
from circuits.engine.launches import DeviceWork
from circuits.interventions import Sweep
from kernels.roofline import Device
from meridian import generated_parts
from scripts.benchmarks import comparison, subjects, workloads
from scripts.benchmarks.flops import DecoderShape

NARROW, FEW_WORDS = 48, 1024  # width and vocabulary of GPT-2's stand-in; `Widths` has the real ones
HEADER = ("job", "launches", "syncs", "roofline", "predicted", "bound by")


@dataclass(frozen=True)
class PredictedJob:
    """A sweep on `prompts` prompts. It is counted on `sample` of them, enough to make passes as full as those of all."""

    name: str
    model: str
    sweep: Callable[[DecoderShape], Sweep]
    prompts: int
    length: int
    sample: int


JOBS = (
    PredictedJob("pocket battery, 77 conditions x 64 prompts", "pocket", workloads.battery, 64, 16, 64),
    PredictedJob("pocket, 1,000 subsets x 64", "pocket", workloads.random_subsets, 64, 16, 64),
    PredictedJob("GPT-2 small, all heads x 64", "gpt2-small", workloads.all_heads, 64, 20, 64),
    PredictedJob("GPT-2 small, battery 240 x 600", "gpt2-small", workloads.battery_and_random_circuits, 600, 20, 72),
)


def table(device: Device, scratch: Path) -> str:
    """Every job's prediction as a markdown table, and its assumptions. `scratch`: a folder for a small stand-in's weights."""
    rows = [_row(job, count(job, scratch), device) for job in JOBS]
    return "\n\n".join([generated_parts.table(HEADER, rows), "\n".join(f"- {line}" for line in assumptions(device))])


def count(job: PredictedJob, scratch: Path) -> DeviceWork:
    """The GPU work of a job, excluding the run of the reference prompts, counted without doing the arithmetic."""
    engine, shape, widths = _engine(job, scratch)
    vocabulary = FEW_WORDS if widths else shape.vocabulary
    prompts = subjects.random_prompts(job.sample, job.length, 1, vocabulary, comparison.PROMPT_SEED)
    return dry_run.count(engine, job.sweep(shape), prompts, widths).times(job.prompts / job.sample)


def assumptions(device: Device) -> Iterator[str]:
    """The assumptions of a prediction, in words."""
    yield (
        f"{device.name}: {device.flops_per_second / 1e12:g} TFLOP/s in IEEE float32 and "
        f"{device.bytes_per_second / 1e12:g} TB/s, from the data sheet; {1e6 * device.launch_seconds:g} us a launch and "
        f"{1e6 * device.sync_seconds:g} us a sync, and products at {device.gemm_share:.0%} of the peak, assumed. "
        "No number of this table is measured; those that are stand in `results/benchmarks/`"
    )
    yield "roofline: the sum over operations of the larger of operations / peak and bytes / bandwidth"
    yield "predicted: the same with products below the peak, plus launches, plus syncs; nothing is assumed to overlap"
    yield "a Triton kernel is one launch; every operation reads its inputs and writes its outputs once, whatever the cache"
    yield (
        "warm: kernels compiled and chosen, the reference prompts run; what the host computes itself is not in it, so that a "
        "prediction is a lower bound, and a far one where launches bound"
    )


def _engine(job: PredictedJob, scratch: Path) -> tuple[FusedEngine, DecoderShape, Widths | None]:
    """(an engine with the model's layers and heads, the model's shape, the widths of the shape if the engine is a stand-in)."""
    config, widths = GPT2Config(), None
    if job.model == "pocket":
        folder = subjects.folder_of("pocket", scratch)
    else:
        narrow = GPT2Config(n_embd=NARROW, vocab_size=FEW_WORDS, bos_token_id=subjects.BOS, eos_token_id=subjects.BOS)
        folder = subjects.save_random(scratch / "narrow", narrow)
        widths = Widths(config.n_embd, config.n_embd // config.n_head, 4 * config.n_embd, config.vocab_size)
    settings = {"name": job.model, "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32"}
    model = models.load(settings)
    shape = subjects.shape_of(model.bridge.original_model.config if widths is None else config)
    vocabulary = FEW_WORDS if widths else shape.vocabulary
    reference = subjects.random_prompts(
        subjects.REFERENCE_PROMPTS, job.length, 1, vocabulary, comparison.REFERENCE_SEED
    )
    return FusedEngine(model, reference), shape, widths


def _row(job: PredictedJob, work: DeviceWork, device: Device) -> tuple[str, ...]:
    parts = work.parts(device)
    whole = sum(parts.values())
    bound = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in sorted(parts.items(), key=lambda p: -p[1]))
    return (
        job.name,
        f"{work.launches:,.0f}",
        f"{work.syncs:,.0f}",
        _seconds(work.roofline(device)),
        _seconds(whole),
        bound,
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"
