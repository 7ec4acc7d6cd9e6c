"""08 Attribution patching: gradient estimates for every head, every query, key and value, and every edge.

First-order estimates of patches (Nanda 2022; Kramar et al. 2024 for AtP*; Syed et al. 2023 for EAP; Hanna et al. 2024 for
EAP-IG), all in nats. The calibrations say how well the heads' estimates agree with the patches themselves (02).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import numpy as np
import scipy
from jaxtyping import Float

from circuits.engine.gim import BackwardPass
from circuits.engine.gradients import METHODS, PROMPTS_PER_BACKWARD, GradientEngine, NodeEstimates
from circuits.interventions import Base
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

Found = TypeVar("Found")

NUMBER, ID = "08", "attribution_patching"
SETTINGS = ("attribution_patching",)
DEPENDS_ON_CIRCUIT = False
SECTION = "attribution_patching"
FEWEST_PROMPTS = 2  # for a standard error


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt estimates for every head; means over a subset of prompts for q, k, v and for every edge."""
    check(study.settings)
    settings = study.settings[SECTION]
    engine = gradient_engine(study)
    rows = study.subset(settings["prompts"])
    if len(rows) < FEWEST_PROMPTS:
        raise UserError(
            f"{len(rows)} evaluation prompt gives 08 no standard error; raise prompts.evaluation to 2 or more"
        )
    return {
        **_heads(study, engine, settings["gradient_dropping"]),
        "rows": rows,
        "nodes": _nodes(study, engine, study.prompts.select(rows), settings),
        "edges": _edges(study, engine, study.prompts.select(rows), settings),
    }


def gradient_engine(study: Study, backward: BackwardPass | None = None) -> GradientEngine:
    """An engine for backward passes. It runs the decoder of the study's fused backend if there is one, whose parity is proved.

    `backward` replaces the model's own backward pass.
    """
    decoder = getattr(study.engine, "decoder", None)
    return GradientEngine(study.model, min(PROMPTS_PER_BACKWARD, study.engine.rows_per_forward), decoder, backward)


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError if the base is no run, if there are too few prompts, or if there is no step."""
    settings = settings[SECTION]
    if settings["steps"] < 1:
        raise UserError(f"{settings['steps']} integration steps are no path; use 1 or more")
    if settings["base"] not in get_args(Base):
        raise UserError(f"attribution base {settings['base']!r} is no run; use one of {', '.join(get_args(Base))}")
    if settings["prompts"] < FEWEST_PROMPTS:
        raise UserError(
            f"{settings['prompts']} attribution prompts give no standard error; use {FEWEST_PROMPTS} or more"
        )


def _heads(study: Study, engine: GradientEngine, dropping: bool) -> dict[str, Any]:
    """Estimates of both directions of 02: denoising from the corrupted run's gradient, noising from the clean run's."""
    dropping = dropping and study.model.n_layers > 1  # GradDrop averages over the other layers
    corrupted = _tracked(study, study.prompts, engine.head_passes(dropping), engine.head_effects, "corrupted", dropping)
    clean = _tracked(study, study.prompts, engine.head_passes(False), engine.head_effects, "clean")
    return {"effect": corrupted.plain, "noising": -clean.plain, "effect_graddrop": corrupted.dropped}


def _nodes(study: Study, engine: GradientEngine, prompts: PromptSet, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Mean effect of patching a head's queries, keys or values, plain and with attention recomputed."""
    correcting = settings["query_key_correction"]
    passes = engine.node_passes(correcting)
    found = _tracked(study, prompts, passes, engine.node_effects, settings["base"], correcting)
    return {"base": settings["base"], **{kind: _summary(estimates) for kind, estimates in found.items()}}


def _summary(estimates: NodeEstimates) -> dict[str, Any]:
    summary: dict[str, Any] = {"heads": [[reader.layer, reader.index] for reader in estimates.readers]}
    for name, effect in (("effect", estimates.plain), ("corrected", estimates.corrected)):
        summary[name] = None if effect is None else effect.mean(0, dtype=float)
        summary[f"{name}_standard_error"] = None if effect is None else scipy.stats.sem(effect.astype(float))
    return summary


def _edges(study: Study, engine: GradientEngine, prompts: PromptSet, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Scores [reader][writer] by every method, null where there is no edge."""
    base, steps = settings["base"], settings["steps"]
    scores = {
        method: _tracked(study, prompts, engine.edge_passes(method, steps), engine.edge_scores, base, method, steps)
        for method in METHODS
    }
    graph = study.model.graph
    return {
        "writers": [str(writer) for writer in graph.writers],
        "readers": [str(reader) for reader in graph.readers],
        "base": base,
        "prompts": len(prompts),
        "steps": steps,
        **{method: _table(found.mean) for method, found in scores.items()},
        "standard_error": {method: _table(found.standard_error) for method, found in scores.items()},
        # sum over the embedding's edges; the two are equal if the integral of an EAP-IG method is exact
        "embedding_sum": {method: float(found.mean[:, 0].sum()) for method, found in scores.items()},
        "total_effect": scores["eap"].total_effect,
    }


def _table(values: Float[np.ndarray, "reader writer"]) -> list[list[float | None]]:
    return [[None if np.isnan(value) else value for value in row] for row in values.tolist()]


def _tracked(study: Study, prompts: PromptSet, passes: int, run: Callable[..., Found], *rest: Any) -> Found:
    """`run` on the prompts, reporting its passes to the study's progress."""
    study.progress.expect(passes * len(prompts))
    return run(prompts, *rest, advance=study.progress.advance)
