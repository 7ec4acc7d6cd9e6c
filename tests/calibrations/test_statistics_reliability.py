from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pingouin
import pytest

from calibrations import statistics as st
from calibrations.statistics import Insufficient


def ratings(n: int = 12, k: int = 4, seed: int = 0, noise: float = 0.7) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 1)) + 0.4 * rng.normal(size=(1, k)) + noise * rng.normal(size=(n, k))


@pytest.mark.parametrize("seed", range(5))
def test_intervals_equal_those_of_pingouin_unrounded(seed: int) -> None:
    table = ratings(seed=seed, noise=0.5 + seed)
    n, k = table.shape
    long = pd.DataFrame({"t": np.repeat(range(n), k), "r": np.tile(range(k), n), "y": table.ravel()})
    before = pingouin.options["round.column.CI95"]
    pingouin.options["round.column.CI95"] = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = pingouin.intraclass_corr(long, "t", "r", "y").set_index("Type")["CI95"]
    finally:
        pingouin.options["round.column.CI95"] = before
    mine = st.intraclass_correlation(table)
    assert set(mine) == set(reference.index)
    for name, interval in reference.items():
        assert mine[name].interval == pytest.approx(tuple(interval), abs=1e-9), name
    assert pingouin.options["round.column.CI95"] == before


def test_icc_values_follow_from_the_mean_squares() -> None:
    table = ratings()
    n, k = table.shape
    residual = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    rows = k * table.mean(1).var(ddof=1)
    columns = n * table.mean(0).var(ddof=1)
    error = (residual**2).sum() / ((n - 1) * (k - 1))
    mine = st.intraclass_correlation(table)
    assert mine["ICC(C,1)"].value == pytest.approx((rows - error) / (rows + (k - 1) * error), rel=1e-10)
    agreement = (rows - error) / (rows + (k - 1) * error + k / n * (columns - error))
    assert mine["ICC(A,1)"].value == pytest.approx(agreement, rel=1e-10)
    assert mine["ICC(C,k)"].value == pytest.approx(1 - error / rows, rel=1e-10)


def test_narrower_levels_nest() -> None:
    wide, narrow = (st.intraclass_correlation(ratings(), level)["ICC(A,1)"].interval for level in (0.95, 0.90))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_perfect_agreement_has_a_point_interval() -> None:
    mine = st.intraclass_correlation(np.repeat(np.arange(5.0)[:, None], 3, axis=1))
    assert mine["ICC(A,1)"].interval == mine["ICC(C,1)"].interval == (1.0, 1.0)


def test_icc_refusals() -> None:
    for table, reason in (
        (np.ones((4, 3)), "zero_variance"),
        (np.ones((1, 3)), "n_heads"),
        (np.ones((4, 1)), "missing_rater"),
    ):
        with pytest.raises(Insufficient) as raised:
            st.intraclass_correlation(table)
        assert raised.value.reason == reason
    with pytest.raises(ValueError, match="not finite"):
        st.intraclass_correlation([[1.0, np.nan], [2.0, 3.0]])


def test_alpha_equals_pingouin_on_complete_data_and_icc_consistency() -> None:
    table = ratings(40, 6)
    mine = st.cronbach_alpha(table, level=0.95)
    value, interval = pingouin.cronbach_alpha(pd.DataFrame(table))
    assert mine.value == pytest.approx(value, abs=1e-12)
    assert mine.interval == pytest.approx(tuple(interval), abs=6e-4)
    assert mine.value == pytest.approx(st.intraclass_correlation(table)["ICC(C,k)"].value, abs=1e-10)
    assert st.generalisability(table.T, 0.95).interval == pytest.approx(mine.interval, abs=1e-10)


def test_listwise_alpha_counts_the_rows_it_used() -> None:
    table = ratings(30, 5)
    table[[2, 7, 11], [0, 3, 3]] = np.nan
    mine, dropped = st.cronbach_alpha(table), st.cronbach_alpha(table[~np.isnan(table).any(axis=1)])
    assert (mine.n_subjects, mine.value, mine.interval) == (27, dropped.value, dropped.interval)
    pairwise, reference = st.cronbach_alpha(table, missing="pairwise"), pd.DataFrame(table).cov().to_numpy()
    assert pairwise.value == pytest.approx(5 / 4 * (1 - np.trace(reference) / reference.sum()), abs=1e-12)


def test_negative_alpha_is_kept() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    table = np.column_stack([x, -x + rng.normal(size=50), rng.normal(size=50)])
    assert st.cronbach_alpha(table).value < -0.5


def test_alpha_refusals() -> None:
    x = np.random.default_rng(0).normal(size=20)
    for table, reason in (
        (np.column_stack([x, -x]), "zero_variance"),
        (np.ones((20, 3)), "zero_variance"),
        (x[:, None], "n_heads"),
        (np.array([[1.0, np.nan], [np.nan, 2.0]]), "n_prompts"),
    ):
        with pytest.raises(Insufficient) as raised:
            st.cronbach_alpha(table)
        assert raised.value.reason == reason


