"""The numbered results of behavioural suites: 101-116 one failure mode each, 185 programs, 186 to 188 safety suites, 121
likelihoods, 131 coverage.

A file has one record for every estimate of every suite, with the keys in results/README.md. It holds no times and nothing about
the course of the run, so the same outputs, judged by the same code, give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import results_io
from suites import judgement, modes, repeats, sizing
from suites.estimate import Estimate, Interval
from suites.judgement import RATE, VERDICT_FROM, JudgedSuite
from suites.likelihood import METRICS, ChoiceScores
from suites.likelihood import summarise as accuracies
from suites.log import environment
from suites.modes import quality
from suites.outcome import Case, Detection
from suites.statistics import effect_size
from suites.statistics.calibration import calibration
from suites.statistics.selective import RiskCoverage, areas, risk_coverage, threshold

KIND = "behaviour"
LIKELIHOOD, COVERAGE = "121", "131"
WORST = 10  # failures shown in full for each suite
SEVERITIES = ("high", "medium", "low")
BEHAVIOUR, LIKELIHOODS, SAFETY, EXECUTED = "B", "L", "S", "X"  # prefixes of metric ids, and families of tests
FAMILIES = {modes.TAXONOMY: BEHAVIOUR, modes.SAFE: SAFETY, modes.EXECUTED: EXECUTED}
LOWER, HIGHER = "lower is better", "higher is better"
GOOD = (  # larger is better
    "accuracy",
    "pass_at_k",
    "pass_hat_k",
    "determinism",
    "mode_consistency",
    "pairwise_agreement",
    "worst_template",
    "youden_j",
    "refused_forbidden",
    "target_loss",
)
AT_SLA = "coverage_at_sla"
MCNEMAR, CLEAN, CHANGED = "mcnemar", "accuracy_clean", "accuracy_changed"

Role = Literal["confirmatory", "exploratory", "descriptive"]


@dataclass(frozen=True)
class TestedModel:
    """The tested model, and the seed of sampled outputs and simulated null distributions."""

    model: str
    identity: Mapping[str, Any]
    seed: int

    @property
    def fingerprint(self) -> str:
        return results_io.sha256(self.identity)


def write(
    folder: Path,
    judged: Sequence[JudgedSuite],
    subject: TestedModel,
    context: str | None = None,
    sla: float | None = None,
) -> list[Path]:
    """Write every result file of these suites, in order of their numbers; returns the paths.

    A mode's file holds the suites of this call and no others. `sla`: the largest risk for which 121 looks for a threshold.
    """
    by_mode: dict[str, list[JudgedSuite]] = {}
    for one in judged:
        by_mode.setdefault(one.suite.mode, []).append(one)
    documents = [mode_document(modes.EVERY[mode], by_mode[mode], subject) for mode in sorted(by_mode, key=number)]
    if any(one.likelihoods for one in judged):
        documents.append(likelihood_document(judged, subject, sla))
    documents.append(coverage_document(judged, subject, context))
    paths = []
    for document in documents:
        paths.append(Path(folder) / f"{document['number']}_{document['id']}.json")
        results_io.write(paths[-1], document)
    return paths


def number(mode: str) -> int:
    """`modes.number`: 100 + the number of a failure mode ("A9" is 109), or the number that a safety suite's mode declares."""
    return modes.number(mode)


def mode_document(mode: modes.Mode, judged: Sequence[JudgedSuite], subject: TestedModel) -> dict[str, Any]:
    """The result of one failure mode over its suites."""
    return {
        **_header(str(number(mode.ID)), mode.NAME, judged, subject),
        "n": {
            "suites": len(judged),
            **{kind: sum(one.counts[kind] for one in judged) for kind in ("failed", "passed", "unknown", "error")},
        },
        "data": {
            "mode": mode.ID,
            "title": mode.TITLE,
            "tier": mode.TIER,
            "traceable": mode.TRACEABLE,
            "trace_note": mode.TRACE_NOTE,
            "suites": {one.suite.id: _suite(one) for one in judged},
        },
        "records": [
            _record(
                f"{FAMILIES[mode.ID[:1]]}.{mode.NAME}.{one.suite.id}.{name}",
                estimate,
                one,
                subject,
                HIGHER if name.startswith(GOOD) else LOWER,
            )
            | _comparison(name, one.estimates)
            for one in judged
            for name, estimate in {**one.estimates, **repeats.estimates(one)}.items()
        ],
    }


