from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pingouin
import pytest
from scipy import stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)


def related(n: int = 60, m: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 1)) + rng.normal(size=(n, m))


def test_missing_heads_are_left_out_and_constant_methods_dropped() -> None:
    scores = related(30, 4)
    scores[:5, 0] = np.nan
    scores[:, 2] = 1.0
    usable = st.usable_scores(scores)
    assert usable.methods.tolist() == [0, 1, 3] and usable.heads.tolist() == list(range(5, 30))
    with pytest.raises(Insufficient) as raised:
        st.usable_scores(scores, minimum_heads=26)
    assert raised.value.reason == "n_heads"
    with pytest.raises(Insufficient) as raised:
        st.usable_scores(scores[:, [0, 2]])
    assert raised.value.reason == "n_methods"


def test_listwise_and_pairwise_differ_only_in_their_heads() -> None:
    scores = related(20, 3)
    scores[:4, 0] = np.nan
    pairwise, listwise = st.spearman_matrix(scores, "pairwise"), st.spearman_matrix(scores)
    assert pairwise[1, 2] == pytest.approx(stats.spearmanr(scores[:, 1], scores[:, 2]).statistic)
    assert listwise[1, 2] == pytest.approx(stats.spearmanr(scores[4:, 1], scores[4:, 2]).statistic)
    assert listwise[0, 1] == pytest.approx(pairwise[0, 1])
    assert st.mean_spearman(scores) == pytest.approx(listwise[np.triu_indices(3, 1)].mean())


def test_re_ranked_draws_equal_a_loop() -> None:
    stack = np.round(RNG.normal(size=(20, 15, 4)), 1)  # with ties
    loop = [st.mean_spearman(table) for table in stack]
    np.testing.assert_allclose(st.mean_spearman_draws(stack), loop, atol=1e-12)


def test_bonett_wright_interval_by_hand() -> None:
    low, high = st.spearman_interval(0.5, 40, 0.95)
    half = 1.959963985 * math.sqrt(1.125 / 37)
    assert (low, high) == pytest.approx((math.tanh(math.atanh(0.5) - half), math.tanh(math.atanh(0.5) + half)))
    for rho, n, reason in ((1.0, 40, "zero_variance"), (0.5, 3, "n_heads")):
        with pytest.raises(Insufficient) as raised:
            st.spearman_interval(rho, n)
        assert raised.value.reason == reason


def test_mean_rho_permutation_null_has_sd_one_over_root_h_minus_one() -> None:
    rng = np.random.default_rng(0)
    rhos = [st.mean_spearman(rng.normal(size=(26, 2))) for _ in range(1500)]
    assert np.std(rhos) == pytest.approx(1 / 5, rel=0.06)


def test_mean_rho_permutation_agrees_with_exhaustive_pairings() -> None:
    scores = related(6, 2, seed=4)
    ranks = scores.argsort(0).argsort(0)
    null = [np.corrcoef(ranks[:, 0], order)[0, 1] for order in itertools.permutations(range(6))]
    observed = np.corrcoef(ranks.T)[0, 1]
    exact = np.mean(np.array(null) >= observed - 1e-12)
    test = st.mean_spearman_permutation(scores, n_resamples=9999, seed=0)
    assert test.statistic == pytest.approx(observed)
    assert test.p == pytest.approx(exact, abs=3 * math.sqrt(exact * (1 - exact) / 9999))
    assert st.mean_spearman_permutation(related(100, 3), n_resamples=999, seed=0).p == 1e-3


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_exact_spearman_equals_scipy_pairings(alternative: str) -> None:
    x, y = [1.0, 2.0, 3.0, 5.0, 4.0, 7.0], [1.0, 2.0, 2.0, 2.0, 4.0, 4.0]
    reference = stats.permutation_test(
        (x,),
        lambda order: stats.spearmanr(order, y).statistic,
        permutation_type="pairings",
        alternative=alternative,
    )
    mine = st.spearman_permutation(x, y, n_resamples=1000, seed=0, alternative=alternative)
    assert mine.p_kind == "exact" and mine.n_relabellings == 60
    assert mine.p == pytest.approx(reference.pvalue, abs=1e-12)


