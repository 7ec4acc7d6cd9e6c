"""Paired comparisons on the same prompts: McNemar, one-sample t, two one-sided tests of equivalence, Wilcoxon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics.arrays import Interval, finite, is_constant, tails
from calibrations.statistics.errors import Insufficient
from calibrations.statistics.permutation import Alternative


@dataclass(frozen=True)
class McNemar:
    """Exact two-sided binomial p, and the chi-square statistics with and without continuity correction."""

    p_exact: float
    chi2_corrected: float
    chi2_uncorrected: float


@dataclass(frozen=True)
class TTest:
    """One-sample t over prompts, elementwise over trailing axes: mean, standard error, t, p, all of one shape."""

    mean: Float[np.ndarray, ...]
    standard_error: Float[np.ndarray, ...]
    t: Float[np.ndarray, ...]
    p: Float[np.ndarray, ...]
    degrees_of_freedom: int

    def interval(self, level: float = 0.90) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper): mean +- t quantile x standard error, of the shape of `mean`."""
        half = stats.t.ppf(tails(level)[1], self.degrees_of_freedom) * self.standard_error
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Tost:
    """Two one-sided tests of |mean difference| < margin: mean, p (the larger of the two), and the 1 - 2 alpha interval."""

    mean: float
    p: float
    interval: Interval


def mcnemar(b: int, c: int) -> McNemar:
    """McNemar's test from the discordant counts b and c.

    p_exact: two-sided binomial(b + c, 1/2). chi2 = (|b-c| - 1)^2/(b+c) as published (at b = c this raw form is
    1/(b+c), not 0) and (b-c)^2/(b+c). Raises Insufficient("zero_variance") without discordant pairs.
    """
    discordant = b + c
    if discordant < 1:
        raise Insufficient("zero_variance", "no discordant prompts: b + c = 0")
    p = stats.binomtest(min(b, c), discordant, 0.5).pvalue
    return McNemar(float(p), (abs(b - c) - 1) ** 2 / discordant, (b - c) ** 2 / discordant)


def one_sample_t(values: ArrayLike, null: float = 0.0, alternative: Alternative = "greater") -> TTest:
    """t test of mean over the first axis [prompt ...] against `null`, one result per trailing element (head).

    Raises Insufficient("n_prompts") for fewer than 2 prompts, ("zero_variance") if an element is constant.
    Source: spec M3b companion.
    """
    x = finite("values", values)
    if x.ndim < 1 or len(x) < 2:
        raise Insufficient("n_prompts", f"values of shape {x.shape}; a t test needs at least 2 prompts")
    flat = np.asarray(is_constant(x, axis=0))
    if flat.any():
        raise Insufficient("zero_variance", f"{int(flat.sum())} of {flat.size} series are constant over prompts")
    mean, se = x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(len(x))
    t, law = (mean - null) / se, stats.t(len(x) - 1)
    p = {"greater": law.sf(t), "less": law.cdf(t), "two-sided": 2 * law.sf(np.abs(t))}[alternative]
    return TTest(mean, se, t, p, len(x) - 1)


def tost_paired(differences: ArrayLike, margin: float, alpha: float = 0.05) -> Tost:
    """Equivalence of paired measurements: both t tests "mean > -margin" and "mean < margin" at level alpha.

    `differences` [prompt] (for a ratio, its linearised scores). p < alpha iff the 1 - 2 alpha interval lies inside
    (-margin, margin). Raises as `one_sample_t`. Source: Schuirmann 1987; spec M98.
    """
    if margin <= 0:
        raise ValueError(f"margin is {margin}; expected above 0")
    x = finite("differences", differences, ndim=1)
    above, below = one_sample_t(x, -margin, "greater"), one_sample_t(x, margin, "less")
    low, high = above.interval(1 - 2 * alpha)
    return Tost(float(above.mean), float(max(above.p, below.p)), (float(low), float(high)))


def tost_p(estimate: float, standard_error: float, margin: float, df: int) -> float:
    """TOST p from an estimate and its standard error with `df` degrees of freedom: the larger one-sided t p."""
    if standard_error <= 0:
        raise Insufficient("zero_variance", "the standard error is 0")
    upper = stats.t.sf((estimate + margin) / standard_error, df)
    lower = stats.t.cdf((estimate - margin) / standard_error, df)
    return float(max(upper, lower))


def wilcoxon_signed_rank(differences: ArrayLike, alternative: Alternative = "two-sided") -> float:
    """p of the Wilcoxon signed-rank test, zeros dropped. Raises Insufficient("zero_variance") if all are 0."""
    x = finite("differences", differences, ndim=1)
    if not x.any():
        raise Insufficient("zero_variance", "all differences are 0")
    return float(stats.wilcoxon(x, alternative=alternative).pvalue)