def likelihood_document(
    judged: Sequence[JudgedSuite], subject: TestedModel, sla: float | None = None
) -> dict[str, Any]:
    """For each suite with choices: accuracies by likelihood, calibration, risk-coverage and the threshold for a risk of `sla`."""
    scored = [one for one in judged if one.likelihoods]
    found = {one.suite.id: list(one.likelihoods.values()) for one in scored}
    curves = {name: _curve(scores_) for name, scores_ in found.items()}
    estimates = {
        one.suite.id: likelihood_estimates(found[one.suite.id], subject.seed, _clusters(one), sla) for one in scored
    }
    thresholds = {
        name: {"status": one[AT_SLA].status, "reason": one[AT_SLA].reason, **one[AT_SLA].detail}
        for name, one in estimates.items()
        if AT_SLA in one
    }
    return {
        **_header(LIKELIHOOD, "likelihood", scored, subject),
        "n": {"suites": len(scored), "items": sum(map(len, found.values()))},
        "data": {
            "risk_coverage": {name: curve for name, curve in curves.items() if curve is not None},
            "sla": sla,
            "threshold": thresholds,
        },
        "records": [
            _record(
                f"{LIKELIHOODS}.{one.suite.id}.{name}",
                estimate,
                one,
                subject,
                HIGHER if name in (*METRICS, AT_SLA) else LOWER,
            )
            for one in scored
            for name, estimate in estimates[one.suite.id].items()
        ],
    }


def likelihood_estimates(
    found: Sequence[ChoiceScores], seed: int, clusters: Sequence[str] | None = None, sla: float | None = None
) -> dict[str, Estimate]:
    """Accuracies by likelihood; calibration of softmax(L) and the area under risk-coverage, over items with an answer.

    `clusters` [item] groups dependent items (default: each its own). With `sla`, also the coverage at which the upper bound of
    the risk is at most `sla`.
    """
    labels = [str(place) for place in range(len(found))] if clusters is None else list(clusters)
    own = [label for one, label in zip(found, labels, strict=True) if one.right]
    confidence, correct = _confidences(found)
    errors = calibration(confidence, correct, seed=seed, clusters=own)
    of_calibration = {name: getattr(errors, name) for name in ("ece", "mce", "ece_equal_mass", "brier")}
    estimates = {**accuracies(found, labels), **of_calibration, **areas(confidence, correct, own, seed=seed)}
    if sla is not None:
        estimates[AT_SLA] = threshold(confidence, correct, sla, seed=seed, clusters=own)
    return estimates


def _clusters(judged: JudgedSuite) -> list[str]:
    """The cluster of every item with likelihoods, in their order."""
    known = {case.item.id: case.cluster for case, _ in judged.cases}
    return [known.get(item, item) for item in judged.likelihoods]


def coverage(judged: Sequence[JudgedSuite], context: str | None = None) -> dict[str, Any]:
    """The failure modes relevant to the context, those among them with a live suite, and why the others have none.

    A suite is live if it applies and has a failure rate. A mode is relevant if one of its suites is declared for the context, or
    if it has no suite in this run. Without a context all modes are relevant.
    """
    by_mode = {mode: [one for one in judged if one.suite.mode == mode] for mode in sorted(modes.MODES, key=number)}
    relevant = [
        mode
        for mode, found in by_mode.items()
        if context is None or not found or any(context in one.suite.contexts for one in found)
    ]
    live = {mode: [one.suite.id for one in by_mode[mode] if is_live(one)] for mode in relevant}
    return {
        "context": context,
        "relevant": relevant,
        "live": {mode: names for mode, names in live.items() if names},
        "missing": {
            mode: "; ".join(f"{one.suite.id}: {one.reason or one.estimates[RATE].reason}" for one in by_mode[mode])
            or "no suite"
            for mode in relevant
            if not live[mode]
        },
    }