def test_feldt_interval_covers_the_population_alpha() -> None:
    rng, hits = np.random.default_rng(0), 0
    truth = 5 * 0.5 / (1 + 4 * 0.5)  # Spearman-Brown of an inter-item correlation of .5
    for _ in range(600):
        table = rng.normal(size=(30, 1)) + rng.normal(size=(30, 5))
        low, high = st.cronbach_alpha(table, 0.90).interval
        hits += low < truth < high
    assert hits / 600 == pytest.approx(0.90, abs=3 * np.sqrt(0.09 / 600))


def test_mean_inter_item_correlation_gives_standardised_alpha() -> None:
    table = ratings(200, 4, noise=1)
    z = (table - table.mean(0)) / table.std(0, ddof=1)
    r = st.mean_inter_item_correlation(table)
    assert st.cronbach_alpha(z).value == pytest.approx(4 * r / (1 + 3 * r), abs=1e-12)


def test_omega_of_three_items_has_a_closed_form() -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=(400, 1))
    table = g * [1.0, 2.0, 0.5] + rng.normal(size=(400, 3)) * [0.8, 1.5, 0.5]
    s = np.cov(table, rowvar=False)
    loading = np.sqrt([s[0, 1] * s[0, 2] / s[1, 2], s[0, 1] * s[1, 2] / s[0, 2], s[0, 2] * s[1, 2] / s[0, 1]])
    unique = np.diag(s) - loading**2
    expected = loading.sum() ** 2 / (loading.sum() ** 2 + unique.sum())
    assert st.mcdonald_omega(table) == pytest.approx(expected, abs=1e-4)
    assert st.mcdonald_omega(3 * table + 7) == pytest.approx(st.mcdonald_omega(table), abs=1e-9)


def test_omega_refusals() -> None:
    for table, reason in (
        (np.random.default_rng(0).normal(size=(20, 2)), "n_heads"),
        (np.random.default_rng(0).normal(size=(3, 3)), "n_prompts"),
        (np.column_stack([np.ones(20), np.random.default_rng(0).normal(size=(20, 2))]), "zero_variance"),
    ):
        with pytest.raises(Insufficient) as raised:
            st.mcdonald_omega(table)
        assert raised.value.reason == reason


def test_split_half_recovers_the_reliability_of_the_profile() -> None:
    rng = np.random.default_rng(0)
    n, heads, noise = 60, 2000, 6.0
    effects = rng.normal(size=heads) + noise * rng.normal(size=(n, heads))
    truth = 1 / (1 + noise**2 / n)
    result = st.split_half_profile(effects, n_splits=50, seed=0)
    assert result.median == pytest.approx(truth, abs=0.03)
    assert result.interval[0] <= result.median <= result.interval[1]
    assert st.generalisability(effects).value == pytest.approx(truth, abs=0.03)
    again = st.split_half_profile(effects, n_splits=50, seed=0)
    np.testing.assert_array_equal(result.draws, again.draws)


def test_split_half_of_noise_is_near_zero() -> None:
    effects = np.random.default_rng(0).normal(size=(100, 1000))
    assert abs(st.split_half_profile(effects, n_splits=50, seed=0).median) < 0.1


def test_copies_of_a_prompt_must_not_meet_across_halves() -> None:
    effects = np.repeat(np.random.default_rng(0).normal(size=(20, 500)), 6, axis=0)
    clusters, strata = np.repeat(np.arange(20), 6), np.repeat([0, 1], 60)
    leaking = st.split_half_profile(effects, n_splits=40, seed=0)
    kept = st.split_half_profile(effects, n_splits=40, seed=0, clusters=clusters, strata=strata)
    assert leaking.median > 0.7 and abs(kept.median) < 0.15
    with pytest.raises(Insufficient) as raised:
        st.split_half_profile(effects, n_splits=4, seed=0, clusters=strata, strata=strata)
    assert raised.value.reason == "n_clusters"


def test_spearman_brown_inverts_and_explodes() -> None:
    assert st.spearman_brown(0.5385, 2) == pytest.approx(0.7, abs=1e-4)
    assert st.spearman_brown(st.spearman_brown(0.6, 3), 1 / 3) == pytest.approx(0.6)
    assert st.spearman_brown(-0.6875) == pytest.approx(-4.4)


def test_p_values_of_coefficients_are_dual_to_their_intervals() -> None:
    table = ratings(30, 5)
    lower = st.intraclass_correlation(table, 0.90)["ICC(A,1)"].interval[0]
    assert st.agreement_p(table, lower) == pytest.approx(0.05, abs=1e-8)
    assert st.agreement_p(table, lower + 0.05) > 0.05 > st.agreement_p(table, lower - 0.05)
    lower = st.generalisability(table.T, 0.90).interval[0]
    assert st.generalisability_p(table.T, lower) == pytest.approx(0.05, abs=1e-10)
    assert st.generalisability_p(table.T, 0.0) == pytest.approx(st.intraclass_correlation(table)["ICC(C,1)"].p)


