"""Permutation tests of two samples: within strata, whole clusters, and exact if all relabellings can be listed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics import Insufficient, PermutationTest, head_label_permutation, sign_flip_test
from calibrations.statistics.permutation import Alternative
from results_io import UserError
from suites.estimate import Estimate, missing

EXACT_UP_TO = 20_000  # relabellings that are all listed; beyond, random ones take no longer
FEWEST_RESAMPLES = 9_999  # random ones at least, which know a p of .05 to .002; more where a large family needs it
ALPHA = 0.05
Statistic = Callable[[Bool[np.ndarray, "relabelling unit"]], Float[np.ndarray, " relabelling"]]


def resamples_for(m: int = 1, q: float = ALPHA) -> int:
    """Random relabellings B with which the smallest p, 1/(B + 1), can survive BH over m tests: max(9999, ceil(m/q) - 1)."""
    return max(FEWEST_RESAMPLES, math.ceil(m / q - 1e-9) - 1)


def difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    seed: int,
    strata: tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
    clusters: tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
    m: int = 1,
    q: float = ALPHA,
    alternative: Alternative = "two-sided",
    unit: str = "difference of means",
) -> Estimate:
    """Mean of B minus mean of A, tested by relabelling; with several strata (prompts), the sum of their differences.

    `strata` and `clusters` hold one label for each value of A and of B. Values are relabelled within their stratum, the values of
    a cluster together. The test is exact (a plain share) up to 20,000 relabellings, and hypergeometric for 0/1 values without
    strata and clusters; else there are max(9999, ceil(m/q) - 1) random relabellings and p = (1 + hits)/(1 + B). Two-sided p is
    twice the smaller tail. `detail` has the smallest p that these sizes allow. Insufficient if no stratum has values on both
    sides. UserError for values that are not finite, labels that are not one per value, and a cluster in two strata or samples.
    """
    x, y = (np.asarray(side, dtype=np.float64) for side in (a, b))
    if not x.size or not y.size:
        return missing(
            "insufficient_data", f"{x.size} and {y.size} values; at least 1 on each side", unit, x.size + y.size
        )
    values, in_b = np.concatenate([y, x]), np.arange(x.size + y.size) < y.size
    if not np.isfinite(values).all():
        raise UserError("a value to be relabelled is not finite; expected numbers: leave out what has no value")
    if strata is None and clusters is None and np.isin(values, (0, 1)).all():
        return _estimate(_hypergeometric(x, y, alternative), values.size, unit, alternative)
    stratum, cluster = _labels(strata, values.size), _labels(clusters, values.size, apart=True)
    units = _units(values, in_b, stratum, cluster)
    if not units[3].size:
        return missing("insufficient_data", "no stratum has values on both sides", unit, values.size)
    found = _relabel(_stratified(*units[:3]), units[3], units[2], seed, resamples_for(m, q), alternative)
    return _estimate(found, values.size, unit, alternative)


def median_difference(a: ArrayLike, b: ArrayLike, *, seed: int, m: int = 1) -> Estimate:
    """Median of B minus median of A, tested by relabelling as `difference`, two-sided. Insufficient if a side is empty."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (a, b))
    unit, n = "difference of medians", x.size + y.size
    if not x.size or not y.size:
        return missing("insufficient_data", f"{x.size} and {y.size} values; at least 1 on each side", unit, n)
    values, in_b = np.concatenate([y, x]), np.arange(n) < y.size
    if not np.isfinite(values).all():
        raise UserError("a value to be relabelled is not finite; expected numbers: leave out what has no value")

    def statistic(masks: np.ndarray) -> np.ndarray:
        inside = np.broadcast_to(values, masks.shape)[masks].reshape(len(masks), -1)
        outside = np.broadcast_to(values, masks.shape)[~masks].reshape(len(masks), -1)
        return np.median(inside, axis=1) - np.median(outside, axis=1)

    found = _relabel(statistic, in_b, np.zeros(n, dtype=int), seed, resamples_for(m), "two-sided")
    return _estimate(found, n, unit, "two-sided")


