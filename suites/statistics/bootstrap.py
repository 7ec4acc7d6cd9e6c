"""Percentile bootstrap of a mean: items (clusters) are resampled, never the samples inside one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from calibrations.statistics import bootstrap_counts, bootstrap_ratios, percentile_interval, wilson_interval
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics.proportions import WILSON

MINIMUM_CLUSTERS = 20  # fewer give no interval worth printing
RESAMPLES, FEWEST_RESAMPLES = 10_000, 1000
PERCENTILE = "percentile bootstrap over clusters"


def mean(
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    unit: str = "share",
    shares: bool = True,
) -> Estimate:
    """Mean of `values` [sample] with the percentile interval over resampled `clusters` [sample] (default: each its own).

    Insufficient under 20 clusters. If every cluster has the same mean, the bootstrap has no spread ([1, 1] at 20 of 20). The
    interval is then Wilson's with one trial per cluster, for `shares` with a mean in [0, 1]; of anything else, such as a
    difference, there is none. UserError for under 1000 resamples, values that are not finite, and labels that are not one per
    value. Source: Efron & Tibshirani 1993.
    """
    if resamples < FEWEST_RESAMPLES:
        raise UserError(
            f"{resamples} resamples; expected at least {FEWEST_RESAMPLES}: the ends of the interval are quantiles of them"
        )
    sums, sizes = sums_and_sizes(values, clusters)
    n_clusters, total = len(sums), float(sizes.sum())
    if n_clusters < MINIMUM_CLUSTERS:
        reason = f"{n_clusters} clusters; an interval needs at least {MINIMUM_CLUSTERS}"
        return missing("insufficient_data", reason, unit, n_clusters)
    estimate = float(sums.sum() / total)
    means = sums / sizes
    detail = {"samples": int(total), "clusters": n_clusters}
    if np.ptp(means) <= 1e-12 * np.abs(means).max():
        whole = shares and 0 <= estimate <= 1
        low_high = wilson_interval(estimate * n_clusters, n_clusters, level) if whole else None
        interval = low_high and Interval(*low_high, level, WILSON)
        return Estimate(estimate, unit, n_clusters, ci=interval, detail=detail)
    draws = bootstrap_ratios(bootstrap_counts(n_clusters, resamples, seed=seed), sums, sizes)
    interval = Interval(*percentile_interval(draws, level), level, PERCENTILE)
    detail |= {"resamples": resamples, "seed": seed}
    return Estimate(estimate, unit, n_clusters, ci=interval, assumptions=("clusters are independent",), detail=detail)


def difference(
    a: ArrayLike, b: ArrayLike, clusters_a: ArrayLike, clusters_b: ArrayLike, *, seed: int, level: float = 0.95
) -> Interval | None:
    """Percentile interval of mean B - mean A over resampled clusters of each side; None under 20 clusters on either."""
    sides = [sums_and_sizes(values, clusters) for values, clusters in ((a, clusters_a), (b, clusters_b))]
    if min(len(sums) for sums, _ in sides) < MINIMUM_CLUSTERS:
        return None
    means = [
        bootstrap_ratios(bootstrap_counts(len(sums), RESAMPLES, seed=seed + place), sums, sizes)
        for place, (sums, sizes) in enumerate(sides)
    ]
    low, high = percentile_interval(means[1] - means[0], level)
    return Interval(low, high, level, PERCENTILE)


def sums_and_sizes(
    values: ArrayLike, clusters: ArrayLike | None
) -> tuple[Float[np.ndarray, " cluster"], Float[np.ndarray, " cluster"]]:
    """Sum and number of `values` [sample] in each cluster. UserError unless they are finite and each has a cluster."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise UserError(
            f"values of shape {x.shape} with {int((~np.isfinite(x)).sum())} not finite; expected a vector of numbers:"
            " leave out what has no value"
        )
    labels = np.arange(x.size) if clusters is None else np.asarray(clusters)
    if labels.shape != x.shape:
        raise UserError(f"{labels.size} cluster labels for {x.size} values; expected one each: label every value")
    member = np.unique(labels, return_inverse=True)[1]
    return np.bincount(member, x), np.bincount(member).astype(float)
