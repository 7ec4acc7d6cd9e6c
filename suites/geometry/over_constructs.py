"""The mean of a metric over constructs, with an interval that allows for skewed values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrations.statistics import bootstrap_counts
from suites.estimate import Estimate, Interval, missing
from suites.geometry.metric import LEVEL
from suites.statistics.bootstrap import MINIMUM_CLUSTERS, sums_and_sizes

RESAMPLES = 2000
METHOD = "studentised bootstrap over topics"


def mean(values: Sequence[float], topics: Sequence[str], *, seed: int, unit: str, level: float = LEVEL) -> Estimate:
    """Mean m of `values` [construct] with the bootstrap-t interval m - t* se, over resampled `topics` [construct].

    t* are quantiles of (m* - m)/se*; se is the standard error of a ratio of sums over topics. The mean of unbiased values is
    unbiased for any number of them. Under 20 topics, or if all values agree, it has no interval: `interval` in `detail` says
    insufficient, and the assumptions say why. Insufficient without values. The percentile bootstrap is too narrow for skewed
    values and is not offered. Source: Efron & Tibshirani 1993, ch. 12.
    """
    if not len(values):
        return missing("insufficient_data", "no construct has a value", unit)
    sums, sizes = sums_and_sizes(list(values), list(topics))
    count = len(sums)
    detail = {"constructs": len(values), "topics": count}
    if count < MINIMUM_CLUSTERS:
        reason = f"{count} topics; at least {MINIMUM_CLUSTERS} are needed"
        detail |= {"interval": {"status": "insufficient_data", "reason": reason}}
        notes = (f"no interval: {reason}",)
        return Estimate(float(sums.sum() / sizes.sum()), unit, count, assumptions=notes, detail=detail)
    centre, error = _mean_and_error(np.ones((1, count)), sums, sizes)
    detail |= {"resamples": RESAMPLES, "seed": seed}
    if error[0] <= 1e-12 * max(abs(centre[0]), 1e-300):
        note = "no interval: all values agree"
        return Estimate(float(centre[0]), unit, count, assumptions=(note,), detail=detail)
    drawn, errors = _mean_and_error(bootstrap_counts(count, RESAMPLES, seed=seed), sums, sizes)
    scores = (drawn - centre)[errors > 0] / errors[errors > 0]
    tail = (1 - level) / 2
    high, low = np.quantile(scores, [tail, 1 - tail])
    interval = Interval(float(centre[0] - low * error[0]), float(centre[0] - high * error[0]), level, METHOD)
    return Estimate(float(centre[0]), unit, count, ci=interval, assumptions=("topics are independent",), detail=detail)


def _mean_and_error(counts: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratio of sums and its standard error for every row of counts [resample, topic]."""
    total, groups = counts @ sizes, counts.sum(1)
    centre = counts @ sums / total
    residuals = (sums[None] - centre[:, None] * sizes[None]) ** 2
    return centre, np.sqrt((counts * residuals).sum(1) * groups / (groups - 1)) / total
