from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pingouin
import pytest
from scipy import special, stats
from statsmodels.stats import oneway

from calibrations import statistics as st
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)
GROUPS = [RNG.normal(m, s, n) for m, s, n in ((0, 1, 12), (0.4, 2, 15), (1.1, 1.5, 20), (0.2, 0.7, 11))]


def long_form(groups: list[np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({"y": np.concatenate(groups), "g": np.repeat(np.arange(len(groups)), [len(g) for g in groups])})


def test_classic_table_equals_scipy_and_splits_the_sum_of_squares() -> None:
    table = st.one_way_effects(GROUPS)
    reference = stats.f_oneway(*GROUPS)
    assert (table.f, table.p) == pytest.approx((reference.statistic, reference.pvalue), rel=1e-12)
    ratio = table.f * table.df_between / table.df_within
    assert table.eta2 == pytest.approx(ratio / (1 + ratio), rel=1e-12)
    assert table.omega2 < table.epsilon2 < table.eta2


def test_eta2_is_free_of_location_scale_and_order() -> None:
    moved = [5 - 3 * g[::-1] for g in GROUPS[::-1]]
    assert st.one_way_effects(moved).eta2 == pytest.approx(st.one_way_effects(GROUPS).eta2, rel=1e-12)


def test_welch_equals_pingouin_and_scipy() -> None:
    result = st.welch_anova(GROUPS)
    row = pingouin.welch_anova(long_form(GROUPS), dv="y", between="g").iloc[0]
    assert (result.f, result.df_between, result.df_within, result.p) == pytest.approx(
        (row["F"], row["ddof1"], row["ddof2"], row["p_unc"]), rel=1e-6
    )
    assert result.p == pytest.approx(stats.f_oneway(*GROUPS, equal_var=False).pvalue, rel=1e-10)
    assert row["np2"] == pytest.approx(st.one_way_effects(GROUPS).eta2, rel=1e-6)
    excess = 3 * (result.f - 1)
    assert result.adjusted_omega2 == pytest.approx(excess / (excess + 58), rel=1e-12)


@pytest.mark.parametrize("level", [0.90, 0.95])
def test_eta2_interval_leaves_the_tails_it_promises(level: float) -> None:
    table = st.one_way_effects(GROUPS)
    reference = oneway.confint_effectsize_oneway(
        table.f, (table.df_between, table.df_within), alpha=1 - level, nobs=table.n
    )
    low, high = st.eta2_interval(GROUPS, level)
    assert (low, high) == pytest.approx(tuple(reference.eta2), abs=1e-5)
    noncentrality = [table.n * eta2 / (1 - eta2) for eta2 in (low, high)]
    tails = stats.ncf.cdf(table.f, table.df_between, table.df_within, noncentrality)
    assert tails == pytest.approx([(1 + level) / 2, (1 - level) / 2], abs=1e-9)


def test_eta2_interval_survives_extreme_f() -> None:
    low, high = st.eta2_interval([g + 300 * i for i, g in enumerate(GROUPS)])
    assert 0.999 < low < high < 1
    identical = [[1.0, 2, 3], [1.0, 2, 3], [1.0, 2, 3]]
    assert st.eta2_interval(identical) == (0.0, 0.0)


def test_eta2_interval_covers_the_population_value() -> None:
    rng, hits = np.random.default_rng(1), 0
    means = np.array([-0.3, 0.0, 0.3])
    truth = means.var() / (means.var() + 1)
    for _ in range(400):
        low, high = st.eta2_interval(list(rng.normal(means[:, None], 1, (3, 40))), 0.90)
        hits += low <= truth <= high
    assert hits / 400 == pytest.approx(0.90, abs=3 * math.sqrt(0.09 / 400))


def test_null_eta2_follows_the_beta_law() -> None:
    rng = np.random.default_rng(0)
    draws = [st.one_way_effects(list(rng.normal(size=(3, 20)))).eta2 for _ in range(500)]
    assert stats.kstest(draws, stats.beta((3 - 1) / 2, (60 - 3) / 2).cdf).pvalue > 0.01


@pytest.mark.parametrize(("k", "powers"), [(3, (0.26, 0.50, 0.75, 0.89, 0.98)), (5, (0.21, 0.39, 0.62, 0.79, 0.95))])
def test_power_of_the_equivalence_gate_is_the_one_in_the_specification(k: int, powers: tuple) -> None:
    margin = 0.06 / 0.94
    for n, power in zip((60, 100, 150, 200, 300), powers, strict=True):
        critical = stats.ncf.ppf(0.05, k - 1, n - k, n * margin)
        assert stats.f.cdf(critical, k - 1, n - k) == pytest.approx(power, abs=0.006)


def test_equivalence_p_is_the_noncentral_f_of_welch() -> None:
    welch = st.welch_anova(GROUPS)
    margin = 0.06 / 0.94
    expected = stats.ncf.cdf(welch.f, welch.df_between, welch.df_within, 58 * margin)
    result = st.equivalence_test(GROUPS, 0.06)
    assert result.p == pytest.approx(expected, abs=1e-8) and result.margin_f2 == pytest.approx(margin)
    assert result.f2 == pytest.approx(3 * welch.f / 58)


def test_equivalence_level_at_the_margin_and_power_under_invariance() -> None:
    rng = np.random.default_rng(0)
    means = np.array([-1.0, 0.0, 1.0]) * math.sqrt(1.5 * 0.06 / 0.94)  # f2 of exactly the margin
    at_margin, equal = 0, 0
    for _ in range(400):
        noise = rng.normal(size=(3, 50))
        at_margin += st.equivalence_test(list(noise + means[:, None]), 0.06).p < 0.05
        equal += st.equivalence_test(list(noise), 0.06).p < 0.05
    assert at_margin / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert equal / 400 == pytest.approx(0.75, abs=3 * math.sqrt(0.75 * 0.25 / 400))


def test_permutation_of_eta2_by_brute_force() -> None:
    groups = [np.array([1.0, 2.5, 0.3]), np.array([2.0, 4.0]), np.array([3.1, 5.0])]
    pooled = np.concatenate(groups)
    orders = set(itertools.permutations([0, 0, 0, 1, 1, 2, 2]))
    null = [st.one_way_effects([pooled[np.array(order) == g] for g in range(3)]).eta2 for order in orders]
    test = st.eta2_permutation(groups, n_resamples=1000, seed=0)
    assert test.statistic == pytest.approx(st.one_way_effects(groups).eta2, rel=1e-12)
    assert test.p == pytest.approx(np.mean(np.array(null) >= test.statistic - 1e-12))
    assert test.n_relabellings == len(orders) == 210


def test_refusals() -> None:
    cases = [
        (lambda: st.one_way_effects([[1.0, 2.0]]), "n_clusters"),
        (lambda: st.one_way_effects([[1.0], [2.0]]), "n_prompts"),
        (lambda: st.one_way_effects([[1.0, 1.0], [1.0, 1.0]]), "zero_variance"),
        (lambda: st.welch_anova([[1.0, 1.0], [1.0, 2.0]]), "zero_variance"),
        (lambda: st.equivalence_test([[1.0, 1.0], [1.0, 2.0]], 0.06), "zero_variance"),
        (lambda: st.welch_anova([[1.0], [1.0, 2.0]]), "n_prompts"),
        (lambda: st.eta2_permutation([[1.0], [1.0]], n_resamples=9, seed=0), "zero_variance"),
    ]
    for compute, reason in cases:
        with pytest.raises(Insufficient) as raised:
            compute()
        assert raised.value.reason == reason
    assert st.one_way_effects([[1.0, 1.0], [1.0, 2.0]]).eta2 == pytest.approx(1 / 3)  # shown even so


def test_split_groups_sorts_the_names() -> None:
    groups, names = st.split_groups([1.0, 2.0, 3.0], ["b", "a", "b"])
    assert names == ["a", "b"]
    np.testing.assert_array_equal(groups[1], [1.0, 3.0])


# --- values drawn in units ---------------------------------------------------------------------------------------


def own_units(groups: list[np.ndarray]) -> list[np.ndarray]:
    return [np.arange(len(group)) for group in groups]


def test_every_value_its_own_unit_gives_the_formulas_without_units() -> None:
    effect = st.units_effect(GROUPS, own_units(GROUPS))
    assert effect.design_effect == pytest.approx(1.0, abs=1e-12) and effect.freedom == 58 - 4
    table = st.one_way_effects(GROUPS)
    assert st.clustered_f(table, effect) == pytest.approx((table.f, table.p), rel=1e-9)
    for level in (0.90, 0.95):
        assert st.eta2_interval(GROUPS, level, own_units(GROUPS)) == pytest.approx(st.eta2_interval(GROUPS, level))
    with_units, without = st.equivalence_test(GROUPS, 0.06, units=own_units(GROUPS)), st.equivalence_test(GROUPS, 0.06)
    assert (with_units.p, with_units.f2) == pytest.approx((without.p, without.f2), rel=1e-9)


def test_copies_of_every_value_in_its_unit_change_nothing() -> None:
    groups = [np.random.default_rng(s).normal(0.3 * s, 1, 25) for s in range(3)]
    copied, units = [np.tile(g, 4) for g in groups], [np.tile(np.arange(25), 4) for _ in groups]
    effect, table = st.units_effect(copied, units), st.one_way_effects(groups)
    assert st.clustered_f(st.one_way_effects(copied), effect) == pytest.approx((table.f, table.p), rel=1e-9)
    # the share of variance between groups is the same, but for the n/(n - k) of the variance within
    assert st.eta2_interval(copied, 0.90, units) == pytest.approx(st.eta2_interval(groups, 0.90), rel=0.05)
    assert st.equivalence_test(copied, 0.06, units=units).p == pytest.approx(
        st.equivalence_test(groups, 0.06).p, rel=0.05
    )


def clustered_groups(rng: np.random.Generator, means: np.ndarray, rho: float = 0.5):
    """100 values of variance 1 per group in 20 units with intraclass correlation rho: design effect about 3."""
    units = [rng.integers(20, size=100) for _ in means]
    return [
        m + math.sqrt(rho) * rng.normal(size=20)[u] + math.sqrt(1 - rho) * rng.normal(size=100)
        for m, u in zip(means, units, strict=True)
    ], units


def test_intervals_cover_the_population_value_of_clustered_values_and_the_plain_ones_do_not() -> None:
    rng, means = np.random.default_rng(5), np.array([-0.35, 0.0, 0.1, 0.25])
    truth, runs = means.var() / (means.var() + 1), 400
    plain = right = 0
    for _ in range(runs):
        groups, units = clustered_groups(rng, means)
        low, high = st.eta2_interval(groups, 0.95, units)
        right += low <= truth <= high
        low, high = st.eta2_interval(groups, 0.95)
        plain += low <= truth <= high
    assert 0.92 <= right / runs <= 0.98
    assert plain / runs < 0.90


def test_level_of_equivalence_and_of_a_difference_with_clustered_values() -> None:
    """f2 at the margin: equivalence in at most 5 %. No difference: F significant in 5 %, without units far more often."""
    rng, runs = np.random.default_rng(6), 400
    margin = np.array([-1.0, 0.0, 1.0]) * math.sqrt(1.5 * 0.06 / 0.94)
    at_margin = significant = naive = 0
    for _ in range(runs):
        groups, units = clustered_groups(rng, margin)
        at_margin += st.equivalence_test(groups, 0.06, units=units).p < 0.05
        groups, units = clustered_groups(rng, np.zeros(3))
        table = st.one_way_effects(groups)
        significant += st.clustered_f(table, st.units_effect(groups, units))[1] < 0.05
        naive += table.p < 0.05
    error = 3 * math.sqrt(0.05 * 0.95 / runs)
    assert at_margin / runs <= 0.05 + error
    assert significant / runs == pytest.approx(0.05, abs=error)
    assert naive / runs > 0.2


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-5, 1e-8, 1e-10])
def test_clear_differences_have_an_interval_near_one_however_small_the_noise(noise: float) -> None:
    groups = [m + noise * np.random.default_rng(s).normal(size=50) for s, m in enumerate((0.0, 0.5, 1.0))]
    f = st.one_way_effects(groups).f
    assert f == pytest.approx(50 * (0.25 + 0.25) / 2 / noise**2, rel=3 * math.sqrt(2 / 147))
    low, high = st.eta2_interval(groups, 0.90)
    assert 0.99 < low <= high <= 1


