"""Bootstrap over clusters of prompts: intervals of a statistic, and how much a chosen set depends on the prompts.

The calibrations have their own bootstrap, but code that measures may not import code that judges, and discovery needs only the
simplest case.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

LEVEL = 0.95
COLUMNS = 100_000  # components compared at a time: 100 sets of them are 40 MB in float32


def cluster_counts(clusters: Sequence[Hashable], resamples: int, seed: int) -> Int[np.ndarray, "resample prompt"]:
    """How often each prompt occurs in each resample of the clusters, drawn with replacement.

    The prompts of a cluster share its count, so with clusters of unequal size the row sums differ.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    share = np.full(len(numbers), 1 / len(numbers))
    drawn = np.random.default_rng(seed).multinomial(len(numbers), share, size=resamples)
    return drawn[:, [numbers[name] for name in clusters]]


def interval(draws: Float[np.ndarray, "resample ..."]) -> Float[np.ndarray, "end ..."]:
    """The central 95 % of bootstrap draws: their 2.5 % and 97.5 % quantiles (percentile bootstrap)."""
    tail = (1 - LEVEL) / 2
    return np.quantile(draws, [tail, 1 - tail], axis=0)


def half(clusters: Sequence[Hashable], seed: int) -> Bool[np.ndarray, " prompt"]:
    """True for prompts in the first of two random halves of the clusters; with an odd number the first half is larger."""
    names = list(dict.fromkeys(clusters))
    dealt = np.random.default_rng(seed).permutation(len(names))
    first = {names[place] for place in dealt[: (len(names) + 1) // 2]}
    return np.array([name in first for name in clusters])


def jaccard(members: Bool[np.ndarray, "set component"]) -> Float[np.ndarray, "set set"]:
    """Jaccard index |A and B| / |A or B| of every two sets; 1 for two empty sets."""
    both = np.zeros((len(members), len(members)))
    for start in range(0, members.shape[1], COLUMNS):
        some = members[:, start : start + COLUMNS].astype(np.float32)  # counts up to 2^24 are exact
        both += some @ some.T
    sizes = np.diag(both)
    either = sizes[:, None] + sizes - both
    return np.divide(both, either, out=np.ones_like(both), where=either > 0)


def agreement(
    sets: Bool[np.ndarray, "set component"], whole: Bool[np.ndarray, " component"]
) -> dict[str, float | None]:
    """Mean Jaccard index over all pairs of `sets`, and of each with `whole`; None for fewer than two sets."""
    if len(sets) < 2:
        return {"pairwise": None, "with_full_sample": None}
    found = jaccard(np.concatenate([sets, whole[None]]))
    pairs = found[:-1, :-1][np.triu_indices(len(sets), 1)]
    return {"pairwise": float(pairs.mean()), "with_full_sample": float(found[:-1, -1].mean())}
