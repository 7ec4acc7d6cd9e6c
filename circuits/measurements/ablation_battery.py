"""20 Ablation battery: only the circuit intact, everything except the circuit, nothing, baselines and random circuits.

What is outside the intact set is replaced under the recipes that the settings name for the set. The default METHODS are zero,
mean per template and position, mean over all positions, resample and noise (each draw stored separately); zero_raw, which also
removes the heads' constants, runs on request. Circuit, complement and nothing are always measured under the claim's primary
recipe too. Embeddings and the biases of layers always stay intact. MLPs stay intact unless the claim's scope is heads and
MLPs; then all unclaimed heads and MLPs are replaced. A node claimed at a position is replaced at all other positions.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from circuits.circuit import PRIMARY_RECIPES, Kind, Node, complement, head_pairs, heads_of, names_of, only_heads
from circuits.interventions import Recipe, RecipeKind, Sweep, Variant, ablate
from circuits.measurements import direct_logit_attribution, head_statistics
from circuits.study import Study
from results_io import UserError

NUMBER, ID = "20", "ablation_battery"
SETTINGS = (
    "battery",
    "seed",
    "draws",
    "noise_scale",
    "random_circuits",
    "random_circuit_prompt_share",
    "fewest_matched",
)
DEPENDS_ON_CIRCUIT = True
METHODS = ("zero", "mean", "mean_pooled", "resample", "noise")
KINDS: tuple[Kind, ...] = ("head", "mlp")  # kinds of nodes that a claim can name
UNDER_PRIMARY = ("circuit", "complement", "empty")  # the conditions behind a claim's faithfulness and completeness
SUBSETS = ("circuit", "complement", "empty", "top_k_norm", "top_k_attribution", "without")


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for an unknown subset or method, or a battery without the circuit's mean ablation."""
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
        "baselines": _stored(baselines) | {"selected_on": "discovery"},
    }


def recipes(study: Study, method: str) -> list[Recipe]:
    """The recipes of one ablation method: one for a deterministic method, one for each of `draws` for resample and noise."""
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


def matched_heads(
    circuit: Iterable[Node], every: Iterable[Node], rng: random.Random, by_layer: bool = True
) -> tuple[Node, ...]:
    """Random nodes with the circuit's number of heads in each layer, its number of MLPs, and its positions.

    Heads are drawn from all heads of a layer and MLPs from all MLPs (a layer has only one), the circuit's own included. The
    positions of the circuit's nodes are shuffled among the drawn nodes. So under the null hypothesis the circuit is one more
    such draw. `every` are the nodes to draw from. Without `by_layer` heads are drawn from all layers.
    """
    where, drawn = _positions(circuit), []
    for own, pool in _alike(where, every, by_layer):
        chosen, positions = rng.sample(pool, len(own)), [where[node] for node in own]
        if positions != [("",)] * len(own):
            rng.shuffle(positions)
        drawn += [replace(node, position=at) for node, places in zip(chosen, positions, strict=True) for at in places]
    return tuple(sorted(drawn))


def random_circuit(circuit: Iterable[Node], every: Iterable[Node], rng: random.Random) -> tuple[Node, ...]:
    """As `matched_heads`, but a set other than the circuit. Raises UserError if there is none."""
    circuit, every = set(circuit), list(every)
    if sets_alike(circuit, every) == 1:
        raise UserError(
            "the circuit holds every head of each of its layers, so no other circuit matches it; leave some out"
        )
    while True:
        drawn = matched_heads(circuit, every, rng)
        if set(drawn) != circuit:
            return drawn


def _positions(nodes: Iterable[Node]) -> dict[Node, tuple[str, ...]]:
    """The sorted positions at which each node is claimed ("": all)."""
    found: dict[Node, tuple[str, ...]] = {}
    for node in sorted(set(nodes)):
        found[node.whole] = (*found.get(node.whole, ()), node.position)
    return found


def other_circuits(
    circuit: Iterable[Node], every: Iterable[Node], rng: random.Random, by_layer: bool, most: int
) -> list[tuple[Node, ...]]:
    """Up to `most` distinct sets, each drawn as by `matched_heads` and different from the circuit.

    They are drawn without replacement, so p = (1 + #{at least as faithful}) / (1 + sets) is the exact p of a randomisation
    test, even with few sets: the 31 alternatives to one head of 32 give a smallest p of 1/32. If there is no other set, the
    circuit itself is returned.
    """
    own, every = tuple(sorted(circuit)), list(every)
    wanted = min(most, sets_alike(own, every, by_layer) - 1)
    drawn: dict[tuple[Node, ...], None] = {} if wanted else {own: None}
    while len(drawn) < wanted:
        other = matched_heads(own, every, rng, by_layer)
        if other != own:
            drawn[other] = None
    return list(drawn)


def sets_alike(circuit: Iterable[Node], every: Iterable[Node], by_layer: bool = True) -> int:
    """Number of sets that `matched_heads` can draw, the circuit included."""
    where = _positions(circuit)
    return math.prod(
        math.comb(len(pool), len(own)) * _arrangements([where[node] for node in own])
        for own, pool in _alike(where, every, by_layer)
    )


