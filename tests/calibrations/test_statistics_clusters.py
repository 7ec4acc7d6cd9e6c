"""Cluster totals within strata: brute force, the limit of independent prompts, the SD over samples, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calibrations.statistics import Insufficient, clustered_mean, variances_of_means


def clustered_sample(rng: np.random.Generator, n: int = 90, n_strata: int = 3, n_names: int = 8, rho: float = 0.5):
    """Values with mean 5 x stratum, variance 1 and intraclass correlation rho in (stratum, name)."""
    strata, names = np.arange(n) % n_strata, rng.integers(n_names, size=n)
    shared = rng.normal(size=(n_strata, n_names))[strata, names]
    values = 5.0 * strata + math.sqrt(rho) * shared + math.sqrt(1 - rho) * rng.normal(size=n)
    return values, np.array([f"{s}|{g}" for s, g in zip(strata, names, strict=True)]), strata


def test_variance_by_brute_force() -> None:
    values, clusters, strata = clustered_sample(np.random.default_rng(0))
    expected = 0.0
    for stratum in set(strata):
        own = values[strata == stratum]
        labels = clusters[strata == stratum]
        totals = [(own[labels == c] - own.mean()).sum() for c in set(labels)]
        expected += len(totals) / (len(totals) - 1) * sum(t**2 for t in totals) / len(values) ** 2
    found = clustered_mean(values, clusters, strata)
    assert found.standard_error**2 == pytest.approx(expected, rel=1e-12)
    assert variances_of_means(np.column_stack([values, 2 * values]), clusters, strata) == pytest.approx(
        [expected, 4 * expected], rel=1e-12
    )
    assert (found.n_clusters, found.n_strata) == (len(set(clusters)), 3)


def test_differences_between_strata_are_no_sampling_error() -> None:
    values, clusters, strata = clustered_sample(np.random.default_rng(1))
    moved = clustered_mean(values + 100.0 * strata, clusters, strata)
    assert moved.standard_error == pytest.approx(clustered_mean(values, clusters, strata).standard_error, rel=1e-9)


def test_independent_prompts_have_the_usual_standard_error_and_no_design_effect() -> None:
    values = np.random.default_rng(2).normal(size=50)
    found = clustered_mean(values, np.arange(50), np.zeros(50))
    assert found.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(50), rel=1e-12)
    assert found.design_effect == pytest.approx(1.0, abs=1e-12)
    strata = np.repeat([0, 1], [20, 30])
    assert clustered_mean(values, np.arange(50), strata).design_effect == pytest.approx(1.0, abs=1e-12)


def test_copies_of_every_prompt_add_nothing() -> None:
    values, strata = np.random.default_rng(3).normal(size=40), np.arange(40) % 4
    once = clustered_mean(values, np.arange(40), strata)
    thrice = clustered_mean(np.tile(values, 3), np.tile(np.arange(40), 3), np.tile(strata, 3))
    assert thrice.standard_error == pytest.approx(once.standard_error, rel=1e-12)
    assert thrice.degrees_of_freedom == pytest.approx(once.degrees_of_freedom, rel=1e-9)
    # n_t/(n_t - 1) of 10 values a stratum against 30: 3 (30 - 1)/(30 - 3)
    assert thrice.design_effect == pytest.approx(29 / 9, rel=1e-12)


def test_equal_squares_are_worth_every_cluster_and_one_large_one_two() -> None:
    even = clustered_mean(np.tile([1.0, -1.0], 10), np.arange(20), np.zeros(20))
    assert even.degrees_of_freedom == 19
    lone = np.zeros(2001)
    lone[0] = 1.0
    assert clustered_mean(lone, np.arange(2001), np.zeros(2001)).degrees_of_freedom == pytest.approx(2, rel=0.01)


def test_standard_error_and_its_freedom_are_those_of_samples() -> None:
    """The squared error is right on average, and its chi-square bounds cover; with G - T degrees of freedom they do not.

    200 prompts in about 100 clusters. The truth of each sample follows from its cluster sizes:
    (rho sum m_g^2 + (1 - rho) n) / n^2.
    """
    rng, rho, rows = np.random.default_rng(4), 0.5, []
    for _ in range(600):
        values, clusters, strata = clustered_sample(rng, n=200, n_strata=4, n_names=40, rho=rho)
        found, sizes = clustered_mean(values, clusters, strata), np.unique(clusters, return_counts=True)[1]
        truth = (rho * (sizes**2).sum() + (1 - rho) * 200) / 200**2
        rows.append((found.standard_error**2 / truth, found.degrees_of_freedom, found.n_clusters - found.n_strata))
    relative, freedom, every = np.array(rows).T
    assert relative.mean() == pytest.approx(
        1, abs=3 * relative.std() / math.sqrt(len(rows)) + 0.02
    )  # 2 %: means in strata

    def coverage(freedom: np.ndarray) -> float:
        tail = stats.chi2.cdf(freedom * relative, freedom)
        return float(np.mean((tail > 0.025) & (tail < 0.975)))

    assert 0.92 <= coverage(freedom) <= 0.98
    assert coverage(every) < coverage(freedom) - 0.03


def test_order_and_names_do_not_matter() -> None:
    values, clusters, strata = clustered_sample(np.random.default_rng(5))
    order = np.random.default_rng(6).permutation(len(values))
    first, again = (
        clustered_mean(values, clusters, strata),
        clustered_mean(*(a[order] for a in (values, clusters, strata))),
    )
    assert again.standard_error == pytest.approx(first.standard_error, rel=1e-12)
    assert again.degrees_of_freedom == pytest.approx(first.degrees_of_freedom, rel=1e-9)
    renamed = clustered_mean(values, [f"x{c}" for c in clusters], strata)
    assert renamed.standard_error == pytest.approx(first.standard_error, rel=1e-12)


def test_one_name_in_two_strata_is_two_clusters() -> None:
    values = np.random.default_rng(7).normal(size=12)
    strata, names = np.repeat([0, 1], 6), np.tile([0, 0, 1, 1, 2, 2], 2)
    assert clustered_mean(values, names, strata) == clustered_mean(values, names + 10 * strata, strata)


def test_refusals() -> None:
    values = np.arange(6.0)
    with pytest.raises(Insufficient, match="n_clusters: stratum 1 is a single cluster"):
        clustered_mean(values, [0, 1, 2, 3, 3, 3], [0, 0, 0, 1, 1, 1])
    with pytest.raises(Insufficient, match="zero_variance"):
        clustered_mean(np.repeat([1.0, 2.0], 3), np.arange(6), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="6 prompts, 5 clusters"):
        clustered_mean(values, np.arange(5), np.zeros(6))
