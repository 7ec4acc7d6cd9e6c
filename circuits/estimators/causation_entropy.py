"""Optimal causation entropy (oCSE): the variables that carry information about a target which no others carry.

Sun, Taylor & Bollt (2015), here without time lags:

1. forward: add the variable with the largest conditional mutual information I(X_j; Y | selected), as long as it exceeds
   the threshold from permutations of the target;
2. backward: drop selected variables whose I(X_j; Y | other selected) is no longer significant, the weakest first.

The permutations keep the target's dependence on what is already selected, so they test conditional independence. A forward
step is compared with the largest information of any candidate under each permutation (maximum statistic), which corrects for
picking the best of many. Sun et al. permute only the chosen variable, so their false positives grow with the number of
candidates. A pruning test concerns one variable and needs no correction. The forward search is greedy: it does not find
variables that are informative only together.

Two estimators, both in nats:

- `Gaussian`: I = -1/2 ln(1 - r^2), r the partial correlation. Exact for jointly Gaussian variables, otherwise only the
  information in linear dependence. Null: permuted residuals (Freedman & Lane 1983).
- `NearestNeighbour`: Frenzel & Pompe (2007), the conditional form of Kraskov, Stoegbauer & Grassberger (2004). Sees any
  dependence. Null: permutation among nearest neighbours in the space of the conditioning variables (Runge 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int

from results_io import UserError


@dataclass(frozen=True)
class ColumnTest:
    """A test of one column: its information, in nats, and the threshold that it has to exceed."""

    column: int
    information: float
    threshold: float

    @property
    def significant(self) -> bool:
        return self.information > self.threshold


@dataclass(frozen=True)
class Selection:
    """Selected columns in the order of selection, with their tests.

    `rejected` is the test that ended the forward search; None if no candidate was left or no more columns could be conditioned
    on.
    """

    columns: tuple[int, ...]
    forward: tuple[ColumnTest, ...]
    rejected: ColumnTest | None
    pruned: tuple[ColumnTest, ...]


@runtime_checkable
class Estimator(Protocol):
    """Conditional mutual information of columns with the target, given other columns."""

    @property
    def most_given(self) -> int:
        """The largest number of columns that can be conditioned on."""
        ...

    def information(self, candidates: Sequence[int], given: Sequence[int]) -> Float[np.ndarray, " candidate"]:
        """I(X_j; Y | X_given) of every candidate; 0 if `given` determines the candidate."""
        ...

    def threshold(self, candidates: Sequence[int], given: Sequence[int]) -> float:
        """The 1 - alpha quantile of the candidates' largest information under the null hypothesis, given `given`."""
        ...


def select(estimator: Estimator, columns: Sequence[int]) -> Selection:
    """oCSE over `columns`: forward selection, then backward pruning."""
    forward, rejected = _forward(estimator, columns)
    kept, pruned = _backward(estimator, [step.column for step in forward])
    return Selection(tuple(kept), tuple(forward), rejected, tuple(pruned))


def _forward(estimator: Estimator, columns: Sequence[int]) -> tuple[list[ColumnTest], ColumnTest | None]:
    steps: list[ColumnTest] = []
    rest = list(columns)
    while rest and len(steps) < estimator.most_given:
        given = [step.column for step in steps]
        information = estimator.information(rest, given)
        best = int(information.argmax())
        step = ColumnTest(rest[best], float(information[best]), estimator.threshold(rest, given))
        if not step.significant:
            return steps, step
        steps.append(step)
        rest.remove(step.column)
    return steps, None


def _backward(estimator: Estimator, chosen: Sequence[int]) -> tuple[list[int], list[ColumnTest]]:
    kept, pruned = list(chosen), []
    while kept:
        tests = [_unique_information(estimator, column, kept) for column in kept]
        failed = [step for step in tests if not step.significant]
        if not failed:
            break
        weakest = min(failed, key=lambda step: step.information)
        kept.remove(weakest.column)
        pruned.append(weakest)
    return kept, pruned


def _unique_information(estimator: Estimator, column: int, chosen: Sequence[int]) -> ColumnTest:
    others = [other for other in chosen if other != column]
    information = estimator.information([column], others)
    return ColumnTest(column, float(information[0]), estimator.threshold([column], others))


