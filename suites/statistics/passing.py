"""Several attempts at one item: does any pass (pass@k), do all pass (pass^k)?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.statistics import bootstrap

Attempts = tuple[int, int]  # attempts made and attempts passed at one item


def pass_at_k(items: Sequence[Attempts], k: int, *, seed: int = 0, clusters: Sequence[str] | None = None) -> Estimate:
    """Chance that at least one of k attempts passes, averaged over items: 1 - C(n - c, k)/C(n, k), unbiased for c of n passed.

    Undefined without items or if k exceeds an item's attempts. From 20 `clusters` [item] on (default: each item its own) it has a
    bootstrap interval over clusters. UserError for k < 1 and a count outside 0..n. Source: Chen et al. 2021.
    """
    return _averaged(items, k, seed, clusters, lambda n, c: 1 - math.comb(n - c, k) / math.comb(n, k))


def pass_hat_k(items: Sequence[Attempts], k: int, *, seed: int = 0, clusters: Sequence[str] | None = None) -> Estimate:
    """Chance that k attempts all pass (pass^k), averaged over items: C(c, k)/C(n, k). Else as `pass_at_k`. Yao et al. 2024."""
    return _averaged(items, k, seed, clusters, lambda n, c: math.comb(c, k) / math.comb(n, k))


def _averaged(
    items: Sequence[Attempts], k: int, seed: int, clusters: Sequence[str] | None, chance: Callable[[int, int], float]
) -> Estimate:
    unit = f"share at k = {k}"
    for n, c in items:
        if not 0 <= c <= n:
            raise UserError(f"{c} of {n} attempts passed; expected a count between 0 and {n}: count the attempts again")
    if k < 1:
        raise UserError(f"k is {k}; expected a number of attempts from 1 on")
    if not items:
        return missing("undefined", "no items were attempted", unit)
    fewest = min(n for n, _ in items)
    if k > fewest:
        return missing("undefined", f"k = {k} exceeds the {fewest} attempts at an item", unit, len(items))
    values = [chance(n, c) for n, c in items]
    if len(items if clusters is None else set(clusters)) < bootstrap.MINIMUM_CLUSTERS:
        return Estimate(sum(values) / len(values), unit, len(items))
    return dataclasses.replace(bootstrap.mean(values, clusters, seed=seed, unit=unit), n=len(items))
