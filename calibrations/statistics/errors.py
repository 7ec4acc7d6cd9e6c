"""The exception for a quantity that must not be reported as a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

INSUFFICIENT_REASONS = frozenset(
    {
        "n_prompts",
        "n_clusters",
        "n_heads",
        "n_methods",
        "n_tasks",
        "n_seeds",
        "denominator",
        "behaviour_absent",
        "zero_variance",
        "missing_rater",
        "all_selected",
        "claims_every_head",
        "degenerate_bootstrap",
        "min_p_unreachable",
        "not_run",
        "not_faithful",
        "over_faithful",
        "circular_labels",
        "ratio_undefined",
        "follows_from",
    }
)


class Insufficient(Exception):
    """The data cannot support the requested number.

    `reason` is one word of the closed list `INSUFFICIENT_REASONS`, `detail` an optional sentence with the values behind it,
    `needs` what would make the data sufficient ("about 90 prompts"). Raises ValueError for a reason outside the list.
    """

    def __init__(self, reason: str, detail: str = "", needs: str | None = None) -> None:
        if reason not in INSUFFICIENT_REASONS:
            raise ValueError(f"unknown reason {reason!r}; expected one of {sorted(INSUFFICIENT_REASONS)}")
        self.reason = reason
        self.detail = detail
        self.needs = needs
        super().__init__(f"{reason}: {detail}" if detail else reason)

    def __reduce__(self) -> tuple[type[Insufficient], tuple[str, str, str | None]]:
        # Without this a worker process could not send the exception back: pickle would pass only the joined message.
        return type(self), (self.reason, self.detail, self.needs)


def or_none(compute: Callable[[], Value]) -> Value | None:
    """The value, or None if `compute` raises Insufficient."""
    try:
        return compute()
    except Insufficient:
        return None


def or_reason(compute: Callable[[], Value]) -> Value | dict[str, str]:
    """The value, or {"insufficient": reason} if `compute` raises Insufficient."""
    try:
        return compute()
    except Insufficient as missing:
        return {"insufficient": str(missing)}
