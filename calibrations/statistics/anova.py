"""One-way analysis of variance over templates: effect sizes, their noncentral-F interval, equivalence, Welch.

`units` say which values of a group were drawn together (clusters); without them every value is a unit. Values of one unit
resemble each other, which raises F by the design effect even if the groups do not differ, so F is divided by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, is_constant, root, tails
from calibrations.statistics.clusters import cluster_totals, clustered_mean
from calibrations.statistics.errors import Insufficient
from calibrations.statistics.permutation import Alternative, PermutationTest, arrangement_test

Groups = Sequence[ArrayLike]
NO_NOISE = 1e-12  # residuals below this share of the largest value are rounding
CLEAR_F = (
    1e7  # scipy's noncentral F is NaN above a noncentrality of about 1e10; its limit form is exact to 1e-4 from here on
)


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
class UnitsEffect:
    """The factor by which drawing values in units raises F, and the units' residual degrees of freedom."""

    design_effect: float
    freedom: int


@dataclass(frozen=True)
class Equivalence:
    """Equivalence test of k means: p of "f2 >= margin", the observed f2 = F (k-1)/N, the margin as f2."""

    p: float
    f2: float
    margin_f2: float


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
    values are equal. If only the within-group variance is 0, eta2 is 1 and F is inf.
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
        p=float(scipy.stats.f.sf(f, k - 1, n - k)),
        n=n,
        k=k,
    )


def units_effect(groups: Groups, units: Groups | None = None) -> UnitsEffect:
    """Design effect and residual degrees of freedom of values drawn in `units` (one vector of labels per group).

    The design effect is the variance of the pooled mean with groups as strata, over that of as many independent values. The
    degrees of freedom are the number of units minus that of groups. Without units they are 1 and n - k. Raises
    Insufficient("n_clusters") for a group of one unit and ("zero_variance") if values do not vary inside groups beyond
    rounding, or if the units of a group do not differ.
    """
    arrays = _checked(groups, 1)
    values, labels = np.concatenate(arrays), np.repeat(np.arange(len(arrays)), [a.size for a in arrays])
    if np.abs(np.concatenate([a - a.mean() for a in arrays])).max() <= NO_NOISE * np.abs(values).max():
        raise Insufficient("zero_variance", "no variance within groups")
    if units is None:
        return UnitsEffect(1.0, values.size - len(arrays))
    found = clustered_mean(values, np.concatenate(units), labels)
    if found.design_effect <= NO_NOISE:
        raise Insufficient("zero_variance", "no variance between the units of a group")
    return UnitsEffect(found.design_effect, found.n_clusters - found.n_strata)


def clustered_f(table: OneWayEffects, effect: UnitsEffect) -> tuple[float, float]:
    """F / design effect, and its p with the units' residual degrees of freedom."""
    f = table.f / effect.design_effect
    return f, float(scipy.stats.f.sf(f, table.df_between, effect.freedom))


def eta2_interval(groups: Groups, level: float = 0.90, units: Groups | None = None) -> Interval:
    """Interval of eta2 by inversion of the noncentral F: f2 / (1 + f2) with f2 = nc x design effect / n at both ends.

    At either end, F / design effect is the upper or lower `(1 - level)/2` quantile of the noncentral F with noncentrality nc;
    nc is 0 if there is none. Raises as `one_way_effects` and `units_effect`. Source: Steiger 2004; Donner & Klar 2000 (design
    effect).
    """
    table, effect = one_way_effects(groups), units_effect(groups, units)
    f, _ = clustered_f(table, effect)
    low_tail, high_tail = tails(level)
    effective = table.n / effect.design_effect
    bounds = [_noncentrality(f, table.df_between, effect.freedom, probability) for probability in (high_tail, low_tail)]
    return bounds[0] / (bounds[0] + effective), bounds[1] / (bounds[1] + effective)


def _noncentrality(f: float, df_between: int, df_within: int, probability: float) -> float:
    """nc with P(F' <= F | nc) = probability; 0 if that probability is smaller even for the central F."""
    if f <= 0 or scipy.stats.f.cdf(f, df_between, df_within) <= probability:
        return 0.0
    if f > CLEAR_F:
        # The numerator is then nc / df_between almost without noise: nc <= f df_between chi2 / df_within.
        return float(f * df_between * scipy.stats.chi2.isf(probability, df_within) / df_within)

    def excess(nc: float) -> float:
        return noncentral_f_cdf(f, df_between, df_within, nc) - probability

    upper = 10.0 + 2 * f * df_between
    while excess(upper) > 0:
        upper *= 2
    return root(excess, 1e-12, upper, xtol=1e-10)