def test_partial_spearman_equals_pingouin() -> None:
    norm = RNG.normal(size=80)
    frame = pd.DataFrame(
        {
            "x": norm + RNG.normal(size=80),
            "y": norm + RNG.normal(size=80),
            "z": norm,
            "w": RNG.normal(size=80),
        }
    )
    for covariates in (["z"], ["z", "w"]):
        row = pingouin.partial_corr(frame, x="x", y="y", covar=covariates, method="spearman").iloc[0]
        mine = st.partial_spearman(frame["x"], frame["y"], frame[covariates])
        assert mine.value == pytest.approx(row["r"], abs=1e-9)
        assert mine.p == pytest.approx(row["p_val"], abs=1e-9)


def test_scores_that_only_share_a_scale_have_no_partial_correlation() -> None:
    """Spearman near .58 from head norm alone, partial near 0."""
    rng = np.random.default_rng(0)
    norm = np.exp(1.25 * rng.normal(size=20_000))
    x, y = norm * np.abs(rng.normal(size=20_000)), norm * np.abs(rng.normal(size=20_000))
    assert st.spearman(x, y).value == pytest.approx(0.58, abs=0.03)
    assert abs(st.partial_spearman(x, y, norm).value) < 0.03
    with pytest.raises(Insufficient) as raised:
        st.partial_spearman(norm, y, norm)
    assert raised.value.reason == "zero_variance"


def test_tau_and_somers_by_counting_pairs() -> None:
    x, y = np.array([1, 1, 2, 2, 3, 4]), np.array([2.0, 1.0, 3.0, 3.0, 2.5, 5.0])
    signs = [(np.sign(x[j] - x[i]), np.sign(y[j] - y[i])) for i, j in itertools.combinations(range(6), 2)]
    balance = sum(a * b for a, b in signs)
    untied_x, untied_y = sum(a != 0 for a, _ in signs), sum(b != 0 for _, b in signs)
    assert st.kendall_tau_b(x, y).value == pytest.approx(balance / math.sqrt(untied_x * untied_y))
    assert st.somers_d(x, y).value == pytest.approx(balance / untied_x)


def test_disattenuation() -> None:
    assert st.disattenuated(0.6, 0.8, 0.5) == pytest.approx(0.6 / math.sqrt(0.4))
    with pytest.raises(Insufficient):
        st.disattenuated(0.6, -0.1, 0.5)


def test_jonckheere_terpstra_by_brute_force() -> None:
    groups = [[1.0, 2.0], [2.0, 4.0], [3.0, 5.0]]
    values, labels = np.concatenate(groups), [0, 0, 1, 1, 2, 2]

    def j(order: tuple[int, ...]) -> float:
        pairs = [(values[a], values[b]) for a in range(6) for b in range(6) if order[a] < order[b]]
        return sum((x < y) + 0.5 * (x == y) for x, y in pairs)

    null = [j(order) for order in set(itertools.permutations(labels))]
    test = st.jonckheere_terpstra(groups, n_resamples=1000, seed=0)
    assert test.statistic == j(tuple(labels)) == 10.5
    assert test.p == pytest.approx(np.mean(np.array(null) >= 10.5)) and test.n_relabellings == 90


def test_too_few_items() -> None:
    with pytest.raises(Insufficient) as raised:
        st.spearman([1.0, 2.0], [1.0, 2.0])
    assert raised.value.reason == "n_heads"


def test_mean_over_pairs_ranks_each_pair_on_its_own_heads() -> None:
    tables = np.stack([related(30, 3, seed) for seed in range(4)])
    some = np.arange(3, 20)
    pairs = [(0, 1, np.arange(30)), (0, 2, some), (1, 2, some)]
    by_hand = [
        np.mean([stats.spearmanr(table[heads, i], table[heads, j]).statistic for i, j, heads in pairs])
        for table in tables
    ]
    np.testing.assert_allclose(st.mean_spearman_of_pairs(tables, pairs), by_hand, atol=1e-12)
    everywhere = [(i, j, np.arange(30)) for i, j in itertools.combinations(range(3), 2)]
    np.testing.assert_allclose(
        st.mean_spearman_of_pairs(tables, everywhere), st.mean_spearman_draws(tables), atol=1e-12
    )


def test_mean_over_pairs_refuses_no_pairs_and_too_few_heads() -> None:
    tables = np.stack([related(30, 3)])
    for pairs, reason in (([], "n_methods"), ([(0, 1, np.arange(2))], "n_heads")):
        with pytest.raises(Insufficient) as raised:
            st.mean_spearman_of_pairs(tables, pairs)
        assert raised.value.reason == reason
    tables[0, 5:10, 1] = 1.0
    assert np.isnan(st.mean_spearman_of_pairs(tables, [(0, 1, np.arange(5, 10))])[0])
