"""22 Minimality: what the circuit loses without each of its nodes (heads, and MLPs if it claims any), and what it leaves out.

It has three parts: each head alone, each role, and each head without its backups (here); groups of claimed heads ablated in
circuit and model (`circuits.claimed_groups`); the heads outside the claim (`circuits.outside_heads`).

F(C) is the logit difference with everything outside C mean-ablated per template and position. effect = F(C) - F(C without
the node), which is near zero for a head with a backup. Minimality as Wang et al. 2022 define it (section 4.3) therefore asks
for a set K of other circuit heads such that the head v counts once K is taken out:

    score(v) = max over K of |F(C \\ K) - F(C \\ (K u {v}))|,     at least 1 % of F of the whole model

The candidates for K are: the empty set; a layer of the claim, all its layers from one on, or the whole claim, each without v;
and a greedy set, which starts empty and adds the head that raises the score most. Roles are not candidates, since a claim must
not influence its own test through its labels. A maximum over many sets is biased upwards, so K is chosen on discovery prompts
and its effect is measured on the scored ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from circuits import claimed_groups, outside_heads
from circuits.circuit import PRIMARY_RECIPES, Node, head_pairs, heads_of, names_of, only_heads, stored_nodes
from circuits.head_sets import Heads, HeadSets
from circuits.interventions import Recipe
from circuits.measurements.ablation_battery import recipes
from circuits.prompts import PromptSet
from circuits.study import Study, require_count
from results_io import UserError

NUMBER, ID = "22", "minimality"
SETTINGS = ("minimality", "completeness", "outside", "seed", "draws", "noise_scale")
DEPENDS_ON_CIRCUIT = True
RECIPE = Recipe("mean")
POSITIVE = {  # settings that count something
    "minimality": ("greedy_steps", "discovery_prompts", "greedy_heads"),
    "completeness": ("draws", "prompt_share", "held_out_share", "random_groups", "greedy_steps"),
    "outside": ("draws", "prompt_share", "held_out_share", "greedy_steps"),
}
RECIPES = (
    ("completeness", "recipes"),
    ("completeness", "others"),
    ("outside", "recipes"),
)  # settings that name recipes


@dataclass(frozen=True)
class ContextSet:
    """The set K without which head v, the `node`, counts most: its kind, and F(C \\ K) - F(C \\ (K u v)) in nats."""

    node: Node
    beside: Heads
    kind: str
    effect: float


@dataclass
class HeadLosses:
    """What the circuit loses with a head after other heads were removed; `sets` are sets of the whole model's heads."""

    sets: HeadSets
    outside: Heads

    @classmethod
    def on(cls, study: Study, prompts: PromptSet) -> HeadLosses:
        return cls(HeadSets(study, prompts, [RECIPE]), study.outside)

    def run(self, removed: Iterable[Heads]) -> None:
        """Measure the circuit without each of these sets."""
        self.sets.run(self.outside | heads for heads in removed)

    def left(self, removed: Heads) -> Float[np.ndarray, " prompt"]:
        """F(C \\ K) per prompt; the set must have been run."""
        return self.sets.without(self.outside | removed)

    def of(self, node: Node, beside: Heads) -> Float[np.ndarray, " prompt"]:
        """F(C \\ K) - F(C \\ (K u {node})) per prompt; both sets must have been run."""
        return self.left(beside) - self.left(beside | {node})

    def mean(self, node: Node, beside: Heads) -> float:
        return float(self.of(node, beside).astype(float).mean())


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for a number of steps or prompts that is not positive, or for an unknown recipe."""
    for section, names in POSITIVE.items():
        for name in names:
            require_count(settings, section, name)
    for section, name in RECIPES:
        if unknown := [recipe for recipe in settings[section][name] if recipe not in PRIMARY_RECIPES]:
            raise UserError(
                f"measurement.{section}.{name} names {unknown[0]}; use some of {', '.join(PRIMARY_RECIPES)}"
            )


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt loss for each head and role of the circuit, and for each head without the set that shows it best."""
    chosen = choose(study)
    circuit, alone = study.claim, frozenset[Node]()
    by_name = partial(recipes, study)
    losses = HeadLosses.on(study, study.prompts)
    roles = [frozenset(role.nodes) for role in circuit.roles.values()]
    needed = [alone, *(alone | {node} for node in circuit.nodes), *roles]
    losses.run([*needed, *(removed for c in chosen for removed in (c.beside, c.beside | {c.node}))])
    return {
        **stored_nodes(circuit.nodes),
        "effect": np.stack([losses.of(node, alone) for node in circuit.nodes]),
        "roles": list(circuit.roles),
        "role_effect": np.stack([losses.left(alone) - losses.left(role) for role in roles]),
        "recipe": str(RECIPE),
        "greedy": {
            "sets": [head_pairs(heads_of(choice.beside)) for choice in chosen],
            **({} if only_heads(circuit.nodes) else {"nodes": [names_of(sorted(c.beside)) for c in chosen]}),
            "kind": [choice.kind for choice in chosen],
            "effect": np.stack([losses.of(choice.node, choice.beside) for choice in chosen]),
            "discovery_effect": [choice.effect for choice in chosen],
            "discovery_prompts": len(study.discovery_subset(study.settings["minimality"]["discovery_prompts"])),
        },
        "completeness": claimed_groups.measure(study, by_name, rows(study, "completeness")),
        "outside": outside_heads.measure(study, by_name, rows(study, "outside")),
    }


