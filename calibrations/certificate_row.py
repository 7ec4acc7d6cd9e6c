"""A row of the certificate: what one calibration said, as terminal, report, tables, trackers and notebooks present it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from calibrations.number_format import interval_text, number
from calibrations.record import Interval

PUBLISHED_WORDS = {"pass": "pass", "fail": "FAIL", "none": "-"}


@dataclass(frozen=True)
class MetricRow:
    """One published metric: a `Record` without its companions, notes, sizes and effect size."""

    metric: str
    verdict: str
    published_value: float | None = None
    published_rule: str = ""
    published_verdict: str = "none"
    published_label: str | None = None
    estimate: float | None = None
    ci90: Interval | None = None
    ci95: Interval | None = None
    ci_method: str | None = None
    p: float | None = None
    p_kind: str | None = None
    gating: bool = False
    reasons: tuple[str, ...] = ()
    needs: str | None = None
    against_baseline: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """The row of a stored record, or of one that `Record.to_dict` gave."""
        known: dict[str, Any] = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the 90 % interval, None where there is none."""
        low, high = self.ci90 or (None, None)
        return low, high

    @property
    def why(self) -> str:
        """The reasons of the verdict in one line."""
        return "; ".join(self.reasons)

    @property
    def published_text(self) -> str:
        """Published verdict and value, for example "pass 0.02"."""
        value = "" if self.published_value is None else f" {number(self.published_value)}"
        return PUBLISHED_WORDS[self.published_verdict] + value

    @property
    def estimate_text(self) -> str:
        """Estimate with its 90 % interval, as far as there is one: "0.97 [0.93, 1.01]", "-" without an estimate."""
        return "-" if self.estimate is None else number(self.estimate) + interval_text(*self.interval)


@dataclass(frozen=True)
class CertificateRow:
    """One calibration by its ID, or the preconditions (P), with a row for each of its metrics; no rows if it was not run.

    `gating`: some tier, or the calibration itself, gates by one of its metrics. `asked`: what the tiers ask of each metric
    ("pass" or "not fail"). `decisive` names the metric whose verdict is that of the calibration.
    """

    id: str
    title: str
    verdict: str
    metrics: tuple[MetricRow, ...] = ()
    gating: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)
    decisive: str | None = None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """One of the `rows` of a stored certificate."""
        others = {name: stored[name] for name in ("gating", "asked", "decisive") if name in stored}
        return cls(stored["id"], stored["title"], stored["verdict"], _metrics(stored["records"]), **others)

    def to_dict(self) -> dict[str, Any]:
        """What the certificate stores of it."""
        stored = {
            "id": self.id,
            "title": self.title,
            "verdict": self.verdict,
            "records": list(map(asdict, self.metrics)),
        }
        judged = {"gating": self.gating, "asked": dict(self.asked), "decisive": self.decisive}
        return {**stored, **judged} if self.metrics else stored

    @property
    def decided_by(self) -> MetricRow | None:
        """The metric whose verdict is that of the calibration; None if it was not run, and for the preconditions."""
        return next((metric for metric in self.metrics if metric.metric == self.decisive), None)

    @property
    def shown(self) -> tuple[MetricRow, ...]:
        """The metrics that a table shows: the gating ones, or else the one that decided."""
        gating = tuple(metric for metric in self.metrics if metric.gating)
        return gating or tuple(metric for metric in self.metrics if metric.metric == self.decisive)


def calibrations_of(certificate: Mapping[str, Any]) -> list[CertificateRow]:
    """The calibrations of a stored certificate, in its order."""
    return [CertificateRow.read(stored) for stored in certificate["rows"]]


def preconditions_of(certificate: Mapping[str, Any]) -> CertificateRow:
    """The preconditions of a stored certificate as one more row: each of them gates, and they have no joint verdict."""
    return CertificateRow("P", "preconditions", "", _metrics(certificate["preconditions"]), gating=True)


def rows_of(certificate: Mapping[str, Any]) -> list[CertificateRow]:
    """The preconditions, then the calibrations."""
    return [preconditions_of(certificate), *calibrations_of(certificate)]


def _metrics(records: Any) -> tuple[MetricRow, ...]:
    return tuple(map(MetricRow.read, records))
