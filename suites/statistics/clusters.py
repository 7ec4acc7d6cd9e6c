"""Effective sample size of dependent items: the design effect of items that come in clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from calibrations.statistics import clustered_mean


def effective_number(clusters: Sequence[str]) -> float:
    """Number of equally sized clusters that `clusters` [item] is worth: (sum m_g)^2 / sum m_g^2 for clusters of m_g items."""
    sizes = _sizes(clusters)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if sizes.size else 0.0


def largest_design_effect(clusters: Sequence[str]) -> float:
    """Design effect if all items of a cluster have the same value: sum m_g^2 / sum m_g. Source: Kish 1965."""
    sizes = _sizes(clusters)
    return float((sizes**2).sum() / sizes.sum())


def estimated_design_effect(values: Sequence[float], clusters: Sequence[str], level: float = 0.95) -> float:
    """Variance of the mean of `values` [item] in `clusters` [item] / that of independent items.

    It is multiplied by (t/z)^2 at the two-sided `level`, t with the clusters' degrees of freedom, because few clusters estimate
    that variance poorly. The result lies between 1 and `largest_design_effect`. Raises like `clustered_mean`, and if all values
    are the same. Source: Kish 1965; Bell & McCaffrey 2002.
    """
    found = clustered_mean(np.array(values, dtype=float), np.array(clusters), np.zeros(len(values), dtype=int))
    tail = (1 - level) / 2
    heavier = (stats.t.isf(tail, found.degrees_of_freedom) / stats.norm.isf(tail)) ** 2
    return float(min(largest_design_effect(clusters), max(1.0, found.design_effect * heavier)))


def _sizes(clusters: Sequence[str]) -> np.ndarray:
    return np.array(list(Counter(clusters).values()), dtype=float)
