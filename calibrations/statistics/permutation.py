"""Resampling p-values: the +1 rule, relabelling of heads, and full enumeration where it is small."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite
from calibrations.statistics.bootstrap import row_blocks, usable_draws
from calibrations.statistics.errors import Insufficient

Alternative = Literal["greater", "less", "two-sided"]


@dataclass(frozen=True)
class PermutationTest:
    """Observed statistic, p-value, whether it is "exact" or "permutation" (Monte Carlo), and the smallest possible p."""

    statistic: float
    p: float
    p_kind: str
    minimum_p: float
    n_relabellings: int


def plus_one_p(exceedances: int, n_resamples: int) -> float:
    """Monte Carlo p = (b + 1) / (m + 1), never 0 (Phipson & Smyth 2010)."""
    if not 0 <= exceedances <= n_resamples:
        raise ValueError(f"{exceedances} exceedances in {n_resamples} resamples")
    return (exceedances + 1) / (n_resamples + 1)


def threshold_p(draws: ArrayLike, threshold: float, alternative: Alternative = "greater") -> float:
    """Bootstrap p of "statistic > threshold": (1 + #{theta* <= threshold}) / (B + 1); "less" is the mirror image.

    Raises Insufficient("degenerate_bootstrap") if more than 1 % of the draws are not finite.
    """
    values = usable_draws(np.asarray(draws))
    against = {"greater": values <= threshold, "less": values >= threshold}
    if alternative == "two-sided":
        return min(1.0, 2 * min(plus_one_p(int(side.sum()), len(values)) for side in against.values()))
    return plus_one_p(int(against[alternative].sum()), len(values))


def require_attainable(minimum_p: float, alpha: float = 0.05) -> None:
    """Raises Insufficient("min_p_unreachable") if no outcome could be significant at `alpha`."""
    if minimum_p > alpha:
        raise Insufficient("min_p_unreachable", f"the smallest attainable p is {minimum_p:.4g}, above {alpha}")


def permutation_p(
    observed: float, null: Float[np.ndarray, " relabelling"], alternative: Alternative, exact: bool
) -> float:
    """p of `observed` among `null` values; ties within rounding count as extreme; two-sided p is twice the smaller tail.

    `exact`: `null` enumerates every relabelling, the observed one included, and p is a plain proportion; else the +1 rule.
    """
    finite_values = np.append(null[np.isfinite(null)], observed)
    slack = 1e-12 * float(np.abs(finite_values).max())
    counts = {"greater": int((null >= observed - slack).sum()), "less": int((null <= observed + slack).sum())}
    tail = {side: count / len(null) if exact else plus_one_p(count, len(null)) for side, count in counts.items()}
    return min(1.0, 2 * min(tail.values())) if alternative == "two-sided" else tail[alternative]


def head_relabellings(
    in_circuit: Bool[np.ndarray, " head"], n_resamples: int, seed: int, layers: ArrayLike | None = None
) -> tuple[Bool[np.ndarray, "relabelling head"], bool]:
    """Random circuits of the same size: (masks, exact).

    All C(H, k) masks if there are no more than `n_resamples` of them (exact), else `n_resamples` random ones. With
    `layers` [head] the number of circuit heads in each layer is kept.
    """
    member = np.asarray(in_circuit, dtype=bool)
    stratum = np.zeros(member.size, dtype=int) if layers is None else np.asarray(layers)
    groups = [np.flatnonzero(stratum == value) for value in np.unique(stratum)]
    sizes = [int(member[group].sum()) for group in groups]
    total = math.prod(math.comb(len(group), size) for group, size in zip(groups, sizes, strict=True))
    if total <= n_resamples:
        choices = [itertools.combinations(group, size) for group, size in zip(groups, sizes, strict=True)]
        masks = np.zeros((total, member.size), dtype=bool)
        for row, parts in enumerate(itertools.product(*choices)):
            masks[row, list(itertools.chain(*parts))] = True
        return masks, True
    rng = np.random.default_rng(seed)
    masks = np.zeros((n_resamples, member.size), dtype=bool)
    for group, size in zip(groups, sizes, strict=True):
        order = rng.random((n_resamples, len(group))).argsort(axis=1)[:, :size]
        np.put_along_axis(masks, group[order], True, axis=1)
    return masks, False


def head_label_permutation(
    statistic: Callable[[Bool[np.ndarray, "relabelling head"]], Float[np.ndarray, " relabelling"]],
    in_circuit: ArrayLike,
    *,
    n_resamples: int,
    seed: int,
    layers: ArrayLike | None = None,
    alternative: Alternative = "greater",
) -> PermutationTest:
    """Test of a circuit against relabelled heads.

    `statistic` maps masks [relabelling head] to one value each (for example `mean_contrast(scores)`), `in_circuit`
    [head] is the circuit, `layers` [head] keeps its layer profile. Exact when all relabellings fit in `n_resamples`.
    Raises Insufficient("n_heads") for an empty circuit, ("all_selected") if no head is outside it, and ("ratio_undefined") if
    the circuit's own statistic is not finite.
    It does not check whether the smallest possible p is below alpha: pass `minimum_p` to `require_attainable`.
    """
    member = np.asarray(in_circuit, dtype=bool)
    if not member.any():
        raise Insufficient("n_heads", "the circuit has no heads")
    if member.all():
        raise Insufficient("all_selected", "every head is in the circuit; there is nothing to compare with")
    masks, exact = head_relabellings(member, n_resamples, seed, layers)
    observed = float(statistic(member[None])[0])
    if not np.isfinite(observed):
        raise Insufficient("ratio_undefined", f"the statistic of the circuit is {observed}")
    null = np.asarray(statistic(masks), dtype=np.float64)
    floor = (2 if alternative == "two-sided" else 1) / (len(masks) if exact else len(masks) + 1)
    p = permutation_p(observed, null, alternative, exact)
    return PermutationTest(observed, p, "exact" if exact else "permutation", min(1.0, floor), len(masks))


def mean_contrast(scores: ArrayLike) -> Callable[[np.ndarray], np.ndarray]:
    """Statistic for `head_label_permutation`: mean score inside minus mean score outside the mask. `scores` [head]."""
    values = finite("scores", scores, ndim=1)

    def statistic(masks: np.ndarray) -> np.ndarray:
        return masks @ values / masks.sum(1) - (~masks) @ values / (~masks).sum(1)

    return statistic


def edge_contrast(
    values: Float[np.ndarray, "sender receiver"], edges: Bool[np.ndarray, "sender receiver"]
) -> Callable[[np.ndarray], np.ndarray]:
    """Statistic for `head_label_permutation`: mean value of edges between two heads of the mask minus that of all others.

    `edges` marks which (sender, receiver) pairs exist; `values` is read only there. Edges that share a head are not
    independent, so only the labels of heads may be permuted, never those of edges. NaN for a mask without edges.
    """
    weights, exists = np.where(edges, values, 0.0), edges.astype(float)

    def statistic(masks: np.ndarray) -> np.ndarray:
        chosen = masks.astype(float)
        inside, number = (((chosen @ table) * chosen).sum(1) for table in (weights, exists))
        others = (weights.sum() - inside, exists.sum() - number)
        undefined = np.full(len(chosen), np.nan)
        means = [
            np.divide(total, size, out=undefined.copy(), where=size > 0) for total, size in ((inside, number), others)
        ]
        return means[0] - means[1]

    return statistic


def two_sample_permutation(
    first: ArrayLike,
    second: ArrayLike,
    *,
    n_resamples: int,
    seed: int,
    alternative: Alternative = "two-sided",
) -> PermutationTest:
    """Permutation test of mean(first) - mean(second) by reassigning all values to the two samples."""
    a, b = finite("first", first, ndim=1), finite("second", second, ndim=1)
    label = np.arange(a.size + b.size) < a.size
    statistic = mean_contrast(np.concatenate([a, b]))
    return head_label_permutation(statistic, label, n_resamples=n_resamples, seed=seed, alternative=alternative)


def arrangement_count(labels: ArrayLike) -> int:
    """Number of distinct orders of `labels`: n! / product of (multiplicity!)."""
    multiplicities = Counter(np.asarray(labels).tolist()).values()
    return math.factorial(sum(multiplicities)) // math.prod(math.factorial(m) for m in multiplicities)


def arrangements(
    labels: ArrayLike, n_resamples: int, seed: int
) -> tuple[Iterator[Shaped[np.ndarray, "relabelling item"]], bool]:
    """(blocks of orders, exact): all distinct orders of `labels` if there are at most `n_resamples`, else random shuffles."""
    array = np.asarray(labels)
    if arrangement_count(array) <= n_resamples:
        return iter([np.array(list(_distinct_orders(Counter(array.tolist()), [])))]), True
    return _shuffles(array, n_resamples, np.random.default_rng(seed)), False


def _shuffles(array: np.ndarray, number: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for rows in row_blocks(number, array.size):
        yield rng.permuted(np.tile(array, (rows.stop - rows.start, 1)), axis=1)


def _distinct_orders(remaining: Counter, prefix: list) -> Iterable[list]:
    if not remaining.total():
        yield list(prefix)
        return
    for label in sorted(value for value, count in remaining.items() if count):
        remaining[label] -= 1
        yield from _distinct_orders(remaining, [*prefix, label])
        remaining[label] += 1


def arrangement_test(
    statistic: Callable[[np.ndarray], np.ndarray],
    labels: ArrayLike,
    *,
    n_resamples: int,
    seed: int,
    alternative: Alternative = "greater",
) -> PermutationTest:
    """Test by reordering `labels` over items: `statistic` maps orders [relabelling item] to one value each."""
    array = np.asarray(labels)
    observed = float(statistic(array[None])[0])
    blocks, exact = arrangements(array, n_resamples, seed)
    null = np.concatenate([np.asarray(statistic(orders)) for orders in blocks])
    floor = (2 if alternative == "two-sided" else 1) / (len(null) if exact else len(null) + 1)
    p = permutation_p(observed, null, alternative, exact)
    return PermutationTest(observed, p, "exact" if exact else "permutation", min(1.0, floor), len(null))


def sign_flip_test(
    differences: ArrayLike, *, n_resamples: int, seed: int, alternative: Alternative = "greater"
) -> PermutationTest:
    """Test of mean difference 0 under random sign flips [item]; exact when 2^n <= n_resamples (no distribution assumed)."""
    x = finite("differences", differences, ndim=1)
    if not x.any():
        raise Insufficient("zero_variance", "all differences are 0")
    exact = x.size <= 60 and 2**x.size <= n_resamples
    if exact:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=x.size)))
    else:
        signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(n_resamples, x.size))
    floor = (2 if alternative == "two-sided" else 1) / (len(signs) if exact else len(signs) + 1)
    p = permutation_p(float(x.mean()), signs @ x / x.size, alternative, exact)
    return PermutationTest(float(x.mean()), p, "exact" if exact else "permutation", min(1.0, floor), len(signs))


def rank_among(observed: float, null: ArrayLike, alternative: Alternative = "greater") -> PermutationTest:
    """+1 rank p of a value among random circuits or head sets: (1 + #{null >= observed}) / (R + 1). `null` [circuit]."""
    values = finite("null", null, ndim=1)
    if not values.size:
        raise Insufficient("not_run", "no random circuits to compare with")
    p = permutation_p(observed, values, alternative, exact=False)
    floor = (2 if alternative == "two-sided" else 1) / (values.size + 1)
    return PermutationTest(float(observed), p, "permutation", min(1.0, floor), values.size)
