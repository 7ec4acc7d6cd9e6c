"""What a suite can show before anything is asked: the upper end of a failure rate of 0, and the items that a width needs.

A gate is passed by the upper end of the failure rate's 95 % interval. Without a single failure that end is
z^2 / (m + z^2) at m independent cases (Wilson), where cases of one cluster count as one: with 20 clusters .161, so that no model
at all passes a gate of .10. 35 clusters are needed for it, 73 for .05, 16 for .20.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from results_io import UserError
from suites import modes
from suites.estimate import Estimate
from suites.item import Suite
from suites.judgement import VERDICT_FROM
from suites.statistics import power, proportions
from suites.statistics.clusters import effective_number

LEVEL = 0.95
WIDTH = 0.1  # of an interval, end to end, for which the items are counted: five points to either side


@dataclass(frozen=True)
class Size:
    """The cases that a suite's failure rate can be over, the clusters that they are worth, and `upper`: the end of the 95 %
    interval if none fails. `needed`: clusters for the gate, 0 without one. `for_width`: for an interval of WIDTH around a half.
    """

    cases: int
    worth: float
    upper: float
    needed: int
    for_width: int

    def __str__(self) -> str:
        return (
            f"{self.cases} cases worth {self.worth:.0f}, without a failure at most {100 * self.upper:.1f} % "
            f"(an interval of {WIDTH:g} around a half needs {self.for_width})"
        )


def of(suite: Suite) -> Size:
    """What a suite can show about a model that leaves no case without a verdict."""
    clusters = clusters_of(suite)
    none = proportions.clustered([False] * len(clusters), clusters, LEVEL)
    limit = 0.0 if suite.gate is None else suite.gate["failure_rate"]
    return Size(
        len(clusters),
        effective_number(clusters),
        1.0 if none.ci is None else none.ci.high,
        needed(limit) if 0 < limit < 1 else 0,
        int(power.items_for_width(WIDTH).number),
    )


def clusters_of(suite: Suite) -> list[str]:
    """The cluster of every case that the failure rate can be over: its own, or that of the original that it was made from."""

    def cluster(name: str) -> str:
        item = suite.by_id[name]
        return item.cluster or (item.id if item.variant is None else cluster(item.variant.parent))

    return [cluster(item.id) for item in modes.rated(suite)]


def needed(limit: float) -> int:
    """Independent cases from which 0 failures pass a gate of `limit`: z^2 (1 - limit) / limit, and never fewer than 20."""
    z = float(stats.norm.isf((1 - LEVEL) / 2))
    return max(VERDICT_FROM, math.ceil(z**2 * (1 - limit) / limit - 1e-9))


def require_passable(suite: Suite, where: str) -> None:
    """UserError for a gate that the suite cannot pass whatever the model says, with what would pass."""
    size = of(suite)
    if suite.gate is None or (size.cases >= VERDICT_FROM and size.upper <= suite.gate["failure_rate"]):
        return
    limit = suite.gate["failure_rate"]
    raise UserError(
        f"{where}: gate.failure_rate is {limit:g}, which no model can pass: {size.cases} cases in clusters are worth "
        f"{size.worth:.0f}, and without a single failure the 95 % interval ends at {size.upper:.3f}; add contents until they are "
        f"worth {size.needed}, or raise the gate, or set it to null"
    )


def items_for_width(rate: Estimate) -> int | None:
    """Cases like these for an interval of WIDTH around the rate that was seen, design effect included; None without a rate."""
    if rate.value is None:
        return None
    return math.ceil(power.items_for_width(WIDTH, rate.value).number * rate.detail.get("design_effect", 1.0))
