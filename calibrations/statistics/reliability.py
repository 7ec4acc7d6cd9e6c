"""Reliability coefficients: intraclass correlation, Cronbach alpha, McDonald omega, split-half of the head profile."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, is_constant, root, tails
from calibrations.statistics.bootstrap import cluster_strata, percentile_interval
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class IntraclassCorrelation:
    """One ICC with its F test of between-target variance (MSR against its error) and its F-based interval."""

    value: float
    f: float
    df1: float
    df2: float
    p: float
    interval: Interval


@dataclass(frozen=True)
class Reliability:
    """A coefficient with its interval and the subjects and items that were used."""

    value: float
    interval: Interval
    n_subjects: int
    n_items: int


@dataclass(frozen=True)
class SplitHalf:
    """Spearman-Brown coefficients of random half splits: median, percentile interval, and the draws [split]."""

    median: float
    interval: Interval
    draws: Float[np.ndarray, " split"]


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of a two-way table of targets x raters: of rows, columns and residual, and within rows."""

    rows: float
    columns: float
    error: float
    within: float
    n: int
    k: int


def mean_squares(ratings: ArrayLike) -> MeanSquares:
    """Mean squares of `ratings` [target rater].

    Raises Insufficient("n_heads") for fewer than 2 targets, ("missing_rater") for fewer than 2 raters, and
    ("zero_variance") if targets do not differ and there is no residual either (0/0).
    """
    table = finite("ratings", ratings, ndim=2)
    n, k = table.shape
    if n < 2:
        raise Insufficient("n_heads", f"{n} targets; an intraclass correlation needs at least 2")
    if k < 2:
        raise Insufficient("missing_rater", f"{k} rater; an intraclass correlation needs at least 2")
    grand, row, column = table.mean(), table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    ss_rows, ss_columns = k * ((row - grand) ** 2).sum(), n * ((column - grand) ** 2).sum()
    ss_error = ((table - row - column + grand) ** 2).sum()
    ss_within = ((table - row) ** 2).sum()
    if ss_rows + ss_error <= 1e-20 * n * k * np.abs(table).max() ** 2:
        raise Insufficient("zero_variance", "targets do not differ and there is no residual")
    error = ss_error / ((n - 1) * (k - 1))
    return MeanSquares(ss_rows / (n - 1), ss_columns / (k - 1), error, ss_within / (n * (k - 1)), n, k)


def intraclass_correlation(ratings: ArrayLike, level: float = 0.95) -> dict[str, IntraclassCorrelation]:
    """The six coefficients of Shrout & Fleiss by their McGraw & Wong names: ICC(1,1) ICC(A,1) ICC(C,1), (1,k) (A,k) (C,k).

    `ratings` [target rater]: A is absolute agreement (rater offsets count against it), C consistency. Standardise
    columns of different units first. Values and F from pingouin; intervals from the McGraw & Wong (1996) F formulas,
    unrounded and at any `level`. F tests between-target variance, not rater bias. Raises as `mean_squares`.
    """
    bounds = _icc_intervals(mean_squares(ratings), level)
    table = _pingouin_icc(np.asarray(ratings, dtype=np.float64))
    rows = table[["ICC", "F", "df1", "df2", "pval"]].to_numpy(dtype=float).tolist()
    return {
        name: IntraclassCorrelation(value, f, df1, df2, p, bounds[name])
        for name, (value, f, df1, df2, p) in zip(map(str, table.index), rows, strict=True)
    }


def single_rating_correlations(ratings: ArrayLike) -> dict[str, float]:
    """ICC(A,1) and ICC(C,1) of `ratings` [target rater] from the mean squares, without test or interval.

    Agreement (MSR - MSE) / (MSR + (k-1) MSE + k (MSC - MSE)/n), consistency (MSR - MSE) / (MSR + (k-1) MSE). The values equal
    those of `intraclass_correlation` and take about a hundredth of the time. Raises as `mean_squares`. Source: McGraw & Wong
    1996.
    """
    squares = mean_squares(ratings)
    true = squares.rows - squares.error
    alike = squares.rows + (squares.k - 1) * squares.error
    offsets = squares.k * (squares.columns - squares.error) / squares.n
    return {"ICC(A,1)": float(true / (alike + offsets)), "ICC(C,1)": float(true / alike)}


