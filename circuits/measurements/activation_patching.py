"""02 Activation patching: which activations carry the answer, in both directions.

Denoising puts a clean activation into the corrupted run (is it sufficient?), noising puts a corrupted one into the
clean run (is it necessary?). Heads are patched at all positions, on every scored prompt; the residual stream, the
attention outputs and the MLP outputs by layer and named position, on a subset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from circuits.circuit import Kind, Node
from circuits.edges import Edge
from circuits.engine import FusedEngine
from circuits.interventions import Effects, PathIntervention, Recipe, Sweep, Variant, denoise, noise
from circuits.models import Model
from circuits.study import Study

NUMBER, ID = "02", "activation_patching"
SETTINGS = ("site_prompts",)
DEPENDS_ON_CIRCUIT = False
SITES: tuple[Kind, ...] = ("residual", "attention", "mlp")


def measure(study: Study) -> dict[str, Any]:
    """Raw effects per prompt and head; normalised effects per layer and position."""
    patched = patch_heads(study)
    return {
        "denoising": patched.denoised - patched.corrupted[:, None],
        "noising": patched.clean[:, None] - patched.noised,
        "sites": _sites(study),
    }


@dataclass(frozen=True)
class PatchedHeads:
    """Logit differences: `clean` and `corrupted` of the intact runs, `denoised` of the corrupted run with one head's clean
    output, `noised` of the clean run with one head's corrupted output.
    """

    clean: Float[np.ndarray, " prompt"]
    corrupted: Float[np.ndarray, " prompt"]
    denoised: Float[np.ndarray, "prompt head"]
    noised: Float[np.ndarray, "prompt head"]


def patch_heads(study: Study, in_logits: bool = False) -> PatchedHeads:
    """Every head alone, in both directions, on every scored prompt; on the task's metric unless `in_logits`.

    A fused engine also runs the sweep of 05, which consists of the same runs with another last step.
    """
    heads = study.model.heads
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([node], f"denoise {node}") for node in heads]
    variants += [noise([node], f"noise {node}") for node in heads]
    fused = isinstance(study.engine, FusedEngine) and has_direct_paths(study.model)
    beside = downstream_sweep(study.model) if fused else None
    clean, corrupted, *patched = study.run(Sweep(tuple(variants)), in_logits=in_logits, beside=beside).logit_diff
    return PatchedHeads(clean, corrupted, np.stack(patched[: len(heads)], 1), np.stack(patched[len(heads) :], 1))


def has_direct_paths(model: Model) -> bool:
    """True if a head adds z W_O to the stream and the logits are linear in its final norm."""
    return not (model.bounds_logits or model.normalises_attention)


def downstream_sweep(model: Model) -> Sweep:
    """The clean run in which everything except the final norm sees one head's corrupted output, for every head."""
    variants = []
    for node in model.heads:
        to_logits = PathIntervention((Edge(node, model.graph.logits),), Recipe("patch", source="clean"))
        corrupted = noise([node], f"downstream {node}")
        variants.append(replace(corrupted, interventions=(*corrupted.interventions, to_logits)))
    return Sweep(tuple(variants))


def _sites(study: Study) -> dict[str, Any]:
    """Mean denoising effect over mean(D - C) of every layer, position role and kind of site."""
    rows = study.subset(study.settings["site_prompts"])
    prompts = study.prompts.select(rows)
    roles = tuple(prompts.positions)
    places: list[tuple[Kind, int, str]] = [
        (kind, layer, role) for kind in SITES for layer in range(study.model.n_layers) for role in roles
    ]
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([Node(kind, layer)], f"{kind}{layer}@{role}", (role,)) for kind, layer, role in places]
    effects = study.run(Sweep(tuple(variants), probabilities=True), prompts)  # so that 06 can share the run
    table = normalised(effects).reshape(len(SITES), study.model.n_layers, len(roles))
    return {"rows": rows, "roles": roles, "denoising": dict(zip(SITES, table, strict=True))}


def normalised(effects: Effects) -> Float[np.ndarray, " variant"]:
    """mean(LD - C) / mean(D - C) of every variant after the first two (clean, corrupted): 0 no effect, 1 full recovery."""
    clean, corrupted = effects.logit_diff[:2].astype(float)
    return (effects.logit_diff[2:] - corrupted).mean(1) / (clean - corrupted).mean()
