"""The trend over doses against every way of shuffling the outcomes of each unit."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from results_io import UserError
from suites.statistics import trend

UNITS = [[False, False, True, True], [False, True, False, True], [True, False, True, True], [False] * 4]
SCORES = (-3, -1, 1, 3)


def total(units) -> int:
    return sum(score for own in units for score, hit in zip(SCORES, own, strict=True) if hit)


def test_p_is_the_share_of_shuffles_that_go_as_far():
    ways = [[list(one) for one in permutations(own)] for own in UNITS[:3]]
    shuffled = [abs(total(units)) for units in product(*ways)]
    found = trend.dose_trend(UNITS, seed=0)
    assert found.p_value == pytest.approx(sum(one >= abs(total(UNITS)) for one in shuffled) / len(shuffled))
    # by least squares over all outcomes, the doses being 0 to 3
    assert found.value == pytest.approx(2 * total(UNITS) / 20 / 4)
    assert found.detail["shares"] == [0.25, 0.25, 0.5, 0.75]
    assert found.ci is None


def test_no_change_has_p_1_and_twenty_units_an_interval():
    still = trend.dose_trend([[True] * 3] * 20, seed=0)
    assert (still.value, still.p_value, still.n) == (0.0, 1.0, 20)
    rising = trend.dose_trend([[False, True, True], [False, False, True]] * 10, seed=0)
    assert rising.value == pytest.approx(0.5) and rising.p_value == pytest.approx(2 / 3**20)


def test_units_without_every_dose_are_refused():
    assert trend.dose_trend([], seed=0).status == "insufficient_data"
    with pytest.raises(UserError, match=r"\[2, 3\] doses"):
        trend.dose_trend([[True, False], [True, False, True]], seed=0)
