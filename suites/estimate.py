"""Estimate: what every behavioural metric returns, a number or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "insufficient_data", "undefined", "not_applicable", "off", "error"]


@dataclass(frozen=True)
class Interval:
    """A confidence interval, which names its method: "Wilson", "bootstrap over clusters", "Clopper-Pearson"."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class Estimate:
    """A metric's value with unit, sample size and interval. `value` is None unless `status` is "ok".

    Insufficient or undefined never becomes 0 or a pass: `reason` says in words what is missing. `n` counts what the value is
    over, `excluded` what was left out, by reason. `detail` holds what belongs to this metric alone (a test's counts, a grid).
    ValueError for a number without "ok", and for "ok" without one.
    """

    value: float | None
    unit: str
    n: int
    ci: Interval | None = None
    status: Status = "ok"
    reason: str = ""
    assumptions: tuple[str, ...] = ()
    p_value: float | None = None
    test: str | None = None
    excluded: Mapping[str, int] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.value is None) == (self.status == "ok"):
            raise ValueError(f"an estimate of {self.value} cannot have the status {self.status!r}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"an estimate with the status {self.status!r} needs a reason")

    @property
    def number(self) -> float:
        """The value, for where there must be one; ValueError otherwise."""
        if self.value is None:
            raise ValueError(f"an estimate with the status {self.status!r} has no value: {self.reason}")
        return self.value

    @property
    def bounds(self) -> Interval:
        """The interval, for where there must be one; ValueError otherwise."""
        if self.ci is None:
            raise ValueError(f"the estimate {self.value} of {self.n} has no interval")
        return self.ci

    def to_record(self) -> dict[str, Any]:
        """The estimate as data, with the keys of a result's record."""
        return {
            "value": self.value,
            "unit": self.unit,
            "n": self.n,
            "n_excluded": dict(self.excluded),
            "ci": None if self.ci is None else asdict(self.ci),
            "p_value": self.p_value,
            "test": self.test,
            "status": self.status,
            "reason": self.reason,
            "assumptions": list(self.assumptions),
            "detail": dict(self.detail),
        }


def missing(status: Status, reason: str, unit: str, n: int = 0, **rest: Any) -> Estimate:
    """No number, and why."""
    return Estimate(None, unit, n, status=status, reason=reason, **rest)
