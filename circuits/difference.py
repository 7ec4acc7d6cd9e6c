"""Where the difference between two runs arises: attention, lens, residual stream, attention and MLP outputs, heads.

The two runs are a prompt set's clean and corrupted prompts. Of any state x, with LD the task's metric,

    restored(x) = (LD[corrupted, x from clean] - LD_corrupted) / (LD_clean - LD_corrupted)     is x sufficient?
    broken(x)   = (LD_clean - LD[clean, x from corrupted]) / (LD_clean - LD_corrupted)         is x necessary?

0 means no effect, 1 the full effect. Prompts whose two runs differ by less than GAP are left out, since the ratio is
meaningless there. Effects are stored per prompt; means over prompts are ratios of sums. Source: Meng et al. (2022), Heimersheim
and Nanda (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from circuits.circuit import Node
from circuits.interventions import Intervention, Recipe, Sweep, Variant, denoise, noise
from circuits.measurements import attention, logit_lens
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

GAP = 0.1  # nats (or of the task's metric): smaller denominators are noise
SITES = ("residual", "attention", "mlp")
# Tolerance, relative to the gap, for "patching nothing gives 0 and everything 1"; half precision is for screening.
EXACT = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
LENS_EXACT = 1e-3  # nats between the lens after the last layer and the model's own logits, which reach a few hundred


@dataclass(frozen=True)
class Patched:
    """Effects of patching each of `names`, by prompt: numerators of `restored` and `broken`, and the shared denominator.

    `impact`: probability of the answer in the corrupted run with the clean state, minus that without it."""

    names: tuple[str, ...]
    restored: Float[np.ndarray, "place prompt"]
    broken: Float[np.ndarray, "place prompt"]
    impact: Float[np.ndarray, "place prompt"]
    gap: Float[np.ndarray, " prompt"]
    clusters: tuple[str, ...]

    def share(self, effect: Float[np.ndarray, "place prompt"]) -> Float[np.ndarray, " place"]:
        """Sum of an effect over the sum of the gaps."""
        return effect.sum(1) / self.gap.sum()


def trace(study: Study, prompts: PromptSet) -> dict[str, Any]:
    """The whole comparison on these prompts as plain data, with the results of patching nothing and everything.

    Raises UserError if no prompt's two runs are GAP apart.
    """
    prompts, skipped = _apart(study, prompts)
    heads = patch(study, prompts, [(str(node), node, None) for node in study.model.heads])
    places = [
        (f"{kind}{layer}@{role}", Node(kind, layer), (role,))
        for kind in SITES
        for layer in range(study.model.n_layers)
        for role in prompts.positions
    ]
    sites = patch(study, prompts, places)
    shape = (len(SITES), study.model.n_layers, len(prompts.positions))
    return {
        "prompts": len(prompts),
        "clusters": len(set(prompts.clusters)),
        "skipped": skipped,
        "gap": float(heads.gap.mean()),
        "roles": list(prompts.positions),
        "attention": _attention(study, prompts),
        "emergence": _emergence(study, prompts),
        "sites": {
            name: dict(zip(SITES, sites.share(effect).reshape(shape), strict=True))
            for name, effect in (("restored", sites.restored), ("broken", sites.broken))
        }
        | {"impact": dict(zip(SITES, sites.impact.mean(1).reshape(shape), strict=True))},
        "heads": {
            "names": heads.names,
            "restored": heads.share(heads.restored),
            "broken": heads.share(heads.broken),
            "impact": heads.impact.mean(1),
            "by_prompt": {"restored": heads.restored, "broken": heads.broken, "gap": heads.gap},
            "clusters": heads.clusters,
        },
        "limits": limits(study, prompts),
    }


def patch(study: Study, prompts: PromptSet, places: Sequence[tuple[str, Node, tuple[str, ...] | None]]) -> Patched:
    """Effects of patching every place alone, in both directions. `places`: name, node, position roles (None: all positions)."""
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([node], f"restore {name}", roles) for name, node, roles in places]
    variants += [noise([node], f"break {name}", roles) for name, node, roles in places]
    found = study.run(Sweep(tuple(variants), probabilities=True), prompts)
    clean, corrupted, *rows = found.logit_diff.astype(float)
    effects, n = np.stack(rows), len(places)
    assert found.answer_probability is not None  # the sweep asks for it
    probability = found.answer_probability.astype(float)
    return Patched(
        names=tuple(name for name, _, _ in places),
        restored=effects[:n] - corrupted,
        broken=clean - effects[n:],
        impact=probability[2 : 2 + n] - probability[1],
        gap=clean - corrupted,
        clusters=prompts.clusters,
    )


def limits(study: Study, prompts: PromptSet) -> dict[str, float]:
    """restored() of no head and of the whole stream that enters the first layer: 0 and 1 up to float32 rounding.

    Raises RuntimeError otherwise, since the interventions would then be wrong.
    """
    first = Node("residual", 0)
    itself = Intervention((first,), Recipe("patch", source="corrupted"))
    variants = (Variant("clean"), Variant("corrupted", base="corrupted"), Variant("nothing", (itself,), "corrupted"))
    variants += (denoise([first], "everything"),)
    clean, corrupted, nothing, everything = study.run(Sweep(variants), prompts).logit_diff.astype(float)
    gap = (clean - corrupted).sum()
    found = {"nothing": (nothing - corrupted).sum() / gap, "everything": (everything - corrupted).sum() / gap}
    exact = EXACT[study.model.dtype]
    if abs(found["nothing"]) > exact or abs(found["everything"] - 1) > exact:
        raise RuntimeError(f"patching nothing gives {found['nothing']:.2g} and everything {found['everything']:.6g}")
    return {name: float(value) for name, value in found.items()}


def _apart(study: Study, prompts: PromptSet) -> tuple[PromptSet, int]:
    """The prompts whose two runs are at least GAP apart, and how many are not."""
    variants = (Variant("clean"), Variant("corrupted", base="corrupted"))
    clean, corrupted = study.run(Sweep(variants), prompts).logit_diff.astype(float)
    kept = np.flatnonzero(np.abs(clean - corrupted) >= GAP).tolist()
    if not kept:
        raise UserError(
            f"none of {len(prompts)} prompts has its clean and corrupted run {GAP} apart, so there is no difference to trace; "
            "use prompts that the model tells apart"
        )
    return prompts.select(kept), len(prompts) - len(kept)


def _attention(study: Study, prompts: PromptSet) -> dict[str, Any]:
    """Mean attention of every head from the answer position in both runs: entropy, first token, named positions."""
    runs = {base: attention.from_answer(study, prompts, base) for base in ("clean", "corrupted")}
    return {
        base: {
            "entropy": found.entropy.mean(0).numpy(),
            "first": found.first.mean(0).numpy(),
            "to": {role: values.mean(0).numpy() for role, values in found.to.items()},
        }
        for base, found in runs.items()
    }


def _emergence(study: Study, prompts: PromptSet) -> dict[str, Any]:
    """Logit difference by layer in both runs, and the layer from which on the answer (clean) or foil (corrupted) leads."""
    clean, corrupted = (logit_lens.lens(study, prompts, base) for base in ("clean", "corrupted"))
    error = max(clean.max_error, corrupted.max_error)
    if study.model.dtype in (torch.float32, torch.float64) and error > LENS_EXACT:
        raise RuntimeError(f"the lens after the last layer is {error:.2g} from the model's own logits")
    return {
        "clean": clean.logit_diff.mean(1),
        "corrupted": corrupted.logit_diff.mean(1),
        "answer_leads_from": logit_lens.settling(clean.logit_diff),
        "foil_leads_from": logit_lens.settling(-corrupted.logit_diff),
        "max_error": error,
    }