def scores(estimator: Estimator, selected: Sequence[int], n_columns: int) -> Float[np.ndarray, " column"]:
    """I(X_j; Y | selected without j) of every column: the information it adds to the other selected columns."""
    score = estimator.information(range(n_columns), selected)
    for column in selected:
        others = [other for other in selected if other != column]
        score[column] = estimator.information([column], others)[0]
    return score


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Gaussian conditional mutual information in nats: half the log ratio of the target's residual variance without and with X.

    I(X; Y | Z) = 1/2 ln((s^2(Y|Z) + e) / (s^2(Y|Z,X) + e)). s^2 are the residual variances of linear regression over their
    degrees of freedom n - 1 - c and n - 2 - c, c the number of conditioning columns. For e = 0 this is -1/2 ln(1 - r^2), r the
    partial correlation, minus its bias 1/(2n): unbiased for Gaussian data, hence sometimes slightly negative. Its standard
    error is about |r|/sqrt(n).

    e is `noise` times the target's variance, as an error of measurement. Without it a target that its columns determine would
    give infinite information, and columns that explain next to nothing would look informative once all else is known.

    Null (Freedman & Lane 1983): the target's residuals given Z are permuted by `orders`, then regressed on Z again. The
    candidates and Z stay in place, and so does their dependence. The threshold is for the noise-free ratio, whose null
    distribution does not depend on the error of measurement.

    `weights` counts how often a bootstrap resample has each row (rows with weight 0 are left out; all weights 1 are the data
    themselves). Permutations move distinct rows while the weights stay: permuting repeated rows freely would make resamples
    look larger than they are, and select too much.

    `resolution`: a column whose SD given Z is below this share of the target's SD counts as determined by Z.
    """

    features: Float[np.ndarray, "prompt column"]
    target: Float[np.ndarray, " prompt"]
    weights: Float[np.ndarray, " prompt"]
    orders: Int[np.ndarray, "permutation prompt"]
    alpha: float
    noise: float
    resolution: float
    residual_freedom: int  # degrees of freedom that must remain

    @property
    def most_given(self) -> int:
        return len(self.target) - 2 - self.residual_freedom

    @cached_property
    def _scale(self) -> Float[np.ndarray, "prompt 1"]:
        return np.sqrt(self.weights)[:, None]

    @cached_property
    def _target_square(self) -> float:
        """Weighted sum of squares of the target about its mean."""
        return float(np.square(self._target_residual(())).sum())

    def information(self, candidates: Sequence[int], given: Sequence[int]) -> Float[np.ndarray, " candidate"]:
        directions, free = self._directions(candidates, given)
        target = self._target_residual(given)
        noise = self.noise * self._target_square / (len(self.target) - 1)
        return np.where(free, self._nats(target @ target, np.square(directions.T @ target), noise, len(given)), 0.0)

    def threshold(self, candidates: Sequence[int], given: Sequence[int]) -> float:
        directions, free = self._directions(candidates, given)
        if not free.any():
            return 0.0
        residual = self._target_residual(given) / self._scale[:, 0]
        permuted = residual[self.orders] * self._scale[:, 0]
        # regressed on Z again; the directions are orthogonal to Z, so only the length changes
        squares = np.square(permuted).sum(1) - np.square(permuted @ self._basis(given)).sum(1)
        largest = np.square(permuted @ directions[:, free]).max(1)
        explained = np.divide(largest, squares, out=np.zeros_like(squares), where=squares > 0)
        return float(self._nats(1.0, upper_quantile(explained, self.alpha), 0.0, len(given)))

    def _nats(
        self, left: float | np.ndarray, explained: float | np.ndarray, noise: float, n_given: int
    ) -> float | np.ndarray:
        """Information in nats from the target's residual sum of squares given Z, and the part of it that X explains."""
        freedom = len(self.target) - 1 - n_given
        without = left / freedom + noise
        with_x = np.maximum(left - explained, 0.0) / (freedom - 1) + noise
        return np.log(without / with_x) / 2

    def _basis(self, given: Sequence[int]) -> Float[np.ndarray, "prompt basis"]:
        """Orthonormal basis of the constant and the given columns, weighted."""
        return _basis(self.features[:, list(given)], self._scale)

    def _target_residual(self, given: Sequence[int]) -> Float[np.ndarray, " prompt"]:
        return _outside(self._basis(given), self._scale[:, 0] * self.target)

    def _directions(
        self, candidates: Sequence[int], given: Sequence[int]
    ) -> tuple[Float[np.ndarray, "prompt candidate"], Bool[np.ndarray, " candidate"]]:
        """Unit residuals of the candidates given the columns, and which candidates have residuals at all."""
        residual = _outside(self._basis(given), self._scale * self.features[:, list(candidates)])
        length = np.linalg.norm(residual, axis=0)
        free = length > self.resolution * np.sqrt(self._target_square)
        return residual / np.where(free, length, 1.0), free


