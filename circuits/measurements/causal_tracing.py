"""06 Causal tracing: where restoring one clean state brings the answer back.

The subject is corrupted in the prompt's embeddings and one clean state at a time is restored (Meng et al. 2022):
impact = P(answer | corrupted, state restored) - P(answer | corrupted). Three ways to corrupt, at every position where
the clean and the corrupted prompt differ:

- noise: the embedding plus `noise_scale` standard deviations of normal noise, `draws` draws;
- entity_swap: the corrupted prompt's own tokens;
- span_deletion: the span's information removed (its embeddings replaced by the mean embedding) with positions kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from circuits.circuit import Kind, Node
from circuits.edges import EMBEDDING
from circuits.interventions import Intervention, Recipe, Sweep, Variant
from circuits.prompts import CHANGED
from circuits.study import Study
from results_io import UserError

NUMBER, ID = "06", "causal_tracing"
SETTINGS = ("site_prompts", "corruption")
DEPENDS_ON_CIRCUIT = False
SITES: tuple[Kind, ...] = ("residual", "attention", "mlp")
STRATEGIES = ("noise", "entity_swap", "span_deletion")


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for an unknown strategy, or too few prompts for a standard error."""
    corruptions(settings["corruption"])
    if settings["site_prompts"] < 2:
        raise UserError(f"measurement.site_prompts={settings['site_prompts']} gives no standard error; use at least 2")


def measure(study: Study) -> dict[str, Any]:
    """Impact of restoring each site at each layer and position role, under the configured corruption."""
    corruption = dict(study.settings["corruption"])
    rows = study.subset(study.settings["site_prompts"])
    if len(rows) < 2:
        raise UserError(
            f"{len(rows)} evaluation prompt gives 06 no standard error; raise prompts.evaluation to 2 or more"
        )
    prompts = study.prompts.select(rows)
    roles = tuple(prompts.positions)
    places: list[tuple[Kind, int, str]] = [
        (kind, layer, role) for kind in SITES for layer in range(study.model.n_layers) for role in roles
    ]
    runs = [study.run(trace(places, corrupt), prompts) for corrupt in corruptions(corruption)]
    answers = [run.probabilities[0] for run in runs]  # for each draw, [clean, corrupted and every place; prompt]
    impact = np.mean([one[2:].astype(float) - one[1] for one in answers], axis=0)  # [place, prompt]
    shape = (len(SITES), study.model.n_layers, len(roles))
    error = impact.std(1, ddof=1) / np.sqrt(impact.shape[1])
    return {
        "corruption": corruption,
        "strategies": STRATEGIES,
        "roles": roles,
        "rows": rows,
        "impact": dict(zip(SITES, impact.mean(1).reshape(shape), strict=True)),
        "standard_error": dict(zip(SITES, error.reshape(shape), strict=True)),
        "clean_probability": float(answers[0][0].mean()),
        "corrupted_probability": float(np.mean([one[1].mean() for one in answers])),
    }


def corruptions(settings: Mapping[str, Any]) -> list[Variant]:
    """The corrupted run of a strategy, one variant for each draw. Raises UserError for an unknown strategy."""
    strategy = settings["strategy"]
    if strategy == "entity_swap":
        return [Variant("corrupted", base="corrupted")]
    if strategy == "span_deletion":
        recipes = [Recipe("mean", pooled=True)]
    elif strategy == "noise":
        scale, seed = float(settings["noise_scale"]), int(settings["seed"])
        draws = int(settings["draws"])
        if draws < 1:
            raise UserError(f"measurement.corruption.draws={draws} corrupts nothing; use at least 1")
        recipes = [Recipe("noise", additive=True, scale=scale, seed=seed, draw=i) for i in range(draws)]
    else:
        raise UserError(f"corruption strategy {strategy!r} is unknown; use one of {', '.join(STRATEGIES)}")
    return [Variant("corrupted", (Intervention((EMBEDDING,), recipe, (CHANGED,)),)) for recipe in recipes]


def trace(places: Sequence[tuple[Kind, int, str]], corrupted: Variant) -> Sweep:
    """Clean, corrupted, and corrupted with each place restored from the clean run."""
    variants = [Variant("clean"), corrupted]
    for kind, layer, role in places:
        restore = Intervention((Node(kind, layer),), Recipe("patch", source="clean"), (role,))
        variants.append(Variant(f"{kind}{layer}@{role}", (*corrupted.interventions, restore), corrupted.base))
    return Sweep(tuple(variants), probabilities=True)
