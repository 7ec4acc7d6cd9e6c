"""One-way analysis of variance over templates: effect sizes, their noncentral-F interval, equivalence, Welch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats
from statsmodels.stats import oneway

from calibrations.statistics.arrays import Interval, finite, is_constant, tails
from calibrations.statistics.errors import Insufficient
from calibrations.statistics.permutation import Alternative, PermutationTest, arrangement_test

Groups = Sequence[ArrayLike]


@dataclass(frozen=True)
class OneWayEffects:
    """Classic one-way table: effect sizes (signs kept), F, degrees of freedom, p, total n, number of groups."""

    eta2: float
    epsilon2: float
    omega2: float
    f: float
    df_between: int
    df_within: int
    p: float
    n: int
    k: int


@dataclass(frozen=True)
class WelchAnova:
    """Welch's F with unequal variances, its degrees of freedom and p, and the Welch-adjusted omega2."""

    f: float
    df_between: float
    df_within: float
    p: float
    adjusted_omega2: float


@dataclass(frozen=True)
class Equivalence:
    """Equivalence test of k means: p of "f2 >= margin", the observed f2, the margin as f2."""

    p: float
    f2: float
    margin_f2: float


@dataclass(frozen=True)
class PairComparison:
    """Games-Howell comparison of two groups: mean_i - mean_j with simultaneous interval and p."""

    first: int
    second: int
    difference: float
    interval: Interval
    p: float


def split_groups(values: ArrayLike, labels: ArrayLike) -> tuple[list[np.ndarray], list]:
    """Values [prompt] split by labels [prompt]: (groups, group names), names sorted."""
    y, names = finite("values", values, ndim=1), np.asarray(labels)
    if names.shape != y.shape:
        raise ValueError(f"labels has shape {names.shape}; expected one label for each of {y.size} values")
    levels = np.unique(names)
    return [y[names == level] for level in levels], levels.tolist()


def _checked(groups: Groups, minimum_size: int) -> list[np.ndarray]:
    arrays = [finite(f"group {i}", group, ndim=1) for i, group in enumerate(groups)]
    if len(arrays) < 2:
        raise Insufficient("n_clusters", f"{len(arrays)} group; comparing groups needs at least 2")
    smallest = min(array.size for array in arrays)
    if smallest < minimum_size:
        raise Insufficient("n_prompts", f"the smallest group has {smallest} prompts; at least {minimum_size} needed")
    return arrays


def one_way_effects(groups: Groups) -> OneWayEffects:
    """eta2 = SSB/SST; epsilon2 = (SSB - (k-1) MSW)/SST; omega2 = (SSB - (k-1) MSW)/(SST + MSW); F = MSB/MSW.

    `groups`: one vector per template. epsilon2 and omega2 are negative when F < 1 and are not truncated. Raises
    Insufficient("n_clusters") for one group, ("n_prompts") if n <= k or a group is empty, ("zero_variance") if all
    values are equal. If only the within-group variance is 0, eta2 is 1 and F is inf. Source: spec C13.
    """
    arrays = _checked(groups, 1)
    pooled = np.concatenate(arrays)
    n, k = pooled.size, len(arrays)
    if n <= k:
        raise Insufficient("n_prompts", f"{n} values in {k} groups leave no within-group variance")
    if is_constant(pooled):
        raise Insufficient("zero_variance", "all values are equal")
    between = sum(a.size * (a.mean() - pooled.mean()) ** 2 for a in arrays)
    within = sum(((a - a.mean()) ** 2).sum() for a in arrays)
    total, mean_within = between + within, within / (n - k)
    f = between / (k - 1) / mean_within if mean_within > 0 else np.inf
    excess = between - (k - 1) * mean_within
    return OneWayEffects(
        eta2=float(between / total),
        epsilon2=float(excess / total),
        omega2=float(excess / (total + mean_within)),
        f=float(f),
        df_between=k - 1,
        df_within=n - k,
        p=float(stats.f.sf(f, k - 1, n - k)),
        n=n,
        k=k,
    )


def eta2_interval(groups: Groups, level: float = 0.90) -> Interval:
    """Interval of eta2 by inversion of the noncentral F: nc / (nc + n) at the two noncentralities.

    The noncentrality has F as its upper (lower) `(1 - level)/2` quantile, 0 if none does. Raises as
    `one_way_effects`, and Insufficient("zero_variance") if no group varies. Source: Steiger 2004; spec C13.
    """
    table = one_way_effects(groups)
    if not np.isfinite(table.f):
        raise Insufficient("zero_variance", "no variance within groups")
    low_tail, high_tail = tails(level)
    bounds = [_noncentrality(table, probability) for probability in (high_tail, low_tail)]
    return bounds[0] / (bounds[0] + table.n), bounds[1] / (bounds[1] + table.n)


