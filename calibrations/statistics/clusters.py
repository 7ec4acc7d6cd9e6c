"""Standard errors and t tests of means whose prompts come in clusters.

Prompts of one cluster are one draw, so their residuals are summed first. If the clusters lie in strata that are fixed by
design (templates), residuals are taken from the mean of the stratum: every sample has the same strata, so differences between
strata are no sampling error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # Student's t by scipy.special, the functions that scipy.stats.t calls: importing scipy.stats takes a second
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite, tails
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class ClusteredMean:
    """Sampling error of a mean with fixed templates.

    `degrees_of_freedom` are those of the chi-square that the squared standard error follows up to a factor. `design_effect` is
    the squared standard error over that of as many independent prompts: 1 if every prompt is a cluster of its own.
    `n_clusters` counts the clusters of all `n_strata`.
    """

    standard_error: float
    degrees_of_freedom: float
    design_effect: float
    n_clusters: int
    n_strata: int


@dataclass(frozen=True)
class Totals:
    """Residuals from the mean of the stratum, summed over each cluster; a cluster in two strata counts as one in each.

    `sums` [cluster variable], `stratum` [cluster], `n_clusters` [stratum], `residuals` [prompt variable],
    `stratum_of_prompt` [prompt].
    """

    sums: Float[np.ndarray, "cluster variable"]
    stratum: Int[np.ndarray, " cluster"]
    n_clusters: Int[np.ndarray, " stratum"]
    residuals: Float[np.ndarray, "prompt variable"]
    stratum_of_prompt: Int[np.ndarray, " prompt"]

    @property
    def variances(self) -> Float[np.ndarray, " variable"]:
        """Squared standard errors: sum over strata of G/(G-1) sum_g total_g^2 / n^2."""
        scale = self.n_clusters / (self.n_clusters - 1)
        return scale[self.stratum] @ self.sums**2 / len(self.residuals) ** 2

    @property
    def independent_variances(self) -> Float[np.ndarray, " variable"]:
        """Squared standard errors if every prompt were a cluster of its own."""
        n = np.bincount(self.stratum_of_prompt)
        return (n / (n - 1))[self.stratum_of_prompt] @ self.residuals**2 / len(self.residuals) ** 2


def cluster_totals(values: Float[np.ndarray, "prompt variable"], clusters: ArrayLike, strata: ArrayLike) -> Totals:
    """Residual totals of the columns of `values`. `clusters`, `strata` [prompt] are labels.

    Raises ValueError for labels of another length and Insufficient("n_clusters") if a stratum has a single cluster, which
    says nothing about the spread between clusters.
    """
    table = finite("values", values, ndim=2)
    if not len(table) == np.size(clusters) == np.size(strata):
        raise ValueError(
            f"{len(table)} prompts, {np.size(clusters)} clusters and {np.size(strata)} strata; expected one each"
        )
    stratum = np.unique(np.asarray(strata), return_inverse=True)[1]
    code = np.unique(np.asarray(clusters), return_inverse=True)[1]
    _, first, member = np.unique(stratum * (code.max() + 1) + code, return_index=True, return_inverse=True)
    n_clusters = np.bincount(stratum[first])
    if n_clusters.min() < 2:
        detail = f"stratum {int(n_clusters.argmin())} is a single cluster; a standard error needs at least 2 in each"
        raise Insufficient("n_clusters", detail, needs="at least 2 clusters in each stratum")
    residuals = table - _sums(table, stratum)[stratum] / np.bincount(stratum)[stratum][:, None]
    return Totals(_sums(residuals, member), stratum[first], n_clusters, residuals, stratum)


def _sums(values: Float[np.ndarray, "prompt variable"], member: Int[np.ndarray, " prompt"]) -> np.ndarray:
    sums = np.zeros((int(member.max()) + 1, values.shape[1]))
    np.add.at(sums, member, values)
    return sums


def variances_of_means(
    values: Float[np.ndarray, "prompt variable"], clusters: ArrayLike, strata: ArrayLike
) -> Float[np.ndarray, " variable"]:
    """Squared standard errors of the column means, clusters drawn within strata. Raises as `cluster_totals`."""
    return cluster_totals(values, clusters, strata).variances


def clustered_mean(values: ArrayLike, clusters: ArrayLike, strata: ArrayLike) -> ClusteredMean:
    """Standard error of the mean of `values` [prompt], with the effective degrees of freedom of its clusters.

    With q_g = total_g^2: df = 2 (sum q)^2 / sum (q - mean q)^2 x (G - T)/G over all G clusters, at most G - T (T strata).
    This matches the variance of the squared error to that of a chi-square (Satterthwaite 1946), with the variance of q taken
    from the data. Clusters of unequal size and heavy tails lower df. Raises as `cluster_totals`, and
    Insufficient("zero_variance") if no prompt differs from its stratum.
    """
    totals = cluster_totals(finite("values", values, ndim=1)[:, None], clusters, strata)
    independent = float(totals.independent_variances[0])
    if independent <= 0:
        raise Insufficient("zero_variance", "no value differs from the mean of its stratum")
    variance, n_clusters, n_strata = float(totals.variances[0]), len(totals.sums), len(totals.n_clusters)
    return ClusteredMean(
        standard_error=math.sqrt(variance),
        degrees_of_freedom=_freedom(totals.sums[:, 0] ** 2, n_clusters - n_strata),
        design_effect=variance / independent,
        n_clusters=n_clusters,
        n_strata=n_strata,
    )


def _freedom(squares: Float[np.ndarray, " cluster"], most: int) -> float:
    spread = float(((squares - squares.mean()) ** 2).sum())
    if spread == 0:
        return float(most)
    return float(min(2 * squares.sum() ** 2 / spread * most / len(squares), most))


@dataclass(frozen=True)
class TTest:
    """One-sided t tests of "mean > 0", one for each variable: mean, standard error, t and p, all [variable]."""

    mean: Float[np.ndarray, " variable"]
    standard_error: Float[np.ndarray, " variable"]
    t: Float[np.ndarray, " variable"]
    p: Float[np.ndarray, " variable"]
    degrees_of_freedom: int

    def interval(self, level: float = 0.90) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper): mean +- t quantile x standard error, each with the shape of `mean`."""
        half = scipy.special.stdtrit(self.degrees_of_freedom, tails(level)[1]) * self.standard_error
        return self.mean - half, self.mean + half


