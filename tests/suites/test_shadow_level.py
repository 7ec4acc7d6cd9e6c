"""How many quiet streams of a shadow evaluation give any alarm: the numbers of docs/shadow.md.

pytest -m slow -s tests/suites/test_shadow_level.py
"""

from __future__ import annotations

import numpy as np
import pytest

from suites.shadow import results
from suites.shadow.results import DailyOutcomes

SEED = 0
ALPHA = 0.05
SHARE = 0.5  # of the requests bear on a metric, at random


def quiet(rng: np.random.Generator, metrics: int, requests: int) -> list[DailyOutcomes]:
    """Metrics of which nothing changed."""
    found = []
    for number in range(metrics):
        places = np.flatnonzero(rng.random(requests) < SHARE)
        outcomes = rng.random(places.size) < results.HALF
        days = ("2026-05-01",) * places.size
        found.append(
            DailyOutcomes(str(number), tuple(outcomes.tolist()), days, tuple(places.tolist()), results.HALF, "above")
        )
    return found


def shares(metrics: int, streams: int, requests: int) -> tuple[float, float]:
    """Shares of streams with any alarm: together by e-BH, and each metric for itself."""
    rng, together, alone = np.random.default_rng([SEED, metrics]), 0, 0
    for _ in range(streams):
        found = quiet(rng, metrics, requests)
        watched = results.watch(found, ALPHA)
        together += any(results.alarms(found, watched, ALPHA).values())
        alone += any(one.alarm is not None for one in watched.values())
    return together / streams, alone / streams


def test_few_quiet_streams_give_an_alarm():
    together, alone = shares(results.MOST, 100, 200)
    assert together <= ALPHA < alone


@pytest.mark.slow
@pytest.mark.parametrize(("metrics", "together", "alone"), [(3, 0.016, 0.108), (7, 0.032, 0.202)])
def test_the_shares_of_the_page(metrics, together, alone):
    found = shares(metrics, 1000, 1000)
    print(f"{metrics} metrics: {found[0]:.1%} of 1,000 quiet streams with an alarm; each for itself {found[1]:.1%}")
    assert found == (together, alone)
