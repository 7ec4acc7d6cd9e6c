"""Bradley-Terry: the strengths of several systems, estimated from who won against whom.

P(i beats j) = 1/(1 + exp(b_j - b_i)), sum of b = 0, by maximum likelihood; a tie is half a win for each side. Source: Bradley &
Terry 1952; Ford 1957 for the condition under which a finite estimate exists.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import sparse, stats

from calibrations.statistics import bootstrap_counts, percentile_interval
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics import multiplicity
from suites.statistics.bootstrap import MINIMUM_CLUSTERS

ELO = 400 / math.log(10)  # points of one unit of b
UNIT = "log odds"
METHOD = "percentile bootstrap over items"
HALF_WIN = 0.5  # added each way to every pair that met, if that option is chosen
STEPS, CONVERGED = 100, 1e-12  # of Newton's method
FEWEST_RESAMPLES = 1000
MOST_UNDEFINED = 0.01  # of resamples without a finite estimate; with more, the others are a biased selection
BATCH = 2000  # resamples that are solved together

Wins = Float[np.ndarray, "*resample system system"]


@dataclass(frozen=True)
class Fit:
    """`strengths` b [system], sum 0, and `covariance` [system, system].

    The covariance is the pseudo-inverse of the Hessian of minus the log likelihood; it assumes independent comparisons.
    """

    strengths: Float[np.ndarray, " system"]
    covariance: Float[np.ndarray, "system system"]

    def difference(self, one: int, other: int) -> tuple[float, float]:
        """(b_one - b_other, its standard error)."""
        c = self.covariance
        return float(self.strengths[one] - self.strengths[other]), math.sqrt(
            c[one, one] + c[other, other] - 2 * c[one, other]
        )


@dataclass(frozen=True)
class SystemRanking:
    """Several systems compared. `strengths` and `elo` (the same in Elo points; 0 is the mean) by system, `differences` by pair.

    `ranks`: best and worst rank that the differences allow, with Holm's correction over all pairs. `adjusted`: those p-values.
    `cyclic`: share of triples whose majorities are cyclic. `fit`: deviance of Bradley-Terry against one free rate per pair.
    `wins` [winner, loser]: the pooled table, without `half_wins`, which says whether half wins were added.
    """

    systems: tuple[str, ...]
    wins: Float[np.ndarray, "system system"]
    strengths: Mapping[str, Estimate]
    elo: Mapping[str, Estimate]
    differences: Mapping[tuple[str, str], Estimate]
    ranks: Mapping[str, tuple[int, int]]
    cyclic: Estimate
    fit: Estimate
    half_wins: bool = False
    adjusted: Mapping[tuple[str, str], float] = field(default_factory=dict)


def why_undefined(wins: ArrayLike) -> str | None:
    """Why there is no finite maximum-likelihood estimate; None if there is one.

    It exists if every proper subset of the systems has a win and a loss against the rest. `wins` [winner, loser] includes halves
    of ties. UserError for a table that is not square or has negative or non-finite entries. Source: Ford 1957.
    """
    table = _checked(wins)
    parts, _ = sparse.csgraph.connected_components(table + table.T > 0, directed=False)
    if parts > 1:
        return f"the comparisons fall into {parts} groups that never met"
    groups, label = sparse.csgraph.connected_components(table > 0, directed=True, connection="strong")
    if groups == 1:
        return None
    alone = [int(np.flatnonzero(label == one)[0]) for one in range(groups) if (label == one).sum() == 1]
    extreme = [k for k in alone if table[k].sum() == 0 or table[:, k].sum() == 0]
    if extreme:
        return f"{len(extreme)} of {len(table)} systems won or lost everything"
    return "a group of systems won everything against the others"


def fit(wins: ArrayLike) -> Fit:
    """Maximum-likelihood strengths of `wins` [winner, loser]. UserError if `why_undefined` gives a reason."""
    table = _checked(wins)
    if (reason := why_undefined(table)) is not None:
        raise UserError(f"there is no finite estimate: {reason}; compare more pairs, or add half a win each way")
    strengths = _solve(table[None])[0]
    return Fit(strengths, np.linalg.pinv(_hessian(table, strengths), hermitian=True))


def with_half_wins(wins: ArrayLike) -> Float[np.ndarray, "system system"]:
    """`wins` with half a win each way added to every pair that met.

    A finite estimate, shrunk towards 0, then exists unless the comparisons fall into groups that never met.
    """
    table = _checked(wins)
    return table + HALF_WIN * (table + table.T > 0)


def cyclic_triples(wins: ArrayLike) -> Estimate:
    """Share of triples i, j, k whose majorities are cyclic, among triples with a majority in all three pairs; else undefined."""
    table = _checked(wins)
    ahead = np.sign(table - table.T)
    decided = cycles = 0
    for i, j, k in itertools.combinations(range(len(table)), 3):
        around = (ahead[i, j], ahead[j, k], ahead[k, i])
        decided += 0 not in around
        cycles += around in ((1, 1, 1), (-1, -1, -1))
    if not decided:
        return missing("undefined", "no triple has a majority in all of its pairs", "share of triples")
    return Estimate(cycles / decided, "share of triples", decided, detail={"cyclic": cycles})


def deviance(wins: ArrayLike, strengths: ArrayLike) -> Estimate:
    """Deviance of the fit against one free rate per pair: 2 sum over ordered pairs of w log(w/(n p)).

    w: wins of one over the other, n: comparisons of the pair, p: fitted chance. p-value: chi-square with pairs - (systems - 1)
    degrees of freedom; undefined if that is 0. Halves of ties make it a quasi-deviance, which is somewhat too small.
    """
    table, b = _checked(wins), np.asarray(strengths, dtype=np.float64)
    met = [(i, j) for i, j in itertools.combinations(range(len(table)), 2) if table[i, j] + table[j, i] > 0]
    freedom = len(met) - (len(table) - 1)
    if freedom < 1:
        return missing(
            "undefined", f"{len(met)} pairs of {len(table)} systems leave nothing to test", "deviance", len(met)
        )
    expected = _chances(b) * (table + table.T)
    total = 2 * sum(
        table[i, j] * math.log(table[i, j] / expected[i, j])
        for i, j in itertools.permutations(range(len(table)), 2)
        if table[i, j]
    )
    detail = {"degrees_of_freedom": freedom}
    p = float(stats.chi2.sf(total, freedom))
    return Estimate(total, "deviance", len(met), p_value=p, test="chi-square of the deviance", detail=detail)


def rank(
    by_item: ArrayLike,
    systems: Sequence[str],
    *,
    seed: int = 0,
    resamples: int = 10_000,
    level: float = 0.95,
    alpha: float = 0.05,
    half_wins: bool = False,
) -> SystemRanking:
    """Strengths, differences and ranks from `by_item` [item, winner, loser], wins and halves of ties.

    Intervals come from resampled items, since one item appears in many pairs; under 20 items there is none. Everything is
    undefined if the pooled table has no finite estimate. `half_wins` adds half a win each way to every pair that met. UserError
    for fewer than two systems, a table of another shape, and under 1000 resamples.
    """
    tensor = np.asarray(by_item, dtype=np.float64)
    if len(systems) < 2 or tensor.ndim != 3 or tensor.shape[1:] != (len(systems),) * 2:
        raise UserError(
            f"wins of shape {tensor.shape} for {len(systems)} systems; expected [item, system, system] and two or more"
        )
    if resamples < FEWEST_RESAMPLES:
        raise UserError(
            f"{resamples} resamples; expected at least {FEWEST_RESAMPLES}: ends of intervals are quantiles of them"
        )
    table = tensor.sum(0)
    used = with_half_wins(table) if half_wins else table
    names = tuple(systems)
    if (reason := why_undefined(used)) is not None:
        return _undefined(names, table, reason, len(tensor), half_wins)
    found = fit(used)
    draws, lost = _draws(tensor, seed, resamples, half_wins)
    estimates = _Estimates(names, found, draws, lost, len(tensor), level, half_wins)
    differences = estimates.differences()
    numbered = {str(place): pair for place, pair in enumerate(differences)}
    p = {place: differences[pair].p_value for place, pair in numbered.items()}
    family = multiplicity.adjust(p, "ranking", alpha, "holm")
    adjusted = {numbered[place]: value for place, value in family.adjusted.items()}
    return SystemRanking(
        names,
        table,
        estimates.strengths(1.0, UNIT),
        estimates.strengths(ELO, "Elo points"),
        differences,
        _rank_sets(names, differences, adjusted, alpha),
        cyclic_triples(table),
        deviance(table, found.strengths)
        if not half_wins
        else missing("not_applicable", "half wins were added", "deviance"),
        half_wins,
        adjusted,
    )


@dataclass(frozen=True)
class _Estimates:
    """Estimates of strengths and of their differences from the fit and its resamples."""

    systems: tuple[str, ...]
    found: Fit
    draws: Float[np.ndarray, "resample system"]
    lost: int
    items: int
    level: float
    half_wins: bool

    def differences(self) -> dict[tuple[str, str], Estimate]:
        places = itertools.combinations(range(len(self.systems)), 2)
        return {(self.systems[i], self.systems[j]): self._difference(i, j) for i, j in places}

    def strengths(self, scale: float, unit: str) -> dict[str, Estimate]:
        b = self.found.strengths
        return {
            name: self._estimate(scale * float(b[k]), scale * self.draws[:, k], unit)
            for k, name in enumerate(self.systems)
        }

    def _difference(self, i: int, j: int) -> Estimate:
        value, error = self.found.difference(i, j)
        drawn = self.draws[:, i] - self.draws[:, j]
        p = (
            None
            if self._without()
            else min(1.0, 2 * (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (1 + len(drawn)))
        )
        detail = {"se": error, "elo": value * ELO}
        return self._estimate(value, drawn, UNIT, p, detail)

    def _estimate(
        self,
        value: float,
        drawn: np.ndarray,
        unit: str,
        p: float | None = None,
        detail: Mapping[str, float] | None = None,
    ) -> Estimate:
        reason = self._without()
        interval = None if reason else Interval(*percentile_interval(drawn, self.level), self.level, METHOD)
        assumptions = ("items are independent", *([reason] if reason else []))
        if self.half_wins:
            assumptions = (*assumptions, "half a win each way was added to every pair that met")
        told = {**(detail or {}), "resamples_without_estimate": self.lost}
        test = None if p is None else METHOD
        return Estimate(
            value, unit, self.items, ci=interval, assumptions=assumptions, p_value=p, test=test, detail=told
        )

    def _without(self) -> str | None:
        """Why there is no interval."""
        if self.items < MINIMUM_CLUSTERS:
            return f"no interval: {self.items} items, fewer than {MINIMUM_CLUSTERS}"
        if self.lost > MOST_UNDEFINED * (self.lost + len(self.draws)):
            return f"no interval: {self.lost} of {self.lost + len(self.draws)} resamples have no finite estimate"
        return None


def _draws(tensor: np.ndarray, seed: int, resamples: int, half_wins: bool) -> tuple[np.ndarray, int]:
    """(strengths [resample, system] of resampled items, number of resamples without a finite estimate)."""
    items, systems = tensor.shape[:2]
    if items < MINIMUM_CLUSTERS:
        return np.zeros((0, systems)), 0
    counts = np.asarray(bootstrap_counts(items, resamples, seed=seed), dtype=np.float64)
    tables = (counts @ tensor.reshape(items, -1)).reshape(-1, systems, systems)
    if half_wins:
        tables = tables + HALF_WIN * (tables + tables.transpose(0, 2, 1) > 0)
    usable = _strongly_connected(tables)
    solved = [_solve(tables[usable][start : start + BATCH]) for start in range(0, int(usable.sum()), BATCH)]
    return np.concatenate(solved) if solved else np.zeros((0, systems)), int((~usable).sum())


def _strongly_connected(tables: Wins) -> np.ndarray:
    """[resample] Whether every system reaches every other along wins, found by repeated squaring of the adjacency matrix."""
    reach = (tables > 0) | np.eye(tables.shape[-1], dtype=bool)
    for _ in range(math.ceil(math.log2(max(2, tables.shape[-1])))):
        reach = np.matmul(reach.astype(np.float32), reach.astype(np.float32)) > 0
    return np.asarray(reach.all(axis=(1, 2)))


def _solve(tables: Wins) -> Float[np.ndarray, "resample system"]:
    """Newton's method on all tables at once; each must have a finite estimate. Steps are limited to 1 to keep them uphill."""
    b = np.zeros(tables.shape[:2])
    for _ in range(STEPS):
        met = tables + tables.transpose(0, 2, 1)
        slope = (tables - met * _chances(b)).sum(-1)
        step = np.einsum("rij,rj->ri", np.linalg.pinv(_hessian(tables, b), hermitian=True), slope)
        step /= np.maximum(1.0, np.abs(step).max(axis=1, keepdims=True))
        b = b + step
        if np.abs(step).max(initial=0.0) < CONVERGED:
            break
    return b - b.mean(axis=1, keepdims=True)


