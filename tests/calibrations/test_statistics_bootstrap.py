from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient, bootstrap


def repeated(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """The resampled prompts written out, one array per resample."""
    return [np.repeat(values, row, axis=0) for row in counts]


def test_resamples_of_prompts_keep_their_number_and_average_one_each() -> None:
    counts = st.bootstrap_counts(25, 4000, seed=0)
    assert (counts.sum(axis=1) == 25).all()
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.08)
    np.testing.assert_allclose(counts.var(axis=0), 24 / 25, atol=0.12)
    np.testing.assert_array_equal(counts, st.bootstrap_counts(25, 4000, seed=0))
    assert (counts != st.bootstrap_counts(25, 4000, seed=1)).any()


def test_clusters_move_together_and_strata_keep_their_cluster_number() -> None:
    clusters = np.array(["a", "a", "b", "c", "c", "d", "e", "e"])
    strata = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    counts = st.bootstrap_counts(8, 500, seed=0, clusters=clusters, strata=strata)
    for label in np.unique(clusters):
        inside = counts[:, clusters == label]
        assert (inside == inside[:, :1]).all()
    first = [np.flatnonzero(clusters == label)[0] for label in "abcde"]
    assert (counts[:, first[:3]].sum(axis=1) == 3).all()
    assert (counts[:, first[3:]].sum(axis=1) == 2).all()


def test_cluster_refusals() -> None:
    with pytest.raises(ValueError, match="two strata"):
        st.bootstrap_counts(4, 10, seed=0, clusters=[0, 0, 1, 1], strata=[0, 1, 1, 1])
    with pytest.raises(Insufficient) as raised:
        st.bootstrap_counts(4, 10, seed=0, clusters=[0, 0, 1, 2], strata=[0, 0, 1, 1])
    assert raised.value.reason == "n_clusters"
    with pytest.raises(ValueError, match="one label for each of 4"):
        st.bootstrap_counts(4, 10, seed=0, clusters=[0, 1])


@pytest.mark.parametrize("clusters", [None, np.array([0, 0, 1, 1, 1, 2, 3, 4, 4, 5])])
def test_weighted_statistics_equal_those_of_the_written_out_resample(clusters: np.ndarray | None) -> None:
    rng = np.random.default_rng(0)
    effects, f, d = rng.normal(size=(10, 3)), rng.normal(1, 1, (2, 10)), rng.normal(5, 1, 10)
    counts = st.bootstrap_counts(10, 50, seed=2, clusters=clusters)
    written = repeated(np.arange(10), counts)
    np.testing.assert_allclose(st.bootstrap_means(counts, effects), [effects[i].mean(0) for i in written], rtol=1e-12)
    np.testing.assert_allclose(st.bootstrap_means(counts, f, axis=-1), [f[:, i].mean(1) for i in written], rtol=1e-12)
    ratios = [f[:, i].sum(1) / d[i].sum() for i in written]
    np.testing.assert_allclose(st.bootstrap_ratios(counts, f, d), ratios, rtol=1e-12)
    np.testing.assert_allclose(st.bootstrap_ratios(counts, f[0], d), np.array(ratios)[:, 0], rtol=1e-12)


def test_percentile_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    d = rng.normal(4, 1, 60)
    f = 0.8 * d + rng.normal(0, 0.5, 60)
    draws = st.bootstrap_ratios(st.bootstrap_counts(60, 20_000, seed=0), f, d)
    reference = stats.bootstrap(
        (f, d),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=1,
    )
    ci95, ci90 = st.percentile_interval(draws, 0.95), st.percentile_interval(draws, 0.90)
    assert ci95 == pytest.approx(tuple(reference.confidence_interval), abs=0.002)
    assert draws.std(ddof=1) == pytest.approx(st.ratio_of_means(f, d).standard_error, rel=0.03)
    assert ci95[0] < ci90[0] < f.sum() / d.sum() < ci90[1] < ci95[1]


def test_cluster_bootstrap_sees_the_cluster_variance() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(30), 10)
    y = np.repeat(rng.normal(size=30), 10) + 1e-3 * rng.normal(size=300)
    by_cluster = st.bootstrap_means(st.bootstrap_counts(300, 4000, seed=0, clusters=clusters), y)
    by_prompt = st.bootstrap_means(st.bootstrap_counts(300, 4000, seed=0), y)
    assert by_cluster.std() / by_prompt.std() == pytest.approx(np.sqrt(10), rel=0.06)
    assert by_cluster.std() == pytest.approx(st.ratio_of_means(y, np.ones(300), clusters).standard_error, rel=0.06)


