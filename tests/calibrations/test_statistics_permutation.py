from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient, bootstrap


def test_plus_one_rule_never_gives_zero() -> None:
    assert st.plus_one_p(0, 9999) == 1e-4
    assert st.plus_one_p(9999, 9999) == 1.0
    with pytest.raises(ValueError):
        st.plus_one_p(5, 4)


def test_threshold_p_counts_draws_on_the_wrong_side() -> None:
    draws = np.arange(1, 100) / 100  # .01 .. .99
    assert st.threshold_p(draws, 0.05) == pytest.approx((1 + 5) / 100)
    assert st.threshold_p(draws, 0.95, "less") == pytest.approx((1 + 5) / 100)
    assert st.threshold_p(draws, 0.05, "two-sided") == pytest.approx(2 * 6 / 100)


def test_unreachable_significance_is_refused() -> None:
    st.require_attainable(0.05, 0.05)
    with pytest.raises(Insufficient) as raised:
        st.require_attainable(1 / 15, 0.05)
    assert raised.value.reason == "min_p_unreachable"


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_exact_two_sample_test_equals_scipy(alternative: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.5, 1, 5), rng.normal(size=6)
    mine = st.two_sample_permutation(a, b, n_resamples=10_000, seed=0, alternative=alternative)
    reference = stats.permutation_test(
        (a, b), lambda x, y: x.mean() - y.mean(), permutation_type="independent", alternative=alternative
    )
    assert mine.p_kind == "exact" and mine.n_relabellings == math.comb(11, 5)
    assert mine.p == pytest.approx(reference.pvalue, abs=1e-12)


def test_monte_carlo_approaches_the_exact_p_and_has_its_own_floor() -> None:
    rng = np.random.default_rng(0)
    scores, member = rng.normal(size=14), np.arange(14) < 5
    scores[member] += 0.6
    exact = st.head_label_permutation(st.mean_contrast(scores), member, n_resamples=5000, seed=0)
    sampled = st.head_label_permutation(st.mean_contrast(scores), member, n_resamples=2001, seed=0)
    assert (exact.p_kind, sampled.p_kind) == ("exact", "permutation")
    assert sampled.p == pytest.approx(exact.p, abs=3 * math.sqrt(exact.p / 2001))
    assert sampled.minimum_p == 1 / 2002
    assert exact.minimum_p == 1 / math.comb(14, 5)


def test_layers_keep_their_number_of_heads() -> None:
    layers = np.repeat([0, 1, 2], 4)
    member = np.array([1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], bool)
    for n_resamples, count in ((100, 24), (20, 20)):  # 4 x 6 relabellings: enumerated, then sampled
        seen = []

        def record(masks: np.ndarray, seen: list = seen) -> np.ndarray:
            seen.append(masks)
            return masks @ np.arange(12.0)

        test = st.head_label_permutation(record, member, n_resamples=n_resamples, seed=0, layers=layers)
        masks = seen[-1]
        assert test.n_relabellings == len(masks) == count
        assert (np.add.reduceat(masks, [0, 4, 8], axis=1, dtype=int) == [1, 2, 0]).all()
        if count == 24:
            assert len(np.unique(masks, axis=0)) == 24


def test_infinite_relabelled_statistics_do_not_swamp_the_p() -> None:
    scores = np.array([5.0, 4.0, 0.0, 0.0, 0.5])

    def ratio(masks: np.ndarray) -> np.ndarray:
        """Mean inside / mean outside; infinite for a mask that holds every score above 0."""
        inside, outside = masks @ scores / masks.sum(1), ~masks @ scores / (~masks).sum(1)
        return np.divide(inside, outside, out=np.full(len(masks), np.inf), where=outside > 0)

    test = st.head_label_permutation(ratio, np.array([1, 0, 0, 0, 1], bool), n_resamples=100, seed=0)
    ratios = [scores[list(i)].mean() / np.delete(scores, list(i)).mean() for i in itertools.combinations(range(5), 2)]
    assert test.p == pytest.approx(np.mean(np.array(ratios) >= test.statistic))
    scores = np.array([1.0, 0.0, 0.0])
    with pytest.raises(Insufficient) as raised:
        st.head_label_permutation(ratio, np.array([1, 0, 0], bool), n_resamples=10, seed=0)
    assert raised.value.reason == "ratio_undefined"


