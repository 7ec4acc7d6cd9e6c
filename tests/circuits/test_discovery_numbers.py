"""Curves, areas, bootstrap and Jaccard indices against hand-computed values and direct loops."""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest

from circuits.discovery import curve, resampling
from circuits.discovery.curve import Curve
from results_io import UserError

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
    assert found["resamples"] == {"drawn": 400, "without_faithfulness": 0, "no_interval": None}
    assert found["curve"]["share"].tolist() == list(shares) and found["curve"]["asked"] == shares


def test_areas_are_taken_over_the_shares_that_sizes_really_are() -> None:
    """Of 32 heads the shares .001 to .02 are all one head: the curve begins at 1/32, not at .001."""
    size = curve.sizes(32, SHARES)
    f = np.array([0.5] * 5 + [0.6, 0.7, 0.8, 0.9, 1.0])
    found = Curve(SHARES, tuple(size), f[:, None] * np.ones(12), np.ones(12), np.zeros(12)).summary(
        np.ones((3, 12), int)
    )
    x, y = [1 / 32, 2 / 32, 4 / 32, 7 / 32, 16 / 32, 1.0], [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    area = sum((b - a) * (p + q) / 2 for a, b, p, q in zip(x, x[1:], y, y[1:], strict=False))
    assert found["cpr"]["estimate"] == pytest.approx(area) and area < curve.performance(X, f) - 0.01
    assert found["cmd"]["estimate"] == pytest.approx(31 / 32 - area)
    assert found["curve"]["share"] == pytest.approx([1 / 32] * 5 + x[1:])


@pytest.mark.parametrize(("undefined", "interval"), [(0, True), (3, True), (4, False), (200, False)])
def test_more_than_one_resample_in_a_hundred_without_faithfulness_leaves_no_interval(undefined, interval) -> None:
    kept, whole, empty = np.array([[0.4, -1.0], [1.0, -3.0]]), np.array([1.0, -3.0]), np.zeros(2)
    counts = np.array([[2, 0]] * (300 - undefined) + [[0, 2]] * undefined)  # the second prompt alone is done wrong
    found = Curve((0.5, 1.0), (1, 2), kept, whole, empty).summary(counts)
    assert found["resamples"]["without_faithfulness"] == undefined
    reason = None if interval else f"{undefined} of 300 resamples have no faithfulness (at most 1% may)"
    assert found["resamples"]["no_interval"] == reason
    ends = [found[name][end] for name in ("cpr", "cmd") for end in ("low", "high")]
    assert ends == pytest.approx([0.35, 0.35, 0.15, 0.15]) if interval else ends == [None] * 4
    assert (found["curve"]["low"] is None) == (found["curve"]["high"] is None) == (not interval)
    assert found["cpr"]["estimate"] == pytest.approx(0.5 * (0.6 / 2 + 1) / 2)  # of the prompts themselves


def test_resamples_that_all_lack_faithfulness_are_one_sentence() -> None:
    whole = np.array([1.0, -3.0])
    with pytest.raises(UserError, match=r"^none of 5 resamples of the discovery prompts has a faithfulness: .*"):
        Curve((1.0,), (2,), whole[None], whole, np.zeros(2)).summary(np.array([[0, 2]] * 5))


def test_a_reason_from_elsewhere_leaves_no_interval(logit_diffs) -> None:
    kept, whole, empty = logit_diffs
    counts = resampling.cluster_counts(range(24), 50, seed=5)
    found = Curve((0.1, 0.2, 0.5, 1.0), (1, 2, 5, 10), kept, whole, empty).summary(counts, "too few")
    assert found["resamples"]["no_interval"] == "too few" and found["cpr"]["low"] is None is found["curve"]["high"]


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


@pytest.mark.parametrize("names", ["a", "ab", "abcde", "abcdefghij"])
def test_halves_deal_whole_clusters_evenly(names) -> None:
    clusters = [name for name in names for _ in range(3)]
    first = resampling.half(clusters, seed=4)
    assert len({c for c, one in zip(clusters, first, strict=True) if one}) == (len(names) + 1) // 2
    assert not {c for c, one in zip(clusters, first, strict=True) if one} & {
        c for c, one in zip(clusters, first, strict=True) if not one
    }
    assert (resampling.half(clusters, seed=4) == first).all()
    if len(names) == 10:
        assert any((resampling.half(clusters, seed) != first).any() for seed in range(3))


# --- agreement of sets ---------------------------------------------------------------------------------------------


def masks(sets: list, size: int = 12) -> np.ndarray:
    return np.array([[item in one for item in range(size)] for one in sets], bool).reshape(len(sets), size)


def test_jaccard_index_against_counting(monkeypatch) -> None:
    rng = random.Random(0)
    sets = [{rng.randrange(12) for _ in range(rng.randrange(1, 9))} for _ in range(20)] + [set(), set()]
    for columns in (5, 100_000):  # in three parts and in one
        monkeypatch.setattr(resampling, "COLUMNS", columns)
        found = resampling.jaccard(masks(sets))
        for i, first in enumerate(sets):
            for j, second in enumerate(sets):
                both = sum(1 for item in range(12) if item in first and item in second)
                either = sum(1 for item in range(12) if item in first or item in second)
                assert found[i, j] == pytest.approx(both / either if either else 1)


def test_agreement_against_a_loop_over_pairs() -> None:
    rng = random.Random(1)
    sets = [frozenset(rng.sample(range(10), 4)) for _ in range(7)]
    whole = frozenset(range(4))
    pairs = [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i in range(7) for j in range(i)]
    found = resampling.agreement(masks(sets), masks([whole])[0])
    assert found["pairwise"] == pytest.approx(sum(pairs) / 21)
    assert found["with_full_sample"] == pytest.approx(sum(len(one & whole) / len(one | whole) for one in sets) / 7)
    assert Counter(map(len, sets)) == {4: 7}


def test_agreement_of_equal_and_of_disjoint_sets() -> None:
    def agreement(sets: list, whole: set) -> tuple:
        found = resampling.agreement(masks(sets), masks([whole])[0])
        return found["pairwise"], found["with_full_sample"]

    assert agreement([{1, 2}] * 5, {1, 2}) == (1.0, 1.0)
    assert agreement([{1}, {2}, {3}], {4}) == (0.0, 0.0)
    assert agreement([{1}], {1}) == agreement([], {1}) == (None, None)


def test_twenty_sets_of_a_million_components_take_seconds() -> None:
    sets = np.random.default_rng(0).random((20, 1_000_000)) < 0.5
    started = time.process_time()
    found = resampling.agreement(sets, sets[0])
    assert time.process_time() - started < 5
    assert found["pairwise"] == pytest.approx(1 / 3, abs=2e-4)  # of two random halves