def test_sign_changing_denominators_and_missing_draws_are_refused() -> None:
    rng = np.random.default_rng(0)
    counts = st.bootstrap_counts(30, 1000, seed=0)
    with pytest.raises(Insufficient) as raised:
        st.bootstrap_ratios(counts, rng.normal(size=30), rng.normal(0.1, 1, 30))
    assert raised.value.reason == "degenerate_bootstrap"
    draws = np.arange(1000.0)
    draws[:10] = np.nan
    assert st.usable_draws(draws).size == 990  # exactly 1 % is tolerated
    draws[10] = np.inf
    with pytest.raises(Insufficient) as raised:
        st.percentile_interval(draws)
    assert raised.value.reason == "degenerate_bootstrap"


def test_levels_are_probabilities() -> None:
    with pytest.raises(ValueError, match="confidence level"):
        st.percentile_interval(np.arange(10.0), level=90)


@pytest.mark.parametrize("clusters", [None, np.array([0, 0, 1, 1, 1, 2, 3, 4, 4, 5])])
def test_ratio_errors_equal_the_standard_error_of_the_written_out_resample(
    clusters: np.ndarray | None,
) -> None:
    rng = np.random.default_rng(0)
    f, d = rng.normal(1, 1, 10), rng.normal(5, 1, 10)
    units = np.arange(10) if clusters is None else clusters
    counts = st.bootstrap_counts(10, 30, seed=2, clusters=clusters)
    expected = []
    for row in counts:  # every copy of a cluster is a sampling unit of its own
        index = np.repeat(np.arange(10), row)
        copy = np.concatenate([np.arange(n) for n in row])
        expected.append(st.ratio_of_means(f[index], d[index], 100 * units[index] + copy).standard_error)
    np.testing.assert_allclose(st.bootstrap_ratio_errors(counts, f, d, clusters), expected, rtol=1e-9)
    once = st.bootstrap_ratio_errors(np.ones((1, 10), int), f, d, clusters)
    assert once[0] == pytest.approx(st.ratio_of_means(f, d, clusters).standard_error, rel=1e-9)


def test_equal_arguments_share_one_array_that_nobody_can_write() -> None:
    clusters = ["a", "a", "b", "c", "c"]
    counts = st.bootstrap_counts(5, 20, seed=3, clusters=clusters)
    assert st.bootstrap_counts(5, 20, seed=3, clusters=np.array(clusters)) is counts
    direct = np.random.default_rng(3).multinomial(3, np.full(3, 1 / 3), size=20)[:, [0, 0, 1, 2, 2]]
    assert np.array_equal(counts, direct)
    with pytest.raises(ValueError, match="read-only"):
        counts[0, 0] = 1
    for other in ({"seed": 4, "clusters": clusters}, {"seed": 3}, {"seed": 3, "clusters": ["a", "b", "b", "c", "c"]}):
        assert not np.array_equal(st.bootstrap_counts(5, 20, **other), counts)


@pytest.mark.parametrize("columns", [1, 3])
def test_blocks_of_resamples_change_nothing_but_memory(monkeypatch, columns):
    """100,000 prompts would take 8 GB at once: rows are drawn and weighted some at a time."""
    rng = np.random.default_rng(3)
    values, clean, clusters = rng.normal(size=(40, columns)), rng.normal(5, 1, 40), np.arange(40) // 2
    strata = np.arange(40) % 40 // 20
    draw = {"seed": 4, "clusters": clusters, "strata": strata}
    whole = st.bootstrap_counts(40, 500, **draw)
    assert whole.dtype == np.int16 and whole.sum() == 500 * 40
    in_one = [f(whole, values) for f in (st.bootstrap_means, st.weighted_sums)]
    errors = st.bootstrap_ratio_errors(whole, values[:, 0], clean, clusters)
    bootstrap._counts.cache_clear()
    monkeypatch.setattr(bootstrap, "BLOCK_BYTES", 8 * 40 * 7)  # 7 rows of 40 prompts
    assert [rows.stop - rows.start for rows in bootstrap.row_blocks(500, 40)] == [7] * 71 + [3]
    parts = st.bootstrap_counts(40, 500, **draw)
    assert parts is not whole and np.array_equal(parts, whole)
    for one, other in zip(in_one, [f(parts, values) for f in (st.bootstrap_means, st.weighted_sums)], strict=True):
        assert np.abs(one - other).max() < 1e-14 and one.shape == (500, columns)
    assert np.abs(st.bootstrap_ratio_errors(parts, values[:, 0], clean, clusters) - errors).max() < 1e-14
