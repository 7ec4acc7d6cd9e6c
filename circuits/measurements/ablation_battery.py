"""20 Ablation battery: the circuit alone, everything but the circuit, nothing, baselines and random circuits.

What is outside the intact set is replaced under the recipes that the settings name for it, by default METHODS: zero, mean
per template and position, mean over all positions, resample (each draw kept apart), noise (likewise); zero_raw, which takes
the heads' constants away too, where it is asked for. Circuit, complement and nothing are measured under the claim's primary
recipe in any case. MLPs, embeddings and the biases of layers always stay intact.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from circuits.circuit import PRIMARY_RECIPES, Node, head_pairs
from circuits.interventions import Recipe, RecipeKind, Sweep, Variant, ablate
from circuits.measurements import direct_logit_attribution, head_statistics
from circuits.study import Study
from results_io import UserError

NUMBER, ID = "20", "ablation_battery"
SETTINGS = ("battery", "seed", "draws", "noise_scale", "random_circuits", "random_circuit_prompt_share")
DEPENDS_ON_CIRCUIT = True
METHODS = ("zero", "mean", "mean_pooled", "resample", "noise")
UNDER_PRIMARY = ("circuit", "complement", "empty")  # what faithfulness and completeness of a claim are read from
SUBSETS = ("circuit", "complement", "empty", "top_k_norm", "top_k_attribution", "without")


def check(settings: Mapping[str, Any]) -> None:
    """UserError for a subset or a method that does not exist, or a battery without the circuit's mean ablation."""
    battery = settings["battery"]
    for subset, methods in battery.items():
        if subset not in SUBSETS:
            raise UserError(f"measurement.battery.{subset} is unknown; use {', '.join(SUBSETS)}")
        if unknown := [method for method in methods if method not in PRIMARY_RECIPES]:
            raise UserError(
                f"measurement.battery.{subset} names {unknown[0]}; use some of {', '.join(PRIMARY_RECIPES)}"
            )
    if "mean" not in battery.get("circuit", ()):
        raise UserError("measurement.battery.circuit lacks mean, the recipe that every calibration reads; add it")


def measure(study: Study) -> dict[str, Any]:
    """Logit difference of every condition on every scored prompt, and of random circuits on a subset."""
    baselines = _baselines(study)
    conditions = list(_conditions(study, baselines))
    effects = study.run(Sweep(tuple(variant for _, variant in conditions)))
    return {
        "circuit": study.claim.to_dict(),
        "conditions": [condition for condition, _ in conditions],
        "logit_diff": effects.logit_diff,
        "random_circuits": _random_circuits(study),
        "baselines": {name: head_pairs(heads) for name, heads in baselines.items()} | {"selected_on": "discovery"},
    }


def recipes(study: Study, method: str) -> list[Recipe]:
    """The draws of one ablation method: one for the deterministic ones, `draws` for resample and noise."""
    seed, draws = int(study.settings["seed"]), int(study.settings["draws"])
    if method in ("zero", "zero_raw", "mean"):
        return [Recipe(cast(RecipeKind, method))]
    if method == "mean_pooled":
        return [Recipe("mean", pooled=True)]
    scale = float(study.settings["noise_scale"]) if method == "noise" else 1.0
    return [Recipe(cast(RecipeKind, method), scale=scale, seed=seed, draw=draw) for draw in range(draws)]


def methods_of(study: Study, subset: str) -> tuple[str, ...]:
    """The recipes that `subset` is measured under: those of the settings, and the claim's primary one."""
    primary = (study.claim.primary_recipe,) if subset in UNDER_PRIMARY else ()
    return tuple(dict.fromkeys((*study.settings["battery"].get(subset, ()), *primary)))


def matched_heads(circuit: Iterable[Node], heads: Iterable[Node], rng: random.Random) -> tuple[Node, ...]:
    """Heads drawn at random with the circuit's size and its number of heads in each layer.

    They are drawn among all heads of a layer, the circuit's own included. So if the labels mean nothing, the circuit is one
    more such draw.
    """
    size = Counter(node.layer for node in set(circuit))
    inside = {layer: [node for node in heads if node.layer == layer] for layer in sorted(size)}
    return tuple(sorted(node for layer, nodes in inside.items() for node in rng.sample(nodes, size[layer])))


def random_circuit(circuit: Iterable[Node], heads: Iterable[Node], rng: random.Random) -> tuple[Node, ...]:
    """As `matched_heads`, but another set than the circuit. UserError if there is no other."""
    circuit, heads = set(circuit), list(heads)
    if circuit == {node for node in heads if node.layer in {chosen.layer for chosen in circuit}}:
        raise UserError(
            "the circuit holds every head of each of its layers, so no other circuit matches it; leave some out"
        )
    while True:
        drawn = matched_heads(circuit, heads, rng)
        if set(drawn) != circuit:
            return drawn


def _baselines(study: Study) -> dict[str, tuple[Node, ...]]:
    """As many heads as the circuit has, the largest by output norm and by |attribution|, chosen on discovery prompts.

    Ties go to the lower (layer, head).
    """
    size, heads = len(study.claim.heads), study.model.heads
    norm = head_statistics.output_norms(study, study.discovery).mean(0)
    attribution = direct_logit_attribution.attribute(study, study.discovery)["attribution"].numpy()

    def top(score: np.ndarray) -> tuple[Node, ...]:
        return tuple(sorted(heads[i] for i in np.argsort(-score, kind="stable")[:size]))

    return {"top_k_norm": top(norm), "top_k_attribution": top(np.abs(attribution.mean(0)))}


def _conditions(study: Study, baselines: dict[str, tuple[Node, ...]]) -> Iterator[tuple[dict[str, Any], Variant]]:
    heads, circuit = set(study.model.heads), set(study.claim.heads)
    intact: dict[str, set[Node]] = {"circuit": circuit, "complement": heads - circuit, "empty": set()}
    intact |= {name: set(chosen) for name, chosen in baselines.items()}
    intact |= {f"without:{name}": heads - set(role.heads) for name, role in study.claim.roles.items()}
    for subset, kept in intact.items():
        for method in methods_of(study, subset.partition(":")[0]):
            for recipe in recipes(study, method):
                name = f"{subset}/{method}/{recipe.draw}"
                labels = {"subset": subset, "method": method, "draw": recipe.draw, "recipe": str(recipe)}
                yield {"name": name, **labels}, ablate(sorted(heads - kept), recipe, name)


def _random_circuits(study: Study) -> dict[str, Any]:
    """Random circuits under the primary recipe, on the first share of each split's prompts."""
    seed = int(study.settings["seed"])
    rng = random.Random(f"random circuits {seed}")
    circuits = [
        matched_heads(study.claim.heads, study.model.heads, rng) for _ in range(study.settings["random_circuits"])
    ]
    rows = study.one_in(int(study.settings["random_circuit_prompt_share"]))
    recipe = Recipe("mean")
    outside = [sorted(set(study.model.heads) - set(chosen)) for chosen in circuits]
    sweep = Sweep(tuple(ablate(nodes, recipe, f"random {i}") for i, nodes in enumerate(outside)))
    effects = study.run(sweep, study.prompts.select(rows))
    return {
        "heads": [head_pairs(chosen) for chosen in circuits],
        "prompt_index": rows,
        "logit_diff": effects.logit_diff,
        "recipe": str(recipe),
        "seed": seed,
    }
