"""Backward greedy pruning: leave heads out for as long as the rest still does the task.

On the discovery split only, under mean ablation per template and position:

1. start from all heads; faithfulness theta = (sum LD(kept intact) - F_0) / (sum D - F_0) is 1 by definition, F_0 the
   sum with every head ablated (on greater-than the means alone keep 0.6 of the logit difference, so the plain ratio
   would call no heads at all a good circuit);
2. of the heads still kept, leave out the one whose loss keeps theta closest to 1;
3. go on until one head is left;
4. the circuit is the smallest kept set on that path whose theta lies within `tolerance` of 1.

Pruning towards 1 rather than towards the largest theta keeps heads that work against the answer inside the circuit
when they are part of how the model arrives at its logit difference. Fan-out is heads^2 / 2 variants.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from circuits.circuit import Circuit, Node
from circuits.discovery import roles
from circuits.interventions import Recipe, Sweep, ablate
from circuits.study import Study
from results_io import UserError

RECIPE = Recipe("mean")


def discover(study: Study) -> Circuit:
    """The pruned circuit with roles by function; UserError if the model does not do the task.

    Reads `settings["discovery"]`: prompts, tolerance.
    """
    settings = study.settings["discovery"]
    path = list(prune(study, settings["prompts"]))
    eligible = [(kept, theta) for kept, theta in path if abs(theta - 1) <= settings["tolerance"]]
    kept, theta = min(eligible, key=lambda step: len(step[0]))
    curve = {str(len(heads)): round(value, 4) for heads, value in path}
    provenance = {
        "kind": "discovered",
        "source": "backward greedy pruning of normalised faithfulness, mean ablation per template and position",
        "split": "discovery",
        "prompts": min(int(settings["prompts"]), len(study.discovery)),
        "seed": study.seed,
        "tolerance": float(settings["tolerance"]),
        "discovery_faithfulness": round(theta, 4),
        "faithfulness_by_size": curve,
        "model_sha256": study.model.sha256,
    }
    return Circuit(
        f"{study.task.name} greedy", study.task.name, study.model.name, roles.assign(study, kept), provenance
    )


def prune(study: Study, size: int) -> Iterator[tuple[tuple[Node, ...], float]]:
    """(kept heads, normalised faithfulness) from all heads down to one, on the first `size` discovery prompts."""
    prompts = study.discovery.select(range(min(size, len(study.discovery))))
    heads = study.model.heads
    limits = study.run(Sweep((ablate((), RECIPE, "clean"), ablate(heads, RECIPE, "empty"))), prompts)
    clean, empty = (float(total) for total in limits.logit_diff.astype(float).sum(1))
    if clean <= max(0.0, empty):
        raise UserError(
            f"model {study.model.name} does not do task {study.task.name} (mean logit difference "
            f"{clean / len(prompts):.2f} on {len(prompts)} discovery prompts, {empty / len(prompts):.2f} without any "
            "head), so there is no circuit to find"
        )
    kept = list(heads)
    yield tuple(kept), 1.0
    while len(kept) > 1:
        sweep = Sweep(
            tuple(ablate([n for n in heads if n not in kept or n == node], RECIPE, str(node)) for node in kept)
        )
        theta = (study.run(sweep, prompts).logit_diff.astype(float).sum(1) - empty) / (clean - empty)
        least = int(np.argmin(np.abs(theta - 1)))
        kept.pop(least)
        yield tuple(kept), float(theta[least])
