"""Rank correlations between scores of heads, their intervals and permutation tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, is_constant, paired, tails
from calibrations.statistics.errors import Insufficient
from calibrations.statistics.permutation import Alternative, PermutationTest, arrangement_test, permutation_p


class Correlation(NamedTuple):
    """A coefficient and its library p-value (t approximation for Spearman; exact for small untied Kendall)."""

    value: float
    p: float


@dataclass(frozen=True)
class UsableScores:
    """Scores of the heads that every method scored, without constant methods.

    `scores` [head method]; `heads` [head] and `methods` [method] index the original axes.
    """

    scores: Float[np.ndarray, "head method"]
    heads: Int[np.ndarray, " head"]
    methods: Int[np.ndarray, " method"]


def usable_scores(scores: ArrayLike, minimum_heads: int = 10, minimum_methods: int = 2) -> UsableScores:
    """Heads scored by every method (NaN: not scored, never filled with 0), without constant methods.

    `scores` [head method]. Raises Insufficient("n_methods") if fewer than `minimum_methods` remain and
    ("n_heads") if fewer than `minimum_heads` heads are common to all.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < minimum_methods:
        raise Insufficient("n_methods", f"scores of shape {table.shape}; at least {minimum_methods} methods needed")
    heads = np.flatnonzero(np.isfinite(table).all(axis=1))
    if len(heads) < minimum_heads:
        raise Insufficient("n_heads", f"{len(heads)} heads are scored by every method; at least {minimum_heads} needed")
    common = table[heads]
    methods = np.flatnonzero(~np.asarray(is_constant(common, axis=0)))
    if len(methods) < minimum_methods:
        raise Insufficient("n_methods", f"{len(methods)} methods vary over heads; at least {minimum_methods} needed")
    return UsableScores(common[:, methods], heads, methods)


