"""Standardised differences between two runs A and B; positive means that B is larger."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.proportion import proportion_effectsize

from calibrations import statistics
from results_io import UserError
from suites.estimate import Estimate, Interval, missing

SMALL_ARM = 20  # Hedges' correction below this


def cohen_d(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Estimate:
    """Cohen's d of independent samples, (mean B - mean A)/pooled SD; Hedges' g if a sample has fewer than 20 values.

    g = d (1 - 3/(4 df - 1)), df = nA + nB - 2. `unit` names the one returned; `detail` has both. The interval inverts the
    noncentral t and is scaled by the same factor. Undefined if both samples are constant, even at equal means (there is no
    scale); insufficient under 2 values in a sample. UserError unless both are vectors of finite numbers. Source: Hedges 1981.
    """
    x, y = _vector("a", a), _vector("b", b)
    n, difference = x.size + y.size, {"mean_difference": float(y.mean() - x.mean()) if x.size and y.size else None}
    try:
        d = statistics.cohen_d(y, x)
    except statistics.Insufficient as refusal:
        status = "undefined" if refusal.reason == "zero_variance" else "insufficient_data"
        return missing(status, refusal.detail, "Cohen's d", n, detail=difference)
    factor = 1 - 3 / (4 * (n - 2) - 1)
    small = min(x.size, y.size) < SMALL_ARM
    scale = factor if small else 1.0
    low, high = statistics.cohen_d_interval(d, y.size, x.size, level)
    return Estimate(
        d * scale,
        "Hedges' g" if small else "Cohen's d",
        n,
        ci=Interval(low * scale, high * scale, level, "noncentral t"),
        assumptions=("samples are independent and normal with one SD",),
        detail={"d": d, "g": d * factor, "n_a": x.size, "n_b": y.size, **difference},
    )


def cohen_h(share_a: float, share_b: float, n_a: int, n_b: int, level: float = 0.95) -> Estimate:
    """Cohen's h of two independent shares: 2 asin sqrt(B) - 2 asin sqrt(A), with h +- z sqrt(1/nA + 1/nB).

    Insufficient without items on a side. UserError for a share outside [0, 1]. Source: Cohen 1988.
    """
    for name, share in (("A", share_a), ("B", share_b)):
        if not 0 <= share <= 1:
            raise UserError(f"share {name} is {share}; expected a number between 0 and 1: divide the count by n")
    if min(n_a, n_b) < 1:
        return missing("insufficient_data", f"{n_a} and {n_b} items; at least 1 on each side", "Cohen's h", n_a + n_b)
    h = float(proportion_effectsize(share_b, share_a))
    half = float(stats.norm.isf((1 - level) / 2)) * math.sqrt(1 / n_a + 1 / n_b)
    interval = Interval(h - half, h + half, level, "normal on the arcsine scale")
    return Estimate(h, "Cohen's h", n_a + n_b, ci=interval, assumptions=("the two sides are independent",))


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise UserError(f"{name} has shape {x.shape}; expected a vector of finite numbers: leave out missing values")
    return x