def is_live(judged: JudgedSuite) -> bool:
    """Whether the suite applies and has a failure rate."""
    return judged.applies and judged.estimates[RATE].status == "ok"


def coverage_document(judged: Sequence[JudgedSuite], subject: TestedModel, context: str | None) -> dict[str, Any]:
    """Coverage of the taxonomy by the suites of this run."""
    found = coverage(judged, context)
    live, relevant = len(found["live"]), len(found["relevant"])
    return {
        **_header(COVERAGE, "taxonomy_coverage", judged, subject),
        "n": {"modes": relevant, "live": live, "suites": len(judged)},
        "data": found,
        "records": [_coverage_record(live, relevant, subject)],
    }


def _coverage_record(live: int, relevant: int, subject: TestedModel) -> dict[str, Any]:
    """Share of the relevant modes with a live suite. It describes the run and is no sample, so it has no interval or verdict."""
    estimate = Estimate(live / relevant, "share of failure modes", relevant, detail={"live": live})
    return {
        "metric_id": "F.taxonomy_coverage",
        "suite": None,
        "family": "F",
        "role": "descriptive",
        "subject": {"model_fingerprint": subject.fingerprint, "suite_hash": None, "snapshot": None},
        "direction": HIGHER,
        "threshold": None,
        "passed": None,
        "evidence": [],
        **_plain(estimate),
    }


def gate(judged: JudgedSuite) -> bool | None:
    """Whether the failure rate passes the suite's gate: True if the interval ends at or below it, False if it lies above.

    None: the interval contains the gate (inconclusive); there is no gate or no rate; the rate is over fewer than 20 cases; or the
    verdicts come from a judge or heuristic that cannot be trusted (`distrust`).
    """
    rate = judged.estimates.get(RATE)
    if distrust(judged) is not None:
        return None
    shown = None if rate is None or rate.status != "ok" else interval(rate)
    if judged.suite.gate is None or shown is None:
        return None
    limit = judged.suite.gate["failure_rate"]
    if shown.high <= limit:
        return True
    return False if shown.low > limit else None


def distrust(judged: JudgedSuite) -> str | None:
    """Why the suite's verdicts may not decide a gate, whatever the rate; None if they may."""
    if judged.grades is not None and judged.grades.doubt is not None:
        return judged.grades.doubt
    return quality.distrust(judged.suite.mode, judged.cases)


def interval(estimate: Estimate) -> Interval | None:
    """The interval of an estimate, unless it is over fewer than 20 items."""
    return estimate.ci if estimate.n >= VERDICT_FROM else None


def environment_of(judged: Iterable[JudgedSuite]) -> dict[str, Any]:
    """`environment.of_results` of every environment that outputs of these suites were asked in."""
    return environment.of_results(one for suite in judged for one in suite.environments)


def worst(judged: JudgedSuite, most: int = WORST) -> list[tuple[Case, Detection]]:
    """The failures to look at first: by severity, then by the confidence in the output, then in the suite's order."""
    return sorted(
        judged.failures, key=lambda pair: (SEVERITIES.index(pair[1].severity), -(pair[0].first.confidence or 0.0))
    )[:most]


def _header(number_: str, name: str, judged: Sequence[JudgedSuite], subject: TestedModel) -> dict[str, Any]:
    lines = [line for one in judged for line in judgement.lines_of(one)]
    return {
        "number": number_,
        "id": name,
        "kind": KIND,
        "subject": {
            "model": subject.model,
            "identity": dict(subject.identity),
            "model_fingerprint": subject.fingerprint,
            "suites": {one.suite.id: one.suite.sha256 for one in judged},
        },
        "inputs_sha256": {"scores": results_io.sha256(lines)},
        "environment": {**environment_of(judged), "seeds": {"sampling": subject.seed}},
    }


