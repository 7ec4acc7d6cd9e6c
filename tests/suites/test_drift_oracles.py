"""The metrics and statistics of drift against the numbers of the specification, and against brute force."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from scipy import stats

from results_io import UserError
from scripts import drift_definitions
from suites.drift import centroid, change_points, hedging, held_out_gap, length, power, refusal, silent_update
from suites.statistics import detection, multiplicity, permutation, proportions

A = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8]])
B = np.array([[0, 1], [0.6, 0.8], [-0.6, 0.8]])


@pytest.mark.parametrize(("k", "n", "ends"), [(3, 20, (0.052369, 0.360419)), (37, 400, (0.067854, 0.124899))])
def test_wilson(k, n, ends) -> None:
    found = proportions.wilson(k, n)
    assert (found.bounds.low, found.bounds.high) == pytest.approx(ends, abs=1e-6)


@pytest.mark.parametrize(
    ("tp", "fp", "fn", "f1", "ends", "certain"),
    [
        (96, 2, 2, 0.979592, (0.94827, 0.992107), False),
        (190, 4, 6, 0.974359, (0.953111, 0.986119), True),
    ],
)
def test_a_detector_is_locked_by_its_f1_and_certain_by_the_lower_end(tp, fp, fn, f1, ends, certain) -> None:
    found = detection.from_counts(tp, fp, fn, 100)
    assert found.f1.value == pytest.approx(f1, abs=1e-6)
    assert (found.f1.bounds.low, found.f1.bounds.high) == pytest.approx(ends, abs=1e-6)
    assert (found.locked, found.certain) == (True, certain)


@pytest.mark.parametrize(("tp", "errors", "point"), [(100, 4, 10), (200, 11, 21), (300, 20, 31)])
def test_how_many_errors_a_certain_and_a_locked_detector_may_make(tp, errors, point) -> None:
    certain = [n for n in range(50) if detection.from_counts(tp, n, 0, 100).certain]
    locked = [n for n in range(50) if detection.from_counts(tp, n, 0, 100).locked]
    assert (max(certain), max(locked)) == (errors, point)


def test_a_detector_of_f1_080_is_not_locked_however_many_texts_there_are() -> None:
    found = detection.from_counts(80, 20, 20, 80)
    assert not found.locked and found.reason == "F1 0.800 of 0.95"


def test_three_markers_in_150_words() -> None:
    text = " ".join(["word"] * 147) + " perhaps often usually"
    assert hedging.counts(text) == (3, 150)
    assert hedging.density([text]).value == pytest.approx(2.0)
    assert hedging.density(["perhaps " * 19]).status == "insufficient_data"


def test_the_density_of_outputs_is_that_of_their_words_together() -> None:
    """One output of a marker alone and one of 100 plain words: 1 in 101, .99. Empty outputs say nothing."""
    texts = ["perhaps", " ".join(["word"] * 100)]
    assert np.mean(hedging.values(texts)) == pytest.approx(100 / 101)
    assert np.mean(hedging.values([*texts, "", ""])) == pytest.approx(100 / 101)
    found = hedging.axis_test([texts], [[texts[1], "", "perhaps perhaps"]], seed=0)
    assert (found.value, found.n) == (pytest.approx(200 / 102 - 100 / 101), 4)


def test_the_permutation_of_densities_is_the_enumeration_of_whole_texts() -> None:
    before = [["perhaps so", "a b c d"], ["often red sea"]]
    after = [["perhaps often", "e"], ["likely", "x y"]]

    def density(texts):
        return 100 * sum(hedging.counts(one)[0] for one in texts) / sum(hedging.counts(one)[1] for one in texts)

    def change(one, two):
        return density(two) - density(one)

    null = []
    for first in itertools.combinations(range(4), 2):
        for second in itertools.combinations(range(3), 2):
            total = 0.0
            for texts, chosen in (([*before[0], *after[0]], first), ([*before[1], *after[1]], second)):
                total += change([t for i, t in enumerate(texts) if i not in chosen], [texts[i] for i in chosen])
            null.append(total)
    observed = sum(change(one, two) for one, two in zip(before, after, strict=True))
    tails = [np.mean(np.array(null) >= observed - 1e-9), np.mean(np.array(null) <= observed + 1e-9)]
    found = hedging.axis_test(before, after, seed=0)
    assert found.value == pytest.approx(observed) == pytest.approx(200 / 3 - 100 / 6 + 0)
    assert found.detail["relabellings"] == 18 and found.p_value == pytest.approx(min(1, 2 * min(tails)))


def test_the_error_of_a_density_is_that_of_repeated_samples() -> None:
    """20 outputs of 10 to 200 words, a marker in one word of 20 in half of them: the spread of 2,000 densities."""
    rng = np.random.default_rng(0)

    def sample():
        words = rng.integers(10, 201, 20)
        return [
            " ".join(["perhaps"] * m + ["word"] * (w - m))
            for w, m in zip(words, rng.binomial(words, 0.05) * rng.integers(0, 2, 20), strict=True)
        ]

    drawn = [sample() for _ in range(2000)]
    found = np.sqrt(np.mean([np.var(hedging.values(one), ddof=1) / 20 for one in drawn[:300]]))
    assert found == pytest.approx(np.std([np.mean(hedging.values(one)) for one in drawn]), rel=0.06)


def test_the_longest_marker_counts_once_and_words_have_borders() -> None:
    assert hedging.counts("It is important to note that it may be so.")[0] == 2
    assert hedging.counts("It’s IMPORTANT  to\nnote this.")[0] == 1
    assert hedging.counts("unlikely oftentimes")[0] == 0
    assert hedging.counts("")[0] == 0 and hedging.values([""]) == [0.0]


def test_lengths() -> None:
    a, b = [10, 12, 14, 16, 18], [20, 22, 24, 26, 28]
    found = length.quartiles(a)
    assert (found.detail["q25"], found.value, found.detail["q75"]) == (12, 14, 16)
    assert permutation.median_difference(a, b, seed=0).p_value == pytest.approx(0.047619, abs=1e-6)
    assert length.kolmogorov_smirnov(a, b).p_value == pytest.approx(0.007937, abs=1e-6)
    assert length.quartiles(a[:4]).status == "insufficient_data"
    assert length.kolmogorov_smirnov(a, b[:4]).status == "insufficient_data"


def test_the_median_s_permutation_is_the_enumeration_also_of_unequal_sides() -> None:
    a, b = [1.0, 5, 2, 8], [3.0, 9, 9]
    pool, observed = [*b, *a], np.median(b) - np.median(a)
    null = []
    for chosen in itertools.combinations(range(7), 3):
        rest = [pool[i] for i in range(7) if i not in chosen]
        null.append(np.median([pool[i] for i in chosen]) - np.median(rest))
    tails = [np.mean(np.array(null) >= observed - 1e-12), np.mean(np.array(null) <= observed + 1e-12)]
    assert permutation.median_difference(a, b, seed=0).p_value == pytest.approx(min(1, 2 * min(tails)))
    assert permutation.median_difference([], b, seed=0).status == "insufficient_data"


def test_clouds() -> None:
    assert centroid.distance(A, B) == pytest.approx(0.496129, abs=1e-6)
    assert centroid.squared(A, B) == pytest.approx(0.8)
    assert centroid.corrected(A, B) == pytest.approx(0.604444, abs=1e-6)
    assert permutation.mean_centroid_shift([A], [B], seed=0).p_value == pytest.approx(4 / 20)
    assert permutation.centroid_shift(A, B, seed=0).p_value == pytest.approx(4 / 20)
    assert centroid.shift(A, B).status == "insufficient_data"  # three outputs a side


@pytest.mark.parametrize(("d", "sd", "expected"), [(384, 0.02, 0.0076), (384, 0.05, 0.0456), (8, 0.1, 0.0036)])
def test_the_floor_without_change(d, sd, expected) -> None:
    """20 a side: halves of 40 outputs around one direction."""
    rng = np.random.default_rng(0)
    clouds = []
    for _ in range(20):
        points = np.eye(d)[0] + rng.normal(0, sd, (40, d))
        clouds.append(points / np.linalg.norm(points, axis=1, keepdims=True))
    assert centroid.HALVES == 200
    assert centroid.floor(clouds, seed=0) == pytest.approx(expected, rel=0.03)


def test_a_second_change_goes_on_or_back() -> None:
    """Of centroids at 0, 1 and 2: (2 - 1)(1 - 0) = 1; back at 0, -1. Without a change it is 0 on average, though b is in both."""
    rng = np.random.default_rng(0)

    def cloud(place):
        return np.array([[place, 1.0], [place, -1.0]] * 3)

    assert centroid.onward([cloud(0)], [cloud(1)], [cloud(2)]) - centroid.onward(
        [cloud(0)], [cloud(1)], [cloud(0)]
    ) == pytest.approx(2)
    assert centroid.onward([cloud(0)], [cloud(1)], [cloud(0)]) == pytest.approx(-1 + 1.2 / 6)  # and tr(S_b)/n_b
    found = [centroid.onward(*([one] for one in rng.normal(0, 1, (3, 8, 5)))) for _ in range(3000)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(3000)


def test_the_corrected_distance_is_zero_on_average_without_change() -> None:
    rng = np.random.default_rng(0)
    found = [centroid.corrected(rng.normal(0, 1, (8, 5)), rng.normal(0, 1, (12, 5))) for _ in range(3000)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(3000)
    assert min(found) < 0


def test_the_strata_of_clouds_are_relabelled_apart() -> None:
    """Two prompts of very different outputs: against the enumeration of both."""
    a, b = [A, -B], [B, -A]
    pools = [np.concatenate([y, x]) for x, y in zip(a, b, strict=True)]
    null = []
    for one, two in itertools.product(itertools.combinations(range(6), 3), repeat=2):
        parts = [
            centroid.distance(np.delete(pool, chosen, 0), pool[list(chosen)])
            for pool, chosen in zip(pools, (one, two), strict=True)
        ]
        null.append(np.mean(parts))
    observed = np.mean([centroid.distance(x, y) for x, y in zip(a, b, strict=True)])
    found = permutation.mean_centroid_shift(a, b, seed=0)
    assert found.value == pytest.approx(observed) and found.detail["relabellings"] == 400
    assert found.p_value == pytest.approx(np.mean(np.array(null) >= observed - 1e-12))
    assert permutation.mean_centroid_shift(a, [b[0], np.zeros((0, 2))], seed=0).status == "insufficient_data"
    with pytest.raises(UserError, match="1 clouds before and 2 after"):
        permutation.mean_centroid_shift([A], [B, B], seed=0)


def test_the_held_out_gap() -> None:
    public, held_out = [0.02, 0.05, -0.01, 0.03], [0.10, 0.12, 0.06, 0.15]
    found = held_out_gap.gap(public, held_out, seed=0)
    assert (found.value, found.p_value) == (pytest.approx(0.085), pytest.approx(0.014286, abs=1e-6))
    down = held_out_gap.gap([-x for x in public], [-x for x in held_out], seed=0)
    assert (down.value, down.p_value) == (
        pytest.approx(-0.085),
        found.p_value,
    )  # held-out minus public, whatever the way
    few = {str(number): x for number, x in enumerate(public)}
    assert held_out_gap.reported(few, few, seed=0).status == "insufficient_data"


@pytest.mark.parametrize(("before", "after", "p"), [(0, 5, 0.047124), (0, 6, 0.020196), (5, 12, 0.053553)])
def test_refusals_of_one_prompt(before, after, p) -> None:
    a, b = ([1.0] * k + [0.0] * (20 - k) for k in (before, after))
    assert permutation.difference(a, b, seed=0).p_value == pytest.approx(p, abs=3e-6)  # 5 v 12 is .053551


@pytest.mark.parametrize(
    ("a", "b", "total", "p"),
    [
        ([[0, 0, 1], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]], 1.0, 0.26),
        ([[2, 0, 1], [0, 0, 0.5]], [[3, 2.5, 4], [1, 0, 2]], 3.0, 0.025),
        ([[10, 12, 11, 13]], [[14, 15, 13, 16]], 3.0, 0.057143),
    ],
)
def test_prompts_as_strata(a, b, total, p) -> None:
    strata = tuple([str(i) for i, one in enumerate(side) for _ in one] for side in (a, b))
    found = permutation.difference(np.concatenate(a), np.concatenate(b), seed=0, strata=strata)
    assert (found.value, found.p_value) == (pytest.approx(total), pytest.approx(p, abs=1e-6))
    assert found.detail["relabellings"] == (400 if len(a) == 2 else 70)


def test_benjamini_hochberg_and_the_number_of_relabellings() -> None:
    given = dict(zip("abcdef", (0.0001, 0.004, 0.012, 0.03, 0.2, 0.6), strict=True))
    found = multiplicity.adjust(given, "axis")
    assert list(found.adjusted.values()) == pytest.approx([0.0006, 0.012, 0.024, 0.045, 0.24, 0.6])
    assert permutation.resamples_for(600) == 11_999


def test_twenty_prompts_of_forty_values_take_under_two_seconds() -> None:
    rng = np.random.default_rng(0)
    strata = [number // 20 for number in range(400)]
    started = time.process_time()
    found = permutation.difference(rng.normal(size=400), rng.normal(size=400), seed=0, strata=(strata, strata))
    assert time.process_time() - started < 2
    assert found.detail["relabellings"] == 9999


def test_pelt() -> None:
    broken, flat = (
        [0.1, 0.12, 0.09, 0.11, 0.1, 0.3, 0.31, 0.29, 0.32, 0.3],
        [0.1, 0.12, 0.09, 0.11, 0.1, 0.13, 0.1, 0.11, 0.12, 0.09],
    )
    assert change_points.ends(broken, [0.02] * 10) == [5, 10]
    assert change_points.ends(flat, [0.02] * 10) == [10]
    with pytest.raises(ValueError, match="no scale"):
        change_points.ends(flat, [0.0] * 10)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("t", "rate"), [(8, 0.040), (12, 0.035), (26, 0.024), (52, 0.009)])
def test_white_noise_breaks_as_rarely_as_measured(t, rate) -> None:
    rng, n = np.random.default_rng(0), 600
    broken = sum(len(change_points.ends(rng.normal(0, 1, t), [1.0] * t)) > 1 for _ in range(n)) / n
    assert broken == pytest.approx(rate, abs=3 * math.sqrt(rate / n))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("t", "rate"), [(8, 0.31), (12, 0.28), (26, 0.23), (52, 0.15)])
def test_the_usual_recipe_breaks_white_noise_often(t, rate) -> None:
    """Why the sampling error has to be known: sigma by the median absolute difference of neighbours, penalty 2 ln T."""
    rng, n = np.random.default_rng(0), 300
    broken = 0
    for _ in range(n):
        y = rng.normal(0, 1, t)
        steps = np.diff(y)
        sigma = float(np.median(np.abs(steps - np.median(steps)))) / stats.norm.ppf(0.75) / math.sqrt(2)
        broken += len(change_points.pelt(y / sigma, 2 * math.log(t))) > 1
    assert broken / n == pytest.approx(rate, abs=3 * math.sqrt(rate * (1 - rate) / n))


def test_a_gap_splits_a_series_and_few_points_are_gated() -> None:
    points = [(str(i), 0.1 + 0.2 * (i > 4), 0.02) for i in range(10)]
    found = change_points.of_series(points)
    assert (found.value, found.detail["at"], found.detail["low_power"]) == (1, ["5"], False)
    gap = [*points[:4], ("g", None, None), *points[4:7]]
    assert change_points.of_series(gap).detail["at"] == [] and change_points.of_series(gap).detail["low_power"]
    few = change_points.of_series(points[:3])
    assert few.status == "insufficient_data" and few.detail == {"have": 3, "need": 4}


def test_excess_variance_by_moments() -> None:
    rng = np.random.default_rng(0)
    found = [change_points.excess_variance(rng.normal(0, math.sqrt(0.04 + 0.05), 40), [0.2] * 40) for _ in range(300)]
    assert np.mean(found) == pytest.approx(0.05, abs=0.005)
    assert change_points.excess_variance([0.0, 9.0], [0.1, 0.1]) == 0


@pytest.mark.slow
def test_five_null_metrics_are_rarely_a_candidate() -> None:
    """Any of five is significant in 5.1 % of snapshots, by the rule in .6 %."""
    rng, any_, rule, n = np.random.default_rng(0), 0, 0, 20_000
    history: list[dict] = []
    for _ in range(n):
        p = rng.uniform(size=5)
        family = multiplicity.adjust({str(i): float(x) for i, x in enumerate(p)}, "null")
        one = {
            str(i): {"p": float(x), "rejected": str(i) in family.rejected, "direction": rng.choice((-1.0, 1.0))}
            for i, x in enumerate(p)
        }
        history = [*history[-1:], one]
        any_ += bool(family.rejected)
        rule += bool(silent_update.candidates(history))
    assert any_ / n == pytest.approx(0.051, abs=0.006)
    assert rule / n == pytest.approx(0.006, abs=0.002)


@pytest.mark.slow
def test_shuffled_snapshots_of_a_null_series_fire_as_rarely() -> None:
    rng = np.random.default_rng(1)
    rate = silent_update.shuffled_rate(rng.normal(0, 1, (12, 3)), np.ones((12, 3)), seed=0)
    assert rate is not None and rate < 0.03
    jump = np.concatenate([rng.normal(0, 1, (6, 3)), rng.normal(8, 1, (6, 3))])
    loud = silent_update.shuffled_rate(jump, np.ones((12, 3)), seed=0)
    assert loud is not None and loud > 0.4
    assert silent_update.shuffled_rate(np.zeros((3, 2)), np.ones((3, 2)), seed=0) is None


POWERS = {20: {0.0: 0.045, 0.05: 0.44, 0.10: 0.91, 0.15: 0.99}, 10: {0.0: 0.025, 0.05: 0.20, 0.10: 0.63, 0.15: 0.95}}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("prompts", "rise", "expected"), [(k, rise, p) for k, own in POWERS.items() for rise, p in own.items()]
)
def test_the_power_of_an_axis(prompts, rise, expected) -> None:
    """Base rates Beta(2, 8), 20 outputs a side; 120 repetitions with fewer relabellings than a run has."""
    rng, hits, n = np.random.default_rng(0), 0, 120
    for _ in range(n):
        base = rng.beta(2, 8, prompts)
        a = rng.binomial(1, base[:, None], (prompts, 20)).astype(float)
        b = rng.binomial(1, np.minimum(base + rise, 1)[:, None], (prompts, 20)).astype(float)
        total = np.concatenate([a, b], 1)
        observed = (b.mean(1) - a.mean(1)).sum()
        # a hypergeometric count a prompt is what relabelling 0/1 values gives
        drawn = rng.hypergeometric(
            total.sum(1).astype(int)[:, None], (40 - total.sum(1)).astype(int)[:, None], 20, (prompts, 1999)
        )
        null = ((2 * drawn - total.sum(1)[:, None]) / 20).sum(0)
        tails = [(1 + (null >= observed - 1e-9).sum()) / 2000, (1 + (null <= observed + 1e-9).sum()) / 2000]
        hits += min(1, 2 * min(tails)) <= 0.05
    assert hits / n == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) * (1 / n + 1 / 200)))


@pytest.mark.slow
def test_the_power_of_an_axis_by_the_test_that_a_run_makes() -> None:
    """A rise of .10 on 20 prompts, .91: 24 samples with all 9,999 relabellings, each p that of hypergeometric counts."""
    rng, hits, n = np.random.default_rng(0), 0, 24
    strata = [number // 20 for number in range(400)]
    for seed in range(n):
        base = rng.beta(2, 8, 20)
        a, b = (rng.binomial(1, np.minimum(base + rise, 1)[:, None], (20, 20)).astype(float) for rise in (0, 0.1))
        found = permutation.difference(a.ravel(), b.ravel(), seed=seed, strata=(strata, strata))
        ones = (a + b).sum(1).astype(int)[:, None]
        null = ((2 * rng.hypergeometric(ones, 40 - ones, 20, (20, 20_000)) - ones) / 20).sum(0)
        tails = [np.mean(null >= found.number - 1e-9), np.mean(null <= found.number + 1e-9)]
        assert found.p_value == pytest.approx(min(1, 2 * min(tails)), abs=0.02)
        hits += found.p_value <= 0.05
    assert hits / n == pytest.approx(0.91, abs=3 * math.sqrt(0.91 * 0.09 * (1 / n + 1 / 200)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("after", "expected"), [(0.5, 0.13), (0.7, 0.73), (0.9, 0.99)])
def test_the_power_of_one_prompt_in_a_family_of_360(after, expected) -> None:
    table = {}
    chance_a, chance_b = (stats.binom.pmf(np.arange(21), 20, p) for p in (0.05, after))
    for x, y in itertools.product(range(21), repeat=2):
        law = stats.hypergeom(40, x + y, 20)
        table[x, y] = min(1.0, 2 * min(law.sf(y - 1), law.cdf(y)))
    found = sum(chance_a[x] * chance_b[y] for (x, y), p in table.items() if p <= 0.05 / 360)
    assert found == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 200))  # of 200 repetitions
    if after == 0.9:
        for (x, y), p in table.items():  # the test itself, where it decides
            if x < 4 and y > 12:
                sides = (np.arange(20) < count for count in (x, y))
                own = permutation.difference(*(side.astype(float) for side in sides), seed=0).p_value
                assert (own <= 0.05 / 360 * (1 + 1e-12)) == (p <= 0.05 / 360), (x, y)


def test_the_numbers_of_definitions_in_the_configuration_are_written_from_the_code() -> None:
    """Value and reason stand once, in the code; `python -m scripts.drift_definitions` writes them into the configuration."""
    written = drift_definitions.PAGE.read_text(encoding="utf-8")
    assert drift_definitions.page(written) == written
    assert len(drift_definitions.lines()) == 22
    assert "#   length.CENSORED                 0.2         share of outputs cut" in written
    assert "#   centroid.LABELS                 0.05, 0.15  below which" in written


def test_what_a_test_could_have_found() -> None:
    """(1.960 + .842) x se; with var .25 and 20 outputs a side on 4 prompts se = sqrt(.5/20/4)."""
    side = [[0.0, 1.0] * 10] * 4
    error = power.standard_error(side, side)
    assert error == pytest.approx(math.sqrt(2 * 0.25 * 20 / 19 / 20 / 4))
    assert power.detectable(error) == pytest.approx(2.8016 * error, abs=1e-4)
    assert (
        power.standard_error([[1.0]], [[1.0, 2.0]]) is None
        and power.detectable(None) is None
        and power.detectable(0.0) is None
    )


def test_the_rise_that_a_test_of_no_refusals_would_find() -> None:
    """Six refusals that are all new have p = 2/2^6 = .03; 400 outputs have six or more with chance .8 at 1.97 %."""
    found = power.detectable_share(400)
    assert found == pytest.approx(0.0197, abs=1e-4)
    assert stats.binom.sf(5, 400, found) == pytest.approx(0.8)
    assert power.detectable_share(5) is None and power.detectable_share(6) == pytest.approx(0.8 ** (1 / 6))


@pytest.mark.slow
def test_the_shift_of_centroids_that_a_test_would_find() -> None:
    """At the distance that is named, seven to nine of ten samples are found."""
    rng = np.random.default_rng(0)

    def clouds(shift):
        points = np.eye(64)[0] + shift * np.eye(64)[1] + rng.normal(0, 0.05, (12, 20, 64))
        return list(points / np.linalg.norm(points, axis=2, keepdims=True))

    could = centroid.detectable(clouds(0), clouds(0), 0)
    tests = [centroid.axis_test(clouds(0), clouds(0.047), seed=n) for n in range(30)]
    assert np.mean([one.value for one in tests]) == pytest.approx(could, rel=0.05)
    assert 0.6 <= np.mean([one.p_value <= 0.05 for one in tests]) <= 1


def row(text: str, safety: bool = False) -> dict:
    return {"text": text, "safety": safety}


def test_classes_of_outputs() -> None:
    markers = ("It is quiet",)
    said = [row("It is quiet."), row("It is quieter"), row("  "), row("blue"), row("anything", safety=True)]
    assert [refusal.classify(one, markers) for one in said] == ["refused", "answered", "empty", "answered", "refused"]
    assert refusal.values(said, markers) == [1.0, 0.0, 0.0, 1.0]
    assert refusal.rate(said, markers).value == 0.5 and refusal.rate([row("")], markers).status == "undefined"
    assert refusal.classify(row("I'm sorry, but I can't help with that.")) == "refused"


def test_a_snapshot_against_itself_has_p_one() -> None:
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 9, 20).astype(float) for _ in range(20)]
    flat, strata = np.concatenate(values), [i // 20 for i in range(400)]
    assert permutation.difference(flat, flat, seed=3, strata=(strata, strata)).p_value == 1.0
    clouds = [rng.normal(size=(20, 8)) for _ in range(20)]
    assert permutation.mean_centroid_shift(clouds, clouds, seed=3).p_value == 1.0