def rows(study: Study, section: str) -> list[int]:
    """The scored prompts on which groups of heads are run: section "completeness" or "outside"."""
    own = study.settings[section]
    return study.one_in(own["prompt_share"], own["held_out_share"])


def choose(study: Study) -> list[ContextSet]:
    """For each circuit head the set K with the largest score on the discovery prompts; ties to the earlier kind.

    Reads `settings["minimality"]`: discovery_prompts (those of the lowest hash), greedy_steps (largest size of a greedy set).
    """
    size = require_count(study.settings, "minimality", "discovery_prompts")
    losses = HeadLosses.on(study, study.discovery_subset(size))
    bases = label_free(study.claim.nodes)
    candidates = {node: _without(node, bases) for node in study.claim.nodes}
    losses.run(r for node, sets in candidates.items() for s in sets.values() for r in (s, s | {node}))
    for node, beside in _grow(losses, study).items():
        candidates[node].setdefault("greedy", beside)
    found = []
    for node, sets in candidates.items():
        kind = max(sets, key=lambda name, node=node, sets=sets: abs(losses.mean(node, sets[name])))
        found.append(ContextSet(node, sets[kind], kind, losses.mean(node, sets[kind])))
    return found


def label_free(claimed: Iterable[Node]) -> dict[str, Heads]:
    """The candidate sets that do not depend on role labels: "layer:2", "claim:0", and "suffix:2" (all from layer 2 on)."""
    return {
        f"{one.kind}:{min(node.layer for node in one.heads)}": one.heads
        for one in claimed_groups.declared(claimed)
        if one.kind in ("layer", "claim", "suffix")
    }


def _without(node: Node, bases: Mapping[str, Heads]) -> dict[str, Heads]:
    """The empty set, and each of `bases` without `node` unless that is empty."""
    sets = {kind: heads - {node} for kind, heads in bases.items()}
    return {"none": frozenset()} | {kind: beside for kind, beside in sets.items() if beside}


def _grow(losses: HeadLosses, study: Study) -> dict[Node, Heads]:
    """The greedy set of each head: heads are added one by one while the score rises.

    All heads take each step together, so that a set that several heads need is run once. If a claim has more heads than
    `settings["minimality"]["greedy_heads"]`, only those with the largest loss alone are tried (ties to the earlier head).
    """
    most, alone = require_count(study.settings, "minimality", "greedy_heads"), frozenset[Node]()
    circuit = set(sorted(study.claim.nodes, key=lambda node: (-abs(losses.mean(node, alone)), node))[:most])
    grown = {node: frozenset[Node]() for node in study.claim.nodes}
    growing = list(grown)
    for _ in range(require_count(study.settings, "minimality", "greedy_steps")):
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