def _pingouin_icc(ratings: np.ndarray):
    import pandas
    import pingouin  # imported here: it takes seconds

    n, k = ratings.shape
    long = pandas.DataFrame(
        {"target": np.repeat(np.arange(n), k), "rater": np.tile(np.arange(k), n), "rating": ratings.ravel()}
    )
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")  # pandas 4 deprecations, and F = inf under perfect agreement
        table = pingouin.intraclass_corr(long, "target", "rater", "rating", nan_policy="raise")
    return table.set_index("Type")


def _icc_intervals(squares: MeanSquares, level: float) -> dict[str, Interval]:
    """McGraw & Wong 1996, Table 7."""
    n, k, quantile = squares.n, squares.k, tails(level)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        one = _single(_f_bounds(squares.rows, squares.within, n - 1, n * (k - 1), quantile), k)
        consistency = _single(_f_bounds(squares.rows, squares.error, n - 1, (n - 1) * (k - 1), quantile), k)
    agreement = _agreement_interval(squares, quantile)
    single = {"ICC(1,1)": one, "ICC(A,1)": agreement, "ICC(C,1)": consistency}
    return single | {name.replace(",1)", ",k)"): _averaged(bound, k) for name, bound in single.items()}


def _f_bounds(top: float, bottom: float, df1: int, df2: int, quantile: float) -> Interval:
    f = top / bottom if bottom > 1e-20 * top else np.inf
    return float(f / scipy.stats.f.ppf(quantile, df1, df2)), float(f * scipy.stats.f.ppf(quantile, df2, df1))


def _single(bounds: Interval, k: int) -> Interval:
    low, high = ((f - 1) / (f + k - 1) if np.isfinite(f) else 1.0 for f in bounds)
    return float(low), float(high)


def _averaged(bounds: Interval, k: int) -> Interval:
    """The bounds for the mean of k raters; minus infinity if raters disagree so much that it is undefined."""
    low, high = (r * k / (1 + r * (k - 1)) if 1 + r * (k - 1) > 0 else -np.inf for r in bounds)
    return float(low), float(high)


def _agreement_interval(squares: MeanSquares, quantile: float) -> Interval:
    n, k, rows, columns, error = squares.n, squares.k, squares.rows, squares.columns, squares.error
    icc = (rows - error) / (rows + (k - 1) * error + k * (columns - error) / n)
    if columns + error <= 1e-20 * rows:
        return 1.0, 1.0  # perfect agreement
    if icc >= 1:
        raise Insufficient("zero_variance", "the agreement coefficient is 1 up to rounding")
    a, b = k * icc / (n * (1 - icc)), 1 + k * icc * (n - 1) / (n * (1 - icc))
    freedom = (a * columns + b * error) ** 2 / ((a * columns) ** 2 / (k - 1) + (b * error) ** 2 / ((n - 1) * (k - 1)))
    f_low, f_high = scipy.stats.f.ppf(quantile, n - 1, freedom), scipy.stats.f.ppf(quantile, freedom, n - 1)
    spread = k * columns + (k * n - k - n) * error
    low = n * (rows - f_low * error) / (f_low * spread + n * rows)
    high = n * (f_high * rows - error) / (spread + n * f_high * rows)
    return float(low), float(high)


def agreement_p(ratings: ArrayLike, threshold: float) -> float:
    """One-sided p of "ICC(A,1) > threshold": the level at which its lower McGraw & Wong bound equals the threshold.

    `ratings` [target rater]. At least 1e-12, where the root search ends. Raises as `mean_squares`.
    """
    squares = mean_squares(ratings)
    edge = 1e-12

    def excess(quantile: float) -> float:
        return _agreement_interval(squares, quantile)[0] - threshold

    if excess(1 - edge) >= 0:
        return edge
    return 1.0 if excess(edge) <= 0 else 1 - root(excess, edge, 1 - edge)


