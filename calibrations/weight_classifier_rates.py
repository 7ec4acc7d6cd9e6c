"""C14.hit_rate and C14.false_alarm_rate: does a classifier that sees only weights find the circuit's heads?

Measurement 09 trains it on the circuits of other tasks and predicts this task's circuit. A rate is a share of counted heads,
so its interval is Wilson's. A circuit can be too small for any outcome to pass: even 14 of 14 heads leave the lower bound at
.84. The verdict is then insufficient whatever was found, and the rates are still shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from calibrations.evidence import Evidence, Head
from calibrations.preconditions import require_behaviour
from calibrations.record import Published, Record, decide_above, decide_below, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    discrimination,
    published_verdict,
    signal_detection,
    wilson_interval,
)
from calibrations.statistics.published import Rule
from result_types import WeightClassifier

HIT_RULE = "hit rate > {threshold_hit_rate}"
ALARM_RULE = "false alarm rate < {threshold_false_alarm_rate}"


@dataclass(frozen=True)
class Classification:
    """Counts of a classifier's predicted circuit heads against the circuit."""

    hits: int
    positives: int
    false_alarms: int
    negatives: int

    @property
    def hit_rate(self) -> float:
        """Hits / circuit heads: the recall."""
        return self.hits / self.positives

    @property
    def false_alarm_rate(self) -> float:
        """FP / (heads outside the circuit), not 1 - precision."""
        return self.false_alarms / self.negatives

    @property
    def predicted(self) -> int:
        return self.hits + self.false_alarms

    @property
    def one_minus_precision(self) -> float | None:
        """FP / predicted: a false discovery proportion. None if nothing was predicted."""
        return self.false_alarms / self.predicted if self.predicted else None

    def rates(self) -> dict[str, Any]:
        """Recall, precision and false alarm rate with 90 % Wilson intervals, d' of the two rates (log-linear)."""
        shares = {
            "recall": (self.hits, self.positives),
            "precision": (self.hits, self.predicted),
            "false_alarm_rate": (self.false_alarms, self.negatives),
        }
        found: dict[str, Any] = {
            name: {"value": part / whole, "ci90": wilson_interval(part, whole, 0.90), "count": part, "of": whole}
            if whole
            else None
            for name, (part, whole) in shares.items()
        }
        if self.positives and self.negatives:
            missed, rejected = self.positives - self.hits, self.negatives - self.false_alarms
            found["d_prime"] = signal_detection(self.hits, missed, self.false_alarms, rejected).d_prime_loglinear
        return {**found, "one_minus_precision": self.one_minus_precision}


def classify(predicted: Collection[Head], circuit: Collection[Head], heads: Collection[Head]) -> Classification:
    """Compare predicted with actual circuit heads. Raises Insufficient if one class is empty."""
    positive, everything = set(circuit), set(heads)
    if not positive:
        raise Insufficient("n_heads", "the circuit has no heads")
    if positive == everything:
        raise Insufficient("all_selected", "every head is in the circuit; there are no false alarms to count")
    called = set(predicted)
    return Classification(len(called & positive), len(positive), len(called - positive), len(everything - positive))


def hit_rate(evidence: Evidence, config: Mapping[str, Any], n: Mapping[str, int]) -> Record:
    """Share of the circuit's heads that the classifier names."""

    def fields(found: Classification) -> dict[str, Any]:
        threshold = config["threshold_hit_rate"]
        rate = _rate(found.hits, found.positives, lambda interval: decide_above(interval, threshold), threshold)
        best = wilson_interval(found.positives, found.positives, 0.90)[0]
        if best > threshold:
            return rate
        needed = _smallest(threshold / (1 - threshold))
        detail = (
            f"even {found.positives} of {found.positives} leave the lower bound at {best:.2f}, not above {threshold}"
        )
        return _unreachable(detail, f"a circuit of at least {needed} heads")

    return _record("hit_rate", HIT_RULE, ">", "threshold_hit_rate", fields, evidence, config, n)