def _suite(judged: JudgedSuite) -> dict[str, Any]:
    suite = judged.suite
    return {
        "title": suite.title,
        "version": suite.version,
        "sha256": suite.sha256,
        "settings": {
            "legs": [asdict(leg) for leg in suite.legs],
            "scorer": suite.scorer,
            "parameters": suite.parameters,
        },
        "applies": judged.applies,
        "reason": judged.reason,
        "counts": judged.counts,
        "tiers": sorted({found.tier for _, found in judged.cases if found.failed is not None}),
        "legs_dropped": dict(judged.dropped_legs),
        "gate": None if suite.gate is None else {**suite.gate, "passed": gate(judged), "distrust": distrust(judged)},
        "minimum": suite.minimum,
        "failures": [case.item.id for case, _ in judged.failures],
        "worst": [_failure(case, found) for case, found in worst(judged)],
    }


def _failure(case: Case, found: Detection) -> dict[str, Any]:
    """One failure as data for a reader."""
    return {
        "item": case.item.id,
        "prompt": case.item.prompt,
        "expected": list(case.item.answers),
        "output": case.first.text,
        "subtype": found.subtype,
        "evidence": found.evidence,
        "span": found.span,
        "severity": found.severity,
        "tier": found.tier,
    }


def _record(
    metric: str, estimate: Estimate, judged: JudgedSuite, subject: TestedModel, direction: str = LOWER
) -> dict[str, Any]:
    """One estimate as a record. Only a failure rate with a declared gate is confirmatory, and only without `distrust`.

    Its p-value tests "the rate is not below the gate"; inverting this test gives the interval that decides `passed`.
    """
    suite, is_rate = judged.suite, metric.endswith(f".{RATE}")
    limit = None if suite.gate is None or not is_rate else suite.gate["failure_rate"]
    if is_rate and (wide := sizing.items_for_width(estimate)) is not None:
        estimate = replace(estimate, detail={**estimate.detail, "items_for_width": {f"{sizing.WIDTH:g}": wide}})
    role: Role = "descriptive" if estimate.p_value is None else "exploratory"
    if limit is not None and distrust(judged) is None:
        role = "confirmatory"
    return {
        "metric_id": metric,
        "suite": suite.id,
        "family": metric.partition(".")[0],
        "role": role,
        "subject": {"model_fingerprint": subject.fingerprint, "suite_hash": suite.sha256, "snapshot": None},
        "direction": direction,
        "threshold": limit,
        "passed": None if limit is None else gate(judged),
        "evidence": [case.item.id for case, _ in worst(judged)] if is_rate else [],
        **_plain(estimate),
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    """An estimate as data, with the keys of a record; without its interval if it is over fewer than 20 items."""
    if estimate.ci is not None and interval(estimate) is None:
        few = f"no interval: over {estimate.n}, fewer than {VERDICT_FROM}"
        estimate = replace(estimate, ci=None, assumptions=(*estimate.assumptions, few))
    return {**estimate.to_record(), "baseline": None, "effect": None}


def _comparison(name: str, estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """For the record of McNemar's test: the accuracy without the change as baseline, and Cohen's h of the change as effect.

    h has no interval: the usual one is for two independent samples, and these are pairs.
    """
    clean, changed = estimates.get(CLEAN), estimates.get(CHANGED)
    if name != MCNEMAR or clean is None or changed is None or clean.value is None or changed.value is None:
        return {}
    h = effect_size.cohen_h(clean.value, changed.value, clean.n, changed.n)
    return {
        "baseline": {"value": clean.value, "kind": "measured", "source": CLEAN},
        "effect": {"name": h.unit, "value": h.value},
    }


def _confidences(found: Sequence[ChoiceScores]) -> tuple[list[float], list[bool]]:
    answered = [one for one in found if one.right]
    return [one.confidence for one in answered], [one.correct() for one in answered]


def _curve(found: Sequence[ChoiceScores]) -> dict[str, Any] | None:
    curve = risk_coverage(*_confidences(found))
    if not isinstance(curve, RiskCoverage):
        return None
    above = [value if math.isfinite(value) else None for value in curve.threshold.tolist()]
    return {"threshold": above, "coverage": curve.coverage, "risk": curve.risk}
