"""Counts verdicts over many samples: false-pass rates, power, tiers, and whether the declarations were met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibrations import calibrate, certificate
from calibrations.evidence import Evidence
from calibrations.preconditions import NO_RULE
from calibrations.registry import CALIBRATIONS
from calibrations.statistics import Interval, wilson_interval
from meridian.experiments.validation.declared import ROWS, KnownClaim

PUBLISHED = ("fail", "none", "pass")  # worst first


@dataclass(frozen=True)
class JudgedSample:
    """One judged sample: verdicts by metric and by calibration (its worst gating one), and the tier reached."""

    metrics: Mapping[str, tuple[str, str]]  # metric: (published verdict, verdict)
    rows: Mapping[str, tuple[str, str]]  # calibration: the same
    tier: int


@dataclass(frozen=True)
class PassRate:
    """`count` of `n` samples, with the 95 % Wilson interval of the rate."""

    count: int
    n: int

    @property
    def value(self) -> float:
        return self.count / self.n

    @property
    def interval(self) -> Interval:
        return wilson_interval(self.count, self.n, 0.95)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {"count": self.count, "n": self.n, "rate": self.value, "ci95": (max(low, 0.0), min(high, 1.0))}


@dataclass(frozen=True)
class RateCell:
    """One subject, one row of the table, one number of prompts.

    `met` is None if nothing was declared; power is declared for the size of a run only. Otherwise it says whether the rate
    itself meets its target (at most `max_false_pass`, or at least `min_power`), with no allowance for Monte Carlo error.
    """

    subject: str
    row: str
    prompts: int
    expected: str
    published_pass: PassRate
    verdict_pass: PassRate
    verdicts: Mapping[str, int]
    met: bool | None

    def to_dict(self) -> dict[str, Any]:
        rates = {"published_pass": self.published_pass.to_dict(), "verdict_pass": self.verdict_pass.to_dict()}
        return {**asdict(self), **rates}


def outcome(evidence: Evidence, config: Mapping[str, Any], rules: Mapping[str, Any]) -> JudgedSample:
    """Judge one sample by every calibration and fold the verdicts (`rules`: the certificate section)."""
    documents = calibrate.judge(evidence, CALIBRATIONS, config)
    metrics, rows = {}, {}
    for identifier, document in documents.items():
        rows[identifier] = (_published(document["records"]), document["data"]["verdict"])
        metrics |= {r["metric"]: (r["published_verdict"], r["verdict"]) for r in document["records"]}
    return JudgedSample(metrics, rows, certificate.certify(documents, rules)["tier"] or 0)


def _published(records: Sequence[Mapping[str, Any]]) -> str:
    """The worst published verdict among a calibration's gating metrics that have a published rule."""
    gating = [record for record in records if record["gating"]] or records
    said = {record["published_verdict"] for record in gating if record["published_rule"] != NO_RULE}
    return next((word for word in PUBLISHED if word in said), "none")


def cells(
    subject: KnownClaim, prompts: int, outcomes: Sequence[JudgedSample], targets: Mapping[str, float], at_default: bool
) -> list[RateCell]:
    """The subject's cells at this number of prompts, one per row of the table.

    `at_default`: whether this is the size of a run, at which power is required.
    """
    made = []
    for row in ROWS:
        published, verdicts = zip(*(one.rows[row] for one in outcomes), strict=True)
        passed, seed = PassRate(verdicts.count("pass"), len(outcomes)), PassRate(published.count("pass"), len(outcomes))
        expected = subject.expected[row]
        judged = expected == "not_pass" or (expected == "pass" and at_default)
        met = _met(expected, passed, targets) if judged else None
        made.append(RateCell(subject.name, row, prompts, expected, seed, passed, dict(Counter(verdicts)), met))
    return made


def _met(expected: str, passed: PassRate, targets: Mapping[str, float]) -> bool:
    if expected == "not_pass":
        return passed.value <= targets["max_false_pass"]
    return passed.value >= targets["min_power"]


def metric_passes(outcomes: Sequence[JudgedSample]) -> dict[str, list[int]]:
    """{metric: [samples whose published verdict is "pass", samples whose verdict is "pass"]}."""
    return {
        metric: [sum(one.metrics[metric][side] == "pass" for one in outcomes) for side in (0, 1)]
        for metric in outcomes[0].metrics
    }


def tiers(outcomes: Sequence[JudgedSample], highest: int) -> dict[str, Any]:
    """How many samples reached each tier, and the rate of the highest one."""
    reached = Counter(one.tier for one in outcomes)
    return {
        "counts": [reached[tier] for tier in range(highest + 1)],
        "certified": PassRate(reached[highest], len(outcomes)).to_dict(),
    }


def pooled(rates: Iterable[PassRate]) -> PassRate:
    """The rate over all samples of these rates together."""
    rates = list(rates)
    return PassRate(sum(rate.count for rate in rates), sum(rate.n for rate in rates))
