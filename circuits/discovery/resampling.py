"""Bootstrap over clusters of prompts: intervals of a statistic, and how far a chosen set depends on the prompts.

The calibrations have a bootstrap of their own; nothing that measures may read what judges, and discovery needs the plainest
case only.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

LEVEL = 0.95


def cluster_counts(clusters: Sequence[Hashable], resamples: int, seed: int) -> Int[np.ndarray, "resample prompt"]:
    """How often each prompt is in each resample: as many clusters as there are, drawn with replacement.

    The prompts of a cluster share its count, so with clusters of unequal size the rows sum to different numbers.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    share = np.full(len(numbers), 1 / len(numbers))
    drawn = np.random.default_rng(seed).multinomial(len(numbers), share, size=resamples)
    return drawn[:, [numbers[name] for name in clusters]]


def interval(draws: Float[np.ndarray, "resample ..."]) -> Float[np.ndarray, "end ..."]:
    """The central 95 % of bootstrap draws: their 2.5 % and 97.5 % quantiles (percentile bootstrap)."""
    tail = (1 - LEVEL) / 2
    return np.quantile(draws, [tail, 1 - tail], axis=0)


def jaccard(first: Collection[Hashable], second: Collection[Hashable]) -> float:
    """|A and B| / |A or B|; 1 for two empty sets, which are the same."""
    first, second = frozenset(first), frozenset(second)
    return len(first & second) / len(first | second) if first or second else 1.0


def agreement(sets: Sequence[Collection[Hashable]], whole: Collection[Hashable]) -> dict[str, float | None]:
    """Mean Jaccard index over all pairs of `sets`, and of each with `whole`; None for fewer than two sets."""
    if len(sets) < 2:
        return {"pairwise": None, "with_full_sample": None}
    pairs = [jaccard(first, second) for first, second in combinations(map(frozenset, sets), 2)]
    return {
        "pairwise": float(np.mean(pairs)),
        "with_full_sample": float(np.mean([jaccard(one, whole) for one in sets])),
    }
