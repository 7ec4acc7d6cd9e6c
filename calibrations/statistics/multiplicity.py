"""Multiple comparisons: adjusted p-values, survival under BH, partial conjunction, maxT, e-values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval
from calibrations.statistics.errors import Insufficient

Correction = Literal["bonferroni", "holm", "bh", "by"]


class Survival(NamedTuple):
    """How many nominally significant p-values survive BH, and how many survive Bonferroni."""

    nominal: int
    bh_survive: int
    bonferroni_survive: int
    rate: float


class ApproximateP(NamedTuple):
    """Normal back-calculation of p from an interval; valid only if the interval is nearly symmetric."""

    standard_error: float
    z: float
    p: float


@dataclass(frozen=True)
class StepDown:
    """Step-down maxT: observed studentised statistics and family-wise adjusted p, both [hypothesis]."""

    t: Float[np.ndarray, " hypothesis"]
    adjusted_p: Float[np.ndarray, " hypothesis"]


def _present(p: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"p-values of shape {values.shape}; expected a vector")
    present = ~np.isnan(values)
    if not present.any():
        raise Insufficient("not_run", "no p-values")
    if ((values[present] < 0) | (values[present] > 1)).any():
        raise ValueError("a p-value lies outside [0, 1]")
    return values, present


def adjusted_p(p: ArrayLike, method: Correction) -> Float[np.ndarray, " hypothesis"]:
    """Adjusted p-values of `p` [hypothesis]. "bonferroni" and "holm" control the family-wise error; "bh" (independent or
    positively dependent tests) and "by" (any dependence) the false discovery rate.

    A missing p (NaN) is left out of the family and stays NaN in the result; it never lowers or raises the others.
    Raises Insufficient("not_run") if nothing is left. Source: Holm 1979; Benjamini & Hochberg 1995; Benjamini &
    Yekutieli 2001 (BH times sum 1/i).
    """
    values, present = _present(p)
    x = values[present]
    m, order = x.size, np.argsort(x, kind="stable")
    rank = np.arange(1, m + 1)
    if method == "bonferroni":
        adjusted = x * m
    elif method == "holm":
        adjusted = np.empty(m)
        adjusted[order] = np.maximum.accumulate(x[order] * (m - rank + 1))
    elif method in ("bh", "by"):
        factor = m * (float((1 / rank).sum()) if method == "by" else 1.0)
        adjusted = np.empty(m)
        adjusted[order] = np.minimum.accumulate((x[order] * factor / rank)[::-1])[::-1]
    else:
        raise ValueError(f"method is {method!r}; expected bonferroni, holm, bh or by")
    result = np.full(values.shape, np.nan)
    result[present] = np.minimum(adjusted, 1.0)
    return result


def survival(p: ArrayLike, alpha: float = 0.05) -> Survival:
    """M93's published value: #(BH-adjusted p < alpha, inclusive) / #(p < alpha).

    A BH-adjusted p equal to alpha counts as surviving, as in the step-up rule p_(i) <= i alpha / m. Raises
    Insufficient("not_run") without p-values and ("ratio_undefined") if none is nominally significant (0/0).
    """
    values, present = _present(p)
    x = values[present]
    nominal = x < alpha
    if not nominal.any():
        raise Insufficient("ratio_undefined", f"none of {x.size} p-values is below {alpha}: survival is 0/0")
    slack = alpha * (1 + 1e-12)
    kept = int((nominal & (adjusted_p(x, "bh") <= slack)).sum())
    strict = int((nominal & (adjusted_p(x, "bonferroni") <= slack)).sum())
    return Survival(int(nominal.sum()), kept, strict, kept / int(nominal.sum()))


def approximate_p(value: float, baseline: float, interval: Interval, quantile: float = 1.96) -> ApproximateP:
    """Two-sided normal p of value = baseline, with SE = width of the interval / (2 x `quantile`).

    `quantile` is 1.96 for a 95 % interval, as published. Label the result `approx`: it holds only for nearly symmetric
    intervals. Raises Insufficient("zero_variance") for an interval of no width.
    """
    se = (interval[1] - interval[0]) / (2 * quantile)
    if se <= 0:
        raise Insufficient("zero_variance", f"interval {interval} has no width")
    z = (value - baseline) / se
    return ApproximateP(float(se), float(z), float(2 * scipy.special.ndtr(-abs(z))))


def or_clause_p(p: ArrayLike) -> float:
    """p of "at least one of k gates holds": min(1, k min p). Raises Insufficient("not_run") without p-values."""
    values, present = _present(p)
    return float(min(1.0, present.sum() * values[present].min()))


def intersection_union_p(p: ArrayLike) -> float:
    """p of "all gates hold": max p, level alpha without correction. Raises Insufficient("not_run") if a p is missing."""
    values, present = _present(p)
    if not present.all():
        raise Insufficient("not_run", f"{int((~present).sum())} gate p-values are missing")
    return float(values.max())


def partial_conjunction_p(p: ArrayLike, at_least: int, dependence: Literal["any", "positive"] = "any") -> float:
    """p of "at least u of n hypotheses are false", at most 1 (Benjamini & Heller 2008).

    Under any dependence (n - u + 1) p_(u), from Bonferroni; under positive dependence the smaller
    min over i >= u of (n - u + 1) / (i - u + 1) p_(i), from Simes, which never falls as u rises.
    Raises Insufficient("n_heads") if fewer than u p-values are present.
    """
    values, present = _present(p)
    x = np.sort(values[present])
    if not 1 <= at_least <= x.size:
        raise Insufficient("n_heads", f"at least {at_least} of {x.size} p-values cannot be tested")
    largest = x[at_least - 1 :]
    if dependence == "any":
        return float(min(1.0, len(largest) * largest[0]))
    return float(min(1.0, (len(largest) / np.arange(1, len(largest) + 1) * largest).min()))


def false_hypotheses(p: ArrayLike, alpha: float) -> int:
    """Lower 1 - alpha confidence bound of the number of false hypotheses, for positively dependent tests.

    It is the largest u whose partial conjunction p is at most alpha. Source: Benjamini & Heller 2008, section 3. Raises
    Insufficient("not_run") without p-values.
    """
    count = int(_present(p)[1].sum())
    rejected = [partial_conjunction_p(p, u, "positive") <= alpha for u in range(1, count + 1)]
    return sum(rejected)  # p never falls as u rises, so the first u are rejected


def step_down_max_t(
    estimates: ArrayLike, draws: Float[np.ndarray, "resample hypothesis"], null: ArrayLike = 0.0
) -> StepDown:
    """Westfall & Young step-down maxT of one-sided "estimate > null" from shared bootstrap draws.

    t = (estimate - null)/sd of its draws; null distribution (draw - estimate)/sd; adjusted p by the +1 rule over maxima of the
    hypotheses not yet rejected, made monotone. It controls the family-wise error and uses the actual dependence. Raises
    ValueError for draws of another shape, Insufficient("degenerate_bootstrap") if draws are not finite, ("zero_variance") if a
    statistic does not vary.
    """
    estimate, resampled = np.asarray(estimates, dtype=float), np.asarray(draws, dtype=float)
    if resampled.ndim != 2 or resampled.shape[1:] != estimate.shape:
        raise ValueError(
            f"draws of shape {resampled.shape} for {estimate.shape} estimates; expected [resample hypothesis]"
        )
    if not np.isfinite(resampled).all():
        raise Insufficient("degenerate_bootstrap", "bootstrap draws hold values that are not finite")
    sd = resampled.std(axis=0, ddof=1)
    if not sd.all():
        raise Insufficient("zero_variance", f"hypotheses {np.flatnonzero(sd == 0).tolist()} do not vary over draws")
    t, law = (estimate - null) / sd, (resampled - estimate) / sd
    order = np.argsort(-t)
    # For each place in the order, the maximum over the hypotheses with this or a smaller t.
    maxima = np.maximum.accumulate(law[:, order][:, ::-1], axis=1)[:, ::-1]
    p = ((maxima >= t[order]).sum(axis=0) + 1) / (len(law) + 1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(p)
    return StepDown(t, adjusted)


def storey_pi0(p: ArrayLike, threshold: float = 0.5, minimum: int = 50) -> float:
    """Estimated share of true nulls: min(1, #(p > threshold)/(m (1 - threshold))).

    Raises Insufficient("n_tasks") for fewer than `minimum` p-values. Source: Storey 2002.
    """
    values, present = _present(p)
    x = values[present]
    if x.size < minimum:
        raise Insufficient("n_tasks", f"{x.size} p-values; pi0 needs at least {minimum}")
    return float(min(1.0, (x > threshold).mean() / (1 - threshold)))


def p_to_e(p: float, kappa: float = 0.5) -> float:
    """e-value of p by the calibrator of Vovk & Wang 2021: e = kappa p^(kappa - 1); p = 0 gives inf.

    Raises ValueError unless 0 < kappa < 1.
    """
    if not 0 < kappa < 1:
        raise ValueError(f"kappa is {kappa}; expected a number between 0 and 1")
    return math.inf if p == 0 else kappa * p ** (kappa - 1)


def e_benjamini_hochberg(e: ArrayLike, alpha: float = 0.05) -> Bool[np.ndarray, " hypothesis"]:
    """e-BH: reject the k* largest of K e-values, k* the largest k with e_(k) >= K/(alpha k); FDR under any dependence.

    Source: Wang & Ramdas 2022. Raises Insufficient("not_run") without e-values.
    """
    values = np.asarray(e, dtype=np.float64)
    if not values.size:
        raise Insufficient("not_run", "no e-values")
    order = np.argsort(-values, kind="stable")
    enough = np.flatnonzero(values[order] * np.arange(1, values.size + 1) >= values.size / alpha * (1 - 1e-12))
    rejected = np.zeros(values.size, dtype=bool)
    if enough.size:
        rejected[order[: enough[-1] + 1]] = True
    return rejected
