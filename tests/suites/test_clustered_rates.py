"""Rates of items that come in clusters: limits, a brute-force twin, coverage by simulation, and the test behind a gate."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from results_io import UserError
from suites.estimate import missing
from suites.statistics import clusters, proportions

ICC, SIZE = 0.3, 6


def _labels(sizes: list[int]) -> list[str]:
    return [f"c{place}" for place, size in enumerate(sizes) for _ in range(size)]


def _outcomes(failed: list[int], sizes: list[int]) -> list[bool]:
    return [k < count for count, size in zip(failed, sizes, strict=True) for k in range(size)]


def _sampled(rng: np.random.Generator, rate: float, icc: float, sizes: list[int]) -> list[bool]:
    """Beta-binomial: items of a cluster correlate by `icc`."""
    a = (1 - icc) / icc
    chances = rng.beta(rate * a, (1 - rate) * a, len(sizes))
    return _outcomes(rng.binomial(sizes, chances).tolist(), sizes)


def test_items_that_share_nothing_have_wilson_s_interval() -> None:
    outcomes = [k % 3 == 0 for k in range(50)]
    assert proportions.clustered(outcomes, _labels([1] * 50)) == proportions.wilson(17, 50)


@pytest.mark.parametrize("repeats", [2, 5, 20])
@pytest.mark.parametrize(("failed", "n"), [(12, 40), (0, 30), (30, 30), (3, 25), (5, 8)])
def test_copies_of_an_item_say_no_more_than_the_item(repeats: int, failed: int, n: int) -> None:
    outcomes = _outcomes([repeats] * failed + [0] * (n - failed), [repeats] * n)
    found, once = proportions.clustered(outcomes, _labels([repeats] * n)), proportions.wilson(failed, n)
    assert (found.ci.low, found.ci.high) == pytest.approx((once.ci.low, once.ci.high), abs=1e-12)
    assert found.detail["design_effect"] == pytest.approx(repeats)
    assert found.detail["independent"] == {
        "low": proportions.wilson(failed * repeats, n * repeats).ci.low,
        "high": proportions.wilson(failed * repeats, n * repeats).ci.high,
        "level": 0.95,
        "method": "Wilson",
    }


def test_the_design_effect_is_that_of_its_formula() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(2, 9, 60).tolist()
    outcomes, labels = _sampled(rng, 0.4, ICC, sizes), _labels(sizes)
    x, n, many = np.array(outcomes, float), len(outcomes), len(sizes)
    totals = np.array([sum(x[k] - x.mean() for k in range(n) if labels[k] == f"c{c}") for c in range(many)])
    variance = many / (many - 1) * (totals**2).sum() / n**2
    independent = x.mean() * (1 - x.mean()) / (n - 1)
    squares = totals**2
    freedom = 2 * squares.sum() ** 2 / ((squares - squares.mean()) ** 2).sum() * (many - 1) / many
    heavier = (stats.t.ppf(0.975, min(freedom, many - 1)) / stats.norm.ppf(0.975)) ** 2
    found = proportions.clustered(outcomes, labels)
    assert found.detail["design_effect"] == pytest.approx(variance / independent * heavier, rel=1e-9)
    assert found.detail["effective_n"] == pytest.approx(n / found.detail["design_effect"])


def test_too_few_clusters_count_as_one_item_each() -> None:
    even = proportions.clustered(_outcomes([1, 2] * 9 + [1], [4] * 19), _labels([4] * 19))
    assert even.detail["effective_n"] == pytest.approx(19)
    assert even.assumptions[1].startswith("items of a cluster count as the same: 19 clusters")
    assert proportions.clustered(_outcomes([1, 2] * 10, [4] * 20), _labels([4] * 20)).detail["effective_n"] > 20
    # 30 clusters, of which one holds most items: (sum m)^2 / sum m^2 = 87^2 / 3393 of one size
    lopsided = [58] + [1] * 29
    found = proportions.clustered(_outcomes([20] + [0, 1] * 14 + [0], lopsided), _labels(lopsided))
    assert found.detail["effective_n"] == pytest.approx(87**2 / 3393)


def test_a_rare_outcome_says_nothing_of_how_alike_items_are() -> None:
    sizes = [4] * 40
    for failing, worth in ((9, 40), (10, 160)):
        for outcomes in (
            _outcomes([1] * failing + [0] * (40 - failing), sizes),
            _outcomes([3] * failing + [4] * (40 - failing), sizes),  # as rare on the other side
        ):
            assert proportions.clustered(outcomes, _labels(sizes)).detail["effective_n"] == pytest.approx(worth)
    assert proportions.clustered([False] * 80, _labels([4] * 20)).ci.high == pytest.approx(0.1611, abs=1e-4)  # O1: 0/20


def test_never_narrower_than_the_plain_interval_and_blind_to_names_and_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = rng.integers(1, 8, rng.integers(5, 60)).tolist()
        outcomes, labels = _sampled(rng, rng.uniform(0.02, 0.98), rng.uniform(0.01, 0.9), sizes), _labels(sizes)
        found, plain = proportions.clustered(outcomes, labels), proportions.wilson(sum(outcomes), len(outcomes))
        assert found.ci.low <= plain.ci.low + 1e-12 and found.ci.high >= plain.ci.high - 1e-12
        assert found.ci.low - 1e-12 <= found.value <= found.ci.high + 1e-12
        order = rng.permutation(len(outcomes))
        again = proportions.clustered([outcomes[k] for k in order], [labels[k] * 2 for k in order])
        assert (again.ci.low, again.ci.high) == pytest.approx((found.ci.low, found.ci.high), abs=1e-9)
        passed = proportions.clustered([not one for one in outcomes], labels)
        assert (1 - passed.ci.high, 1 - passed.ci.low) == pytest.approx((found.ci.low, found.ci.high), abs=1e-9)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("many", [20, 40, 150])
def test_the_interval_covers_the_rate_and_the_plain_one_does_not(many: int, rate: float) -> None:
    """ICC .3 with 6 items a cluster: the true design effect is 1 + 5 * .3 = 2.5. 600 data sets: one percent is +-.9."""
    rng, sizes, runs = np.random.default_rng(many), [SIZE] * many, 600
    covered, plain, effects = 0, 0, []
    for _ in range(runs):
        found = proportions.clustered(_sampled(rng, rate, ICC, sizes), _labels(sizes))
        covered += found.ci.low <= rate <= found.ci.high
        plain += found.detail["independent"]["low"] <= rate <= found.detail["independent"]["high"]
        effects.append(found.detail["design_effect"])
    assert covered / runs >= 0.93
    assert plain / runs <= 0.85
    assert np.median(effects) >= 2.2
    if many == 150:
        assert np.median(effects) == pytest.approx(2.5, rel=0.1)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("limit", "many"), [(0.1, 60), (0.3, 30)])
def test_a_rate_at_the_gate_rarely_passes(limit: float, many: int) -> None:
    """The gate passes, p <= .025, on at most about 2.5 % of data sets whose rate is the gate's; unclustered it is 10 % or so."""
    rng, sizes, runs = np.random.default_rng(many), [SIZE] * many, 1000
    hits = Counter()
    for _ in range(runs):
        found = proportions.clustered(_sampled(rng, limit, ICC, sizes), _labels(sizes))
        hits["clustered"] += proportions.below(found, limit).p_value <= 0.025
        hits["plain"] += found.detail["independent"]["high"] <= limit
    assert hits["clustered"] / runs <= 0.04
    assert hits["plain"] / runs >= 0.08


