"""OW (177): how wide the outputs to many prompts lie."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from suites.estimate import Estimate, Interval, missing
from suites.geometry.metric import LEVEL, ROUNDING, UNIT, Metric, PublishedScore, points, settled

NUMBER, ID, NAME = "177", "G.ow", "width"
FORMULA = "diameter of the floor(.9 n) points nearest to the coordinate-wise median"
FEWEST = 20  # prompts
KEPT, QUANTILE = 0.9, 0.9
DIGITS = 12  # decimal places, relative to the largest distance: distances equal to so many are ties
METHOD = "quantiles of distances at the jackknifed share of pairs (Woodruff)"


def kept(values: ArrayLike) -> Float[np.ndarray, "point axis"]:
    """The floor(.9 n) points nearest to the coordinate-wise median, ties by order."""
    table = points(values)
    away = np.linalg.norm(settled(table - np.median(table, axis=0), table), axis=1)
    away = np.round(away / max(float(away.max()), 1e-300), DIGITS)  # equal distances are ties
    return table[np.sort(np.argsort(away, kind="stable")[: int(KEPT * len(table) + 1e-9)])]


def diameter(values: ArrayLike) -> float:
    """The largest distance between two points, which is the diameter of their convex hull. 0 for fewer than two points."""
    table = points(values)
    return float(_distances(table).max()) if len(table) > 1 else 0.0


def ow(values: ArrayLike, *, level: float = LEVEL, fewest: int = FEWEST) -> Metric:
    """The .9 quantile of pairwise distances between `values` [prompt, axis], one point per prompt, in a few declared axes.

    Unlike the diameter, it is stable in the number of prompts n; still, models should be compared at equal n. `detail` has the
    raw diameter. Insufficient under 20 prompts. The interval is Woodruff's; none if all outputs agree. Source: Woodruff 1952.
    """
    table = points(values) if np.size(values) else np.zeros((0, 1))
    count = len(table)
    if count < 2:
        note = f"{count} prompts"
        return Metric(
            PublishedScore(None, FORMULA, note), missing("insufficient_data", f"{note}; at least {fewest}", UNIT, count)
        )
    formula = PublishedScore(diameter(kept(table)), FORMULA, f"grows with n, here {count}")
    detail = {"diameter": diameter(table), "kept": int(KEPT * count + 1e-9)}
    if count < fewest:
        reason = f"{count} prompts; at least {fewest} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, count, detail=detail))
    distances = _distances(table)
    value = float(np.quantile(distances[np.triu_indices(count, 1)], QUANTILE))
    interval, assumptions = None, ("prompts are independent",)
    if distances.max() > 0:
        interval = Interval(*_woodruff(distances, value, level), level, METHOD)
    else:
        assumptions = (*assumptions, "no interval: all outputs agree")
    return Metric(formula, Estimate(value, UNIT, count, ci=interval, assumptions=assumptions, detail=detail))


def _distances(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point point"]:
    return np.linalg.norm(settled(table[:, None] - table[None], table), axis=-1)


def _woodruff(distances: Float[np.ndarray, "point point"], value: float, level: float) -> tuple[float, float]:
    """The quantiles of the distances at .9 -+ t se; se: jackknife standard error, over points, of the share of pairs <= `value`.

    The share of pairs is a U-statistic. If .9 + t se exceeds 1, the upper end is the largest distance. The percentile bootstrap
    over points covers .80 at 20 points and is not offered. Source: Woodruff 1952.
    """
    count = len(distances)
    within = (distances <= value * (1 + ROUNDING)).sum(1) - 1.0  # not the point itself
    share = within.sum() / (count * (count - 1))
    without = (within.sum() - 2 * within) / ((count - 1) * (count - 2))
    error = np.sqrt((count - 1) / count * ((without - share) ** 2).sum())
    half = float(stats.t.ppf(0.5 + level / 2, count - 1)) * error
    pairs = distances[np.triu_indices(count, 1)]
    low, high = np.quantile(pairs, [max(QUANTILE - half, 0.0), min(QUANTILE + half, 1.0)])
    return float(low), float(high)
