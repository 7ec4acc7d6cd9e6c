"""Agreement of raters: Kendall's coefficient of concordance W, and Krippendorff's alpha for incomplete ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

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
    ("zero_variance") if a rater gives every item the same rating. Source: Kendall & Smith 1939.
    """
    table = finite("ratings", ratings, ndim=2)
    m, n = table.shape
    if m < 3:
        raise Insufficient("missing_rater", f"{m} raters; W needs at least 3 (with 2 report rho and kappa)")
    if n < 3:
        raise Insufficient("n_heads", f"{n} items; W needs at least 3")
    if np.any(is_constant(table, axis=1)):
        raise Insufficient("zero_variance", "a rater gives every item the same rating")
    sums = scipy.stats.rankdata(table, axis=1).sum(axis=0)
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
    return float(scipy.stats.chi2.sf(n_raters * (n_items - 1) * w, n_items - 1))


def krippendorff_alpha(ratings: ArrayLike, level: Literal["nominal", "ordinal", "interval"] = "interval") -> float:
    """alpha = 1 - observed / expected disagreement, missing ratings (NaN) left out, never imputed.

    `ratings` [rater unit]. Units with fewer than 2 ratings are dropped. Distance of two values: nominal 0/1, interval
    (c - k)^2, ordinal (sum of frequencies from c to k minus half of both ends)^2. Raises
    Insufficient("missing_rater") if no unit has 2 ratings, ("zero_variance") if only one value occurs.
    Source: Krippendorff 2004.
    """
    table = np.asarray(ratings, dtype=np.float64)
    present = np.isfinite(table)
    keep = present.sum(axis=0) >= 2
    if not keep.any():
        raise Insufficient("missing_rater", "no unit was rated by two raters")
    table, present = table[:, keep], present[:, keep]
    values = np.unique(table[present])
    if values.size < 2:
        raise Insufficient("zero_variance", "only one value occurs; alpha is 0/0")
    per_unit = np.array([(table == value).sum(axis=0) for value in values], dtype=float)  # value x unit
    weights = per_unit / (per_unit.sum(axis=0) - 1)
    coincidences = weights @ per_unit.T - np.diag(weights.sum(axis=1))
    totals = coincidences.sum(axis=1)
    distance = _distance(values, totals, level)
    observed = (coincidences * distance).sum()
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    return float(1 - observed / expected)


def _distance(values: np.ndarray, totals: np.ndarray, level: str) -> np.ndarray:
    if level == "nominal":
        return (values[:, None] != values[None]).astype(float)
    if level == "interval":
        return (values[:, None] - values[None]) ** 2
    if level == "ordinal":
        position = np.cumsum(totals) - totals / 2  # midpoint of each value's block of ranks
        return (position[:, None] - position[None]) ** 2
    raise ValueError(f"level is {level!r}; expected nominal, ordinal or interval")