def test_the_interval_does_not_jump_where_scipys_noncentral_f_is_left() -> None:
    shape = np.random.default_rng(0).normal(size=(3, 50))
    shape -= shape.mean(axis=1, keepdims=True)

    def odds(f: float) -> np.ndarray:
        """(1 - eta2)/eta2 x F at both ends for data with exactly this F."""
        scale = math.sqrt((shape**2).sum() / 147 * f * 2 / 50 / 2)
        ends = st.eta2_interval([row + m * scale for row, m in zip(shape, (-1, 0, 1), strict=True)], 0.90)
        return np.array([(1 - eta2) / eta2 * f for eta2 in ends])

    assert odds(0.99e7) == pytest.approx(odds(1.01e7), rel=1e-3)


def test_no_noise_has_no_interval() -> None:
    for tiny in (0.0, 1e-16):
        groups = [np.full(5, m) + tiny * np.arange(5) for m in (1.0, 2.0)]
        with pytest.raises(Insufficient, match="zero_variance"):
            st.eta2_interval(groups)


def test_a_group_of_one_unit_is_refused() -> None:
    units = [np.zeros(12), *own_units(GROUPS[1:])]
    for compute in (
        lambda: st.eta2_interval(GROUPS, 0.9, units),
        lambda: st.equivalence_test(GROUPS, 0.06, units=units),
    ):
        with pytest.raises(Insufficient, match="n_clusters"):
            compute()
    with pytest.raises(ValueError, match="unequal variances only"):
        st.equivalence_test(GROUPS, 0.06, equal_variances=True, units=own_units(GROUPS))