def mean_centroid_shift(
    a: Sequence[Float[np.ndarray, "item dimension"]],
    b: Sequence[Float[np.ndarray, "item dimension"]],
    *,
    seed: int,
    m: int = 1,
    q: float = ALPHA,
) -> Estimate:
    """Mean over strata (prompts) of 1 - cos(centroid A, centroid B), relabelled within each, one-sided (larger than by chance).

    `a` and `b` hold one cloud of points per stratum; UserError unless they have equally many. Insufficient if a cloud is empty;
    undefined if a centroid is 0.
    """
    unit, n = "cosine distance", sum(map(len, [*a, *b]))
    if len(a) != len(b):
        raise UserError(f"{len(a)} clouds before and {len(b)} after; expected one of each prompt: match them by id")
    if not a or not all(map(len, [*a, *b])):
        return missing("insufficient_data", "a prompt has no points on one side, or there is no prompt", unit, n)
    clouds = [np.concatenate([y, x]).astype(np.float64) for x, y in zip(a, b, strict=True)]
    ends = np.cumsum([0, *map(len, clouds)])
    stratum = np.repeat(np.arange(len(clouds)), list(map(len, clouds)))
    in_b = np.concatenate([np.arange(len(x) + len(y)) < len(y) for x, y in zip(a, b, strict=True)])
    products = [cloud @ cloud.T for cloud in clouds]

    def statistic(masks: np.ndarray) -> np.ndarray:
        total = np.zeros(len(masks))
        for place, gram in enumerate(products):
            inside = masks[:, ends[place] : ends[place + 1]].astype(np.float64)
            outside = 1 - inside
            into, out = inside @ gram, outside @ gram
            lengths = (into * inside).sum(1) * (out * outside).sum(1)
            cosine = np.divide(
                (into * outside).sum(1), np.sqrt(lengths), out=np.full(len(masks), np.nan), where=lengths > 0
            )
            total += 1 - cosine
        return total / len(products)

    try:
        found = _relabel(statistic, in_b, stratum, seed, resamples_for(m, q), "greater")
    except Insufficient:
        return missing("undefined", "a centroid is the zero vector; it has no direction", unit, n)
    return _estimate(found, n, unit, "greater")


def centroid_shift(
    a: Float[np.ndarray, "item dimension"], b: Float[np.ndarray, "item dimension"], *, seed: int, m: int = 1
) -> Estimate:
    """Cosine distance 1 - cos(centroid A, centroid B) of two clouds, one-sided (larger than by chance). [0, 2].

    Undefined if a centroid is 0, insufficient if a side is empty.
    """
    x, y = (np.asarray(side, dtype=np.float64) for side in (a, b))
    unit, n = "cosine distance", len(x) + len(y)
    if not len(x) or not len(y):
        return missing("insufficient_data", f"{len(x)} and {len(y)} points; at least 1 on each side", unit, n)
    points, in_b = np.concatenate([y, x]), np.arange(n) < len(y)

    def statistic(masks: np.ndarray) -> np.ndarray:
        inside, outside = masks @ points / masks.sum(1)[:, None], (~masks) @ points / (~masks).sum(1)[:, None]
        lengths = np.linalg.norm(inside, axis=1) * np.linalg.norm(outside, axis=1)
        cosine = np.divide((inside * outside).sum(1), lengths, out=np.full(len(masks), np.nan), where=lengths > 0)
        return 1 - cosine

    try:
        found = _relabel(statistic, in_b, np.zeros(n, dtype=int), seed, resamples_for(m), "greater")
    except Insufficient:
        return missing("undefined", "a centroid is the zero vector; it has no direction", unit, n)
    return _estimate(found, n, unit, "greater")


