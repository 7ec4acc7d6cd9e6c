"""Standardised differences between circuit heads and other heads."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, root, tails
from calibrations.statistics.errors import Insufficient


def _two_samples(first: ArrayLike, second: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = finite("first", first, ndim=1), finite("second", second, ndim=1)
    if min(a.size, b.size) < 2:
        raise Insufficient("n_heads", f"groups of {a.size} and {b.size}; an SD needs at least 2 in each")
    return a, b


def d_prime_rms(first: ArrayLike, second: ArrayLike) -> float:
    """Published d': (mean_1 - mean_2)/sqrt((s_1^2 + s_2^2)/2), SDs over heads with ddof 1.

    Raises Insufficient("n_heads") if a group has fewer than 2 heads, ("zero_variance") if both SDs are 0.
    """
    a, b = _two_samples(first, second)
    return _standardised(a, b, (a.var(ddof=1) + b.var(ddof=1)) / 2)


def cohen_d(first: ArrayLike, second: ArrayLike) -> float:
    """Cohen's d with the pooled variance ((n1-1) s1^2 + (n2-1) s2^2)/(n1+n2-2). Raises as `d_prime_rms`."""
    a, b = _two_samples(first, second)
    pooled = ((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / (a.size + b.size - 2)
    return _standardised(a, b, pooled)


def _standardised(a: np.ndarray, b: np.ndarray, variance: float) -> float:
    scale = max(float(np.abs(a).max()), float(np.abs(b).max()))
    if variance <= (1e-12 * scale) ** 2:
        raise Insufficient("zero_variance", "both groups are constant")
    return float((a.mean() - b.mean()) / math.sqrt(variance))


def hedges_g(first: ArrayLike, second: ArrayLike) -> float:
    """Cohen's d times the exact small-sample factor Gamma(v/2)/(sqrt(v/2) Gamma((v-1)/2)), v = n1 + n2 - 2."""
    freedom = np.size(first) + np.size(second) - 2
    d = cohen_d(first, second)
    log_factor = (
        scipy.special.gammaln(freedom / 2) - scipy.special.gammaln((freedom - 1) / 2) - 0.5 * math.log(freedom / 2)
    )
    return d * math.exp(log_factor)


def cohen_d_interval(d: float, n_first: int, n_second: int, level: float = 0.90) -> Interval:
    """Interval of a standardised difference by inversion of the noncentral t with t = d sqrt(n1 n2/(n1+n2)).

    Raises Insufficient("n_heads") if a group has fewer than 2. Source: Cumming & Finch 2001.
    """
    if min(n_first, n_second) < 2:
        raise Insufficient("n_heads", f"groups of {n_first} and {n_second}; at least 2 in each needed")
    scale = math.sqrt(n_first * n_second / (n_first + n_second))
    freedom, t = n_first + n_second - 2, d * scale
    low, high = (_noncentrality_of_t(freedom, t, probability) / scale for probability in tails(level)[::-1])
    return low, high


def _noncentrality_of_t(freedom: int, t: float, probability: float) -> float:
    """nc with P(T' <= t | nc) = probability, from P = E[Phi(t sqrt(V / freedom) - nc)] with V chi-square.

    The expectation is a Gauss-Legendre sum over the quantiles of V. scipy's noncentral t cdf is not used because it is NaN for
    some nc far from t.
    """
    node, weight = np.polynomial.legendre.leggauss(400)
    scaled_t = t * np.sqrt(scipy.stats.chi2.ppf((node + 1) / 2, freedom) / freedom)

    def excess(nc: float) -> float:
        return float(weight @ scipy.special.ndtr(scaled_t - nc)) / 2 - probability

    reach = 10 + 10 * abs(t)
    return root(excess, -reach, reach, xtol=1e-10)


def cliff_delta(first: ArrayLike, second: ArrayLike) -> float:
    """P(x > y) - P(x < y) over all pairs; 2 AUROC - 1. Raises Insufficient("n_heads") for an empty group."""
    a, b = finite("first", first, ndim=1), finite("second", second, ndim=1)
    if not a.size or not b.size:
        raise Insufficient("n_heads", f"groups of {a.size} and {b.size} heads")
    return float(np.sign(a[:, None] - b[None]).mean())
