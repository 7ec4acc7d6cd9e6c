"""22 Minimality: what the circuit loses without each of its heads, and without each of its roles.

effect = LD(circuit alone) - LD(circuit without the node), everything outside mean-ablated per template and position
(Wang et al. 2022: every node should be worth at least 1 % of the circuit).
"""

from __future__ import annotations

from typing import Any

from circuits.interventions import Recipe, Sweep, ablate
from circuits.study import Study

NUMBER, ID = "22", "minimality"


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt loss for each head and each role of the circuit."""
    circuit, recipe = study.circuit, Recipe("mean")
    outside = set(study.model.heads) - set(circuit.heads)
    removals = [(str(node), {node}) for node in circuit.heads]
    removals += [(f"role {name}", set(role.heads)) for name, role in circuit.roles.items()]
    variants = [ablate(sorted(outside), recipe, "circuit")]
    variants += [ablate(sorted(outside | nodes), recipe, name) for name, nodes in removals]
    effects = study.run(Sweep(tuple(variants)))
    loss = effects.logit_diff[0] - effects.logit_diff[1:]
    return {
        "heads": [[node.layer, node.index] for node in circuit.heads],
        "effect": loss[: len(circuit.heads)],
        "roles": list(circuit.roles),
        "role_effect": loss[len(circuit.heads) :],
        "recipe": str(recipe),
    }
