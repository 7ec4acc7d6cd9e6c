"""Chance-corrected agreement on categories: Cohen, Fleiss, Krippendorff."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite
from calibrations.statistics.errors import Insufficient


def cohen_kappa(table: ArrayLike) -> float:
    """kappa = (po - pe)/(1 - pe) of a square table of counts [category of rater 1, category of rater 2].

    Raises Insufficient("all_selected") if the expected agreement is 1 (0/0), ("n_heads") for an empty table.
    Source: Cohen 1960.
    """
    counts = finite("table", table, ndim=2)
    if counts.shape[0] != counts.shape[1]:
        raise ValueError(f"table has shape {counts.shape}; expected as many rows as columns")
    total = counts.sum()
    if total <= 0:
        raise Insufficient("n_heads", "the table is empty")
    observed = np.trace(counts) / total
    expected = float(counts.sum(axis=0) @ counts.sum(axis=1)) / total**2
    if expected >= 1 - 1e-12:
        raise Insufficient("all_selected", "both raters use one category only; kappa is 0/0")
    return float((observed - expected) / (1 - expected))


def fleiss_kappa(counts: ArrayLike) -> float:
    """Fleiss kappa of `counts` [item category]: how many raters put the item in the category, the same total per item.

    kappa = (mean P_i - sum p_j^2)/(1 - sum p_j^2) with P_i = (sum_j n_ij^2 - m)/(m (m-1)). Raises
    Insufficient("missing_rater") for fewer than 2 raters, ("all_selected") if one category is used. Fleiss 1971.
    """
    table = finite("counts", counts, ndim=2)
    raters = table.sum(axis=1)
    if not np.allclose(raters, raters[0]):
        raise ValueError("items have different numbers of raters; use krippendorff_alpha for missing ratings")
    m = raters[0]
    if m < 2:
        raise Insufficient("missing_rater", f"{m:.0f} raters; agreement needs at least 2")
    share = table.sum(axis=0) / table.sum()
    expected = float((share**2).sum())
    if expected >= 1 - 1e-12:
        raise Insufficient("all_selected", "all ratings fall in one category; kappa is 0/0")
    observed = float((((table**2).sum(axis=1) - m) / (m * (m - 1))).mean())
    return (observed - expected) / (1 - expected)


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