def generalisability_p(effects: ArrayLike, threshold: float, clusters: ArrayLike | None = None) -> float:
    """One-sided p of "ICC(C,P) > threshold" for `generalisability`: P(F >= (1 - threshold) MSR/MSE).

    `effects` [prompt head], `clusters` [prompt]. Raises as `mean_squares`. Source: McGraw & Wong 1996, test of a non-zero
    ICC.
    """
    squares, design_effect, freedom = _prompts_as_raters(effects, clusters)
    if squares.error <= 0 or design_effect <= 0:
        raise Insufficient("zero_variance", "heads do not vary over prompts")
    f = (1 - threshold) * squares.rows / squares.error / design_effect
    return float(scipy.stats.f.sf(f, squares.n - 1, freedom))


def generalisability(effects: ArrayLike, level: float = 0.90, clusters: ArrayLike | None = None) -> Reliability:
    """ICC(C,P) with heads as targets and prompts as raters: 1 - MSE/MSR, the transposed Cronbach alpha.

    `effects` [prompt head]. The coefficient says how well the mean over these prompts orders the heads. Prompts of one cluster
    (`clusters` [prompt]) are not independent raters: MSE is multiplied by the design effect of `rater_design_effect` and has
    (clusters - 1)(heads - 1) degrees of freedom. Negative values are kept. Raises as `mean_squares`, and
    Insufficient("n_clusters") for one cluster. Source: McGraw & Wong 1996.
    """
    squares, design_effect, freedom = _prompts_as_raters(effects, clusters)
    if squares.rows <= 0:
        raise Insufficient("zero_variance", "all heads have the same mean effect")
    error = squares.error * design_effect
    value = 1 - error / squares.rows
    with np.errstate(divide="ignore"):
        low, high = _f_bounds(squares.rows, error, squares.n - 1, freedom, tails(level)[1])
    return Reliability(float(value), (float(1 - 1 / low), float(1 - 1 / high)), squares.k, squares.n)


def _prompts_as_raters(effects: ArrayLike, clusters: ArrayLike | None) -> tuple[MeanSquares, float, int]:
    """Mean squares of heads x prompts, design effect, degrees of freedom of the error."""
    table = finite("effects", effects, ndim=2)
    squares = mean_squares(table.T)
    if clusters is None:
        return squares, 1.0, (squares.n - 1) * (squares.k - 1)
    design_effect, n_clusters = rater_design_effect(table, clusters)
    return squares, design_effect, (squares.n - 1) * (n_clusters - 1)


def rater_design_effect(effects: Float[np.ndarray, "prompt head"], clusters: ArrayLike) -> tuple[float, int]:
    """(design effect, number of clusters G): the variance of head means over that of as many independent prompts.

    The design effect is sum_g |sum_{p in g} r_p|^2 / sum_p |r_p|^2 x G/(G-1) x (n-1)/n, with r_p [head] the effects minus head
    and prompt means. It is 1 if every prompt is a cluster of its own. Raises Insufficient("n_clusters") for one cluster.
    """
    member = np.unique(np.asarray(clusters), return_inverse=True)[1]
    n, n_clusters = len(effects), int(member.max()) + 1
    if member.shape != (n,):
        raise ValueError(f"clusters has {member.size} labels for {n} prompts; expected one each")
    if n_clusters < 2:
        raise Insufficient("n_clusters", "prompts of one cluster count as one rater; at least 2 needed")
    residual = effects - effects.mean(0) - effects.mean(1, keepdims=True) + effects.mean()
    totals = np.zeros((n_clusters, effects.shape[1]))
    np.add.at(totals, member, residual)
    square = float((residual**2).sum())
    if square <= 0:
        return 1.0, n_clusters
    return float((totals**2).sum()) / square * n_clusters / (n_clusters - 1) * (n - 1) / n, n_clusters


