"""Estimates over clusters of prompts against direct computations, and the cases that have no number."""

from __future__ import annotations

import numpy as np
import pytest

from calibrations.statistics.bootstrap import bootstrap_counts
from meridian.experiments.estimates import PromptEstimate, PromptSample, undefined

N = 60
RNG = np.random.default_rng(3)
F, D = RNG.normal(2.0, 1.0, N), RNG.normal(3.0, 0.5, N)
CLUSTERS = tuple(str(i // 2) for i in range(N))


@pytest.fixture
def sample() -> PromptSample:
    return PromptSample(CLUSTERS, resamples=400, seed=1)


def resampled(statistic) -> np.ndarray:
    """The statistic of each resample, prompt by prompt."""
    counts = bootstrap_counts(N, 400, seed=1, clusters=np.array(CLUSTERS))
    return np.array([statistic(np.repeat(np.arange(N), row)) for row in counts])


@pytest.mark.parametrize(
    ("method", "statistic"),
    [
        (lambda s: s.mean(F), lambda i: F[i].mean()),
        (lambda s: s.spread(F), lambda i: F[i].std()),
    ],
)
def test_value_and_interval_are_those_of_a_direct_bootstrap(sample, method, statistic) -> None:
    found, draws = method(sample), resampled(statistic)
    assert found.value == pytest.approx(statistic(np.arange(N)))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_a_ratio_has_the_ratio_of_means_and_an_interval_that_covers_it(sample) -> None:
    found = sample.ratio(F, D)
    assert found.value == pytest.approx(F.mean() / D.mean())
    draws = resampled(lambda i: F[i].mean() / D[i].mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.03)


def test_a_ratio_to_nothing_is_not_defined(sample) -> None:
    for d in (-D, np.zeros(N), RNG.normal(0, 1, N)):
        found = sample.ratio(F, d)
        assert found.value is None
        assert found.reason


def test_ratios_of_two_halves_are_compared(sample) -> None:
    first = np.arange(N) % 2 == 0
    f = np.where(first, 2.0, 0.5) * D
    found = sample.difference_of_ratios(f, D, first)
    assert found.value == pytest.approx(1.5)
    assert (found.low, found.high) == pytest.approx((1.5, 1.5))
    assert sample.difference_of_ratios(f, np.where(first, D, -D), first).value is None


def test_prompts_without_a_value_are_left_out_of_a_mean(sample) -> None:
    values = np.where(np.arange(N) < 20, np.nan, 4.0)
    assert sample.mean(values) == PromptEstimate(4.0, 4.0, 4.0)
    assert sample.mean(np.full(N, np.nan)).value is None
    some = sample.mean(np.where(np.arange(N) < 20, np.nan, F))
    assert some.value == pytest.approx(F[20:].mean())


def test_one_cluster_has_a_value_and_no_interval() -> None:
    found = PromptSample(("a", "a")).mean([1.0, 3.0])
    assert (found.value, found.low) == (2.0, None)
    assert "cluster" in found.reason


def test_intervals_say_whether_a_number_lies_in_them_and_on_which_side_of_zero() -> None:
    assert PromptEstimate(1.0, 0.5, 1.5).holds(1.5)
    assert PromptEstimate(1.0, 0.5, 1.5).holds(1.6) is False
    assert undefined("nothing").holds(1.0) is None
    assert [PromptEstimate(0.0, low, high).sign for low, high in ((0.1, 1), (-1, -0.1), (-1, 1))] == [1, -1, None]
    less = PromptEstimate(0.9, 0.8, 0.97).less_from(1)
    assert (less.value, less.low, less.high) == pytest.approx((0.1, 0.03, 0.2))
    assert undefined("nothing").less_from(1) == undefined("nothing")
