"""The speed of each kind of work on this machine and model, and the memory it takes, measured on a few prompts."""

from __future__ import annotations

import contextlib
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from circuits.circuit import complement
from circuits.engine.gradients import PROMPTS_PER_BACKWARD, GradientEngine
from circuits.engine.workers import run_parallel
from circuits.hypothesis import hypothesis_edges, scrub
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise, patch_paths
from circuits.measurements import local_learning_coefficient, path_patching
from circuits.measurements.ablation_battery import METHODS, matched_heads, recipes
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet
from circuits.study import Study
from meridian.doctor.work import PlannedWork

FEWEST_PROMPTS = 4
SECONDS = 1.0  # the shortest timing that counts: prompts are doubled until the work takes that long
VARIANTS = 32
CLEAR_REFS, STATUS, RESET_PEAK = Path("/proc/self/clear_refs"), Path("/proc/self/status"), "5"

Timed = Callable[[PromptSet], int]  # does the work on some prompts and returns its number of pairs


@dataclass(frozen=True)
class Throughput:
    """`pairs` took `seconds` on `prompts` prompts."""

    kind: str
    pairs: int
    prompts: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.pairs / self.seconds


def measure(
    study: Study, work: tuple[PlannedWork, ...], say: Callable[[str], object]
) -> tuple[dict[str, Throughput], dict[str, str]]:
    """{kind: rate} of every kind of planned work, and {kind: why} of the kinds that this architecture does not allow."""
    found, left_out = {}, {}
    for kind in dict.fromkeys(one.kind for one in work if one.pairs):
        say(f"timing {kind}")
        try:
            found[kind] = _timed(kind, work_of(kind, study), study)
        except UnsupportedArchitectureError as reason:  # a run reports it too, and goes on
            left_out[kind] = str(reason)
    return found, left_out


def work_of(kind: str, study: Study) -> Timed:
    """A small sample of one kind of work. UnsupportedArchitectureError if the architecture does not allow it."""
    kinds = {"heads": _heads, "circuits": _circuits, "paths": _paths, "scrubs": _scrubs}
    kinds |= {"gradients": _gradients, "edges": _edges, "chains": _chains}
    return kinds[kind](study)


def _timed(kind: str, work: Timed, study: Study) -> Throughput:
    """Double the prompts until the work takes SECONDS. A first run on one prompt warms up and does not count."""
    rows = alike(study)
    size = FEWEST_PROMPTS
    work(study.prompts.select(rows[:1]))
    while True:
        prompts = study.prompts.select(rows[:size])
        start = time.perf_counter()
        pairs = work(prompts)
        if study.model.device.type == "cuda":
            torch.cuda.synchronize(study.model.device)
        seconds = time.perf_counter() - start
        if seconds >= SECONDS or size >= len(rows):
            return Throughput(kind, pairs, len(prompts), max(seconds, 1e-9))
        size *= 2


def alike(study: Study) -> list[int]:
    """Evaluation prompts, nearest to the median length first: a few of similar length are batched like the many of a run."""
    rows = study.prompts.rows_of("evaluation")
    median = study.prompts.end[rows].median()
    return sorted(rows, key=lambda row: (int((study.prompts.end[row] - median).abs()), study.prompts.ids[row]))


# --- one kind of work each ----------------------------------------------------------------------------------------


def _sweep(study: Study, variants: list[Variant]) -> Timed:
    def run(prompts: PromptSet) -> int:
        study.engine.run(Sweep(tuple(variants), probabilities=study.task.metric != "logit_difference"), prompts)
        return len(variants) * len(prompts)

    return run


