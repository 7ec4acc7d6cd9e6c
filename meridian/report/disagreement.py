"""Where methods disagree about a head: outside the claim and yet large in one, or claimed and yet near zero in one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from calibrations.worst_groups import WorstGroups
from meridian.figures.graph import head_name
from meridian.report.head_facts import Method
from meridian.run_folder import RunFolder

COMPARED = ("02.noising", "02.denoising", "21.effect", "08.effect", "03.attribution")
FIRST_HEADS = 8  # of each table; the others are there to be opened
QUARTER = 4  # a head is large where it is in the first quarter by size, near zero in the last


@dataclass(frozen=True)
class Opinion:
    """What one method says of a head; `odd` if it is this value that speaks against the claim."""

    place: int  # of the method among those compared
    value: float | None
    low: float | None
    high: float | None
    rank: int | None
    odd: bool


@dataclass(frozen=True)
class DisputedHead:
    """A head about which the methods differ, what each says, and the worst group of the gates that it belongs to."""

    head: str
    index: int
    role: str  # empty: outside the claim
    opinions: tuple[Opinion, ...]
    group: str
    group_field: str


@dataclass(frozen=True)
class Disagreement:
    """`methods` in the order of every head's opinions; heads outside by their best rank, claimed heads by their worst."""

    methods: tuple[Method, ...]
    outside: tuple[DisputedHead, ...]
    claimed: tuple[DisputedHead, ...]

    @property
    def first(self) -> int:
        """The ranks up to which a head is large."""
        return _first(len(self.methods[0].values)) if self.methods else 0


def of(run: RunFolder, measured: Sequence[Method]) -> Disagreement:
    """Outside heads in the first quarter of any method, and claimed heads near zero in one.

    Near zero: in the last quarter by size, or an interval that holds 0. A method without a value for a head says nothing of
    it.
    """
    compared = sorted((one for one in measured if one.key in COMPARED), key=lambda one: COMPARED.index(one.key))
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
    return Disagreement(tuple(compared), tuple(outside), tuple(claimed))


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
    """The group nearest to its limit, or furthest above it, that holds the head, in words; and its field."""
    groups = WorstGroups.read(run.certificate)
    for place, group in enumerate(groups.claimed):
        if pair in group.heads:
            return (
                f"{group.gate}: {_company(group.heads)}, {group.recipe_text}, inc {group.incompleteness_text}",
                f"worst_groups.claimed[{place}].incompleteness",
            )
    for place, left in enumerate(groups.outside):
        if pair in left.heads:
            return (
                f"P.outside: {_company(left.heads)}, {left.recipe_text}, share {left.share_text}",
                f"worst_groups.outside[{place}].share",
            )
    return "in none of the worst groups", "worst_groups"


def _company(heads: Collection[tuple[int, int]]) -> str:
    return "alone" if len(heads) == 1 else f"with {len(heads) - 1} others"