def paired_difference(
    a: ArrayLike, b: ArrayLike, *, seed: int, m: int = 1, alternative: Alternative = "two-sided"
) -> Estimate:
    """Mean of B - A over the same items [item], tested by sign flips; exact up to 2^14. UserError for different shapes."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        raise UserError(f"a has {x.size} items and b has {y.size}; expected the same items: match them by id")
    flips = 2**x.size if x.size < math.log2(EXACT_UP_TO) else resamples_for(m)
    try:
        found = sign_flip_test(y - x, n_resamples=flips, seed=seed, alternative=alternative)
    except Insufficient:  # no item differs, which is no evidence against equality
        return Estimate(
            0.0, "mean difference", x.size, p_value=1.0, test="sign flips", detail={"note": "no difference"}
        )
    return _estimate(found, x.size, "mean difference", alternative)


def _relabel(
    statistic: Statistic, in_b: np.ndarray, stratum: np.ndarray, seed: int, resamples: int, alternative: Alternative
) -> PermutationTest:
    """All relabellings within strata if there are at most 20,000, else random ones."""
    sizes = [(int((stratum == s).sum()), int(in_b[stratum == s].sum())) for s in np.unique(stratum)]
    total = math.prod(math.comb(*size) for size in sizes)
    return head_label_permutation(
        statistic,
        in_b,
        n_resamples=total if total <= EXACT_UP_TO else resamples,
        seed=seed,
        layers=stratum,
        alternative=alternative,
    )


def _stratified(sums: np.ndarray, sizes: np.ndarray, stratum: np.ndarray) -> Statistic:
    """Sum over strata of (mean inside the mask - mean outside); a unit's weight is its number of values."""
    places = [np.flatnonzero(stratum == s) for s in np.unique(stratum)]

    def statistic(masks: np.ndarray) -> np.ndarray:
        total = np.zeros(len(masks))
        for here in places:  # only the columns of one stratum: using all of them made 20 strata ten times as slow
            inside, own = masks[:, here].astype(np.float64), np.stack([sums[here], sizes[here]], 1)
            (within, count), (without, rest) = (inside @ own).T, ((1 - inside) @ own).T
            total += within / count - without / rest
        return total

    return statistic


def _units(
    values: np.ndarray, in_b: np.ndarray, stratum: np.ndarray, cluster: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sum, size, stratum and side of each cluster, without strata that lack a side.

    UserError for a cluster on two sides or in two strata.
    """
    _, first, member = np.unique(cluster, return_index=True, return_inverse=True)
    sums, sizes = np.bincount(member, values), np.bincount(member).astype(float)
    for name, label in (("samples", in_b), ("strata", stratum)):
        if (label[first][member] != label).any():
            raise UserError(
                f"a cluster has values in two {name}; expected it whole in one: give its parts their own label"
            )
    unit_stratum, unit_side = stratum[first], in_b[first]
    both = [s for s in np.unique(unit_stratum) if len(np.unique(unit_side[unit_stratum == s])) == 2]
    kept = np.isin(unit_stratum, both)
    return sums[kept], sizes[kept], unit_stratum[kept], unit_side[kept]


def _labels(labels: tuple[Sequence, Sequence] | None, n: int, apart: bool = False) -> np.ndarray:
    """An integer code for the label of each value, B's values first. Without labels: all 0, or all different if `apart`."""
    if labels is None:
        return np.arange(n) if apart else np.zeros(n, dtype=int)
    joined = [*labels[1], *labels[0]]
    if len(joined) != n:
        raise UserError(f"{len(joined)} labels for {n} values; expected one each: label every value of both sides")
    code = {label: number for number, label in enumerate(dict.fromkeys(joined))}
    return np.array([code[label] for label in joined])


def _hypergeometric(x: np.ndarray, y: np.ndarray, alternative: Alternative) -> PermutationTest:
    """Exact test of 0/1 values: the number of ones that fall into B is hypergeometric. `x` is A, `y` is B."""
    ones, n, observed = int(x.sum() + y.sum()), x.size + y.size, int(y.sum())
    law = (n, ones, y.size)
    tails = {
        "greater": float(stats.hypergeom.sf(observed - 1, *law)),
        "less": float(stats.hypergeom.cdf(observed, *law)),
    }
    low, high = max(0, ones - x.size), min(ones, y.size)
    floors = {"greater": float(stats.hypergeom.pmf(high, *law)), "less": float(stats.hypergeom.pmf(low, *law))}
    tails["two-sided"], floors["two-sided"] = 2 * min(tails.values()), 2 * min(floors.values())
    total = math.comb(n, y.size)
    shift = float(y.mean() - x.mean())
    return PermutationTest(shift, min(1.0, tails[alternative]), "exact", min(1.0, floors[alternative]), total)


def _estimate(found: PermutationTest, n: int, unit: str, alternative: Alternative) -> Estimate:
    floor = f"no outcome of these sizes has a p below {found.minimum_p:.3g}"
    return Estimate(
        found.statistic,
        unit,
        n,
        p_value=found.p,
        test=f"{found.p_kind}, {alternative}",
        assumptions=("exchangeable under no difference", *((floor,) if found.minimum_p > ALPHA else ())),
        detail={"relabellings": found.n_relabellings, "minimum_p": found.minimum_p},
    )
