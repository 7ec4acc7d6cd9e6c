"""Prompts measured once for each subject: the numbered results that samples are drawn from.

Subjects with equal weights share the results that do not depend on the claim. Results are kept and reused like those of any
run, so a stopped experiment continues where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import results_io
from circuits import planted, tasks
from circuits.circuit import Circuit
from circuits.claims import random_claim
from circuits.measure import Plan, measure
from circuits.measurements import DEPEND_ON_CIRCUIT
from circuits.prompts import sizes_of
from meridian import config_files
from meridian.experiments.validation.declared import RANDOM, KnownClaim
from meridian.experiments.validation.stored import Pool
from shown_progress import NoProgress

TASK = "ioi"  # the task of the planted claims
CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@dataclass(frozen=True)
class ClaimPool:
    """Claims about one set of weights: each subject by name, and the seed of the model and of its prompts."""

    subjects: tuple[str, ...]
    seed: int


def groups(subjects: Mapping[str, KnownClaim], settings: Mapping[str, Any]) -> list[ClaimPool]:
    """Every subject at every model seed of its truth, grouped by weights; groups with most claims, the slowest, come first."""
    by_weights: dict[tuple[str, int], list[str]] = {}
    for name, one in subjects.items():
        for seed in settings["subjects"][name].get("model_seeds", settings["model_seeds"][one.truth]):
            key = planted.weights_key(name, seed) if name in planted.VARIANTS else name
            by_weights.setdefault((key, seed), []).append(name)
    found = [ClaimPool(tuple(names), seed) for (_, seed), names in by_weights.items()]
    return sorted(found, key=lambda group: -len(group.subjects))


def planted_pools(group: ClaimPool, config: Mapping[str, Any], folder: Path) -> list[Pool]:
    """Measure a pool for every claim of a group.

    `config` is the whole configuration, with the experiment's settings in its section `experiment`.
    """
    settings, first = config["experiment"], group.subjects[0]
    place = list(settings["subjects"]).index(first)
    prompts_seed = settings["seed"] + 10 * place + group.seed  # different prompts for each model
    plan = _plan(config, _planted(config, first, group.seed), settings["pool"], prompts_seed)
    claims = []
    for name in group.subjects:
        circuits = planted.claimed_circuits(name, group.seed) if name in planted.VARIANTS else plan.identity.circuits
        claims.append((name, f"{name}-{group.seed}", replace(circuits[TASK], model=plan.identity.name)))
    return _pools(plan, folder, f"{first}-{group.seed}", claims, settings)


def random_pools(config: Mapping[str, Any], folder: Path) -> list[Pool]:
    """Measure a pool for each random claim on an ordinary model; the claims have the size and layers of its stored circuit."""
    settings, chosen = config["experiment"], config["experiment"]["random_circuits"]
    model = config_files.plain(config_files.read(CONFIGS / "model" / f"{chosen['model']}.yaml"))
    plan = _plan(config, {**model, "device": config["model"].get("device")}, chosen["pool"], settings["seed"])
    stored = plan.identity.circuits[TASK]
    claims = [
        (RANDOM, f"{chosen['model']}-random-{index}", random_claim(stored, plan.identity.heads, index))
        for index in range(chosen["claims"])
    ]
    return _pools(plan, folder, chosen["model"], claims, settings)


def _pools(
    plan: Plan, folder: Path, weights: str, claims: Sequence[tuple[str, str, Circuit]], settings: Mapping[str, Any]
) -> list[Pool]:
    """One pool for each claim (subject, folder name, circuit). Measurements that do not depend on the claim are made once."""
    shared = folder / weights
    _measure(plan, shared, settings, on_claim=False)
    made = []
    for subject, name, circuit in claims:
        plan.circuit = circuit
        own = folder / name
        _measure(plan, own, settings, on_claim=True)
        found = {n: results_io.find(own if n in DEPEND_ON_CIRCUIT else shared, n) for n in settings["numbers"]}
        made.append(Pool(subject, tuple((number, path) for number, path in sorted(found.items()) if path)))
    return made


def _planted(config: Mapping[str, Any], variant: str, seed: int) -> dict[str, Any]:
    path = CONFIGS / "model" / "planted" / f"{variant}.yaml"
    settings = config_files.plain(config_files.read(path))
    return {**settings, "seed": seed, "device": config["model"].get("device")}


def _plan(config: Mapping[str, Any], model: Mapping[str, Any], pool: int, seed: int) -> Plan:
    """The plan for one model. It has only one held-out prompt, because samples draw their own splits from the pool."""
    settings = config["experiment"]
    return Plan(
        model_settings=model,
        task=tasks.get(TASK, templates=config["prompts"].get("templates")),
        sizes={**sizes_of(config["prompts"]), "evaluation": pool - 1, "held_out": 1},
        seed=seed,
        settings={**config["measurement"], **settings["measurement"]},
        engine=config["engine"],
    )


def _measure(plan: Plan, folder: Path, settings: Mapping[str, Any], on_claim: bool) -> None:
    numbers = [number for number in settings["numbers"] if (number in DEPEND_ON_CIRCUIT) == on_claim]
    measure(plan, folder, numbers, lambda title: contextlib.nullcontext(NoProgress()))
