"""What a suite can show before anything is asked: the upper bound of a failure rate of 0, and the items for an interval's width.

A model passes a gate if the upper end of its failure rate's 95 % interval is at most the gate. Without any failure that end is
z^2 / (m + z^2) at m independent cases (Wilson); cases of one cluster count as one. With 20 clusters it is .161, so no model can
pass a gate of .10, which needs 35 clusters. A gate of .05 needs 73, one of .20 needs 16. A verdict also needs 20 cases.
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
WIDTH = 0.1  # of an interval, end to end (about five points to either side), for which the needed items are counted


@dataclass(frozen=True)
class Size:
    """How much a suite can show at most.

    `cases`: those that can enter the failure rate. `worth`: the effective number of their clusters. `upper`: upper end of the
    95 % interval if no case fails. `needed`: clusters that the gate needs, 0 without a gate. `for_width`: independent cases for
    an interval of WIDTH around a rate of one half.
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
    """The size of a suite, for a model that leaves no case without a verdict."""
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
    """The cluster of every case that can enter the failure rate: its own, or that of its original."""

    def cluster(name: str) -> str:
        item = suite.by_id[name]
        return item.cluster or (item.id if item.variant is None else cluster(item.variant.parent))

    return [cluster(item.id) for item in modes.rated(suite)]


def needed(limit: float) -> int:
    """Independent cases at which 0 failures pass a gate of `limit`: z^2 (1 - limit) / limit, rounded up, at least 20."""
    z = float(stats.norm.isf((1 - LEVEL) / 2))
    return max(VERDICT_FROM, math.ceil(z**2 * (1 - limit) / limit - 1e-9))


def require_passable(suite: Suite, where: str) -> None:
    """UserError for a gate that no model can pass on this suite; the message says how many clusters the gate needs."""
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
    """Cases with this design effect that give an interval of WIDTH around the observed rate; None without a rate."""
    if rate.value is None:
        return None
    return math.ceil(power.items_for_width(WIDTH, rate.value).number * rate.detail.get("design_effect", 1.0))
