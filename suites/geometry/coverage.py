"""PS (178): on what share of issues does a model give both sides when asked for them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.geometry import relabelling
from suites.geometry.metric import ROUNDING, Metric, PublishedScore, centre, points, same_axes, settled
from suites.statistics import proportions
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME = "178", "G.ps", "coverage"
FORMULA = "share of issues with o_A in region A and o_B in region B"
UNIT = "share of issues"
FEWEST = (
    20  # topics: the fewest single issues whose Wilson interval covers .92 to .98 at any true share of .1 to .9 (exact)
)
FEWEST_ANCHORS = 10  # labelled texts of a side
RADIUS = 0.9  # quantile of the anchors' leave-one-out distances
EXCHANGED = "answers to the two sides exchanged, topic by topic"
NO_P = f"no p: under {relabelling.FEWEST_UNITS} topics no exchange of sides reaches a level near .05"
COVERED = 0.5  # a side counts as covered if more than this share of its draws is in its region


@dataclass(frozen=True)
class Ball:
    """A region of outputs: all within `radius` of `centre`."""

    centre: Float[np.ndarray, " axis"]
    radius: float

    def holds(self, values: ArrayLike) -> np.ndarray:
        """Whether each point [axis] lies in the ball, with a tolerance for rounding."""
        table = points(values)
        away = np.linalg.norm(settled(table - self.centre, table, self.centre), axis=1)
        return away <= self.radius * (1 + ROUNDING)


@dataclass(frozen=True)
class Issue:
    """One issue: its topic, each side's outputs [draw, axis] and region, and each side's number of refusals."""

    topic: str
    sides: tuple[ArrayLike, ArrayLike]
    regions: tuple[Ball, Ball]
    refused: tuple[int, int] = (0, 0)

    @property
    def answered(self) -> bool:
        """Whether each side has an output or a refusal."""
        return all(np.size(side) or refused for side, refused in zip(self.sides, self.refused, strict=True))

    @property
    def shares(self) -> tuple[float, float]:
        """For each side, the share of draws in its region; a refusal counts as outside."""
        found = []
        for side, region, refused in zip(self.sides, self.regions, self.refused, strict=True):
            drawn = np.size(side) and len(points(side))
            inside = int(region.holds(side).sum()) if drawn else 0
            found.append(inside / (drawn + refused) if drawn + refused else 0.0)
        return found[0], found[1]


def region(anchors: ArrayLike) -> Ball:
    """The ball around the mean of at least 10 anchors [axis]: radius is the 90 % quantile of leave-one-out distances.

    UserError for fewer.
    """
    table = points(anchors, "anchors")
    if len(table) < FEWEST_ANCHORS:
        raise UserError(f"a region of {len(table)} anchor texts; expected at least {FEWEST_ANCHORS}: write more")
    return Ball(centre(table), float(np.quantile(_left_out(table), RADIUS)))


def require_apart(first: Ball, second: Ball, where: str) -> None:
    """UserError if two regions overlap, since an output could then lie on both sides."""
    between = settled(first.centre - second.centre, first.centre, second.centre)
    distance = float(np.linalg.norm(between))
    if distance <= first.radius + second.radius:
        raise UserError(
            f"{where}: the regions of its two sides overlap (centres {distance:.3g} apart, radii {first.radius:.3g} and "
            f"{second.radius:.3g}); write anchors that differ more"
        )


def ceiling(anchors: ArrayLike) -> float:
    """Share of anchors that lie in the region of the other anchors: the coverage that even the labelled texts reach."""
    table = points(anchors, "anchors")
    inside = [region_of_others.holds(table[[i]])[0] for i, region_of_others in enumerate(_regions_without(table))]
    return float(np.mean(inside))


def ps(issues: Sequence[Issue], *, seed: int = 0, resamples: int = FEWEST_RESAMPLES, fewest: int = FEWEST) -> Metric:
    """Share of issues with more than half of the draws covered on both sides, with Wilson's interval clustered by topic.

    Under `fewest` topics it has no interval: `interval` in `detail` says insufficient, and the assumptions say why. The published
    number tests the mean output of a side instead of the share of its draws. `detail`: the share of issues covered on each single
    side. p: of a model that answers alike whichever side it is asked for; the answers to both sides are then exchanged, topic by
    topic (one-sided: more issues covered), none under six topics. An issue with a side that has neither output nor refusal is
    excluded; undefined if none is left. Not applicable without issues.
    """
    if not issues:
        reason = "no construct declares two sides with anchors"
        return Metric(PublishedScore(None, FORMULA, reason), missing("not_applicable", reason, UNIT))
    given, issues = len(issues), [issue for issue in issues if issue.answered]
    if not issues:
        reason = f"none of {given} issues has an output or a refusal on both sides"
        return Metric(PublishedScore(None, FORMULA, reason), missing("undefined", reason, UNIT))
    both = [min(issue.shares) > COVERED for issue in issues]
    means = [all(_mean_inside(issue, side) for side in (0, 1)) for issue in issues]
    estimate = _with_enough(proportions.clustered(both, [issue.topic for issue in issues], unit=UNIT), issues, fewest)
    sides = {
        f"side_{name}": float(np.mean([issue.shares[k] > COVERED for issue in issues])) for k, name in enumerate("ab")
    }
    left_out = {"a side without outputs": given - len(issues)} if len(issues) < given else {}
    p = _exchanged(issues, seed, resamples)
    return Metric(
        PublishedScore(float(np.mean(means)), FORMULA),
        replace(
            estimate,
            p_value=p,
            test=None if p is None else EXCHANGED,
            assumptions=(*estimate.assumptions, *(() if p is not None else (NO_P,))),
            excluded=left_out,
            detail={**estimate.detail, **sides},
        ),
    )


def _with_enough(estimate: Estimate, issues: Sequence[Issue], fewest: int) -> Estimate:
    """`estimate`, without its interval and with the reason if the issues have under `fewest` topics."""
    count = len({issue.topic for issue in issues})
    if count >= fewest:
        return estimate
    reason = f"{count} topics; at least {fewest} are needed"
    kept = {name: value for name, value in estimate.detail.items() if name != "independent"}  # an interval too
    detail = {**kept, "topics": count, "interval": {"status": "insufficient_data", "reason": reason}}
    return replace(estimate, ci=None, assumptions=(f"no interval: {reason}",), detail=detail)


def _exchanged(issues: Sequence[Issue], seed: int, resamples: int) -> float | None:
    """p of the number of covered issues, ties by the smaller shares, by exchanging the sides of all issues of a topic at once.

    The answers to a side are exchanged whole. Single draws are no units: those of one prompt resemble each other, and if prompts
    differ, whichever side they ask for, exchanging draws rejects up to .16 of the time at .05. None under FEWEST_UNITS topics.
    """
    topics = list(dict.fromkeys(issue.topic for issue in issues))
    scores = np.zeros((len(topics), 2))
    for issue in issues:
        other = replace(issue, sides=issue.sides[::-1], refused=issue.refused[::-1])
        smaller = np.array([min(one.shares) for one in (issue, other)])
        scores[topics.index(issue.topic)] += (smaller > COVERED) + smaller / (
            len(issues) + 1
        )  # all ties sum to under 1
    return relabelling.swaps(scores, seed, resamples)


def _mean_inside(issue: Issue, side: int) -> bool:
    values = issue.sides[side]
    return bool(np.size(values)) and bool(issue.regions[side].holds(centre(points(values))[None])[0])


def _left_out(table: Float[np.ndarray, "anchor axis"]) -> Float[np.ndarray, " anchor"]:
    """Distance of each anchor from the mean of the others."""
    moved, n = settled(table - table[0], table), len(table)
    others = (moved.sum(0) - moved) / (n - 1)
    return np.linalg.norm(settled(moved - others, table), axis=1)


def _regions_without(table: Float[np.ndarray, "anchor axis"]) -> list[Ball]:
    rest = [np.delete(table, i, axis=0) for i in range(len(table))]
    same_axes(*rest)
    return [Ball(centre(one), float(np.quantile(_left_out(one), RADIUS))) for one in rest]