def noncentral_f_cdf(f: float, df_between: float, df_within: float, nc: float) -> float:
    """P(F' <= f) for the noncentral F. It is 0 where SciPy's sum underflows to NaN, which is below 1e-150 in the lower tail."""
    found = float(scipy.special.ncfdtr(df_between, df_within, nc, f))
    return 0.0 if math.isnan(found) and f < 1 + nc / df_between else found


def welch_anova(groups: Groups) -> WelchAnova:
    """Welch's heteroscedastic F test and adjusted omega2 = (k-1)(F-1) / ((k-1)(F-1) + N).

    Raises Insufficient("zero_variance") if a group has no variance (its weight would be infinite), ("n_prompts") if
    one has fewer than 2 values, ("n_clusters") for one group. Source: Welch 1951.
    """
    from statsmodels.stats import oneway  # imported here: it brings pandas, which takes a while

    arrays = _varying(groups)
    result = oneway.anova_oneway(arrays, use_var="unequal")
    k, n = len(arrays), sum(a.size for a in arrays)
    excess = (k - 1) * (result.statistic - 1)
    df_between, df_within = result.df
    omega2 = excess / (excess + n)
    return WelchAnova(float(result.statistic), float(df_between), float(df_within), float(result.pvalue), float(omega2))


def equivalence_test(
    groups: Groups, margin_eta2: float, *, equal_variances: bool = False, units: Groups | None = None
) -> Equivalence:
    """Wellek's test that the group means differ by less than a margin; a small p means equivalent.

    margin f2 = margin_eta2 / (1 - margin_eta2), p = P(F' <= F) for the noncentral F with nc = N f2 (Welch's F unless
    `equal_variances`). With `units` (one label vector per group): Welch's F of `_welch_of_units`, nc = N f2 / design
    effect. Raises as `welch_anova`, with units also as `units_effect`. Source: statsmodels equivalence_oneway.
    """
    from statsmodels.stats import oneway  # imported here: it brings pandas, which takes a while

    arrays = _varying(groups)
    margin = margin_eta2 / (1 - margin_eta2)
    if units is not None:
        if equal_variances:
            raise ValueError("units are tested with unequal variances only; leave equal_variances out")
        return _equivalence_of_units(arrays, margin, units)
    use_var = "equal" if equal_variances else "unequal"
    result = oneway.equivalence_oneway(arrays, margin, use_var=use_var, margin_type="f2")
    observed = result.f_stat * (len(arrays) - 1) / sum(a.size for a in arrays)  # statsmodels leaves out k - 1
    return Equivalence(float(result.pvalue), float(observed), margin)


def _equivalence_of_units(arrays: list[np.ndarray], margin_f2: float, units: Groups) -> Equivalence:
    effective = sum(a.size for a in arrays) / units_effect(arrays, units).design_effect
    f, df_between, df_within = _welch_of_units(arrays, units)
    p = noncentral_f_cdf(f, df_between, df_within, effective * margin_f2)
    return Equivalence(p, float(f * df_between / effective), margin_f2)


def _welch_of_units(arrays: list[np.ndarray], units: Groups) -> tuple[float, int, float]:
    """Welch's F with cluster-robust variances of the group means: weights 1 / V_t, units in place of values."""
    totals = [cluster_totals(a[:, None], u, np.zeros(a.size)) for a, u in zip(arrays, units, strict=True)]
    variance = np.array([float(one.variances[0]) for one in totals])
    if (variance <= 0).any():
        raise Insufficient("zero_variance", "the units of a group have equal totals; Welch's weights would be infinite")
    freedom = np.array([len(one.sums) - 1 for one in totals])
    k, weight, mean = len(arrays), 1 / variance, np.array([a.mean() for a in arrays])
    share = weight / weight.sum()
    lack = float(((1 - share) ** 2 / freedom).sum())
    between = float((weight * (mean - share @ mean) ** 2).sum()) / (k - 1)
    return between / (1 + 2 * (k - 2) / (k * k - 1) * lack), k - 1, (k * k - 1) / (3 * lack)


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
        # One bin per relabelling and group, so eighty groups take no longer than three.
        cells = orders + len(sizes) * np.arange(len(orders))[:, None]
        weights = np.broadcast_to(centred, orders.shape).ravel()
        sums = np.bincount(cells.ravel(), weights, minlength=len(orders) * len(sizes)).reshape(len(orders), -1)
        return (sums**2 / sizes).sum(axis=1) / total

    one_sided: Alternative = "greater"
    return arrangement_test(statistic, labels, n_resamples=n_resamples, seed=seed, alternative=one_sided)
