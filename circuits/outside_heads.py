"""Heads outside the claim: what the model loses without each, and what the circuit gains with it: the facts of P.outside.

    F(M) - F(M \\ o)          the head o matters to the model although the claim leaves it out
    F(C u o) - F(C)          it matters beside the circuit, which reveals a redundant head that has no effect alone

for every head o outside the claim, for greedy sets of them, and for all heads together that have a positive (or a negative)
effect on the grouping prompts: many small effects may add up, and two that cancel are invisible to a test of faithfulness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node, stored_nodes
from circuits.claimed_groups import climb
from circuits.head_sets import Heads, HeadSets
from circuits.interventions import Recipe
from circuits.study import Study

Side = Literal["model", "circuit"]
SIDES: tuple[Side, ...] = ("model", "circuit")


@dataclass
class OutsideEffects:
    """Per-prompt effects of sets of outside heads on either side: what the model loses, what the circuit gains."""

    sets: HeadSets
    outside: Heads

    def run(self, side: Side, chosen: Iterable[Heads]) -> None:
        self.sets.run([self._ablated(side, heads) for heads in (frozenset[Node](), *chosen)])

    def of(self, side: Side, heads: Heads) -> Float[np.ndarray, " prompt"]:
        """F(M) - F(M without the heads), or F(C with the heads) - F(C)."""
        changed = self.sets.without(self._ablated(side, heads))
        unchanged = self.sets.without(self._ablated(side, frozenset()))
        return unchanged - changed if side == "model" else changed - unchanged

    def mean(self, side: Side, heads: Heads) -> float:
        return float(self.of(side, heads).astype(float).mean())

    def _ablated(self, side: Side, heads: Heads) -> Heads:
        return heads if side == "model" else self.outside - heads


@dataclass(frozen=True)
class OutsideSet:
    """Outside heads that are tested together on one side under one recipe; `kind`: greedy, positive or negative."""

    kind: str
    side: Side
    recipe: str
    heads: Heads


def measure(study: Study, recipes: Callable[[str], list[Recipe]], rows: Sequence[int]) -> dict[str, Any]:
    """Effects of every outside head and of the sets, on the scored prompts `rows` under `settings["outside"]["recipes"]`."""
    own = study.settings["outside"]
    outside = study.outside
    prompts, found, sets = study.prompts.select(rows), {}, []
    for name in dict.fromkeys((study.claim.primary_recipe, *own["recipes"])) if outside else ():
        chosen = choose(study, name, recipes(name)[0], outside)
        effects = OutsideEffects(HeadSets(study, prompts, recipes(name)[: own["draws"]]), outside)
        single = [frozenset([node]) for node in sorted(outside)]
        for side in SIDES:
            effects.run(side, [*single, *(one.heads for one in chosen if one.side == side)])
        found[name] = {side: np.stack([effects.of(side, heads) for heads in single]) for side in SIDES}
        sets += [
            {
                "kind": one.kind,
                "side": one.side,
                "recipe": one.recipe,
                **stored_nodes(sorted(one.heads)),
                "effect": effects.of(one.side, one.heads),
            }
            for one in chosen
        ]
    return {
        "prompt_index": list(rows),
        "grouping_prompts": len(study.grouping),
        **stored_nodes(sorted(outside)),
        "recipes": found,
        "sets": sets,
    }


def choose(study: Study, name: str, recipe: Recipe, outside: Heads) -> list[OutsideSet]:
    """The worst set that a greedy search finds, and all heads of either sign, on the grouping prompts under one draw."""
    effects = OutsideEffects(HeadSets(study, study.grouping, [recipe]), outside)
    found = []
    for side in SIDES:
        grown = climb(
            {"": frozenset()},
            lambda heads: (heads | {node} for node in outside - heads),
            lambda sets, side=side: effects.run(side, sets),
            lambda heads, side=side: abs(effects.mean(side, heads)),
            study.settings["outside"]["greedy_steps"],
        )[""]
        effects.run(side, [frozenset([node]) for node in outside])
        signs = {node: np.sign(effects.mean(side, frozenset([node]))) for node in outside}
        by_sign = {
            kind: frozenset(n for n, own in signs.items() if own == sign)
            for kind, sign in (("positive", 1), ("negative", -1))
        }
        found += [OutsideSet(kind, side, name, heads) for kind, heads in ({"greedy": grown} | by_sign).items() if heads]
    return found