@dataclass(frozen=True, eq=False)
class NearestNeighbour:
    """Frenzel-Pompe conditional mutual information from distances to the k-th nearest neighbour, in nats.

    I(X; Y | Z) = psi(k) - < psi(n_xz) + psi(n_yz) - psi(n_z) >, where n_s counts the rows (itself included) that are
    closer to a row, in the maximum norm over the coordinates s, than its k-th neighbour is over all coordinates. With
    nothing given this is the first estimator of Kraskov, Stoegbauer & Grassberger (2004).

    X and Y enter as linear residuals given Z. This does not change the information (I(X; Y | Z) = I(X - f(Z); Y - g(Z) | Z)) but
    removes most of the bias from conditioning on several columns. Every coordinate then enters as normal scores, which removes
    outliers and units. Ties are broken at random by `seed`.

    Bias: towards 0. It is small with few coordinates, but neighbourhoods grow with every conditioning column, and dependence
    inside them averages out. Of 0.22 nats (r = 0.6), 400 rows and 10 neighbours find 0.23 given nothing, 0.18 given 2
    independent columns, 0.15 given 4 and 0.10 given 8, with a standard error that falls from 0.035 to 0.013. So `most_given` is
    small.

    Null (Runge 2018): with Z given, each row's target is replaced by that of one of its `local` nearest rows in Z, each used
    once if possible; with nothing given, `orders` permutes it. The target is permuted and not the candidate, so that one
    permutation serves all candidates and their largest information. With the residuals, the test keeps its level if candidates
    and target depend linearly on Z. Strongly nonlinear dependence on three or more columns leaks into the neighbourhoods and
    makes it select too much.

    Memory: 4 n^2 bytes for each candidate.
    """

    features: Float[np.ndarray, "prompt column"]
    target: Float[np.ndarray, " prompt"]
    orders: Int[np.ndarray, "permutation prompt"]
    alpha: float
    resolution: float
    neighbours: int
    local: int
    most_given: int
    seed: int

    def information(self, candidates: Sequence[int], given: Sequence[int]) -> Float[np.ndarray, " candidate"]:
        conditioning, target, columns = self._distances(candidates, given)
        target = np.maximum(_apart(target), conditioning)
        values = [0.0 if x is None else self._nats(x, target, conditioning) for x in columns]
        return np.array(values)

    def threshold(self, candidates: Sequence[int], given: Sequence[int]) -> float:
        conditioning, target, columns = self._distances(candidates, given)
        free = [x for x in columns if x is not None]
        if not free:
            return 0.0

        def largest(order: Int[np.ndarray, " prompt"]) -> float:
            permuted = np.maximum(_apart(target[order]), conditioning)
            return max(self._nats(x, permuted, conditioning) for x in free)

        with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # numpy sorts without the interpreter lock
            null = list(threads.map(largest, self._orders(given, conditioning)))
        return upper_quantile(np.array(null), self.alpha)

    def _nats(self, xz: np.ndarray, yz: np.ndarray, z: np.ndarray) -> float:
        """The estimate from the three matrices of distances between rows."""
        k = self.neighbours  # index of the k-th neighbour, since the row itself comes first in its sorted distances
        # sorting whole rows is faster in numpy than finding the k-th value, because it uses vector instructions
        radius = np.sort(np.maximum(xz, yz), axis=1)[:, k, None]
        within_xz, within_yz, within_z = (
            self._digammas[(distance < radius).view(np.int8).sum(1, dtype=np.int32)] for distance in (xz, yz, z)
        )
        return float(scipy.special.digamma(k) - np.mean(within_xz + within_yz - within_z))

    @cached_property
    def _digammas(self) -> Float[np.ndarray, " count"]:
        """digamma of every possible count of rows."""
        return scipy.special.digamma(np.arange(len(self.target) + 1))

    def _orders(self, given: Sequence[int], conditioning: np.ndarray) -> Int[np.ndarray, "permutation prompt"]:
        if not given:
            return self.orders
        rng = np.random.default_rng([self.seed, *sorted(given)])
        return local_orders(conditioning, self.local, len(self.orders), rng)

    def _distances(
        self, candidates: Sequence[int], given: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None]]:
        """(distances in Z, scores of Y, distances in (X, Z) of every candidate); distances between rows [prompt, prompt].

        None for a candidate without information, because Z determines it or the target.
        """
        basis = _basis(self.features[:, list(given)], np.ones((len(self.target), 1)))
        least = self.resolution * self.target.std() * np.sqrt(len(self.target))
        left = _outside(basis, self.target)
        undetermined = np.linalg.norm(left) > least
        conditioning = np.zeros((len(self.target),) * 2, dtype=np.float32)
        for column in given:
            np.maximum(conditioning, _apart(self._scores(self.features[:, column], column)), out=conditioning)
        columns: list[np.ndarray | None] = []
        for column in candidates:
            residual = _outside(basis, self.features[:, column])
            free = undetermined and np.linalg.norm(residual) > least
            columns.append(np.maximum(_apart(self._scores(residual, column)), conditioning) if free else None)
        return conditioning, self._scores(left, self.features.shape[1]), columns

    def _scores(self, values: Float[np.ndarray, " prompt"], column: int) -> Float[np.ndarray, " prompt"]:
        """Normal scores of the values.

        Every column breaks ties in its own order; a common order would make columns with ties look dependent.
        """
        return normal_scores(values, [self.seed, column]).astype(np.float32)