def _arrangements(positions: Sequence[tuple[str, ...]]) -> int:
    """Number of ways to assign these positions to as many nodes."""
    return math.factorial(len(positions)) // math.prod(map(math.factorial, Counter(positions).values()))


def _alike(
    chosen: Iterable[Node], every: Iterable[Node], by_layer: bool = True
) -> Iterator[tuple[list[Node], list[Node]]]:
    """(members of `chosen`, members of `every`) of each stratum of a random draw: the heads of a layer (or all), the MLPs."""
    chosen, every = list(chosen), list(every)
    layers = sorted({node.layer for node in chosen if node.kind == "head"})
    for layer in layers if by_layer or not layers else [None]:
        yield _of(chosen, "head", layer), _of(every, "head", layer)
    if any(node.kind == "mlp" for node in chosen):
        yield _of(chosen, "mlp"), _of(every, "mlp")


def _of(nodes: Iterable[Node], kind: Kind, layer: int | None = None) -> list[Node]:
    return [node for node in nodes if node.kind == kind and layer in (None, node.layer)]


def _baselines(study: Study) -> dict[str, tuple[Node, ...]]:
    """Baselines with the circuit's number of heads and MLPs: the largest by output norm and by |attribution|.

    They are chosen on discovery prompts, at all positions. Ties go to the lower (layer, head).
    """
    nodes = {node.whole for node in study.claim.nodes}
    norm = {"head": head_statistics.output_norms(study, study.discovery)}
    parts = direct_logit_attribution.attribute(study, study.discovery)
    attribution = {"head": parts["attribution"].numpy(), "mlp": parts["mlp"].numpy()}
    if study.claim.judges_mlps:
        norm["mlp"] = head_statistics.mlp_norms(study, study.discovery)

    def top(scores: Mapping[str, Float[np.ndarray, "prompt node"]]) -> tuple[Node, ...]:
        found: list[Node] = []
        for kind in KINDS:
            pool, size = _of(study.every, kind), len(_of(nodes, kind))
            strongest = np.argsort(-np.abs(scores[kind].mean(0)), kind="stable")[:size] if size else ()
            found += sorted(pool[i] for i in strongest)
        return tuple(found)

    return {"top_k_norm": top(norm), "top_k_attribution": top(attribution)}


def _stored(baselines: Mapping[str, Sequence[Node]]) -> dict[str, Any]:
    """The heads of each baseline; if some have MLPs, also all nodes by name."""
    stored: dict[str, Any] = {name: head_pairs(heads_of(nodes)) for name, nodes in baselines.items()}
    if not all(map(only_heads, baselines.values())):
        stored["nodes"] = {name: names_of(nodes) for name, nodes in baselines.items()}
    return stored


def _conditions(study: Study, baselines: dict[str, tuple[Node, ...]]) -> Iterator[tuple[dict[str, Any], Variant]]:
    ablated = {"circuit": study.outside, "complement": study.claim.nodes, "empty": study.every}
    ablated |= {name: complement(chosen, study.every) for name, chosen in baselines.items()}
    ablated |= {f"without:{name}": set(role.nodes) for name, role in study.claim.roles.items()}
    for subset, nodes in ablated.items():
        for method in methods_of(study, subset.partition(":")[0]):
            for recipe in recipes(study, method):
                name = f"{subset}/{method}/{recipe.draw}"
                labels = {"subset": subset, "method": method, "draw": recipe.draw, "recipe": str(recipe)}
                yield {"name": name, **labels}, ablate(sorted(nodes), recipe, name)


def _random_circuits(study: Study) -> dict[str, Any]:
    """Random circuits, all distinct, under the primary recipe, on the first share of each split's prompts.

    They match the circuit's layers if more than `fewest_matched` sets do, and otherwise only its size ("any_layers").
    """
    seed = int(study.settings["seed"])
    rng = random.Random(f"random circuits {seed}")
    claimed, every = study.claim.nodes, study.every
    by_layer = sets_alike(claimed, every) > int(study.settings["fewest_matched"])
    circuits = other_circuits(claimed, every, rng, by_layer, int(study.settings["random_circuits"]))
    rows = study.one_in(int(study.settings["random_circuit_prompt_share"]))
    recipe = Recipe("mean")
    outside = [sorted(complement(chosen, study.every)) for chosen in circuits]
    sweep = Sweep(tuple(ablate(nodes, recipe, f"random {i}") for i, nodes in enumerate(outside)))
    effects = study.run(sweep, study.prompts.select(rows))
    named = {} if only_heads(study.claim.nodes) else {"nodes": list(map(names_of, circuits))}
    return {
        "heads": [head_pairs(heads_of(chosen)) for chosen in circuits],
        **named,
        **({} if by_layer else {"any_layers": True}),
        "prompt_index": rows,
        "logit_diff": effects.logit_diff,
        "recipe": str(recipe),
        "seed": seed,
    }
