"""Spread: the variance of outputs between wordings and within one wording, with a jackknife over wordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.geometry.metric import ROUNDING, centre, points, residuals, same_axes

LOWER, UPPER = 0.85, 1.5  # factors of S_b's half-widths, calibrated for t3 wordings: see variance_interval


@dataclass(frozen=True)
class Spread:
    """V wordings with n_v draws x_vi each. All squares are summed over axes.

    `means`: m_v. `centroid`: o, the mean of m_v. `between`: S_b = sum |m_v - o|^2 / (V - 1). `within`: S_w = sum |x_vi - m_v|^2 /
    sum (n_v - 1), None if no wording has two draws. `share`: the mean of 1/n_v; S_w times `share` is what the noise of draws adds
    to S_b. `within_by_wording`: sum |x_vi - m_v|^2 of each wording, `freedom`: its n_v - 1.
    """

    means: Float[np.ndarray, "wording axis"]
    centroid: Float[np.ndarray, " axis"]
    between: float
    within: float | None
    share: float
    within_by_wording: Float[np.ndarray, " wording"]
    freedom: Float[np.ndarray, " wording"]

    @property
    def variance(self) -> float:
        """tau^2 = S_b - S_w mean(1/n_v): the variance due to wording. It is unbiased and can therefore be negative."""
        left = self.between - (0.0 if self.within is None else self.within * self.share)
        return left if abs(left) > ROUNDING * self.between else 0.0


def of(draws: Sequence[ArrayLike]) -> Spread:
    """The spread of the draws [draw, axis] of at least one wording.

    UserError for a wording without draws, and as `metric.points` and `metric.same_axes`.
    """
    tables = [points(one, "draws of a wording") for one in draws]
    if not all(map(len, tables)):
        raise UserError(f"wording {[len(t) for t in tables].index(0) + 1} has no draws; leave it out")
    same_axes(*tables)
    means = np.array([centre(table) for table in tables])
    squares = np.array([float((residuals(table) ** 2).sum()) for table in tables])
    freedom = np.array([len(table) - 1.0 for table in tables])
    return Spread(
        means,
        centre(means),
        total_variance(means),
        float(squares.sum() / freedom.sum()) if freedom.sum() else None,
        float(np.mean(1 / (freedom + 1))),
        squares,
        freedom,
    )


def total_variance(table: Float[np.ndarray, "point axis"]) -> float:
    """sum |x - mean|^2 / (n - 1): the trace of the covariance. 0 for one point, and for points that differ only by rounding."""
    return float((residuals(table) ** 2).sum() / max(len(table) - 1, 1))


def leave_one_out(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, " point"]:
    """`total_variance` without each point in turn. Needs three points."""
    n, squares = len(table), (residuals(table) ** 2).sum(1)
    return np.maximum(squares.sum() - squares * n / (n - 1), 0.0) / (n - 2)


def variance_interval(found: Spread, level: float) -> tuple[float, float] | None:
    """Interval of tau^2 by MOVER from log jackknives over wordings, with t of V - 1 degrees of freedom.

    [l_b, u_b] and [l_w, u_w] are the intervals of S_b and of w = S_w mean(1/n); r is the correlation of their pseudo-values. Then
    low = tau^2 - sqrt((S_b - l_b)^2 + (u_w - w)^2 - 2 r (S_b - l_b)(u_w - w)), and high likewise. Logarithms are used because a
    variance of few points is nearly symmetric there; the plain jackknife of tau^2 covers .88 at 8 wordings in 2 dimensions.

    If the effects of wordings have heavy tails (t3), few wordings rarely show it, and such an interval ends too low in up to .18
    of samples. The upper side of log S_b is therefore multiplied by 1.5 and the lower side by .85. These factors are calibrated
    by experiment=validate_geometry for coverage .92 with t3 wordings and at most .98 with normal ones. None if a logarithm does
    not exist (all wordings but one agree). Source: Zou & Donner 2008 (MOVER), Miller 1968 (jackknife of log variance).
    """
    n = len(found.means)
    pseudo_between = _pseudo_values(found.between, leave_one_out(found.means))
    if pseudo_between is None:
        return None
    t = float(stats.t.ppf(0.5 + level / 2, n - 1))
    half_between = t * pseudo_between.std(ddof=1) / np.sqrt(n)
    below, _ = _away(found.between, LOWER * half_between)
    _, above = _away(found.between, UPPER * half_between)
    if not found.within:
        return found.variance - below, found.variance + above
    noise = found.within * found.share
    rest = found.freedom.sum() - found.freedom
    without = np.divide(found.within_by_wording.sum() - found.within_by_wording, rest, out=np.zeros(n), where=rest > 0)
    pseudo_within = _pseudo_values(found.within, without)
    if pseudo_within is None:
        return None
    less, more = _away(noise, t * pseudo_within.std(ddof=1) / np.sqrt(n))
    spreads = pseudo_between.std() * pseudo_within.std()
    together = float(np.mean((pseudo_between - pseudo_between.mean()) * (pseudo_within - pseudo_within.mean())))
    r = together / spreads if spreads > 0 else 0.0
    low = found.variance - np.sqrt(max(below**2 + more**2 - 2 * r * below * more, 0.0))
    return float(low), float(found.variance + np.sqrt(max(above**2 + less**2 - 2 * r * above * less, 0.0)))


def _pseudo_values(whole: float, without: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"] | None:
    """Jackknife pseudo-values n log(whole) - (n - 1) log(without); None if one of these is 0."""
    if whole <= 0 or (without <= 1e-12 * whole).any():
        return None
    return len(without) * np.log(whole) - (len(without) - 1) * np.log(without)


def _away(value: float, half: float) -> tuple[float, float]:
    """(value - value e^-half, value e^half - value): the distances of an interval's ends on the log scale."""
    return float(value * -np.expm1(-half)), float(value * np.expm1(min(half, 700.0)))