@pytest.mark.parametrize(
    ("f", "df_between", "df_within", "nc"),
    [
        (40.08703270023752, 4, 530.732946704234, 2713.518119200334),
        (0.09075695810980941, 51, 108.1742171841391, 1245.9888695481332),
        (0.40158643478243305, 52, 336.274762825771, 1622.7995925262894),
    ],
)
def test_a_probability_that_underflows_is_zero_and_not_nan(f, df_between, df_within, nc) -> None:
    """The sum over the Poisson weights, of which what is left out is below 1e-300 a term, is below 1e-150."""
    terms = np.arange(20_000)
    share = df_between * f / (df_between * f + df_within)
    weights = np.exp(-nc / 2 + terms * np.log(nc / 2) - special.gammaln(terms + 1))
    assert weights @ special.betainc(df_between / 2 + terms, df_within / 2, share) < 1e-150
    assert st.noncentral_f_cdf(f, df_between, df_within, nc) == 0.0


def test_where_nothing_underflows_the_probability_is_that_of_the_sum() -> None:
    assert st.noncentral_f_cdf(2.0, 3, 20, 4.0) == pytest.approx(stats.ncf.cdf(2.0, 3, 20, 4.0), rel=1e-12)
    assert np.isnan(st.noncentral_f_cdf(float("nan"), 3, 20, 4.0))


@pytest.mark.parametrize(("seed", "margin"), [(8, 0.88), (23, 0.87), (33, 0.87), (39, 0.88)])
def test_groups_that_are_alike_within_a_wide_margin_are_equivalent(seed, margin) -> None:
    """C13's margin of eta squared is wide where a circuit has almost no noise. Of normal values p was NaN in one of 20."""
    rng = np.random.default_rng(seed)
    groups = [rng.normal(size=size) for size in (56, 77, 67)]
    units = [np.arange(len(group)) for group in groups]
    assert st.equivalence_test(groups, margin, units=units).p == 0.0
    assert st.equivalence_test(groups, margin - 0.1, units=units).p < 1e-30
