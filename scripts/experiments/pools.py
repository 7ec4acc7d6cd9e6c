"""Prompts measured once for each subject: the numbered results that samples are drawn from.

Subjects with equal weights share the results that do not depend on the claim. Results are kept and reused as those of any
run, so an experiment that was stopped goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import results_io
from calibrations.validation.declared import Subject
from circuits import planted, tasks
from circuits.circuit import Circuit, Role
from circuits.measure import Plan, ProgressBar, measure
from circuits.measurements import DEPEND_ON_CIRCUIT
from circuits.measurements.ablation_battery import random_circuit
from scripts.experiments.stored import Pool

RANDOM = "random"
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def planted_pools(
    subjects: Mapping[str, Subject],
    config: Mapping[str, Any],
    folder: Path,
    progress: ProgressBar,
) -> Iterator[Pool]:
    """Measure and yield a pool for every subject and every model seed of its truth, models in turn.

    `config` is the whole configuration, its section `experiment` that of the experiment.
    """
    settings = config["experiment"]
    wanted = [(name, seed) for name, one in subjects.items() for seed in settings["model_seeds"][one.truth]]
    by_weights: dict[str, list[tuple[str, int]]] = {}
    for name, seed in wanted:
        by_weights.setdefault(planted.weights_key(name, seed), []).append((name, seed))
    for sharing in by_weights.values():
        (first, seed) = sharing[0]
        plan = _plan(config, _planted(config, first, seed), settings["pool"], settings["seed"] + seed)
        shared = folder / f"{first}-{seed}"
        _measure(plan, shared, settings, progress, on_claim=False)
        for name, _ in sharing:
            claim = planted.claimed_circuits(name, seed)[settings["task"]]
            plan.circuit = replace(claim, model=plan.identity.name)
            own = folder / f"{name}-{seed}"
            _measure(plan, own, settings, progress, on_claim=True)
            yield _pool(name, own, shared, settings)


def random_pools(config: Mapping[str, Any], folder: Path, progress: ProgressBar) -> Iterator[Pool]:
    """Measure and yield a pool for each random claim on an ordinary model, of the size and layers of its circuit."""
    settings, chosen = config["experiment"], config["experiment"]["random_circuits"]
    model = OmegaConf.to_container(OmegaConf.load(CONFIGS / "model" / f"{chosen['model']}.yaml"), resolve=True)
    plan = _plan(config, model, chosen["pool"], settings["seed"])
    stored = plan.identity.circuits[settings["task"]]
    shared = folder / chosen["model"]
    _measure(plan, shared, settings, progress, on_claim=False)
    for index in range(chosen["claims"]):
        plan.circuit = _random_claim(stored, plan, index)
        own = folder / f"{chosen['model']}-random-{index}"
        _measure(plan, own, settings, progress, on_claim=True)
        yield _pool(RANDOM, own, shared, settings)


def _pool(subject: str, own: Path, shared: Path, settings: Mapping[str, Any]) -> Pool:
    found = {n: results_io.find(own if n in DEPEND_ON_CIRCUIT else shared, n) for n in settings["numbers"]}
    return Pool(subject, tuple((number, path) for number, path in sorted(found.items()) if path))


def _random_claim(stored: Circuit, plan: Plan, index: int) -> Circuit:
    """Heads at random, dealt to the real circuit's roles: as many heads for each role, and the roles' order kept."""
    heads = list(random_circuit(stored.heads, plan.identity.heads, random.Random(f"random claim {index}")))
    return Circuit(
        f"random {index}",
        stored.task,
        plan.identity.name,
        {"random": Role(tuple(sorted(heads)), evidence="drawn at random")},
        {"kind": "random", "source": f"same size and layers as {stored.name}", "split": "none", "seed": index},
    )


def _planted(config: Mapping[str, Any], variant: str, seed: int) -> dict[str, Any]:
    path = CONFIGS / "model" / "planted" / f"{variant}.yaml"
    settings = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return {**settings, "seed": seed, "device": config["model"].get("device")}


def _plan(config: Mapping[str, Any], model: Mapping[str, Any], pool: int, seed: int) -> Plan:
    """What is to be measured on one model; one held-out prompt, as samples choose their own splits from the pool."""
    settings = config["experiment"]
    return Plan(
        model_settings=model,
        task=tasks.get(settings["task"]),
        sizes={**config["prompts"], "evaluation": pool - 1, "held_out": 1},
        seed=seed,
        settings={**config["measurement"], **settings["measurement"]},
        engine=config["engine"],
    )


def _measure(plan: Plan, folder: Path, settings: Mapping[str, Any], progress: ProgressBar, on_claim: bool) -> None:
    numbers = [number for number in settings["numbers"] if (number in DEPEND_ON_CIRCUIT) == on_claim]

    def titled(title: str) -> Any:
        return progress(f"{folder.name}: {title.partition(' ')[0]}")

    measure(plan, folder, numbers, titled)