def _heads(study: Study) -> Timed:
    """02 at a small scale: heads of all layers, in both directions."""
    heads = _spread(study.model.heads, VARIANTS // 2)
    return _sweep(study, [*(denoise([n], f"denoise {n}") for n in heads), *(noise([n], f"noise {n}") for n in heads)])


def _circuits(study: Study) -> Timed:
    """20 at a small scale: the circuit, the rest or nothing intact, under every recipe, and random circuits."""
    every, claimed = study.every, study.claim.nodes
    drawn = [recipe for method in METHODS for recipe in recipes(study, method)]
    outside = {"circuit": study.outside, "complement": claimed, "empty": every}
    variants = [
        ablate(sorted(nodes), recipe, f"{name}/{place}")
        for name, nodes in outside.items()
        for place, recipe in enumerate(drawn)
    ]
    rng = random.Random(0)
    others = [complement(matched_heads(claimed, every, rng), every) for _ in range(VARIANTS // 2)]
    return _sweep(study, [*variants, *(ablate(sorted(o), Recipe("mean"), f"random {i}") for i, o in enumerate(others))])


def _paths(study: Study) -> Timed:
    """28 at a small scale: single edges."""
    edges = _spread(path_patching.candidates(study), VARIANTS)
    return _sweep(study, [patch_paths([edge], path_patching.CORRUPTED, str(edge)) for edge in edges])


def _scrubs(study: Study) -> Timed:
    """24 at a small scale: the hypothesis, one draw."""
    edges, graph = hypothesis_edges(study.claim, study.model.graph), study.model.graph
    return _sweep(study, [scrub(edges, graph, Recipe("resample"), "scrubbed")])


def _engine(study: Study) -> GradientEngine:
    decoder = getattr(study.engine, "decoder", None)
    return GradientEngine(study.model, min(PROMPTS_PER_BACKWARD, study.engine.rows_per_forward), decoder)


def _gradients(study: Study) -> Timed:
    engine, dropping = _engine(study), study.model.n_layers > 1

    def run(prompts: PromptSet) -> int:
        engine.head_effects(prompts, "corrupted", dropping)
        return engine.head_passes(dropping) * len(prompts)

    return run


def _edges(study: Study) -> Timed:
    engine, method = _engine(study), "eap_ig_activations"  # the method with the most passes

    def run(prompts: PromptSet) -> int:
        engine.edge_scores(prompts, "corrupted", method, 1)
        return engine.edge_passes(method, 1) * len(prompts)

    return run


def _chains(study: Study) -> Timed:
    """10 at a small scale: one step of all chains in the first and the last layer, as the cost falls evenly from layer to layer.

    Layers run in parallel as in the measurement.
    """
    settings, units = study.settings["llc"], local_learning_coefficient.matrix_units(study.model)
    layers = sorted({0, study.model.n_layers - 1})

    def run(prompts: PromptSet) -> int:
        every = [local_learning_coefficient.LayerLosses(study, prompts, layer, units) for layer in layers]
        batch = min(settings["batch"], len(prompts))
        together = max(1, study.engine.rows_per_forward // (settings["chains"] * batch))
        heads = torch.arange(min(together, study.model.n_heads), device=study.model.device)
        heads = heads.repeat_interleave(settings["chains"])
        rows = torch.arange(batch, device=study.model.device).expand(len(heads), batch)

        def step(losses: local_learning_coefficient.LayerLosses) -> list[int]:
            weights = torch.zeros(len(heads), losses.n_parameters, device=study.model.device, requires_grad=True)
            torch.autograd.grad(losses.losses(weights, rows, heads).sum(), weights)
            return [local_learning_coefficient.PASSES * rows.numel()]

        fused = all(losses.fused for losses in every)
        return sum(run_parallel(step, every, study.model.device) if fused else (step(one)[0] for one in every))

    return run


def _spread(items: tuple, most: int) -> list:
    """At most `most` items, evenly spread."""
    count = min(most, len(items))
    return [items[place * len(items) // count] for place in range(count)]


# --- memory -------------------------------------------------------------------------------------------------------


@dataclass
class Peak:
    """Peak memory: of the GPU's allocator, or the resident memory of the process, libraries included."""

    where: str
    mib: float | None = None


@contextlib.contextmanager
def peak_memory(model: Model) -> Iterator[Peak]:
    """The peak memory of the block. If the system cannot reset a peak, that of the process so far."""
    if model.device.type == "cuda":
        peak = Peak("GPU memory")
        torch.cuda.reset_peak_memory_stats(model.device)
        yield peak
        peak.mib = torch.cuda.max_memory_allocated(model.device) / 2**20
        return
    peak = Peak("resident memory")
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text(RESET_PEAK)
    yield peak
    peak.mib = _resident_peak()


def _resident_peak() -> float:
    if STATUS.is_file():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