def _hessian(tables: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Hessian of minus the log likelihood: the graph Laplacian with weights n p (1 - p)."""
    chances = _chances(b)
    weights = (tables + tables.swapaxes(-1, -2)) * chances * (1 - chances)
    return np.eye(tables.shape[-1]) * weights.sum(-1)[..., None] - weights


def _chances(b: np.ndarray) -> np.ndarray:
    """P(i beats j) [..., i, j]."""
    return 1 / (1 + np.exp(np.clip(b[..., None, :] - b[..., :, None], -700, 700)))


def _checked(wins: ArrayLike) -> np.ndarray:
    """The table without its diagonal, as floats."""
    table = np.asarray(wins, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not np.isfinite(table).all() or (table < 0).any():
        raise UserError(
            f"wins of shape {table.shape}; expected a square table [winner, loser] of counts from 0: count them again"
        )
    return table * (1 - np.eye(len(table)))


def _rank_sets(
    systems: Sequence[str],
    differences: Mapping[tuple[str, str], Estimate],
    adjusted: Mapping[tuple[str, str], float],
    alpha: float,
) -> dict[str, tuple[int, int]]:
    """{system: (best, worst rank)}: above all significantly weaker systems, below all significantly stronger ones."""
    above, below = dict.fromkeys(systems, 0), dict.fromkeys(systems, 0)
    for (one, other), p in adjusted.items():
        if p <= alpha:
            winner, loser = (one, other) if differences[one, other].number > 0 else (other, one)
            below[winner] += 1
            above[loser] += 1
    return {name: (1 + above[name], len(systems) - below[name]) for name in systems}


def _undefined(systems: tuple[str, ...], table: np.ndarray, reason: str, items: int, half_wins: bool) -> SystemRanking:
    def none(unit: str) -> Estimate:
        return missing("undefined", reason, unit, items)

    return SystemRanking(
        systems,
        table,
        {name: none(UNIT) for name in systems},
        {name: none("Elo points") for name in systems},
        {pair: none(UNIT) for pair in itertools.combinations(systems, 2)},
        {name: (1, len(systems)) for name in systems},
        cyclic_triples(table),
        none("deviance"),
        half_wins,
    )