def cronbach_alpha(
    scores: ArrayLike, level: float = 0.90, missing: Literal["listwise", "pairwise"] = "listwise"
) -> Reliability:
    """alpha = k/(k-1) (1 - sum of item variances / variance of the total), with Feldt's F interval.

    `scores` [subject item]; NaN is missing. "listwise" drops incomplete subjects, and the interval uses the number left
    (pingouin 0.7 uses the number before dropping); "pairwise" uses pairwise covariances and the smallest pair count.
    Negative values are kept. Raises Insufficient("n_heads") for fewer than 2 items, ("n_prompts") for fewer than 2
    subjects, ("zero_variance") if the total does not vary. Source: Cronbach 1951; Feldt 1965.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2:
        raise Insufficient("n_heads", f"scores of shape {table.shape}; alpha needs at least 2 items")
    present = np.isfinite(table)
    if missing == "listwise":
        table = table[present.all(axis=1)]
    covariance, n_used = _pairwise_covariance(table)
    total, k = covariance.sum(), table.shape[1]
    if total <= 1e-12 * np.trace(covariance) or np.trace(covariance) == 0:
        raise Insufficient("zero_variance", "the total score does not vary over subjects")
    alpha = k / (k - 1) * (1 - np.trace(covariance) / total)
    return Reliability(float(alpha), feldt_interval(alpha, n_used, k, level), n_used, k)


def _pairwise_covariance(table: np.ndarray) -> tuple[np.ndarray, int]:
    """Covariance of every two columns over the rows where both are present, and the smallest number of such rows."""
    present = np.isfinite(table).astype(float)
    shared = present.T @ present
    n_used = int(shared.min())
    if n_used < 2:
        raise Insufficient("n_prompts", f"{n_used} subjects have scores on both items of a pair; at least 2 needed")
    centred = np.where(present > 0, table - np.nanmean(table, axis=0), 0.0)
    sums = centred.T @ present  # sum of column i over the rows where column j is present
    return (centred.T @ centred - sums * sums.T / shared) / (shared - 1), n_used


def feldt_interval(alpha: float, n_subjects: int, n_items: int, level: float = 0.90) -> Interval:
    """Interval of Cronbach alpha: 1 - (1 - alpha) F quantile with (n-1, (n-1)(k-1)) degrees of freedom (Feldt 1965)."""
    if n_subjects < 2 or n_items < 2:
        raise Insufficient("n_prompts", f"{n_subjects} subjects and {n_items} items; at least 2 of each needed")
    low, high = tails(level)
    law = scipy.stats.f(n_subjects - 1, (n_subjects - 1) * (n_items - 1))
    return float(1 - (1 - alpha) * law.ppf(high)), float(1 - (1 - alpha) * law.ppf(low))


def mean_inter_item_correlation(scores: ArrayLike) -> float:
    """Mean Pearson correlation over pairs of items. `scores` [subject item], complete. Raises as `cronbach_alpha`."""
    table = finite("scores", scores, ndim=2)
    if table.shape[1] < 2 or table.shape[0] < 2:
        raise Insufficient("n_heads", f"scores of shape {table.shape}; needs at least 2 subjects and 2 items")
    if np.any(is_constant(table, axis=0)):
        raise Insufficient("zero_variance", "an item does not vary over subjects")
    return float(np.corrcoef(table, rowvar=False)[np.triu_indices(table.shape[1], 1)].mean())


def spearman_brown(r_half: float, factor: float = 2.0) -> float:
    """Reliability of a test `factor` times as long: factor r / (1 + (factor - 1) r).

    Negative correlations are allowed; they mean no reliability, and the formula diverges towards r = -1. Raises
    Insufficient("ratio_undefined") if the denominator is 0, that is at r = -1 for two halves.
    """
    denominator = 1 + (factor - 1) * r_half
    if abs(denominator) < 1e-12:
        raise Insufficient("ratio_undefined", f"Spearman-Brown divides by zero at r = {r_half}")
    return float(factor * r_half / denominator)


def mcdonald_omega(scores: ArrayLike) -> float:
    """omega = (sum loadings)^2 / ((sum loadings)^2 + sum of unique variances) of a one-factor maximum likelihood fit.

    `scores` [subject item]. Raises Insufficient("n_heads") for fewer than 3 items (the factor is not identified),
    ("n_prompts") if subjects do not outnumber items, ("zero_variance") for a constant item. Source: McDonald 1999.
    """
    table = finite("scores", scores, ndim=2)
    n, k = table.shape
    if k < 3:
        raise Insufficient("n_heads", f"{k} items; a one-factor model needs at least 3")
    if n <= k:
        raise Insufficient("n_prompts", f"{n} subjects for {k} items")
    if np.any(is_constant(table, axis=0)):
        raise Insufficient("zero_variance", "an item does not vary over subjects")
    from sklearn.decomposition import FactorAnalysis  # imported here: scikit-learn takes a while

    # The fit is on z-scores, so that its tolerance is meaningful; loadings are then rescaled to the items.
    scale = table.std(axis=0)
    fit = FactorAnalysis(n_components=1, svd_method="lapack", tol=1e-10, max_iter=20_000)
    # The likelihood depends on the data only through their correlations, so 2 k rows with the same correlations are enough.
    values, vectors = np.linalg.eigh(np.corrcoef(table, rowvar=False))
    root = np.sqrt(k * np.clip(values, 0.0, None))[:, None] * vectors.T
    fit.fit(np.concatenate([root, -root]))
    general = float((fit.components_[0] * scale).sum() ** 2)
    return general / (general + float((fit.noise_variance_ * scale**2).sum()))


def split_half_profile(
    effects: ArrayLike,
    *,
    n_splits: int,
    seed: int,
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    level: float = 0.90,
) -> SplitHalf:
    """Head-level split-half: correlate mean effects of two random halves of the prompts across heads.

    `effects` [prompt head]. `clusters` [prompt] are kept whole, `strata` [prompt] (templates) are halved separately.
    Each Pearson correlation is stepped up by Spearman-Brown; the result is the median over splits with a percentile interval.
    Raises Insufficient("n_heads") for fewer than 3 heads, ("n_clusters") if a stratum has fewer than 2 clusters,
    ("zero_variance") if a half has no variance across heads. C16's split-half uses it.
    """
    table = finite("effects", effects, ndim=2)
    n_prompts, n_heads = table.shape
    if n_heads < 3:
        raise Insufficient("n_heads", f"{n_heads} heads; a profile correlation needs at least 3")
    draws = np.empty(n_splits)
    for split, first in enumerate(half_splits(n_prompts, n_splits, seed=seed, clusters=clusters, strata=strata)):
        halves = table[first].mean(axis=0), table[~first].mean(axis=0)
        if any(is_constant(half) for half in halves):
            raise Insufficient("zero_variance", "head means of a half do not differ")
        draws[split] = spearman_brown(float(np.corrcoef(*halves)[0, 1]))
    return SplitHalf(float(np.median(draws)), percentile_interval(draws, level), draws)


def half_splits(
    n_prompts: int,
    n_splits: int,
    *,
    seed: int,
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
) -> Bool[np.ndarray, "split prompt"]:
    """Random halves of the prompts: True for the first half, False for the second.

    `clusters` [prompt] are kept whole, `strata` [prompt] (templates) are halved separately. Raises
    Insufficient("n_clusters") if a stratum has fewer than 2 clusters.
    """
    cluster, stratum_of_cluster = cluster_strata(n_prompts, clusters, strata)
    rng = np.random.default_rng(seed)
    return np.stack([_half(stratum_of_cluster, rng)[cluster] for _ in range(n_splits)])


def _half(strata: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    first = np.zeros(strata.size, dtype=bool)
    for value in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == value))
        # The extra cluster of an odd stratum goes to a random half, so the halves are balanced on average.
        first[members[: (len(members) + int(rng.integers(2)) * (len(members) % 2)) // 2]] = True
    return first