def covariance_of_means(
    values: Float[np.ndarray, "prompt variable"], clusters: ArrayLike | None = None
) -> tuple[Float[np.ndarray, "variable variable"], int]:
    """Covariance matrix of the column means and its degrees of freedom.

    Without clusters: S / n with n - 1. With clusters: G/(G-1) sum_g (sum_{p in g} e_p)(...)^T / n^2 with G - 1, which
    is the first form when every prompt is its own cluster. Raises Insufficient("n_clusters") for fewer than 2 units.
    """
    residuals = values - values.mean(axis=0)
    labels = np.arange(len(values)) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    if labels.shape != (len(values),):
        raise ValueError(f"clusters has {labels.size} labels for {len(values)} prompts; expected one each")
    n_clusters = int(labels.max()) + 1
    if n_clusters < 2:
        raise Insufficient("n_clusters", "a standard error needs at least 2 sampling units")
    totals = np.zeros((n_clusters, values.shape[1]))
    np.add.at(totals, labels, residuals)
    scale = n_clusters / (n_clusters - 1) / len(values) ** 2
    return scale * totals.T @ totals, n_clusters - 1


def mean_test(values: Float[np.ndarray, "prompt variable"], clusters: ArrayLike | None = None) -> TTest:
    """t tests of "mean > 0" with the cluster-robust standard errors of `covariance_of_means`, one for each variable.

    A variable that does not vary has p 0 or 1 by the sign of its mean. Raises Insufficient("n_clusters") for
    one cluster.
    """
    covariance, freedom = covariance_of_means(values, clusters)
    mean, error = values.mean(axis=0), np.sqrt(np.diag(covariance))
    t = np.divide(mean, error, out=np.sign(mean) * math.inf, where=error > 0)
    return TTest(mean, error, t, scipy.special.stdtr(freedom, -t), freedom)
