"""Cross-fitting: a method's circuits, ranked on one half of the prompts and scored on the other.

A circuit looks better on the prompts that ranked its components than on others, and more so with fewer prompts. On 200 IOI
prompts of the pocket model, greedy pruning finds 14 heads that keep .92 of the logit difference on those prompts and .90 on
prompts that did not rank. So the clusters of prompts are split into two halves, the method ranks on each half, and its circuits
run on the other. Every prompt is thus scored once, by circuits that it did not rank. These circuits are ranked on half of the
prompts, so the circuit ranked on all of them may be better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from circuits.discovery import curve, resampling
from circuits.discovery.curve import Curve
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import ComponentRanking


@dataclass(frozen=True, eq=False)
class CrossFit:
    """A ranking's circuits on all prompts; and for each half, its rows and the circuits that the other half ranked."""

    whole: Nested
    halves: tuple[tuple[Int[np.ndarray, " row"], Nested], ...]

    @classmethod
    def of(cls, nested: Nested, seed: int) -> CrossFit:
        """Halves of the clusters, split by `seed`. A single cluster has no halves, so its prompts score what they ranked."""
        rows = np.arange(len(nested.prompts))
        first = resampling.half(nested.prompts.clusters, seed)
        if first.all() or not first.any():
            return cls(nested, ((rows, nested),))
        return cls(nested, tuple((rows[~half], _scored(nested, half)) for half in (first, ~first)))

    @property
    def scored_on(self) -> str:
        """The prompts that the curve's numbers are about, in words."""
        if len(self.halves) == 1:
            return "the prompts that ranked, all of one cluster"
        return (
            "prompts that did not rank: circuits ranked on one half of the clusters, scored on the other, both pooled"
        )

    def logit_diff(self, sizes: Sequence[int]) -> Float[np.ndarray, "size prompt"]:
        """The metric of the runs in which only the first `size` components are intact, as ranked by the other half."""
        found = np.empty((len(sizes), len(self.whole.prompts)))
        for rows, nested in self.halves:
            found[:, rows] = nested.logit_diff(sizes)
        return found

    def faithfulness(self, size: int) -> float:
        """f at one size, both halves pooled. Raises as `Nested.limits`."""
        empty, whole = self.whole.limits()
        return float(curve.normalised(self.logit_diff([size])[0], whole, empty))

    def curve(self, shares: Sequence[float]) -> Curve:
        """The circuits at these shares of all components. Raises as `Nested.limits`."""
        sizes = curve.sizes(self.whole.total, shares)
        empty, whole = self.whole.limits()
        return Curve(tuple(shares), tuple(sizes), self.logit_diff(sizes), whole, empty)


def _scored(nested: Nested, ranked: np.ndarray) -> Nested:
    """The circuits that the prompts `ranked` rank, run on the other prompts."""
    order = nested.ranking.order(ranked.astype(float))
    ranking: ComponentRanking = replace(nested.ranking, order=lambda weights: order, scores=None)
    return Nested(nested.study, nested.prompts.select(np.flatnonzero(~ranked).tolist()), ranking)