def _pair(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = paired(("x", x), ("y", y))
    if a.size < 3:
        raise Insufficient("n_heads", f"{a.size} items; a rank correlation needs at least 3")
    if is_constant(a) or is_constant(b):
        raise Insufficient("zero_variance", "a variable is constant")
    return a, b


def spearman(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Spearman rho with average ranks, and its two-sided t-approximation p.

    Raises Insufficient("zero_variance") for a constant variable and ("n_heads") for fewer than 3 items.
    """
    rho, p = map(float, scipy.stats.spearmanr(*_pair(x, y)))
    return Correlation(rho, p)


def spearman_matrix(
    scores: ArrayLike, missing: Literal["listwise", "pairwise"] = "listwise"
) -> Float[np.ndarray, "method method"]:
    """Spearman rho between every two columns of `scores` [head method]; NaN is a head the method did not score.

    "listwise" uses heads scored by all methods, "pairwise" those scored by both of a pair. Raises as `spearman`,
    and Insufficient("n_methods") for one column.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise Insufficient("n_methods", f"scores of shape {table.shape}; at least 2 methods needed")
    present = np.isfinite(table)
    if missing == "listwise":
        table, present = table[present.all(axis=1)], present[present.all(axis=1)]
    matrix = np.eye(table.shape[1])
    for i, j in zip(*np.triu_indices(table.shape[1], 1), strict=True):
        both = present[:, i] & present[:, j]
        matrix[i, j] = matrix[j, i] = spearman(table[both, i], table[both, j]).value
    return matrix


def mean_spearman(scores: ArrayLike, missing: Literal["listwise", "pairwise"] = "listwise") -> float:
    """Mean Spearman rho over pairs of methods (C12's published value). Raises as `spearman_matrix`."""
    matrix = spearman_matrix(scores, missing)
    return float(matrix[np.triu_indices(len(matrix), 1)].mean())


def mean_spearman_draws(scores: Float[np.ndarray, "resample head method"]) -> Float[np.ndarray, " resample"]:
    """Mean pairwise Spearman rho of each resample, ranked anew in each; NaN for a resample with a constant method."""
    ranks = _standard_ranks(finite("scores", scores, ndim=3), axis=1)
    n_methods = ranks.shape[2]
    # The squared length of the sum of unit vectors is m + 2 x (sum of correlations over pairs).
    length2 = (ranks.sum(axis=2) ** 2).sum(axis=1)
    return (length2 - n_methods) / (n_methods * (n_methods - 1))


def mean_spearman_of_pairs(
    scores: Float[np.ndarray, "resample head method"], pairs: Sequence[tuple[int, int, ArrayLike]]
) -> Float[np.ndarray, " resample"]:
    """Mean Spearman rho over (method, method, heads) triples; each pair of methods is ranked on its own heads.

    `heads` indexes the head axis. With all pairs on all heads it equals `mean_spearman_draws`. NaN for a resample in which a
    method is constant over a pair's heads. Raises Insufficient("n_methods") without pairs, ("n_heads") for a pair with fewer
    than 3 heads.
    """
    table = finite("scores", scores, ndim=3)
    if not pairs:
        raise Insufficient("n_methods", "no pair of methods to correlate")
    total, ranked = np.zeros(len(table)), dict[tuple[int, ...], np.ndarray]()  # pairs share few sets of heads
    for first, second, heads in pairs:
        index = np.asarray(heads)
        if len(index) < 3:
            raise Insufficient("n_heads", f"{len(index)} heads; a rank correlation needs at least 3")
        if (key := tuple(index.tolist())) not in ranked:
            ranked[key] = _standard_ranks(table[:, index], axis=1)
        total += (ranked[key][:, :, first] * ranked[key][:, :, second]).sum(axis=1)
    return total / len(pairs)


def _standard_ranks(values: np.ndarray, axis: int) -> np.ndarray:
    """Average ranks along `axis`, centred and scaled to unit length; NaN where constant."""
    ranks = scipy.stats.rankdata(values, axis=axis)
    ranks -= ranks.mean(axis=axis, keepdims=True)
    length = np.sqrt((ranks**2).sum(axis=axis, keepdims=True))
    return np.divide(ranks, length, out=np.full_like(ranks, np.nan), where=length > 0)


def mean_spearman_permutation(scores: ArrayLike, *, n_resamples: int, seed: int) -> PermutationTest:
    """Test of mean pairwise rho > 0 by permuting head labels independently in every method; p by the +1 rule.

    `scores` [head method], complete. For complete tables without ties this is also the permutation test of Kendall's
    W, which is then (1 + (m-1) mean rho)/m. Raises as `usable_scores`.
    """
    ranks = _standard_ranks(usable_scores(scores, minimum_heads=3).scores, axis=0)
    n_methods = ranks.shape[1]
    pairs = n_methods * (n_methods - 1)
    observed = float(((ranks.sum(1) ** 2).sum() - n_methods) / pairs)
    rng = np.random.default_rng(seed)
    total = np.tile(ranks[:, 0], (n_resamples, 1))
    for method in range(1, n_methods):
        total += rng.permuted(np.tile(ranks[:, method], (n_resamples, 1)), axis=1)
    null = ((total**2).sum(1) - n_methods) / pairs
    p = permutation_p(observed, null, "greater", exact=False)
    return PermutationTest(observed, p, "permutation", 1 / (n_resamples + 1), n_resamples)


def spearman_permutation(
    x: ArrayLike, y: ArrayLike, *, n_resamples: int, seed: int, alternative: Alternative = "greater"
) -> PermutationTest:
    """Permutation test of Spearman rho over distinct orders of y; exact if they fit in `n_resamples`, else the +1 rule.

    The smallest exact one-sided p is product(g_i!)/n!, with g_i the sizes of the tied groups of y. Raises as `spearman`.
    """
    a, b = _pair(x, y)
    ranks_x = _standard_ranks(a, axis=0)

    def statistic(orders: np.ndarray) -> np.ndarray:
        return orders @ ranks_x

    unit_y = _standard_ranks(b, axis=0)
    return arrangement_test(statistic, unit_y, n_resamples=n_resamples, seed=seed, alternative=alternative)


def spearman_interval(rho: float, n: int, level: float = 0.90) -> Interval:
    """Fisher z interval of Spearman rho with the Bonett & Wright (2000) variance (1 + rho^2/2)/(n - 3).

    Raises Insufficient("n_heads") for n < 4 and ("zero_variance") for |rho| = 1, where z is infinite.
    """
    if n < 4:
        raise Insufficient("n_heads", f"{n} items; the Fisher interval needs at least 4")
    if abs(rho) >= 1:
        raise Insufficient("zero_variance", f"rho = {rho}: the Fisher transform is infinite")
    half = scipy.stats.norm.ppf(tails(level)[1]) * np.sqrt((1 + rho**2 / 2) / (n - 3))
    return float(np.tanh(np.arctanh(rho) - half)), float(np.tanh(np.arctanh(rho) + half))


def disattenuated(rho: float, reliability_x: float, reliability_y: float) -> float:
    """rho / sqrt(rel_x rel_y) (Spearman 1904), not clipped at 1. Raises Insufficient("ratio_undefined") if rel <= 0."""
    if reliability_x <= 0 or reliability_y <= 0:
        raise Insufficient(
            "ratio_undefined", f"reliabilities {reliability_x:.3f}, {reliability_y:.3f}; both must exceed 0"
        )
    return float(rho / np.sqrt(reliability_x * reliability_y))


def partial_spearman(x: ArrayLike, y: ArrayLike, covariates: ArrayLike) -> Correlation:
    """Spearman rho of x and y given covariates: Pearson of the residuals of ranks on ranked covariates.

    `covariates` [item] or [item covariate]. Two-sided p from t with n - 2 - c degrees of freedom. Raises
    Insufficient("zero_variance") if a covariate explains x or y entirely, ("n_heads") if n - 2 - c < 1.
    """
    a, b = _pair(x, y)
    z = finite("covariates", covariates)
    z = scipy.stats.rankdata(z.reshape(a.size, -1), axis=0)
    freedom = a.size - 2 - z.shape[1]
    if freedom < 1:
        raise Insufficient("n_heads", f"{a.size} items with {z.shape[1]} covariates leave no degrees of freedom")
    design = np.column_stack([np.ones(a.size), z])
    residual = []
    for values in (a, b):
        ranks = scipy.stats.rankdata(values)
        rest = ranks - design @ np.linalg.lstsq(design, ranks, rcond=None)[0]
        if np.linalg.norm(rest) < 1e-9 * np.linalg.norm(ranks):
            raise Insufficient("zero_variance", "the covariates determine a variable's ranks entirely")
        residual.append(rest)
    r = float(np.corrcoef(*residual)[0, 1])
    t = r * np.sqrt(freedom / max(1 - r * r, 1e-300))
    return Correlation(r, float(2 * scipy.stats.t.sf(abs(t), freedom)))


def kendall_tau_b(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Kendall tau-b with scipy's two-sided p (exact without ties). Raises as `spearman`."""
    tau, p = map(float, scipy.stats.kendalltau(*_pair(x, y), variant="b"))
    return Correlation(tau, p)


def somers_d(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Somers D(y | x), for an ordinal predictor x (roles) and outcome y (layers). Raises as `spearman`."""
    a, b = _pair(x, y)
    result = scipy.stats.somersd(a, b)
    return Correlation(float(result.statistic), float(result.pvalue))


def jonckheere_terpstra(
    groups: Sequence[ArrayLike], *, n_resamples: int, seed: int, alternative: Alternative = "greater"
) -> PermutationTest:
    """Jonckheere-Terpstra trend over ordered groups: J = sum_{i<j} #{x in i < y in j} + half the ties; permutation p.

    Raises Insufficient("n_clusters") for fewer than 2 groups, ("zero_variance") if all values are equal.
    A companion of C23's verdict.
    """
    arrays = [finite(f"group {i}", group, ndim=1) for i, group in enumerate(groups)]
    if len(arrays) < 2:
        raise Insufficient("n_clusters", f"{len(arrays)} group; a trend needs at least 2")
    values = np.concatenate(arrays)
    if is_constant(values):
        raise Insufficient("zero_variance", "all values are equal")
    above = (values[:, None] < values[None]) + 0.5 * (values[:, None] == values[None])
    labels = np.repeat(np.arange(len(arrays)), [a.size for a in arrays])

    def statistic(orders: np.ndarray) -> np.ndarray:
        total = np.zeros(len(orders))
        for later in range(1, len(arrays)):
            below, at = (orders < later).astype(float), (orders == later).astype(float)
            total += ((below @ above) * at).sum(axis=1)
        return total

    return arrangement_test(statistic, labels, n_resamples=n_resamples, seed=seed, alternative=alternative)
