"""Groups of claimed heads, and what the circuit and the model lose without each: the facts of P.completeness.

For a group K of the circuit's heads C, with everything else ablated under the same recipe,

    F(C) - F(C \\ K)      what the circuit loses without K
    F(M) - F(M \\ K)      what the whole model loses without K

If they differ, heads outside the claim stand in for K, or add to it. The groups are every head, every layer of the claim,
all of its heads from a layer on, the whole claim, random subsets, and greedy ones. Role labels are not read, since a claim
must not influence its own test through its labels. Greedy groups are grown on prompts that did not choose the circuit, so
their signed effects on the scored prompts are unbiased; the true worst group is at least as bad.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from circuits.circuit import Node, stored_nodes
from circuits.head_sets import Heads, HeadSets
from circuits.interventions import Recipe
from circuits.study import Study

Score = Callable[[Heads], float]
Neighbours = Callable[[Heads], Iterable[Heads]]


@dataclass(frozen=True)
class KnockoutGroup:
    """Claimed nodes that are ablated together; `kind` says how they were chosen."""

    kind: str
    name: str
    heads: Heads


def measure(study: Study, recipes: Callable[[str], list[Recipe]], rows: Sequence[int]) -> dict[str, Any]:
    """Losses of circuit and model without each group, on the scored prompts `rows`.

    `recipes` gives the draws of a recipe by name. Reads `settings["completeness"]`: under its `recipes` and the claim's own,
    every group is run with `draws` draws; under `others`, the groups that are not random are run with one. If the claim is
    its whole scope, circuit and model are the same and nothing is measured.
    """
    own, outside = study.settings["completeness"], study.outside
    every = outside | frozenset(study.claim.nodes)
    groups = choose(study, recipes) if outside else []
    found, gating = {}, deciding_recipes(study)
    for name in dict.fromkeys((*gating, *own["others"])) if groups else ():
        asked = [i for i, group in enumerate(groups) if name in gating or group.kind != "random"]
        draws = recipes(name)[: own["draws"] if name in gating else 1]
        sets = HeadSets(study, study.prompts.select(rows), draws)
        removed = [groups[i].heads for i in asked]
        sets.run([frozenset(), every, outside, *removed, *(outside | heads for heads in removed)])
        found[name] = {
            "groups": asked,
            "recipe": str(draws[0]),
            "draws": len(draws),
            "model": sets.without(frozenset()),
            "circuit": sets.without(outside),
            "empty": sets.without(every),
            "model_without": np.stack([sets.without(heads) for heads in removed]),
            "circuit_without": np.stack([sets.without(outside | heads) for heads in removed]),
        }
    return {
        "prompt_index": list(rows),
        "grouping_prompts": len(study.grouping),
        "groups": [{"kind": one.kind, "name": one.name, **stored_nodes(sorted(one.heads))} for one in groups],
        "recipes": found,
    }


def deciding_recipes(study: Study) -> tuple[str, ...]:
    """The recipes under which every group is run: the claim's own first, then those of the settings."""
    return tuple(dict.fromkeys((study.claim.primary_recipe, *study.settings["completeness"]["recipes"])))


def choose(study: Study, recipes: Callable[[str], list[Recipe]]) -> list[KnockoutGroup]:
    """The groups; each set of heads occurs once, under its first name."""
    own, heads = study.settings["completeness"], study.claim.nodes
    groups = [*declared(heads), *drawn(heads, own["random_groups"], f"groups {study.settings['seed']}")]
    gating = deciding_recipes(study)
    for name in dict.fromkeys((*gating, *own["others"])):
        groups += greedy(study, name, recipes(name)[0], backward_only=name not in gating)
    first: dict[Heads, KnockoutGroup] = {}
    for group in groups:
        first.setdefault(group.heads, group)
    return list(first.values())


def declared(heads: Iterable[Node]) -> list[KnockoutGroup]:
    """Single heads, layers, all heads from a layer on, and the whole claim."""
    heads = sorted(heads)
    layers = sorted({node.layer for node in heads})
    whole = KnockoutGroup("claim", "the whole claim", frozenset(heads))
    return [
        *(KnockoutGroup(node.kind, node.name, frozenset([node])) for node in heads),
        *(
            KnockoutGroup("layer", f"layer {at}", frozenset(node for node in heads if node.layer == at))
            for at in layers
        ),
        *([whole] if layers else []),
        *(
            KnockoutGroup("suffix", f"layers from {at}", frozenset(n for n in heads if n.layer >= at))
            for at in layers[1:]
        ),
    ]


def drawn(heads: Iterable[Node], count: int, seed: str) -> list[KnockoutGroup]:
    """`count` random subsets of 2 to k / 2 of the k heads; none if k < 4."""
    heads = sorted(heads)
    if len(heads) < 4:
        return []
    rng = random.Random(seed)
    sets = [frozenset(rng.sample(heads, rng.randint(2, len(heads) // 2))) for _ in range(count)]
    return [KnockoutGroup("random", f"random {number}", chosen) for number, chosen in enumerate(sets)]


def greedy(study: Study, name: str, recipe: Recipe, backward_only: bool = False) -> list[KnockoutGroup]:
    """Groups grown head by head, and groups cut down from the whole claim and from each suffix, while |difference of losses|
    rises.

    It runs on the grouping prompts, under one draw of the recipe called `name`. It searches both ways because a backup that is
    active only when a whole stage is silent is invisible to a search that begins with single heads.
    """
    steps = study.settings["completeness"]["greedy_steps"]
    claim, outside = frozenset(study.claim.nodes), study.outside
    sets = HeadSets(study, study.grouping, [recipe])

    def measure_all(groups: Iterable[Heads]) -> None:
        sets.run([frozenset(), outside, *(one for heads in groups for one in (heads, outside | heads))])

    def difference(heads: Heads) -> float:
        lost_by_circuit = sets.mean(outside) - sets.mean(outside | heads)
        return abs(lost_by_circuit - (sets.mean(frozenset()) - sets.mean(heads)))

    starts = {f"cut down from {one.name}": one.heads for one in declared(claim) if one.kind in ("claim", "suffix")}
    if backward_only:
        starts = {name: heads for name, heads in starts.items() if heads == claim}
    cut = climb(
        starts, lambda heads: (heads - {node} for node in heads if len(heads) > 1), measure_all, difference, steps
    )
    empty = {} if backward_only else {"grown": frozenset[Node]()}
    grown = climb(empty, lambda heads: (heads | {node} for node in claim - heads), measure_all, difference, steps)
    return [KnockoutGroup("greedy", f"{how}, {name}", heads) for how, heads in (grown | cut).items() if heads]


def climb(
    starts: Mapping[str, Heads],
    neighbours: Neighbours,
    measure_all: Callable[[Iterable[Heads]], None],
    score: Score,
    steps: int,
) -> dict[str, Heads]:
    """Hill climbing from each start: move to the best neighbour while the score rises, at most `steps` times.

    All starts take a step together, so that their sets form one sweep. Ties go to the first in the order of the heads.
    """
    at, moving = dict(starts), list(starts)
    measure_all(starts.values())
    for _ in range(steps):
        options = {how: sorted(neighbours(at[how]), key=sorted) for how in moving}
        moving = [how for how in moving if options[how]]
        measure_all(heads for how in moving for heads in options[how])
        for how in list(moving):
            best = max(options[how], key=score)
            if score(best) <= score(at[how]):
                moving.remove(how)
            else:
                at[how] = best
    return at
