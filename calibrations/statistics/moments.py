"""Moments of a sample: skewness and kurtosis of three types, coefficient of variation, bounds of an SD, Hodges-Lehmann."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, is_constant, tails
from calibrations.statistics.errors import Insufficient

MomentType = Literal[1, 2, 3]


def _sample(values: ArrayLike, minimum: int) -> np.ndarray:
    x = finite("values", values, ndim=1)
    if x.size < minimum:
        raise Insufficient("n_prompts", f"{x.size} values; at least {minimum} needed")
    return x


def skewness(values: ArrayLike, kind: MomentType = 2) -> float:
    """Skewness [item]: type 1 g1 = m3/m2^1.5, type 2 G1 = g1 sqrt(n(n-1))/(n-2), type 3 b1 = g1 ((n-1)/n)^1.5.

    Raises Insufficient("zero_variance") for constant values, ("n_prompts") for fewer than 3. Joanes & Gill 1998.
    """
    x = _sample(values, 3)
    if is_constant(x):
        raise Insufficient("zero_variance", "all values are equal")
    n, g1 = x.size, float(scipy.stats.skew(x))
    return g1 * {1: 1.0, 2: math.sqrt(n * (n - 1)) / (n - 2), 3: ((n - 1) / n) ** 1.5}[kind]


def excess_kurtosis(values: ArrayLike, kind: MomentType = 2) -> float:
    """Excess kurtosis: type 1 g2 = m4/m2^2 - 3, type 2 G2 (unbiased for normal data), type 3 b2 = m4/s^4 - 3.

    Raises Insufficient("zero_variance") for constant values, ("n_prompts") for fewer than 4. Joanes & Gill 1998.
    """
    x = _sample(values, 4)
    if is_constant(x):
        raise Insufficient("zero_variance", "all values are equal")
    n, g2 = x.size, float(scipy.stats.kurtosis(x))
    if kind == 2:
        return (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * g2 + 6)
    return {1: g2, 3: (g2 + 3) * ((n - 1) / n) ** 2 - 3}[kind]


DRAWN_AT_ONCE = 2_000_000  # float64 numbers, 16 MB


@lru_cache(maxsize=32)
def student_kurtoses(n: int, excess: float, n_samples: int, seed: int) -> Float[np.ndarray, " sample"]:
    """Excess kurtosis (type 1) of each of `n_samples` samples of n from Student's t, in ascending order; read-only.

    `excess` is the true excess kurtosis: t has 6 / (df - 4), so df = 4 + 6 / excess; 0 is the normal distribution. Sample
    kurtosis is biased low and skewed, more so for heavier tails, so its distribution is simulated, not approximated. Raises
    ValueError for a negative `excess`.
    """
    if excess < 0:
        raise ValueError(f"excess kurtosis is {excess}; no Student t has a negative one")
    rng = np.random.default_rng(seed)
    df = 4 + 6 / excess if excess > 0 else math.inf
    rows = max(1, DRAWN_AT_ONCE // n)
    sizes = [min(rows, n_samples - start) for start in range(0, n_samples, rows)]
    draw = (lambda shape: rng.standard_t(df, shape)) if math.isfinite(df) else rng.standard_normal
    found = np.sort(np.concatenate([scipy.stats.kurtosis(draw((size, n)), axis=1) for size in sizes]))
    found.flags.writeable = False
    return found


def coefficient_of_variation(values: ArrayLike, ddof: int = 1, pool_fraction: float = 0.0) -> float:
    """SD/|mean|, divided by sqrt(1 - pool_fraction) if the values come from subsamples of one shared pool.

    `pool_fraction` n/N undoes the finite-population shrinkage of subsampling without replacement. Raises
    Insufficient("ratio_undefined") for a mean of 0, ("n_seeds") for fewer than 2 values.
    """
    x = finite("values", values, ndim=1)
    if x.size < 2:
        raise Insufficient("n_seeds", f"{x.size} value; a spread needs at least 2")
    if not 0 <= pool_fraction < 1:
        raise ValueError(f"pool_fraction is {pool_fraction}; expected a share in [0, 1)")
    if abs(x.mean()) <= 1e-12 * np.abs(x).max() or not x.any():
        raise Insufficient("ratio_undefined", "the mean is 0; a coefficient of variation has no meaning")
    return float(x.std(ddof=ddof) / abs(x.mean()) / math.sqrt(1 - pool_fraction))


def sd_bounds(sd: float, df: float, level: float = 0.90) -> Interval:
    """Chi-square bounds of an SD with `df` degrees of freedom: sd sqrt(df/chi2) at the two tails.

    The upper end at level .90 is the one-sided 95 % bound of C11; valid for a standard error estimated as
    sd(y)/sqrt(n) with df = n - 1, or with the fractional df of `clustered_mean`. Raises Insufficient("n_seeds") for df < 1.
    """
    if df < 1:
        raise Insufficient("n_seeds", f"{df} degrees of freedom; at least 1 needed")
    low, high = tails(level)
    return float(sd * math.sqrt(df / scipy.stats.chi2.ppf(high, df))), float(
        sd * math.sqrt(df / scipy.stats.chi2.ppf(low, df))
    )


def cv_interval(cv: float, df: int, level: float = 0.90) -> Interval:
    """Chi-square interval of a coefficient of variation: the SD bounds with the mean taken as known (small CV).

    The five seeds of C30 have df = 4. Raises as `sd_bounds`.
    """
    return sd_bounds(cv, df, level)


def cv_of_variance(n: int) -> float:
    """CV of a sample variance of n normal values, sqrt(2/(n - 1))."""
    if n < 2:
        raise Insufficient("n_prompts", f"{n} value; a variance needs at least 2")
    return math.sqrt(2 / (n - 1))


def hodges_lehmann(values: ArrayLike) -> float:
    """Median of the Walsh averages (x_i + x_j)/2, i <= j."""
    x = _sample(values, 1)
    sums, start = np.empty(x.size * (x.size + 1) // 2), 0  # one array of this size, and no indices
    for place in range(x.size):
        sums[start : start + x.size - place] = x[place] + x[place:]
        start += x.size - place
    sums /= 2
    return float(np.median(sums, overwrite_input=True))
