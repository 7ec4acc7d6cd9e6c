"""21 Knock-outs: the effect of ablating each single head in the intact model."""

from __future__ import annotations

from typing import Any

from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.study import Study

NUMBER, ID = "21", "knockouts"
SETTINGS = ()
DEPENDS_ON_CIRCUIT = False


def measure(study: Study) -> dict[str, Any]:
    """effect[prompt, head] = D - LD(that head mean-ablated, per template and position)."""
    recipe = Recipe("mean")
    variants = [Variant("clean"), *(ablate([node], recipe, str(node)) for node in study.model.heads)]
    effects = study.run(Sweep(tuple(variants)))
    return {"effect": (effects.logit_diff[0] - effects.logit_diff[1:]).T, "recipe": str(recipe)}
