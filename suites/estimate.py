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

    A status of insufficient or undefined never becomes 0 or a pass: `reason` says in words what is missing. `n` is the number
    of units that the value is computed from, `excluded` the number left out, by reason. `detail` holds what only this metric
    has (a test's counts, a grid). ValueError for a value with a status other than "ok", and for "ok" without a value.
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
        """The value; ValueError if there is none."""
        if self.value is None:
            raise ValueError(f"an estimate with the status {self.status!r} has no value: {self.reason}")
        return self.value

    @property
    def bounds(self) -> Interval:
        """The interval; ValueError if there is none."""
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
    """An estimate without a value, and the reason why."""
    return Estimate(None, unit, n, status=status, reason=reason, **rest)