def test_the_p_value_is_the_inverse_of_the_interval() -> None:
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(300):
        sizes = [int(rng.integers(1, 5))] * int(rng.integers(10, 60))
        outcomes = _sampled(rng, rng.uniform(0.01, 0.4), ICC, sizes)
        limit = float(rng.uniform(0.05, 0.6))
        found = proportions.below(proportions.clustered(outcomes, _labels(sizes)), limit)
        assert (found.ci.high <= limit) == (found.p_value <= 0.025)
        assert (found.ci.low >= limit) == (found.p_value >= 0.975)
        passed += found.ci.high <= limit
    assert 50 < passed < 250


def test_the_p_value_by_hand() -> None:
    found = proportions.below(proportions.wilson(0, 80), 0.1)
    assert found.p_value == pytest.approx(stats.norm.cdf(-0.1 / np.sqrt(0.09 / 80)))  # z = -2.981
    assert found.test == "one-sided score test, rate below 0.1"
    assert proportions.below(proportions.wilson(20, 40), 0.5).p_value == 0.5
    assert found.ci == proportions.wilson(0, 80).ci
    clustered = proportions.below(proportions.clustered([False] * 80, _labels([4] * 20)), 0.1)
    assert clustered.p_value == pytest.approx(stats.norm.cdf(-0.1 / np.sqrt(0.09 / 20)))
    assert clustered.test.endswith(", effective sample size")
    # the exact binomial test is not far off, where the gates of suites are
    for failed, n, limit in ((0, 60, 0.1), (2, 80, 0.1), (0, 100, 0.05), (5, 60, 0.2)):
        exact = stats.binom.cdf(failed, n, limit)
        assert proportions.below(proportions.wilson(failed, n), limit).p_value == pytest.approx(exact, abs=0.012)


def test_nothing_to_test() -> None:
    for limit in (0.0, 1.0):
        assert proportions.below(proportions.wilson(3, 40), limit).p_value is None
    none = missing("insufficient_data", "too few", "share")
    assert proportions.below(none, 0.1) is none


def test_bad_input() -> None:
    with pytest.raises(UserError, match="2 cluster labels for 3 outcomes; expected one each"):
        proportions.clustered([True, False, True], ["a", "b"])
    assert proportions.clustered([], []).status == "undefined"


def test_effective_number_of_clusters() -> None:
    assert clusters.effective_number(_labels([3] * 7)) == pytest.approx(7)
    assert clusters.effective_number(_labels([1, 3])) == pytest.approx(16 / 10)
    assert clusters.effective_number([]) == 0
    assert clusters.largest_design_effect(_labels([1, 3])) == pytest.approx(10 / 4)