def false_alarm_rate(evidence: Evidence, config: Mapping[str, Any], n: Mapping[str, int]) -> Record:
    """Share of the heads outside the circuit that the classifier names."""

    def fields(found: Classification) -> dict[str, Any]:
        threshold = config["threshold_false_alarm_rate"]
        rate = _rate(
            found.false_alarms, found.negatives, lambda interval: decide_below(interval, threshold), threshold, "less"
        )
        best = wilson_interval(0, found.negatives, 0.90)[1]
        if best < threshold:
            return rate
        needed = _smallest((1 - threshold) / threshold)
        detail = f"even 0 of {found.negatives} leave the upper bound at {best:.2f}, not below {threshold}"
        return _unreachable(detail, f"at least {needed} heads outside the circuit")

    return _record("false_alarm_rate", ALARM_RULE, "<", "threshold_false_alarm_rate", fields, evidence, config, n)


def _smallest(odds: float) -> int:
    """Smallest k for which k correct of k trials put the 90 % Wilson bound k / (k + z^2) beyond these odds."""
    return math.floor(scipy.stats.norm.ppf(0.95) ** 2 * odds) + 1


def _record(
    name: str,
    rule: str,
    comparison: Rule,
    threshold: str,
    fields: Callable[[Classification], dict[str, Any]],
    evidence: Evidence,
    config: Mapping[str, Any],
    n: Mapping[str, int],
) -> Record:
    rule = rule.format(**config)

    def published() -> Published:
        value = getattr(_classification(evidence), name)
        return Published(value, rule, published_verdict(value, comparison, config[threshold]))

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        found = _classification(evidence)
        return {**fields(found), "companions": _companions(evidence, found)}

    return judge(f"C14.{name}", published, decide, rule=rule, gating=config["classifier_gates"], n=n)


def _stored(evidence: Evidence) -> WeightClassifier:
    """The classifier section of 09. Raises Insufficient("n_tasks") with 09's reason if it could not be trained."""
    stored = evidence.data("09").get("classifier")
    if stored is None:
        raise Insufficient("not_run", "measurement 09 holds no classifier", needs="classifier in measurement 09")
    if stored["predicted_heads"] is None:
        raise Insufficient("n_tasks", stored["unavailable"] or "", needs="circuits of more tasks on this model")
    return stored


def _classification(evidence: Evidence) -> Classification:
    predicted = [(layer, head) for layer, head in _stored(evidence)["predicted_heads"] or ()]
    return classify(predicted, evidence.circuit_heads, evidence.heads)


def _rate(
    part: int, whole: int, decide: Callable[[Interval], str], threshold: float, alternative: str = "greater"
) -> dict[str, Any]:
    ci90 = wilson_interval(part, whole, 0.90)
    verdict = decide(ci90)
    return {
        "verdict": verdict,
        "reasons": () if verdict == "pass" else (f"{part} of {whole}",),
        "estimate": part / whole,
        "ci90": ci90,
        "ci95": wilson_interval(part, whole, 0.95),
        "ci_method": "Wilson",
        "p": share_p(part, whole, threshold, alternative),
        "p_kind": "score test of the rate, the dual of the Wilson interval",
    }


def _unreachable(detail: str, needs: str) -> dict[str, Any]:
    """No outcome could have passed, so there is no estimate; the companions have the rate."""
    return {
        "verdict": "insufficient",
        "reasons": (f"min_p_unreachable: {detail}",),
        "needs": needs,
        "estimate": None,
        "p": None,
    }


def share_p(part: int, whole: int, share: float, alternative: str) -> float:
    """One-sided score test of a proportion against `share`."""
    z = (part / whole - share) / np.sqrt(share * (1 - share) / whole)
    return float(scipy.stats.norm.sf(z) if alternative == "greater" else scipy.stats.norm.cdf(z))


def _companions(evidence: Evidence, found: Classification) -> dict[str, Any]:
    """All rates with intervals, the classifier's graded output, and its performance on its training tasks."""
    stored = _stored(evidence)
    probability = np.asarray(stored["probability"], dtype=float)
    graded = discrimination(evidence.in_circuit, probability)
    tasks = {name: Classification(**counts).rates() for name, counts in sorted(stored["leave_one_task_out"].items())}
    return {
        **found.rates(),
        "probability_auroc": graded.auroc,
        "probability_average_precision": graded.average_precision,
        "threshold": stored["threshold"],
        "trained_on": {name: len(heads) for name, heads in sorted(stored["trained_on"].items())},
        "leave_one_task_out": tasks,
    }
