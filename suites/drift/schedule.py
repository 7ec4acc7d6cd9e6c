"""Schedule: the ids of snapshots, and which snapshots there should be.

The id of an endpoint's snapshot is the ISO 8601 week (UTC) of its first sample ("2026-W22"). The id of a local checkpoint's is
`c<order:08d>-<8 digits of the weights hash>`. A series has ids of one kind only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from results_io import UserError

WEEK, CHECKPOINT = re.compile(r"(\d{4})-W(\d{2})"), re.compile(r"c(\d{8})-[0-9a-f]{8}")
LARGEST_ORDER = 10**8 - 1
Kind = Literal["week", "checkpoint"]


def week_id(time: datetime) -> str:
    """The ISO week of a moment in UTC: 2027-01-01 is 2026-W53. ValueError for a time without a zone."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone; a week is that of UTC")
    year, week, _ = time.astimezone(UTC).isocalendar()
    return f"{year}-W{week:02d}"


def checkpoint_id(order: int, weights: str) -> str:
    """The id of a local checkpoint. UserError for an order that is no whole number of up to 8 digits."""
    if isinstance(order, bool) or not isinstance(order, int) or not 0 <= order <= LARGEST_ORDER:
        raise UserError(
            f"drift.order={order} is no place in a series; give a whole number from 0, for example the step"
        )
    return f"c{order:08d}-{weights[:8]}"


def kind(identifier: str) -> Kind:
    """Whether an id is a week's or a checkpoint's. UserError for neither."""
    if WEEK.fullmatch(identifier):
        monday(identifier)
        return "week"
    if CHECKPOINT.fullmatch(identifier):
        return "checkpoint"
    raise UserError(
        f"{identifier!r} is no snapshot; expected an ISO week such as 2026-W22, or c00000000-<8 hex digits>"
    )


def monday(week: str) -> date:
    """The first day of a week. UserError for a week that its year does not have."""
    found = WEEK.fullmatch(week)
    try:
        return date.fromisocalendar(int(found[1]), int(found[2]), 1) if found else date.fromisoformat(week)
    except ValueError as error:
        raise UserError(f"{week} is no ISO week ({error}); write for example 2026-W22") from error


def scheduled(first: str, last: str, every: int) -> list[str]:
    """The scheduled weeks of a series from `first` to `last`, one in `every`."""
    step, day, end = timedelta(weeks=every), monday(first), monday(last)
    found = []
    while day <= end:
        year, week, _ = day.isocalendar()
        found.append(f"{year}-W{week:02d}")
        day += step
    return found


def in_order(identifiers: Sequence[str]) -> list[str]:
    """Ids from the earliest to the latest. UserError if they are of two kinds: one series has one."""
    kinds = {kind(one): one for one in identifiers}
    if len(kinds) > 1:
        raise UserError(
            f"{' and '.join(kinds.values())} are of two kinds; a series has weeks or checkpoints: start another"
        )
    return sorted(set(identifiers), key=lambda one: (monday(one).toordinal(), one) if "week" in kinds else (0, one))
