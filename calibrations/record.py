"""What a calibration returns: one record per published metric, with two verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from calibrations.statistics import Insufficient, Interval

Verdict = Literal["pass", "fail", "inconclusive", "insufficient"]
PublishedVerdict = Literal["pass", "fail", "none"]  # none: the published wording states no threshold

SMALLEST_P = 1e-300  # no test has p = 0, and floats below this underflow soon


@dataclass(frozen=True)
class Record:
    """One published metric of one calibration.

    `published_value`, `published_rule` and `published_verdict` apply the published definition to the point estimate,
    nothing else. `estimate` with `ci90` / `ci95` and `verdict` come from an interval or a valid test; only
    `verdict` may gate a tier, and only if `gating`. `reasons` explains every verdict other than pass; if the verdict is
    insufficient, the first word is a reason of `calibrations.statistics.Insufficient`. `p` is the valid p-value of the
    calibration (None if it has none), and `p_kind` says how it was obtained.
    """

    metric: str
    published_value: float | None
    published_rule: str
    published_verdict: PublishedVerdict
    verdict: Verdict
    estimate: float | None = None
    ci90: Interval | None = None
    ci95: Interval | None = None
    ci_method: str | None = None
    p: float | None = None
    p_kind: str | None = None
    effect_size: float | None = None
    published_label: str | None = None
    gating: bool = True
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    needs: str | None = None  # what would settle an inconclusive or insufficient verdict, e.g. "about 700 prompts"
    against_baseline: Mapping[str, Any] | None = None  # {"value", "baseline", "ci95" of their difference}: M93 reads it
    n: Mapping[str, int] = field(default_factory=dict)
    companions: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def decide_above(interval: Interval, threshold: float) -> Verdict:
    """Verdict for "the quantity exceeds `threshold`" from its two-sided 90 % interval (one-sided alpha .05).

    pass if the whole interval lies above the threshold, fail if it lies below, otherwise inconclusive.
    """
    low, high = interval
    if low > threshold:
        return "pass"
    return "fail" if high < threshold else "inconclusive"


def decide_below(interval: Interval, threshold: float) -> Verdict:
    """Verdict for "the quantity is below `threshold`": the mirror image of `decide_above`."""
    low, high = interval
    return decide_above((-high, -low), -threshold)


def worst_of(*verdicts: Verdict) -> Verdict:
    """The verdict of "all of these hold": fail before inconclusive before pass."""
    return next(verdict for verdict in ("fail", "inconclusive", "pass") if verdict in verdicts)


J = TypeVar("J", bound="Judged")
DESCRIPTIVE = "descriptive"  # first word of the reason in a record that is reported and never judged


class Judged(Protocol):
    """What decides a verdict: a `Record`, or its row in a certificate."""

    @property
    def verdict(self) -> str: ...

    @property
    def gating(self) -> bool: ...

    @property
    def reasons(self) -> tuple[str, ...]: ...


def deciding(records: Sequence[J]) -> list[J]:
    """The records that decide a calibration's verdict: the gating ones, or all judged ones if none gates."""
    judged = [record for record in records if not " ".join(record.reasons).startswith(DESCRIPTIVE)] or list(records)
    return [record for record in judged if record.gating] or judged


def overall(records: Sequence[Record]) -> Verdict:
    """The verdict of a calibration: the worst of its `deciding` records, in the order fail, insufficient, inconclusive, pass."""
    verdicts = [record.verdict for record in deciding(records)]
    return next(verdict for verdict in ("fail", "insufficient", "inconclusive", "pass") if verdict in verdicts)


@dataclass(frozen=True)
class Published:
    """The published side of a record: value, rule in words, verdict, label."""

    value: float | None
    rule: str
    verdict: PublishedVerdict
    label: str | None = None


def judge(
    metric: str,
    published: Callable[[], Published],
    decide: Callable[[], Mapping[str, Any]],
    *,
    rule: str,
    **common: Any,
) -> Record:
    """One record from its two independent halves.

    `published` computes the published value and verdict. `decide` computes the fields of the inferential half, `verdict`
    among them. Either may raise Insufficient: the published half then has no value and no verdict, and the inferential half
    has the verdict insufficient with its reason. No other exception is caught, so a bug never becomes a verdict.
    `common` are Record fields that do not depend on either half (n, gating, companions).
    """
    try:
        seed = published()
    except Insufficient as missing:
        seed = Published(None, rule, "none", label=str(missing))
    try:
        sound = dict(decide())
    except Insufficient as missing:
        sound = {"verdict": "insufficient", "reasons": (str(missing),), "needs": missing.needs}
    if sound.get("p") is not None:
        sound["p"] = max(float(sound["p"]), SMALLEST_P)
    return Record(
        metric=metric,
        published_value=seed.value,
        published_rule=seed.rule,
        published_verdict=seed.verdict,
        published_label=seed.label,
        **{**common, **sound},
    )
