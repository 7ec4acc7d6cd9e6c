"""Simultaneous intervals of changes over topics: they hold for all heads and quantities of a trace at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from suites.geometry.metric import residuals as around_mean


def by_topic(
    changes: Float[np.ndarray, "construct quantity"], topics: Sequence[str]
) -> Float[np.ndarray, "topic quantity"]:
    """The mean of each topic's constructs, which are not independent of each other."""
    return np.array(
        [
            changes[[place for place, own in enumerate(topics) if own == topic]].mean(0)
            for topic in dict.fromkeys(topics)
        ]
    )


def equivalence(changes: Float[np.ndarray, "topic quantity"], level: float, claims: int) -> list[tuple[float, float]]:
    """Intervals to show that quantities do not change: mean -+ t se, t one-sided at (1 - level)/claims.

    A claim that all of some quantities stay within a margin holds if all their intervals do. It is false with at most the chance
    (1 - level)/claims, however many quantities it has: if one has really changed by the margin, that one must have passed alone
    (two one-sided tests, intersection-union; Schuirmann 1987, Berger 1982). Over all `claims` Bonferroni bounds the chance of any
    false one by 1 - level. So these intervals need not hold for all quantities at once, and are narrower than `intervals`.

    This is exact for normal changes. At (1 - level)/claims = .05/64, a claim right at the margin is false half as often for t3,
    but 5 and 17 times as often for changes with skewness 1 and 2 away from 0, at 24 topics (6 and 26 times at 8).
    """
    count = len(changes)
    residuals = np.stack([around_mean(one[:, None])[:, 0] for one in changes.T], axis=1)
    error = np.sqrt((residuals**2).sum(0) / (count - 1) / count)
    half = float(stats.t.ppf(1 - (1 - level) / claims, count - 1)) * error
    return [(float(low), float(high)) for low, high in zip(changes.mean(0) - half, changes.mean(0) + half, strict=True)]


def intervals(
    changes: Float[np.ndarray, "topic quantity"], level: float, resamples: int, seed: int
) -> list[tuple[float, float]]:
    """Simultaneous intervals of the means over topics, one per quantity: mean -+ c se.

    c is the `level` quantile of the largest |t| over quantities under sign flips of whole topics' deviations from their mean: all
    2^n flips if these are at most `resamples`, else `resamples` random ones. This accounts for the tails of few topics and for
    correlated quantities. It assumes symmetric changes. A bootstrap of the studentised maximum has coverage .05 at 8 topics and
    .58 at 24 (192 quantities), and is not offered. Source: Westfall & Young 1993.
    """
    count, means = len(changes), changes.mean(0)
    residuals = np.stack([around_mean(one[:, None])[:, 0] for one in changes.T], axis=1)  # each in its own unit
    error = np.sqrt((residuals**2).sum(0) / (count - 1) / count)
    if 2**count <= resamples:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=count)))
    else:
        signs = np.random.default_rng(seed).choice([1.0, -1.0], size=(resamples, count))
    squares = (residuals**2).mean(0)
    largest = np.zeros(len(signs))
    for place, flipped in enumerate(signs):  # one at a time, to save memory: there are heads times quantities
        mean = flipped @ residuals / count
        spread_left = np.sqrt(np.maximum(squares - mean**2, 1e-12 * squares) / (count - 1))
        t = np.divide(np.abs(mean), spread_left, out=np.zeros_like(mean), where=squares > 0)
        largest[place] = t.max()
    half = np.quantile(largest, level) * error
    return [(float(low), float(high)) for low, high in zip(means - half, means + half, strict=True)]
