"""What the behavioural suites found, and which heads carry a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import results_io
from meridian import run_folder
from meridian.figures.values import Curves, EstimateMark, Figure, Forest, Series
from meridian.run_folder import RunFolder
from result_types import (
    ChoiceLikelihoods,
    EstimateRecord,
    FailureMode,
    FailureModeResult,
    RiskCoverageCurve,
    SuiteSummary,
)

GRID = tuple(step / 20 for step in range(1, 21))  # shares answered at which a curve is drawn

VERDICTS = {"confirmed": "pass", "refuted": "fail", "undecided": "inconclusive"}


def build(run: RunFolder) -> Iterator[Forest]:
    """Failure rates of the model's suites and, for a circuit of failures, the heads that carry the difference."""
    rates = failure_rates(run.suites)
    if rates.rows:
        yield rates
    yield from failure_carriers(run)


def of_suites(folder: Path) -> Iterator[Figure]:
    """The figures of a folder of suites: failure rates, and risk against coverage."""
    from suites.results import LIKELIHOOD  # imported here, because the suites' statistics load slowly

    rates = failure_rates(run_folder.suite_documents(folder))
    if rates.rows:
        yield rates
    path = results_io.find(folder, LIKELIHOOD)
    if path is not None:
        yield from risk_coverages(results_io.read(path)["data"])


def risk_coverages(data: ChoiceLikelihoods) -> Iterator[Curves]:
    """Risk of the most confident answers against the share answered, one curve for each suite of result 121."""
    from suites.results import LIKELIHOOD

    if not data["risk_coverage"]:
        return
    sla, thresholds = data["sla"], data["threshold"]
    held = [f"{name} above {_shown(one.get('threshold'))}" for name, one in thresholds.items() if one.get("holds")]
    promise = (
        ""
        if sla is None
        else f" A risk of {sla:g} by its upper bound on a half that had no part in choosing the threshold: "
        f"{', '.join(held) if held else 'held by no suite'}."
    )
    yield Curves(
        name="risk_coverage",
        title="Risk against coverage",
        caption="Answering only where the model is surest: share of wrong answers among those given, by the share of items "
        "that are answered, the surest first. Confidence is the softmax over the choices' log-likelihoods."
        f"{promise} Result {LIKELIHOOD}.",
        x_label="share answered",
        y_label="share wrong among the answered",
        x=tuple(f"{share:.2f}" for share in GRID),
        series=tuple(
            Series(name, tuple(_risk_at(curve, share) for share in GRID))
            for name, curve in sorted(data["risk_coverage"].items())
        ),
    )


def _risk_at(curve: RiskCoverageCurve, share: float) -> float | None:
    """The risk at the smallest coverage of the curve that is at least `share`."""
    return next((risk for at, risk in zip(curve["coverage"], curve["risk"], strict=True) if at >= share - 1e-9), None)


def _shown(threshold: float | None) -> str:
    return "any confidence" if threshold is None else f"{threshold:.2f}"


def failure_rates(documents: Mapping[str, FailureModeResult]) -> Forest:
    """The failure rates of results 101 to 116 in order of their numbers, each with its own gate."""
    from suites.judgement import VERDICT_FROM  # imported here, because the suites' statistics load slowly

    return Forest(
        name="failure_rates",
        title="Failure rates of the behavioural suites",
        caption="Share of items that fail, with its 95 % interval (items of one cluster count together). A suite passes its "
        "gate (dotted) if the whole interval lies at or below it and fails if it lies above; insufficient: fewer than "
        f"{VERDICT_FROM} cases, or a heuristic that is not trusted; a suite without a gate has no verdict. Results 101 to 116.",
        x_label="failure rate",
        rows=tuple(_rate(data, record) for data, record in run_folder.failure_rates(documents)),
        level=0.95,
    )


def gate_verdict(record: EstimateRecord, suite: SuiteSummary | None) -> str | None:
    """The verdict of a failure rate's gate; None without a gate. `suite`: the stored suite that the record is about.

    The stored `passed` is None in two cases: the interval contains the gate, or no verdict is possible (`suites.results.gate`),
    because there are too few cases for an interval or the verdicts are from a heuristic below its target.
    """
    if record["threshold"] is None:
        return None
    if record["passed"] is not None:
        return "pass" if record["passed"] else "fail"
    distrusted = suite is not None and suite["gate"] is not None and suite["gate"]["distrust"] is not None
    return "insufficient" if distrusted or record["ci"] is None else "inconclusive"


def _rate(data: FailureMode, record: EstimateRecord) -> EstimateMark:
    ci, suite = record["ci"], record["suite"] or "all suites"
    return EstimateMark(
        suite,
        record["value"],
        ci and ci["low"],
        ci and ci["high"],
        gate_verdict(record, data["suites"].get(suite)),
        group=f"{data['mode']} {data['title']}",
        below=record["threshold"],
    )


def failure_carriers(run: RunFolder) -> Iterator[Forest]:
    """Heads named on the discovery half of the pairs of failures, with their verdicts on the confirmation half.

    Yields nothing for a run that is not about failures.
    """
    traced = run.document("141")
    if traced is None:
        return
    rows = [
        EstimateMark(one.head, one.estimate, one.low, one.high, VERDICTS.get(one.verdict or ""), f"{one.half} half")
        for one in run_folder.carriers_of(run)
    ]
    group, level = traced["group"], float(traced["subject"]["settings"]["difference"]["level"])
    yield Forest(
        name="failure_carriers",
        title="Heads that carry the difference between failing and passing prompts",
        caption=f"Share of the difference that the head's passing output restores in the failing prompt, with its "
        f"{level:.0%} interval, simultaneous over all heads (discovery) or "
        f"the named ones (confirmation); {group['pairs']} pairs of {group['suite']}. Results 141 and 142.",
        x_label="share restored",
        rows=tuple(rows),
        lines={"0": 0.0},
        level=level,
    )
