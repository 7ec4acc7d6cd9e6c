"""Permutation tests of points: exact if all relabellings can be listed, else B random ones with p = (1 + hits)/(1 + B)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

from suites.geometry.metric import settled
from suites.statistics.permutation import EXACT_UP_TO, FEWEST_RESAMPLES

CHUNK = 1 << 22  # numbers held at once
FEWEST_PAIRS = (
    7  # whose signs reach a level near .05 (6 of 128 flips, .047); six pairs reach .031 at most, five .0625 at least
)
FEWEST_UNITS = 6  # whose exchanges, one-sided, reach a level near .05 (3 of 64, .047); of five, .031 at most
NO_P = f"no p: under {FEWEST_PAIRS} pairs no flipping of signs reaches a level near .05"
ROUNDING = 1e-9


def two_samples(
    first: Float[np.ndarray, "point axis"],
    second: Float[np.ndarray, "point axis"],
    seed: int,
    resamples: int = FEWEST_RESAMPLES,
) -> float:
    """p of |mean first - mean second| by permuting the points' labels; 1 if all points agree."""
    table, n = reduced(_moved(np.concatenate([first, second]))), len(first)
    size = len(table)
    exact = math.comb(size, n) <= EXACT_UP_TO
    if exact:
        masks = _every_choice(size, n)
    else:
        rng = np.random.default_rng(seed)
        masks = _masks(rng.permuted(np.tile(np.arange(size), (resamples, 1)), axis=1)[:, :n], size)
    total = table.sum(0)

    def statistic(weights: np.ndarray) -> np.ndarray:
        sums = weights @ table
        return ((sums / n - (total - sums) / (size - n)) ** 2).sum(-1)

    own = np.zeros((1, size))
    own[0, :n] = 1
    return _share(statistic(own)[0], statistic(masks), exact)


@lru_cache(maxsize=8)
def _every_choice(size: int, n: int) -> Float[np.ndarray, "relabelling point"]:
    return _masks(np.array(list(itertools.combinations(range(size), n))), size)


def _masks(chosen: Int[np.ndarray, "relabelling chosen"], size: int) -> Float[np.ndarray, "relabelling point"]:
    masks = np.zeros((len(chosen), size))
    np.put_along_axis(masks, chosen, 1.0, axis=1)
    return masks


def signs(differences: Float[np.ndarray, "pair axis"], seed: int, resamples: int = FEWEST_RESAMPLES) -> float | None:
    """p of |mean of paired differences| by flipping the sign of each difference; None under FEWEST_PAIRS."""
    if len(differences) < FEWEST_PAIRS:
        return None
    table, n = reduced(differences), len(differences)
    flips, exact = _flips(n, seed, resamples)
    return _share(float((table.sum(0) ** 2).sum()), ((flips @ table) ** 2).sum(-1), exact)


def of_samples(
    samples: Sequence[Float[np.ndarray, "point axis"]], seed: int, resamples: int = FEWEST_RESAMPLES
) -> float | None:
    """p that nothing moved: `signs` of one sample, of paired differences, or `two_samples` of the second against the first."""
    if len(samples) == 1:
        return signs(samples[0], seed, resamples)
    return two_samples(samples[1], samples[0], seed, resamples)


def swaps(values: Float[np.ndarray, "unit 2"], seed: int, resamples: int = FEWEST_RESAMPLES) -> float | None:
    """p of the sum of the first column, one-sided (larger), by exchanging the numbers of a unit; None under FEWEST_UNITS."""
    if len(values) < FEWEST_UNITS:
        return None
    difference = values[:, 0] - values[:, 1]
    flips, exact = _flips(len(values), seed, resamples)
    above = 2 * np.abs(difference).sum()  # so that no sum is near 0, where a tie is hidden by rounding
    return _share(float(difference.sum() + above), flips @ difference + above, exact)


def _flips(n: int, seed: int, resamples: int) -> tuple[Float[np.ndarray, "relabelling unit"], bool]:
    """(signs of n units, whether these are all that there are)."""
    if 2**n <= EXACT_UP_TO:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n))), True
    return np.random.default_rng(seed).choice([1.0, -1.0], size=(resamples, n)), False


def means_of_draws(
    draws: Sequence[Float[np.ndarray, "draw axis"]],
    statistic: Callable[[Float[np.ndarray, "relabelling prompt axis"]], Float[np.ndarray, " relabelling"]],
    seed: int,
    resamples: int = FEWEST_RESAMPLES,
) -> tuple[float, float]:
    """(p of a statistic of the prompts' means by permuting draws between prompts, its mean under these permutations)."""
    sizes = np.array([len(one) for one in draws])
    table, edges = np.concatenate(list(draws)), np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def of(ordered: np.ndarray) -> np.ndarray:
        return statistic(np.add.reduceat(ordered, edges, axis=1) / sizes[None, :, None])

    rng, found, step = np.random.default_rng(seed), [], max(1, CHUNK // (len(sizes) ** 2 * table.shape[1]))
    for start in range(0, resamples, step):
        orders = np.tile(np.arange(len(table)), (min(step, resamples - start), 1))
        found.append(of(table[rng.permuted(orders, axis=1)]))
    every = np.concatenate(found)
    return _share(float(of(table[None])[0]), every, exact=False), float(every.mean())


def groups(tables: Sequence[Float[np.ndarray, "point axis"]], seed: int, resamples: int = FEWEST_RESAMPLES) -> float:
    """p of the variance between the groups' means by permuting points between groups; always random, never exact."""
    sizes = np.array([len(table) for table in tables])
    table = reduced(_moved(np.concatenate(list(tables))))
    edges = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    own = float(_between(table[None], edges, sizes)[0])
    rng, found, step = np.random.default_rng(seed), [], max(1, CHUNK // table.size)
    for start in range(0, resamples, step):
        orders = np.tile(np.arange(len(table)), (min(step, resamples - start), 1))
        found.append(_between(table[rng.permuted(orders, axis=1)], edges, sizes))
    return _share(own, np.concatenate(found), exact=False)


def _between(ordered: np.ndarray, edges: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    means = np.add.reduceat(ordered, edges, axis=1) / sizes[None, :, None]
    return ((means - means.mean(1, keepdims=True)) ** 2).sum((1, 2))


def _moved(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point axis"]:
    """The points minus the first one. The tests do not depend on the origin, and equal points become exactly 0."""
    return settled(table - table[0], table)


def reduced(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point axis"]:
    """Points with the same inner products, and so distances, in at most as many axes as there are points."""
    if table.shape[1] <= len(table):
        return table
    return np.linalg.qr(table.T, mode="r").T  # pyright: ignore[reportAttributeAccessIssue]


def _share(own: float, found: Float[np.ndarray, " relabelling"], exact: bool) -> float:
    """p: share of relabellings at least as extreme as the actual labels, plus one if they are random."""
    hits = int((found >= own * (1 - ROUNDING)).sum())
    return hits / len(found) if exact else (1 + hits) / (1 + len(found))
