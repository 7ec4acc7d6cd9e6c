"""Cluster bootstrap by one shared matrix of multinomial counts, so that all statistics keep their joint distribution."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, finite, tails
from calibrations.statistics.errors import Insufficient

# With more than this share of unusable resamples, the statistic has no bootstrap distribution.
MAXIMUM_DEGENERATE_FRACTION = 0.01
ARRAYS_KEPT = 6  # count arrays: both splits, each number of resamples in use; 8 MB for 10,000 resamples of 400 prompts
BLOCK_BYTES = (
    1 << 26
)  # of float64 rows at once; 10,000 resamples of up to 838 prompts are one block, whose weights are kept

WEIGHTS: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=2)  # (counts, weights), each in one block


def bootstrap_counts(
    n_prompts: int,
    n_resamples: int,
    *,
    seed: int,
    clusters: ArrayLike | None = None,
    strata: ArrayLike | None = None,
) -> Int[np.ndarray, "resample prompt"]:
    """W: how often each prompt occurs in each resample.

    Within each stratum, as many clusters are drawn with replacement as it has (default: every prompt is a cluster). All prompts
    of a cluster share its count. With clusters of unequal size the rows of W have different sums; the functions below divide
    by them. Read-only: callers with equal arguments share one array. Raises ValueError if a cluster spans two strata, and
    Insufficient("n_clusters") if a stratum has fewer than 2 clusters (its variance would be 0).
    """
    member, stratum_of_cluster = cluster_strata(n_prompts, clusters, strata)
    return _counts(tuple(member.tolist()), tuple(stratum_of_cluster.tolist()), n_resamples, seed)


def pooled_if_single(
    n_prompts: int, n_resamples: int, *, seed: int, clusters: ArrayLike, strata: ArrayLike
) -> Int[np.ndarray, "resample prompt"]:
    """`bootstrap_counts` within strata; over all clusters together if a stratum has a single one.

    The pooled interval is wider, since differences between strata then count as sampling error. Meant for small sets of
    prompts, in which some template may occur once. Raises Insufficient("n_clusters") if there is only one cluster in all.
    """
    try:
        return bootstrap_counts(n_prompts, n_resamples, seed=seed, clusters=clusters, strata=strata)
    except Insufficient:
        return bootstrap_counts(n_prompts, n_resamples, seed=seed, clusters=clusters)


@lru_cache(maxsize=ARRAYS_KEPT)
def _counts(
    member: tuple[int, ...], stratum_of_cluster: tuple[int, ...], n_resamples: int, seed: int
) -> Int[np.ndarray, "resample prompt"]:
    """Multinomial counts of the clusters of each stratum; each prompt gets the count of its cluster."""
    strata, rng = np.array(stratum_of_cluster), np.random.default_rng(seed)
    counts = np.empty((n_resamples, len(strata)), dtype=np.int16 if len(member) <= np.iinfo(np.int16).max else np.int64)
    for value in np.unique(strata):
        inside = np.flatnonzero(strata == value)
        share = np.full(len(inside), 1 / len(inside))
        for rows in row_blocks(n_resamples, len(inside)):
            counts[rows, inside] = rng.multinomial(len(inside), share, size=rows.stop - rows.start)
    drawn = counts[:, np.array(member)]
    drawn.flags.writeable = False
    return drawn


def row_blocks(rows: int, columns: int) -> list[slice]:
    """The rows in blocks of at most `BLOCK_BYTES` of float64, which bounds the memory of what is computed from counts."""
    step = max(BLOCK_BYTES // (8 * max(columns, 1)), 1)
    return [slice(start, min(start + step, rows)) for start in range(0, max(rows, 1), step)]


def cluster_strata(
    n_prompts: int, clusters: ArrayLike | None, strata: ArrayLike | None
) -> tuple[Int[np.ndarray, " prompt"], Int[np.ndarray, " cluster"]]:
    """Cluster number of each prompt and stratum number of each cluster.

    Raises ValueError if a cluster spans two strata, Insufficient("n_clusters") if a stratum has fewer than 2 clusters.
    """
    cluster = _codes("clusters", clusters, n_prompts, default=np.arange(n_prompts))
    stratum = _codes("strata", strata, n_prompts, default=np.zeros(n_prompts, dtype=int))
    _, first, member = np.unique(cluster, return_index=True, return_inverse=True)
    stratum_of_cluster = stratum[first]
    if (stratum_of_cluster[member] != stratum).any():
        raise ValueError("a cluster has prompts in two strata; expected every cluster inside one stratum")
    sizes = np.bincount(stratum_of_cluster, minlength=1)
    if sizes.min() < 2:
        raise Insufficient("n_clusters", f"stratum {sizes.argmin()} has {sizes.min()} clusters; resampling needs 2")
    return member, stratum_of_cluster


def _codes(name: str, labels: ArrayLike | None, n: int, default: np.ndarray) -> np.ndarray:
    if labels is None:
        return default
    array = np.asarray(labels)
    if array.shape != (n,):
        raise ValueError(f"{name} has shape {array.shape}; expected one label for each of {n} prompts")
    return np.unique(array, return_inverse=True)[1]


def bootstrap_means(
    counts: Int[np.ndarray, "resample prompt"], values: ArrayLike, axis: int = 0
) -> Float[np.ndarray, "resample ..."]:
    """Resampled means over the prompt axis `axis` of `values`: (W @ values) / row sums of W.

    [prompt] gives [resample]; [prompt head] gives [resample head]; with axis=-1, [ablation prompt] gives
    [resample ablation].
    """
    array = np.moveaxis(finite("values", values), axis, 0)
    if array.shape[0] != counts.shape[1]:
        raise ValueError(f"values have {array.shape[0]} prompts on axis {axis}; the counts have {counts.shape[1]}")
    flat = array.reshape(len(array), -1)
    means = [weights @ flat for weights in weight_blocks(counts)]
    return np.concatenate(means).reshape(len(counts), *array.shape[1:])


def weight_blocks(counts: Int[np.ndarray, "resample prompt"]) -> Iterator[Float[np.ndarray, "some prompt"]]:
    """W with rows that sum to 1, in blocks of rows."""
    blocks = row_blocks(*counts.shape)
    for rows in blocks:
        yield _weights(counts if len(blocks) == 1 else counts[rows], kept=len(blocks) == 1)


def _weights(counts: Int[np.ndarray, "resample prompt"], kept: bool) -> Float[np.ndarray, "resample prompt"]:
    """W with rows that sum to 1; `kept` if tens of statistics share the array, so that it is computed once."""
    if not kept or counts.flags.writeable:
        return counts / counts.sum(axis=1, keepdims=True)
    for known, weights in tuple(WEIGHTS):
        if known is counts:
            return weights
    weights = counts / counts.sum(axis=1, keepdims=True)
    WEIGHTS.append((counts, weights))
    return weights


def weighted_sums(
    counts: Int[np.ndarray, "resample prompt"], values: Float[np.ndarray, "prompt ..."]
) -> Float[np.ndarray, "resample ..."]:
    """W @ values, in blocks of rows."""
    return np.concatenate([counts[rows].astype(np.float64) @ values for rows in row_blocks(*counts.shape)])


def bootstrap_ratios(
    counts: Int[np.ndarray, "resample prompt"],
    numerator: Float[np.ndarray, "... prompt"],
    denominator: Float[np.ndarray, " prompt"],
) -> Float[np.ndarray, "resample ..."]:
    """Resampled ratios of means (W @ F) / (W @ D); the prompt axis of F is its last.

    Raises Insufficient("degenerate_bootstrap") if over 1 % of the resampled denominators are zero or have the
    opposite sign of sum(D); the few others are kept, except exact zeros, which are dropped as NaN draws by
    `percentile_interval`.
    """
    top, bottom = bootstrap_means(counts, numerator, axis=-1), bootstrap_means(counts, denominator)
    flipped = bottom * np.sign(np.mean(denominator)) <= 0
    if flipped.mean() > MAXIMUM_DEGENERATE_FRACTION:
        raise Insufficient("degenerate_bootstrap", f"{flipped.mean():.1%} of resampled denominators change sign")
    bottom = np.where(bottom == 0, np.nan, bottom)
    return top / bottom.reshape(-1, *[1] * (top.ndim - 1))


def bootstrap_ratio_errors(
    counts: Int[np.ndarray, "resample prompt"],
    numerator: Float[np.ndarray, " prompt"],
    denominator: Float[np.ndarray, " prompt"],
    clusters: ArrayLike | None = None,
) -> Float[np.ndarray, " resample"]:
    """Linearised standard error of the ratio of means in each resample: the bootstrap distribution of the standard error.

    SE_b^2 = G/(G-1) sum_g w_g (F_g - theta_b D_g)^2 / (sum_g w_g D_g)^2 over clusters g (default: prompts), with F_g,
    D_g the cluster's totals and w_g its count. With all counts 1 it is `Ratio.standard_error`. `counts` must come from the
    same clusters. C30 uses it for the interval of a coefficient of variation.
    """
    n = counts.shape[1]
    cluster = _codes("clusters", clusters, n, default=np.arange(n))
    _, first, member = np.unique(cluster, return_index=True, return_inverse=True)
    f, d = (
        np.bincount(member, finite(*named, ndim=1))
        for named in (("numerator", numerator), ("denominator", denominator))
    )
    scale = len(first) / max(len(first) - 1, 1)

    def errors(w: Float[np.ndarray, "some cluster"]) -> Float[np.ndarray, " some"]:
        bottom = w @ d
        theta = np.divide(w @ f, bottom, out=np.full(len(w), np.nan), where=bottom != 0)
        squares = np.clip(w @ f**2 - 2 * theta * (w @ (f * d)) + theta**2 * (w @ d**2), 0.0, None)
        return np.sqrt(scale * squares) / np.abs(np.where(bottom == 0, np.nan, bottom))

    blocks = row_blocks(len(counts), len(first))
    return np.concatenate([errors(counts[rows][:, first].astype(np.float64)) for rows in blocks])


def usable_draws(draws: Float[np.ndarray, " resample"]) -> Float[np.ndarray, " resample"]:
    """The finite draws; raises Insufficient("degenerate_bootstrap") if more than 1 % are not finite."""
    draws = np.asarray(draws, dtype=np.float64)
    good = np.isfinite(draws)
    if not draws.size or (~good).mean() > MAXIMUM_DEGENERATE_FRACTION:
        raise Insufficient("degenerate_bootstrap", f"{int((~good).sum())} of {draws.size} draws are not finite")
    return draws[good]


def percentile_interval(draws: Float[np.ndarray, " resample"], level: float = 0.95) -> Interval:
    """Percentile interval of the draws, numpy's linear quantiles. Raises as `usable_draws`."""
    low, high = np.quantile(usable_draws(draws), tails(level))
    return float(low), float(high)
