"""Kendall's coefficient of concordance W between raters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics.arrays import finite, is_constant
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class Concordance:
    """W corrected for ties, the uncorrected W, chi2 = m (n-1) W with n-1 degrees of freedom, and its p."""

    w: float
    w_uncorrected: float
    chi2: float
    df: int
    p: float


def kendall_w(ratings: ArrayLike) -> Concordance:
    """W = 12 S / (m^2 (n^3 - n) - m T) with S the squared deviations of rank sums and T = sum over ties of t^3 - t.

    `ratings` [rater item], complete; average ranks. W = (1 + (m-1) mean rho)/m without ties: its null mean is 1/m,
    not 0. Raises Insufficient("missing_rater") for fewer than 3 raters, ("n_heads") for fewer than 3 items,
    ("zero_variance") if a rater gives every item the same rating. Source: Kendall & Smith 1939; spec F59.
    """
    table = finite("ratings", ratings, ndim=2)
    m, n = table.shape
    if m < 3:
        raise Insufficient("missing_rater", f"{m} raters; W needs at least 3 (with 2 report rho and kappa)")
    if n < 3:
        raise Insufficient("n_heads", f"{n} items; W needs at least 3")
    if np.any(is_constant(table, axis=1)):
        raise Insufficient("zero_variance", "a rater gives every item the same rating")
    sums = stats.rankdata(table, axis=1).sum(axis=0)
    s = ((sums - sums.mean()) ** 2).sum()
    ties = sum(float((counts**3 - counts).sum()) for counts in (np.unique(row, return_counts=True)[1] for row in table))
    w = 12 * s / (m**2 * (n**3 - n) - m * ties)
    return Concordance(
        w=float(w),
        w_uncorrected=float(12 * s / (m**2 * (n**3 - n))),
        chi2=float(m * (n - 1) * w),
        df=n - 1,
        p=kendall_w_p(w, m, n),
    )


def kendall_w_p(w: float, n_raters: int, n_items: int) -> float:
    """Upper-tail p of W by the chi-square approximation: chi2 = m (n-1) W with n-1 degrees of freedom."""
    return float(stats.chi2.sf(n_raters * (n_items - 1) * w, n_items - 1))
