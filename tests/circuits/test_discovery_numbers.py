"""Curves, areas, bootstrap and Jaccard indices against hand-computed values and direct loops."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from circuits.discovery import curve, resampling
from circuits.discovery.curve import Curve

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
X = np.array(SHARES)


# --- sizes and areas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (32, [1, 1, 1, 1, 1, 2, 4, 7, 16, 32]),
        (1000, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (32_491, [33, 65, 163, 325, 650, 1625, 3250, 6499, 16_246, 32_491]),
        (1, [1] * 10),
    ],
)
def test_sizes_are_shares_rounded_up(total, expected) -> None:
    assert curve.sizes(total, SHARES) == expected


def test_rounding_of_floats_adds_no_component() -> None:
    assert curve.sizes(30, [0.1, 0.7, 0.11]) == [3, 21, 4]  # 0.1 * 30 = 3.0000000000000004 in some orders


def test_a_circuit_that_is_faithful_at_every_size_has_the_whole_area_and_no_distance() -> None:
    one = np.ones(len(X))
    assert curve.performance(X, one) == pytest.approx(0.999, abs=1e-12)
    assert curve.distance(X, one) == pytest.approx(0, abs=1e-12)


def test_circuits_that_do_nothing_have_no_area_and_the_whole_distance() -> None:
    assert curve.performance(X, 0 * X) == pytest.approx(0, abs=1e-12)
    assert curve.distance(X, 0 * X) == pytest.approx(0.999, abs=1e-12)


def test_a_straight_line_has_the_area_of_its_integral() -> None:
    area = (1 - 0.001**2) / 2
    assert curve.performance(X, X) == pytest.approx(area, abs=1e-12)
    assert curve.distance(X, X) == pytest.approx(0.999 - area, abs=1e-12)


def test_areas_by_hand() -> None:
    shares, f = np.array([0.2, 0.5, 1.0]), np.array([2.0, -1.0, 1.0])
    assert curve.performance(shares, f) == pytest.approx(0.3 * 0.5 + 0.5 * 0.0)
    assert curve.distance(shares, f) == pytest.approx(0.3 * 1.5 + 0.5 * 1.0)
    assert curve.performance(shares, np.stack([f, 2 * f])) == pytest.approx([0.15, 0.3])


def test_a_curve_that_overshoots_gains_area_and_distance() -> None:
    f = np.full(len(X), 1.5)
    assert (curve.performance(X, f), curve.distance(X, f)) == pytest.approx((1.5 * 0.999, 0.5 * 0.999))


# --- faithfulness and its intervals --------------------------------------------------------------------------------


@pytest.fixture
def logit_diffs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    empty, whole = rng.normal(0.2, 1, 24), rng.normal(3, 1, 24)
    shares = np.array([0.1, 0.4, 1.3, 1.0])
    kept = empty + shares[:, None] * (whole - empty) + rng.normal(0, 0.5, (4, 24))
    return kept, whole, empty


def test_normalised_faithfulness_is_the_ratio_of_sums(logit_diffs) -> None:
    kept, whole, empty = logit_diffs
    expected = [(sum(row) - sum(empty)) / (sum(whole) - sum(empty)) for row in kept]
    assert curve.normalised(kept, whole, empty) == pytest.approx(expected)
    assert curve.normalised(kept[2], whole, empty) == pytest.approx(expected[2])
    assert curve.normalised(whole, whole, empty) == 1
    assert curve.normalised(empty, whole, empty) == 0


def test_resampled_faithfulness_equals_a_loop_over_prompts_drawn_with_replacement(logit_diffs) -> None:
    kept, whole, empty = logit_diffs
    clusters = [f"names {i // 3}" for i in range(24)]
    counts = resampling.cluster_counts(clusters, 50, seed=1)
    found = curve.normalised(kept, whole, empty, counts)
    assert found.shape == (50, 4)
    for resample, row in zip(counts, found, strict=True):
        drawn = [prompt for prompt, times in enumerate(resample) for _ in range(times)]
        gap = sum(whole[i] - empty[i] for i in drawn)
        assert row == pytest.approx([sum(one[i] - empty[i] for i in drawn) / gap for one in kept])
    assert curve.normalised(kept[1], whole, empty, counts) == pytest.approx(found[:, 1])


def test_a_resample_without_an_effect_of_the_model_has_no_faithfulness() -> None:
    whole, empty, kept = np.array([1.0, -3.0]), np.zeros(2), np.array([[1.0, 1.0]])
    found = curve.normalised(kept, whole, empty, np.array([[2, 0], [0, 2], [1, 1]]))
    assert found[0] == pytest.approx(1) and np.isnan(found[1:]).all()


def test_a_curve_s_intervals_are_those_of_a_direct_loop(logit_diffs) -> None:
    kept, whole, empty = logit_diffs
    shares = (0.1, 0.2, 0.5, 1.0)
    counts = resampling.cluster_counts(range(24), 400, seed=5)
    found = Curve(shares, (1, 2, 5, 10), kept, whole, empty).summary(counts)
    draws, cpr, cmd = [], [], []
    for resample in counts:
        rows = np.repeat(np.arange(24), resample)
        f = (kept[:, rows].sum(1) - empty[rows].sum()) / (whole[rows].sum() - empty[rows].sum())
        draws.append(f)
        cpr.append(sum((b - a) * (p + q) / 2 for a, b, p, q in zip(shares, shares[1:], f, f[1:], strict=False)))
        off = abs(1 - f)
        cmd.append(sum((b - a) * (p + q) / 2 for a, b, p, q in zip(shares, shares[1:], off, off[1:], strict=False)))
    assert found["curve"]["low"] == pytest.approx(np.quantile(draws, 0.025, axis=0))
    assert found["curve"]["high"] == pytest.approx(np.quantile(draws, 0.975, axis=0))
    for name, values in (("cpr", cpr), ("cmd", cmd)):
        assert found[name]["low"] == pytest.approx(np.quantile(values, 0.025))
        assert found[name]["high"] == pytest.approx(np.quantile(values, 0.975))
        assert found[name]["low"] < found[name]["estimate"] < found[name]["high"]
    assert found["resamples"] == {"drawn": 400, "without_faithfulness": 0}


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """400 samples of 40 prompts whose true mean is 0: 95 % intervals of the mean miss it in 5 %, up to chance."""
    rng = np.random.default_rng(0)
    covered = 0
    for sample in range(400):
        values = rng.normal(0, 1, 40)
        counts = resampling.cluster_counts(range(40), 400, seed=sample)
        low, high = resampling.interval(counts @ values / counts.sum(1))
        covered += low <= 0 <= high
    assert 0.90 <= covered / 400 <= 0.98  # percentile intervals of 40 prompts are a little narrow


# --- resamples -----------------------------------------------------------------------------------------------------


def test_prompts_of_a_cluster_come_together_and_clusters_as_often_as_there_are() -> None:
    clusters = ["a", "b", "a", "c", "c", "c"]
    counts = resampling.cluster_counts(clusters, 3000, seed=0)
    assert (counts[:, 0] == counts[:, 2]).all() and (counts[:, 3] == counts[:, 4]).all()
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()
    assert counts[:, [0, 1, 3]].mean(0) == pytest.approx([1, 1, 1], abs=4 * (2 / 3 / 3000) ** 0.5)
    assert (counts[:, [0, 1, 3]].var(0)) == pytest.approx([2 / 3] * 3, rel=0.1)  # multinomial: 3 p (1 - p)


def test_resamples_depend_on_the_seed_alone() -> None:
    one, same, other = (resampling.cluster_counts(range(20), 30, seed) for seed in (7, 7, 8))
    assert (one == same).all() and (one != other).any()
    assert (one == resampling.cluster_counts(list("abcdefghijklmnopqrst"), 30, 7)).all()


# --- agreement of sets ---------------------------------------------------------------------------------------------


def test_jaccard_index_against_counting() -> None:
    rng = random.Random(0)
    for _ in range(50):
        first, second = ([rng.randrange(12) for _ in range(rng.randrange(1, 9))] for _ in range(2))
        both = sum(1 for item in range(12) if item in first and item in second)
        either = sum(1 for item in range(12) if item in first or item in second)
        assert resampling.jaccard(first, second) == pytest.approx(both / either)
    assert resampling.jaccard([], []) == 1
    assert resampling.jaccard([1], []) == 0


def test_agreement_against_a_loop_over_pairs() -> None:
    rng = random.Random(1)
    sets = [frozenset(rng.sample(range(10), 4)) for _ in range(7)]
    whole = frozenset(range(4))
    pairs = [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i in range(7) for j in range(i)]
    found = resampling.agreement(sets, whole)
    assert found["pairwise"] == pytest.approx(sum(pairs) / 21)
    assert found["with_full_sample"] == pytest.approx(sum(len(one & whole) / len(one | whole) for one in sets) / 7)
    assert Counter(map(len, sets)) == {4: 7}


def test_agreement_of_equal_and_of_disjoint_sets() -> None:
    assert resampling.agreement([{1, 2}] * 5, {1, 2}) == {"pairwise": 1.0, "with_full_sample": 1.0}
    assert resampling.agreement([{1}, {2}, {3}], {4}) == {"pairwise": 0.0, "with_full_sample": 0.0}
    assert resampling.agreement([{1}], {1}) == {"pairwise": None, "with_full_sample": None}