def _noncentrality(table: OneWayEffects, probability: float) -> float:
    """nc with P(F' <= F | nc) = probability; 0 when even the central F lies below it."""

    def excess(nc: float) -> float:
        return float(special.ncfdtr(table.df_between, table.df_within, nc, table.f)) - probability

    if table.f <= 0 or stats.f.cdf(table.f, table.df_between, table.df_within) <= probability:
        return 0.0
    upper = 10.0 + 2 * table.f * table.df_between
    while excess(upper) > 0:
        upper *= 2
    return float(optimize.brentq(excess, 1e-12, upper, xtol=1e-10))


def null_eta2(n_total: int, k_groups: int) -> stats.rv_continuous:
    """Law of eta2 under perfect invariance with normal errors: Beta((k-1)/2, (n-k)/2), as a frozen scipy law.

    Raises Insufficient("n_prompts") if n_total <= k_groups. Source: spec finding 3.
    """
    if k_groups < 2 or n_total <= k_groups:
        raise Insufficient("n_prompts", f"{n_total} prompts in {k_groups} groups")
    return stats.beta((k_groups - 1) / 2, (n_total - k_groups) / 2)


def welch_anova(groups: Groups) -> WelchAnova:
    """Welch's heteroscedastic F test and adjusted omega2 = (k-1)(F-1) / ((k-1)(F-1) + N).

    Raises Insufficient("zero_variance") if a group has no variance (its weight would be infinite), ("n_prompts") if
    one has fewer than 2 values, ("n_clusters") for one group. Source: Welch 1951; spec C13.
    """
    arrays = _varying(groups)
    result = oneway.anova_oneway(arrays, use_var="unequal")
    k, n = len(arrays), sum(a.size for a in arrays)
    excess = (k - 1) * (result.statistic - 1)
    df_between, df_within = result.df
    omega2 = excess / (excess + n)
    return WelchAnova(float(result.statistic), float(df_between), float(df_within), float(result.pvalue), float(omega2))


def equivalence_test(groups: Groups, margin_eta2: float, *, equal_variances: bool = False) -> Equivalence:
    """Wellek's test that the group means differ by less than a margin: small p = equivalent.

    margin f2 = margin_eta2 / (1 - margin_eta2), p = P(F' <= F) for the noncentral F with nc = N f2 (Welch's F unless
    `equal_variances`). Raises as `welch_anova`. Source: statsmodels equivalence_oneway; spec C13.
    """
    arrays = _varying(groups)
    margin = margin_eta2 / (1 - margin_eta2)
    use_var = "equal" if equal_variances else "unequal"
    result = oneway.equivalence_oneway(arrays, margin, use_var=use_var, margin_type="f2")
    return Equivalence(float(result.pvalue), float(result.effectsize), margin)


def games_howell(groups: Groups, level: float = 0.95) -> list[PairComparison]:
    """All pairwise differences of means with unequal variances, simultaneous intervals and p (studentised range).

    Raises as `welch_anova`. Source: Games & Howell 1976; scipy tukey_hsd(equal_var=False).
    """
    arrays = _varying(groups)
    result = stats.tukey_hsd(*arrays, equal_var=False)
    interval = result.confidence_interval(level)
    return [
        PairComparison(
            i,
            j,
            float(result.statistic[i, j]),
            (float(interval.low[i, j]), float(interval.high[i, j])),
            float(result.pvalue[i, j]),
        )
        for i in range(len(arrays))
        for j in range(i + 1, len(arrays))
    ]


def _varying(groups: Groups) -> list[np.ndarray]:
    arrays = _checked(groups, 2)
    flat = [i for i, array in enumerate(arrays) if is_constant(array)]
    if flat:
        raise Insufficient("zero_variance", f"groups {flat} have no variance; Welch's weights would be infinite")
    return arrays


def eta2_permutation(groups: Groups, *, n_resamples: int, seed: int) -> PermutationTest:
    """Permutation test of eta2: group labels are shuffled over prompts; exact when all orders fit in `n_resamples`."""
    arrays = _checked(groups, 1)
    values = np.concatenate(arrays)
    if is_constant(values):
        raise Insufficient("zero_variance", "all values are equal")
    centred = values - values.mean()
    labels = np.repeat(np.arange(len(arrays)), [a.size for a in arrays])

    sizes = np.array([a.size for a in arrays])
    total = (centred**2).sum()

    def statistic(orders: np.ndarray) -> np.ndarray:
        # One bin per relabelling and group: as fast for eighty groups as for three.
        cells = orders + len(sizes) * np.arange(len(orders))[:, None]
        weights = np.broadcast_to(centred, orders.shape).ravel()
        sums = np.bincount(cells.ravel(), weights, minlength=len(orders) * len(sizes)).reshape(len(orders), -1)
        return (sums**2 / sizes).sum(axis=1) / total

    one_sided: Alternative = "greater"
    return arrangement_test(statistic, labels, n_resamples=n_resamples, seed=seed, alternative=one_sided)