def test_circuits_without_a_complement_are_refused() -> None:
    for member, reason in ((np.zeros(4, bool), "n_heads"), (np.ones(4, bool), "all_selected")):
        with pytest.raises(Insufficient) as raised:
            st.head_label_permutation(st.mean_contrast(np.arange(4.0)), member, n_resamples=10, seed=0)
        assert raised.value.reason == reason


def test_label_permutation_p_is_uniform_under_the_null() -> None:
    rng = np.random.default_rng(0)
    member = np.arange(30) < 6
    p = [
        st.head_label_permutation(st.mean_contrast(rng.standard_t(3, 30)), member, n_resamples=199, seed=i).p
        for i in range(400)
    ]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 400))
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_distinct_orders_are_enumerated_once() -> None:
    labels = [1, 1, 2, 2, 4]
    blocks, exact = st.arrangements(labels, 1000, seed=0)
    (orders,) = blocks
    assert exact and len(orders) == st.arrangement_count(labels) == 30
    assert {tuple(row) for row in orders} == set(itertools.permutations(labels))
    blocks, exact = st.arrangements(labels, 29, seed=0)
    (shuffled,) = blocks
    assert not exact and (np.sort(shuffled, axis=1) == np.sort(labels)).all() and len(shuffled) == 29


def test_blocks_of_shuffles_are_those_of_one(monkeypatch) -> None:
    labels = np.arange(30) % 4
    (whole,) = st.arrangements(labels, 500, seed=3)[0]
    p = st.eta2_permutation([np.arange(9.0), np.arange(6.0) + 2], n_resamples=500, seed=1)
    monkeypatch.setattr(bootstrap, "BLOCK_BYTES", 8 * 30 * 7)  # 7 rows of 30 labels
    parts = list(st.arrangements(labels, 500, seed=3)[0])
    assert len(parts) == 72 and np.array_equal(np.concatenate(parts), whole)
    assert st.eta2_permutation([np.arange(9.0), np.arange(6.0) + 2], n_resamples=500, seed=1) == p


def test_sign_flips_enumerate_two_to_the_n() -> None:
    x = np.array([0.4, 1.2, -0.1, 0.8])
    test = st.sign_flip_test(x, n_resamples=100, seed=0)
    means = [np.mean(x * signs) for signs in itertools.product((1, -1), repeat=4)]
    assert test.p == np.mean(np.array(means) >= x.mean() - 1e-12) and test.p_kind == "exact"
    assert test.minimum_p == 1 / 16
    assert st.sign_flip_test(np.ones(30), n_resamples=999, seed=0).p == 1e-3


def test_rank_among_random_circuits() -> None:
    assert st.rank_among(0.9, np.linspace(0, 0.5, 199)).p == 1 / 200
    assert st.rank_among(0.2, [0.1, 0.2, 0.3]).p == pytest.approx(3 / 4)
    with pytest.raises(Insufficient) as raised:
        st.rank_among(0.2, [])
    assert raised.value.reason == "not_run"


def test_edge_contrast_by_hand() -> None:
    """Heads 0, 1 in layer 0 and 2, 3 in layer 1: four edges, of which a mask of one head in each layer holds one."""
    values = np.full((4, 4), np.nan)
    values[0, 2], values[0, 3], values[1, 2], values[1, 3] = 1.0, 2.0, 4.0, 9.0
    statistic = st.edge_contrast(values, np.isfinite(values))
    masks = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 0], [1, 1, 0, 0]], dtype=bool)
    np.testing.assert_allclose(statistic(masks)[:3], [1 - 5, 9 - 7 / 3, 2.5 - 5.5])
    assert np.isnan(statistic(masks)[3])  # no edge inside