def _apart(scores: Float[np.ndarray, " prompt"]) -> Float[np.ndarray, "prompt prompt"]:
    """Distances between rows."""
    return np.abs(scores[:, None] - scores)


def normal_scores(values: Float[np.ndarray, " prompt"], seed: Sequence[int]) -> Float[np.ndarray, " prompt"]:
    """Phi^-1(rank / (n + 1)), ties in random order."""
    tie_break = np.random.default_rng(seed).permutation(len(values))
    rank = np.empty(len(values))
    rank[np.lexsort((tie_break, values))] = np.arange(1, len(values) + 1)
    return scipy.special.ndtri(rank / (len(values) + 1))


def upper_quantile(null: Float[np.ndarray, " permutation"], alpha: float) -> float:
    """The critical value: (1 + #{null >= x})/(B + 1) <= alpha if and only if x exceeds it.

    Raises UserError if B permutations are too few for a p-value as small as alpha.
    """
    rank = int(np.floor(alpha * (len(null) + 1) + 1e-9))
    if rank < 1:
        raise UserError(
            f"{len(null)} permutations cannot give a p-value of {alpha:g}; ask for at least {int(np.ceil(1 / alpha)) - 1}"
        )
    return float(np.partition(null, -rank)[-rank])


def exchangeable_orders(clusters: Sequence[str], count: int, seed: int) -> Int[np.ndarray, "permutation prompt"]:
    """Permutations of rows that keep clusters whole: clusters of equal size change places, and so do rows inside them.

    Rows of a cluster resemble each other. If clusters were split, permuted data would vary less than real data (whole-block
    exchangeability, Winkler et al. 2014). If every row is its own cluster, these are ordinary permutations.
    """
    rng = np.random.default_rng(seed)
    member = np.unique(np.asarray(clusters), return_inverse=True)[1]
    blocks = [np.flatnonzero(member == cluster) for cluster in range(member.max() + 1)]
    orders = np.empty((count, len(member)), dtype=np.int64)
    for size in sorted({len(block) for block in blocks}):
        own = np.array([block for block in blocks if len(block) == size])
        inside = rng.permuted(np.tile(own, (count, 1, 1)), axis=2)
        places = rng.permuted(np.tile(np.arange(len(own)), (count, 1)), axis=1)
        orders[:, own.ravel()] = np.take_along_axis(inside, places[:, :, None], axis=1).reshape(count, -1)
    return orders


def local_orders(
    distance: Float[np.ndarray, "prompt prompt"], neighbours: int, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "permutation prompt"]:
    """For each row, the row whose value it gets: one of its nearest rows (itself included), if possible unused (Runge 2018).

    Rows choose in random order. If all neighbours of a row are used, it takes a random one of them.
    """
    n = len(distance)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, : min(neighbours, n)]
    turns = rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)
    orders = np.empty((count, n), dtype=np.int64)
    used = np.zeros((count, n), dtype=bool)
    every = np.arange(count)
    for row in turns.T:
        choices = rng.permuted(nearest[row], axis=1)
        taken = used[every[:, None], choices]
        pick = choices[every, taken.argmin(1)]
        orders[every, row] = pick
        used[every, pick] = True
    return orders


def bootstrap_weights(clusters: Sequence[str], seed: Sequence[int]) -> Float[np.ndarray, " prompt"]:
    """How often each row is drawn in a bootstrap resample of the clusters."""
    member = np.unique(np.asarray(clusters), return_inverse=True)[1]
    n_clusters = int(member.max()) + 1
    counts = np.random.default_rng(seed).multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters))
    return counts[member].astype(float)


def _basis(columns: np.ndarray, scale: Float[np.ndarray, "prompt 1"]) -> np.ndarray:
    """Orthonormal basis of the constant and the columns, rows multiplied by `scale`.

    Columns are centred and scaled first, so that the basis is equally exact for small and large columns.
    """
    centred = columns - columns.mean(0)
    spread = np.linalg.norm(centred, axis=0)
    centred = centred / np.where(spread > 0, spread, 1.0)
    return np.linalg.qr(scale * np.column_stack([np.ones(len(columns)), centred]))[0]


def _outside(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The part of the values outside the span of the basis."""
    return values - basis @ (basis.T @ values)
