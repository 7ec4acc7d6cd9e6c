"""OW (177): how wide the outputs to many prompts lie."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from suites.estimate import Estimate, Interval, missing
from suites.geometry.metric import LEVEL, UNIT, Metric, Published, points

NUMBER, ID, NAME = "177", "G.ow", "width"
FORMULA = "diameter of the floor(.9 n) points nearest to the coordinate-wise median"
FEWEST = 20  # prompts
KEPT, QUANTILE = 0.9, 0.9
RESAMPLES = 2000
METHOD = "bootstrap over prompts, no pair of a point with itself"


def kept(values: ArrayLike) -> Float[np.ndarray, "point axis"]:
    """The floor(.9 n) points nearest to the coordinate-wise median, ties by order."""
    table = points(values)
    away = np.linalg.norm(table - np.median(table, axis=0), axis=1)
    return table[np.sort(np.argsort(away, kind="stable")[: int(KEPT * len(table) + 1e-9)])]


def diameter(values: ArrayLike) -> float:
    """The largest distance of two points: the diameter of their hull. 0 for fewer than two."""
    table = points(values)
    return float(_distances(table).max()) if len(table) > 1 else 0.0


def ow(
    values: ArrayLike, *, seed: int = 0, level: float = LEVEL, resamples: int = RESAMPLES, fewest: int = FEWEST
) -> Metric:
    """The .9 quantile of pairwise distances of one point [axis] for each prompt, in at most a few declared axes.

    Unlike the diameter it is stable in n; models are compared at equal n all the same. `detail` has the raw diameter. At least
    20 prompts.
    """
    table = points(values) if np.size(values) else np.zeros((0, 1))
    count = len(table)
    if count < 2:
        note = f"{count} prompts"
        return Metric(
            Published(None, FORMULA, note), missing("insufficient_data", f"{note}; at least {fewest}", UNIT, count)
        )
    formula = Published(diameter(kept(table)), FORMULA, f"grows with n, here {count}")
    detail = {"diameter": diameter(table), "kept": int(KEPT * count + 1e-9)}
    if count < fewest:
        reason = f"{count} prompts; at least {fewest} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, count, detail=detail))
    distances = _distances(table)
    value = float(np.quantile(distances[np.triu_indices(count, 1)], QUANTILE))
    draws = _bootstrap(distances, seed, resamples)
    tail = (1 - level) / 2
    interval = Interval(float(np.quantile(draws, tail)), float(np.quantile(draws, 1 - tail)), level, METHOD)
    return Metric(
        formula,
        Estimate(value, UNIT, count, ci=interval, assumptions=("prompts are independent",), detail=detail),
    )


def _distances(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point point"]:
    return np.linalg.norm(table[:, None] - table[None], axis=-1)


def _bootstrap(
    distances: Float[np.ndarray, "point point"], seed: int, resamples: int
) -> Float[np.ndarray, " resample"]:
    """The quantile over resampled prompts; pairs of one prompt with itself, which have no distance, are left out."""
    rng, count, found = np.random.default_rng(seed), len(distances), np.empty(resamples)
    first, second = np.triu_indices(count, 1)
    for place in range(resamples):
        drawn = rng.integers(count, size=count)
        i, j = drawn[first], drawn[second]
        found[place] = np.quantile(distances[i, j][i != j], QUANTILE)
    return found
