"""Means over prompts with intervals that respect how the prompts were drawn, for figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import scipy
from jaxtyping import Float

from calibrations.statistics import Insufficient, clustered_mean
from meridian.figures.values import Cells

LEVEL = 0.95  # of intervals in figures of measurements; calibrations use 90 %

Column = list[float | None]


def cells(rows: Iterable[Iterable[float | None]]) -> Cells:
    """A table of plain floats, with None for missing and non-finite values."""
    return tuple(tuple(map(finite, row)) for row in rows)


def finite(value: float | None) -> float | None:
    """`value` as a plain float, None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def clustered_means(
    values: Float[np.ndarray, "prompt variable"], clusters: np.ndarray, strata: np.ndarray, level: float = LEVEL
) -> tuple[list[float], Column, Column]:
    """(means, lower ends, upper ends) of each column, with cluster-robust intervals: mean -+ t(df) SE.

    Clusters count as drawn within `strata`. The ends are None if the data give no standard error (a column that does not vary,
    a single cluster). SE and df are those of `calibrations.statistics.clustered_mean`; the strata are those of `usable_strata`.
    """
    means, strata = values.mean(axis=0), usable_strata(clusters, strata)
    low: Column = []
    high: Column = []
    for mean, column in zip(means, values.T, strict=True):
        try:
            found = clustered_mean(column, clusters, strata)
        except Insufficient:
            ends = None, None
        else:
            half = float(scipy.stats.t.ppf((1 + level) / 2, found.degrees_of_freedom)) * found.standard_error
            ends = float(mean - half), float(mean + half)
        low.append(ends[0])
        high.append(ends[1])
    return [float(mean) for mean in means], low, high


def usable_strata(clusters: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """`strata`, or a single stratum if some stratum has only one cluster and therefore shows no variation between clusters.

    With a single stratum, clusters count as drawn from all strata alike, so the interval is wider if strata differ.
    """
    strata = np.asarray(strata)
    nested = set(zip(strata.tolist(), np.asarray(clusters).tolist(), strict=True))
    sizes = Counter(stratum for stratum, _ in nested)
    return strata if min(sizes.values()) > 1 else np.zeros(len(strata), dtype=int)


def interval_words(low: Iterable[float | None]) -> str:
    """A caption's words about the intervals with these lower ends, some or all of which may be missing."""
    low = list(low)
    if all(end is None for end in low):
        return "the prompts allow no interval"
    some = "" if None not in low else " where the values allow one"
    return f"{LEVEL:.0%} cluster-robust interval{some}"


def normal_interval(mean: float | None, standard_error: float | None) -> tuple[float | None, float | None]:
    """mean -+ z SE of a stored standard error at `LEVEL`; (None, None) if either is missing."""
    if mean is None or standard_error is None:
        return None, None
    half = float(scipy.stats.norm.ppf((1 + LEVEL) / 2)) * standard_error
    return mean - half, mean + half
