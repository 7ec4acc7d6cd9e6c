"""Heads about which methods disagree: outside the claim but large by one method, or claimed but near zero by one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from calibrations.worst_groups import LeftOutGroup, WorstGroups
from meridian.figures.graph import head_name
from meridian.report.head_facts import Method
from meridian.run_folder import RunFolder

COMPARED = {  # key of each method in the report: its short name
    "02.noising": "noising",
    "02.denoising": "denoising",
    "21.effect": "knock-out",
    "08.effect": "attribution patching",
    "03.attribution": "direct attribution",
}
FIRST_HEADS = 8  # of each table; the others can be opened
QUARTER = 4  # a head is large in the first quarter by size, and near zero in the last


@dataclass(frozen=True)
class Opinion:
    """One method's value for a head. `odd`: whether this value contradicts the claim."""

    place: int  # index of the method among those compared
    value: float | None
    low: float | None
    high: float | None
    rank: int | None
    odd: bool


@dataclass(frozen=True)
class DisputedHead:
    """A head about which the methods differ, each method's value, and the worst group that the head belongs to."""

    head: str
    index: int
    role: str  # empty for a head outside the claim
    opinions: tuple[Opinion, ...]
    group: str
    group_field: str


@dataclass(frozen=True)
class LargestOutside:
    """The head outside the claim that one method ranks highest. `rank` is among all heads with a value, `of` their number."""

    method: Method
    head: str
    index: int
    value: float
    rank: int
    of: int

    @property
    def name(self) -> str:
        """The method's short name."""
        return COMPARED[self.method.key]


@dataclass(frozen=True)
class Disagreement:
    """`methods` are in the order of each head's opinions. Outside heads are sorted by best rank, claimed heads by worst.

    `largest`: by each method, the largest head outside the claim. `decisive`: the one that the gate P.outside finds largest by
    itself, and its place among the certificate's groups; None if the gate names no single head.
    """

    methods: tuple[Method, ...]
    outside: tuple[DisputedHead, ...]
    claimed: tuple[DisputedHead, ...]
    largest: tuple[LargestOutside, ...]
    decisive: tuple[int, LeftOutGroup] | None

    @property
    def first(self) -> int:
        """The ranks up to which a head is large."""
        return _first(len(self.methods[0].values)) if self.methods else 0


def of(run: RunFolder, measured: Sequence[Method]) -> Disagreement:
    """Outside heads that are in the first quarter by any method, and claimed heads that are near zero by any method.

    Near zero means in the last quarter by size, or with an interval that contains 0. Methods without a value for a head are
    ignored for it.
    """
    compared = sorted((one for one in measured if one.key in COMPARED), key=lambda one: list(COMPARED).index(one.key))
    evidence = run.evidence
    outside, claimed = [], []
    for index, pair in enumerate(evidence.heads):
        role = evidence.roles.get(pair, "")
        opinions = tuple(_opinion(place, method, index, bool(role)) for place, method in enumerate(compared))
        if any(one.odd for one in opinions):
            found = DisputedHead(head_name(pair), index, role, opinions, *_worst_group(run, pair))
            (claimed if role else outside).append(found)
    outside.sort(key=lambda one: min(opinion.rank or math.inf for opinion in one.opinions))
    claimed.sort(key=lambda one: -max(opinion.rank or 0 for opinion in one.opinions))
    largest = tuple(one for method in compared if (one := _largest_outside(run, method)) is not None)
    return Disagreement(tuple(compared), tuple(outside), tuple(claimed), largest, _decisive(run))


def _decisive(run: RunFolder) -> tuple[int, LeftOutGroup] | None:
    alone = [
        (place, left) for place, left in enumerate(WorstGroups.read(run.certificate).outside) if left.kind == "head"
    ]
    return max(alone, key=lambda one: abs(one[1].in_limits), default=None)


def _largest_outside(run: RunFolder, method: Method) -> LargestOutside | None:
    evidence = run.evidence
    ranked = {
        rank: index for index, rank in enumerate(method.ranks) if rank and evidence.heads[index] not in evidence.roles
    }
    if not ranked:
        return None
    index, count = ranked[rank := min(ranked)], sum(one is not None for one in method.ranks)
    return LargestOutside(method, head_name(evidence.heads[index]), index, method.values[index] or 0.0, rank, count)


def _first(heads: int) -> int:
    return max(1, heads // QUARTER)


def _opinion(place: int, method: Method, index: int, claimed: bool) -> Opinion:
    value, low, high = (column[index] for column in (method.values, method.low, method.high))
    rank = method.ranks[index]
    count = sum(one is not None for one in method.ranks)
    if rank is None:
        odd = False
    elif claimed:
        odd = rank > count - _first(count) or (low is not None and high is not None and low <= 0 <= high)
    else:
        odd = rank <= _first(count)
    return Opinion(place, value, low, high, rank, odd)


def _worst_group(run: RunFolder, pair: tuple[int, int]) -> tuple[str, str]:
    """(the smallest of the certificate's worst groups that contains the head, in words; its field).

    The largest group has all heads, so it would say the same of each. Of equal sizes, the first.
    """
    groups = WorstGroups.read(run.certificate)
    found = [
        (
            len(group.heads),
            f"{group.gate}: {_company(group.heads)}, {group.recipe_text}, inc {group.incompleteness_text}",
            f"worst_groups.claimed[{place}].incompleteness",
        )
        for place, group in enumerate(groups.claimed)
        if pair in group.heads
    ]
    found += [
        (
            len(left.heads),
            f"P.outside: {_company(left.heads)}, {left.recipe_text}, share {left.share_text}",
            f"worst_groups.outside[{place}].share",
        )
        for place, left in enumerate(groups.outside)
        if pair in left.heads
    ]
    if not found:
        return "in none of the worst groups", "worst_groups"
    return min(found, key=lambda one: one[0])[1:]


def _company(heads: Collection[tuple[int, int]]) -> str:
    others = len(heads) - 1
    return f"with {others} other{'s' * (others > 1)}" if others else "alone"
