"""HeadSets: the logit difference with sets of heads ablated, on some prompts under one recipe; each set is run once.

F(C), the circuit alone, has all other heads ablated; F(M), the model, has no head ablated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node, names_of
from circuits.interventions import Recipe, Sweep, ablate
from circuits.prompts import PromptSet
from circuits.study import Study

Heads = frozenset[Node]


@dataclass
class HeadSets:
    """Effects of ablating sets of heads under `draws` of one recipe, averaged over them."""

    study: Study
    prompts: PromptSet
    draws: Sequence[Recipe]
    known: dict[Heads, Float[np.ndarray, " prompt"]] = field(default_factory=dict)

    def run(self, sets: Iterable[Heads]) -> None:
        """Measure the sets that have not been run yet, in one sweep."""
        new = sorted({ablated for ablated in sets if ablated not in self.known}, key=sorted)
        if not new:
            return
        variants = [ablate(sorted(heads), draw, f"{_name(heads)}, {draw}") for heads in new for draw in self.draws]
        effects = self.study.run(Sweep(tuple(variants)), self.prompts).logit_diff
        by_draw = effects.reshape(len(new), len(self.draws), -1)
        self.known.update(zip(new, by_draw.mean(1) if len(self.draws) > 1 else by_draw[:, 0], strict=True))

    def without(self, ablated: Heads) -> Float[np.ndarray, " prompt"]:
        """Logit difference of every prompt with these heads ablated; the set must have been run."""
        return self.known[ablated]

    def mean(self, ablated: Heads) -> float:
        return float(self.without(ablated).astype(float).mean())


def _name(heads: Heads) -> str:
    return "without " + (", ".join(names_of(sorted(heads))) or "nothing")
