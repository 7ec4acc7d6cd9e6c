"""22 Minimality: what the circuit loses without each of its heads, alone, by role and beside its backups.

F(C) is the logit difference with everything outside C mean-ablated per template and position. effect = F(C) - F(C without
the node), which is near zero for a head that another one backs up. Minimality as Wang et al. 2022 define it (section 4.3)
therefore asks for some set K of other circuit heads such that the head v counts once K is taken out:

    score(v) = max over K of |F(C \\ K) - F(C \\ (K u {v}))|,     at least 1 % of F of the whole model

K is empty, or one role without v, or grown greedily: starting empty, the head that most raises the score is added. A
maximum over many sets rewards chance, so K is chosen on discovery prompts and its effect is measured on the scored ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node, head_pairs
from circuits.interventions import Recipe, Sweep, ablate
from circuits.prompts import PromptSet
from circuits.study import Study, require_count

NUMBER, ID = "22", "minimality"
SETTINGS = ("minimality",)
DEPENDS_ON_CIRCUIT = True
RECIPE = Recipe("mean")

Removed = frozenset[Node]  # heads taken out of the circuit


@dataclass(frozen=True)
class ContextSet:
    """The set K beside which head `node` counts most: what kind it is and F(C \\ K) - F(C \\ (K u v)), nats."""

    node: Node
    beside: Removed
    kind: str
    effect: float


@dataclass
class Losses:
    """F(C \\ K) on some prompts for every K asked for so far. Each set is run once, however many heads ask for it."""

    study: Study
    prompts: PromptSet
    known: dict[Removed, Float[np.ndarray, " prompt"]] = field(default_factory=dict)

    def run(self, sets: Iterable[Removed]) -> None:
        """Measure the sets that are not known yet."""
        new = sorted({removed for removed in sets if removed not in self.known}, key=sorted)
        if not new:
            return
        outside = set(self.study.model.heads) - set(self.study.claim.heads)
        names = ("circuit without " + (", ".join(map(str, sorted(removed))) or "nothing") for removed in new)
        variants = (ablate(sorted(outside | out), RECIPE, name) for out, name in zip(new, names, strict=True))
        self.known.update(zip(new, self.study.run(Sweep(tuple(variants)), self.prompts).logit_diff, strict=True))

    def of(self, node: Node, beside: Removed) -> Float[np.ndarray, " prompt"]:
        """F(C \\ K) - F(C \\ (K u {node})) per prompt, both sets being known."""
        return self.known[beside] - self.known[beside | {node}]

    def mean(self, node: Node, beside: Removed) -> float:
        return float(self.of(node, beside).astype(float).mean())


def check(settings: Mapping[str, Any]) -> None:
    """UserError for a number of steps or prompts that is not positive."""
    for name in ("greedy_steps", "discovery_prompts"):
        _count(settings, name)


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt loss for each head and role of the circuit, and for each head beside the set that shows it best."""
    chosen = choose(study)
    circuit, alone = study.claim, frozenset[Node]()
    losses = Losses(study, study.prompts)
    roles = [frozenset(role.heads) for role in circuit.roles.values()]
    needed = [alone, *(alone | {node} for node in circuit.heads), *roles]
    losses.run([*needed, *(removed for c in chosen for removed in (c.beside, c.beside | {c.node}))])
    return {
        "heads": head_pairs(circuit.heads),
        "effect": np.stack([losses.of(node, alone) for node in circuit.heads]),
        "roles": list(circuit.roles),
        "role_effect": np.stack([losses.known[alone] - losses.known[role] for role in roles]),
        "recipe": str(RECIPE),
        "greedy": {
            "sets": [head_pairs(sorted(choice.beside)) for choice in chosen],
            "kind": [choice.kind for choice in chosen],
            "effect": np.stack([losses.of(choice.node, choice.beside) for choice in chosen]),
            "discovery_effect": [choice.effect for choice in chosen],
            "discovery_prompts": len(study.discovery_subset(_count(study.settings, "discovery_prompts"))),
        },
    }


def choose(study: Study) -> list[ContextSet]:
    """For each circuit head the set K with the largest score on the discovery prompts; ties to the earlier kind.

    Reads `settings["minimality"]`: discovery_prompts (those of the lowest hash), greedy_steps (largest size of a greedy
    set). UserError if either is not positive.
    """
    losses = Losses(study, study.discovery_subset(_count(study.settings, "discovery_prompts")))
    candidates = {node: _declared(study, node) for node in study.claim.heads}
    losses.run(r for node, sets in candidates.items() for s in sets.values() for r in (s, s | {node}))
    for node, beside in _grow(losses, study).items():
        candidates[node].setdefault("greedy", beside)
    found = []
    for node, sets in candidates.items():
        kind = max(sets, key=lambda name, node=node, sets=sets: abs(losses.mean(node, sets[name])))
        found.append(ContextSet(node, sets[kind], kind, losses.mean(node, sets[kind])))
    return found


def _declared(study: Study, node: Node) -> dict[str, Removed]:
    """The empty set, and each role without `node` unless that is empty too."""
    roles = {f"role:{name}": frozenset(role.heads) - {node} for name, role in study.claim.roles.items()}
    return {"none": frozenset()} | {kind: beside for kind, beside in roles.items() if beside}


def _grow(losses: Losses, study: Study) -> dict[Node, Removed]:
    """The greedy set of each head: heads are added one by one while the score rises.

    All heads take each step together, so that a set which several heads ask for is run once.
    """
    circuit = set(study.claim.heads)
    grown = {node: frozenset[Node]() for node in study.claim.heads}
    growing = list(grown)
    for _ in range(_count(study.settings, "greedy_steps")):
        options = {v: [grown[v] | {u} for u in sorted(circuit - grown[v] - {v})] for v in growing}
        losses.run(r for v, sets in options.items() for s in sets for r in (s, s | {v}))
        growing = [v for v in growing if options[v]]
        for v in list(growing):
            best = max(options[v], key=lambda s, v=v: abs(losses.mean(v, s)))
            if abs(losses.mean(v, best)) <= abs(losses.mean(v, grown[v])):
                growing.remove(v)
            else:
                grown[v] = best
    return grown


def _count(settings: Mapping[str, Any], name: str) -> int:
    return require_count(f"minimality.{name}", settings["minimality"][name])