def test_halves_keep_clusters_whole_and_halve_every_stratum() -> None:
    clusters, strata = np.repeat(np.arange(20), 3), np.repeat([0, 1], 30)
    halves = st.half_splits(60, 200, seed=1, clusters=clusters, strata=strata)
    assert halves.shape == (200, 60) and halves.dtype == bool
    assert (halves.reshape(200, 20, 3).std(axis=2) == 0).all()
    for stratum in (0, 1):
        assert (halves[:, strata == stratum].sum(axis=1) == 15).all()
    assert np.abs(halves.mean(axis=0) - 0.5).max() < 4 * 0.5 / np.sqrt(200)
    np.testing.assert_array_equal(halves, st.half_splits(60, 200, seed=1, clusters=clusters, strata=strata))


def test_split_half_profile_is_that_of_these_halves() -> None:
    effects = np.random.default_rng(0).normal(size=(40, 12)) + np.arange(12)
    halves = st.half_splits(40, 25, seed=3)
    r = [np.corrcoef(effects[half].mean(0), effects[~half].mean(0))[0, 1] for half in halves]
    found = st.split_half_profile(effects, n_splits=25, seed=3)
    np.testing.assert_allclose(found.draws, [st.spearman_brown(value) for value in r])


def test_raters_in_perfect_opposition_leave_the_averaged_coefficient_no_lower_bound() -> None:
    z = np.linspace(-1.5, 1.5, 9)
    found = st.intraclass_correlation(np.column_stack([z, -z]))
    assert found["ICC(C,1)"].value == pytest.approx(-1.0)
    assert found["ICC(C,k)"].interval[0] == -np.inf


def test_single_rating_correlations_are_pingouins() -> None:
    for n, k, noise in ((12, 4, 0.7), (30, 2, 3.0), (144, 2, 0.1)):
        table = ratings(n, k, noise=noise)
        theirs = st.intraclass_correlation(table)
        mine = st.single_rating_correlations(table)
        assert set(mine) == {"ICC(A,1)", "ICC(C,1)"}
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name].value, abs=1e-10)
    with pytest.raises(Insufficient, match="zero_variance"):
        st.single_rating_correlations(np.ones((4, 3)))


def test_prompts_that_are_clusters_of_their_own_are_raters() -> None:
    effects = ratings(9, 40).T
    plain, own = st.generalisability(effects, 0.95), st.generalisability(effects, 0.95, np.arange(40))
    assert own.value == pytest.approx(plain.value, rel=1e-12)
    assert own.interval == pytest.approx(plain.interval, rel=1e-12)
    assert st.generalisability_p(effects, 0.5, np.arange(40)) == pytest.approx(st.generalisability_p(effects, 0.5))


def test_copies_of_a_prompt_are_no_further_raters() -> None:
    effects = ratings(9, 40, noise=3.0).T
    clusters = np.tile(np.arange(40), 5)
    once, copied = st.generalisability(effects, 0.90), st.generalisability(np.tile(effects, (5, 1)), 0.90, clusters)
    assert copied.value == pytest.approx(once.value, rel=1e-9)
    assert copied.interval == pytest.approx(once.interval, rel=1e-9)
    assert st.generalisability(np.tile(effects, (5, 1)), 0.90).value > once.value + 0.05  # as if it were fresh evidence
    for threshold in (0.2, 0.7):
        p = st.generalisability_p(np.tile(effects, (5, 1)), threshold, clusters)
        assert p == pytest.approx(st.generalisability_p(effects, threshold), rel=1e-9)


def test_generalisability_covers_over_clusters_of_prompts() -> None:
    """Heads ~ N(0, .3^2), noise 1 with intraclass correlation .5 in 40 clusters of 5: reliability .09 / (.09 + 3 / 200)."""
    rng, heads, runs = np.random.default_rng(0), 12, 300
    clusters, truth, plain, right = np.repeat(np.arange(40), 5), 0.09 / (0.09 + 3 / 200), 0, 0
    for _ in range(runs):
        noise = np.sqrt(0.5) * (rng.normal(size=(40, heads))[clusters] + rng.normal(size=(200, heads)))
        effects = 0.3 * rng.normal(size=heads) + noise
        low, high = st.generalisability(effects, 0.95, clusters).interval
        right += low <= truth <= high
        low, high = st.generalisability(effects, 0.95).interval
        plain += low <= truth <= high
    assert 0.92 <= right / runs <= 0.98
    assert plain / runs < 0.8


def test_one_cluster_is_one_rater() -> None:
    with pytest.raises(Insufficient, match="n_clusters"):
        st.generalisability(ratings(9, 40).T, 0.90, np.zeros(40))
    with pytest.raises(ValueError, match="one each"):
        st.generalisability(ratings(9, 40).T, 0.90, np.zeros(39))
