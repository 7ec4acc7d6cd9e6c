"""Rates of yes-or-no outcomes: Wilson intervals and the exact upper bound."""

from __future__ import annotations

from scipy import stats

from calibrations.statistics import wilson_interval
from results_io import UserError
from suites.estimate import Estimate, Interval, missing

WILSON, CLOPPER_PEARSON = "Wilson", "Clopper-Pearson, one-sided upper"


def wilson(successes: int, n: int, level: float = 0.95, unit: str = "share") -> Estimate:
    """Share successes/n with its Wilson score interval, clipped to [0, 1].

    Undefined for n = 0. UserError for a count outside 0..n. Source: Wilson 1927; spec B4.
    """
    _require_counts(successes, n)
    if n == 0:
        return missing("undefined", "no items to take a rate over", unit)
    low, high = wilson_interval(successes, n, level)
    return Estimate(
        successes / n,
        unit,
        n,
        ci=Interval(low, high, level, WILSON),
        assumptions=("items are independent",),
        detail={"successes": successes},
    )


def upper_bound(events: int, n: int, level: float = 0.95, unit: str = "share") -> Estimate:
    """Share events/n with the exact one-sided upper bound: the p at which P(X <= events | n, p) = 1 - level.

    The interval is [0, bound]. Undefined for n = 0. Source: Clopper & Pearson 1934; spec B8.
    """
    _require_counts(events, n)
    if n == 0:
        return missing("undefined", "no items to take a rate over", unit)
    bound = 1.0 if events == n else float(stats.beta.ppf(level, events + 1, n - events))
    return Estimate(
        events / n,
        unit,
        n,
        ci=Interval(0.0, bound, level, CLOPPER_PEARSON),
        assumptions=("items are independent",),
        detail={"events": events},
    )


def _require_counts(successes: int, n: int) -> None:
    if not 0 <= successes <= n:
        raise UserError(f"{successes} of {n} is no rate; expected a count between 0 and {n}: count the items again")
