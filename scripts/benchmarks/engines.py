"""The engines under test by name, with the operations that each executes and how to build it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from circuits.engine.lens import LensEngine
from circuits.interventions import Sweep
from circuits.prompts import PromptSet
from results_io import UserError
from scripts.benchmarks import baselines, flops
from scripts.benchmarks.baselines import Engine
from scripts.benchmarks.subjects import BenchmarkModel

HOOK_LOOP, EXPERT_LOOP, NNSIGHT = "hook loop", "expert loop", "nnsight"
LENS, RESTART_LOOP, FUSED = "lens", "restart loop", "fused"
MEANING = {
    HOOK_LOOP: "TransformerLens 4 `run_with_hooks`, one variant per pass, all prompts in the batch, all logits",
    EXPERT_LOOP: "plain blocks from the first changed layer on the cached residual stream, one variant per pass, logits of "
    "the last position",
    NNSIGHT: "many invokes in one trace, logits of the last position",
    LENS: "our reference backend: TransformerLens hooks, many variants per pass",
    RESTART_LOOP: "our fused backend given one variant at a time",
    FUSED: "our fused backend",
}
ENGINES = tuple(MEANING)


class FusedRun:
    """The fused backend with the benchmark's interface; imported late, so that baselines run without it."""

    def __init__(self, subject: BenchmarkModel, reference: PromptSet) -> None:
        from circuits.engine.fused import FusedEngine

        self.engine = FusedEngine(subject.model, reference)

    def __call__(self, sweep: Sweep, prompts: PromptSet) -> baselines.LogitDifferences:
        return self.engine.run(sweep, prompts).logit_diff

    @property
    def flops(self) -> int:
        """Operations of all runs so far, as the engine counts them."""
        return int(self.engine.flops)

    @property
    def chosen(self) -> dict[str, dict[str, dict[str, Any]]]:
        """{operation: {signature: choice}} so far, as the engine's kernels report it."""
        return self.engine.operations.chosen()


def available(names: Sequence[str]) -> list[str]:
    """The engines whose packages are installed; those left out are printed."""
    if NNSIGHT in names and importlib.util.find_spec("nnsight") is None:
        print("nnsight is not installed: left out", flush=True)
        return [name for name in names if name != NNSIGHT]
    return list(names)


def build(name: str, subject: BenchmarkModel, reference: PromptSet) -> Engine:
    """The engine called `name`; UserError if there is none."""
    makers: dict[str, Callable[[], Any]] = {
        HOOK_LOOP: lambda: baselines.HookLoop(subject, reference),
        EXPERT_LOOP: lambda: baselines.ExpertLoop(subject, reference),
        NNSIGHT: lambda: baselines.NnsightTraces(subject, reference),
        LENS: lambda: _Lens(subject, reference),
        RESTART_LOOP: lambda: baselines.OneByOne(FusedRun(subject, reference)),
        FUSED: lambda: FusedRun(subject, reference),
    }
    if name not in makers:
        raise UserError(f"benchmark engine {name!r} is unknown; use one of {', '.join(map(repr, ENGINES))}")
    return makers[name]()


def counter(engine: Engine) -> int | None:
    """Operations of all runs so far if the engine counts its own; else None."""
    inner = engine.run if isinstance(engine, baselines.OneByOne) else engine
    return inner.flops if isinstance(inner, FusedRun) else None


def by_formula(name: str, shape: flops.DecoderShape, sweep: Sweep, prompts: PromptSet) -> int:
    """Operations on all prompts of an engine that does not count them: whole passes, or whole blocks after a restart."""
    length, n = int(prompts.end[0]) + 1, len(prompts)
    if name == EXPERT_LOOP:
        return n * flops.restart(shape, sweep, length)
    return n * flops.naive(shape, len(sweep), length, 1 if name == NNSIGHT else length)


class _Lens:
    """The reference backend with the benchmark's interface."""

    def __init__(self, subject: BenchmarkModel, reference: PromptSet) -> None:
        self.engine = LensEngine(subject.model, reference)

    def __call__(self, sweep: Sweep, prompts: PromptSet) -> baselines.LogitDifferences:
        return self.engine.run(sweep, prompts).logit_diff
