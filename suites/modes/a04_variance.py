"""A4: repeated runs of one prompt disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import results_io
from suites.estimate import Estimate, missing
from suites.item import Suite
from suites.modes import rates
from suites.normalise import normalise
from suites.outcome import Case, Detection, Outcome
from suites.statistics import agreement, bootstrap

ID = "A4"
NAME = "variance"
TITLE = "High variance across runs"
TIER = "verified"
TRACEABLE = "no"
TRACE_NOTE = "A property of a distribution: at temperature 0 there is nothing to patch."
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "threshold": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "least mode consistency that passes (0.8)",
        },
        "leg": {
            "type": "string",
            "description": "the leg whose samples are compared, where a suite has several that sample",
        },
        "numeric": {"type": "boolean", "description": "numbers are equal in any written form"},
    },
}
THRESHOLD = 0.8  # spec A4
GREEDY = "greedy"  # the leg at temperature 0, by Leg's default name


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if mode consistency max_k count_k / n over the sampled outputs is below the threshold; n < 3 is insufficient.

    A case that was only run at temperature 0 is no measure of variance: not applicable, and `detail` says whether its outputs
    are identical. Source: spec A4, B1.
    """
    samples = sampled(case, parameters)
    if not samples:
        return _greedy(case)
    texts = [None if outcome.finish == "error" else outcome.text for outcome in samples]
    share = agreement.mode_consistency(texts, partial(normalise, numeric=parameters.get("numeric", False)))
    if share.value is None:
        kind = "error" if share.status == "error" else "insufficient_data"
        return rates.unjudged(kind, share.reason, "verified")
    detail = {"mode_consistency": share.value, **share.detail}
    if share.value >= parameters.get("threshold", THRESHOLD):
        return Detection(False, "verified", detail=detail)
    counts = ", ".join(
        f"{text!r} {count}" for text, count in sorted(share.detail["counts"].items(), key=lambda one: -one[1])[:3]
    )
    return Detection(True, "verified", subtype="disagreement", evidence=f"of {share.n} runs: {counts}", detail=detail)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, mean mode consistency (bootstrap over items), and the share of items identical at temperature 0 (B14)."""
    shares = [seen.detail["mode_consistency"] for _, seen in judged if "mode_consistency" in seen.detail]
    mean = missing("insufficient_data", "no item with three runs", "share")
    if shares:
        mean = replace(bootstrap.mean(shares, seed=0), excluded=rates.excluded(judged))
    same = [seen.detail["identical"] for _, seen in judged if "identical" in seen.detail]
    summary = {"failure_rate": rates.failure_rate(judged), "mode_consistency": mean}
    return summary | (
        {"determinism": rates.share(sum(same), len(same), "items repeated at temperature 0")} if same else {}
    )


def check(suite: Suite) -> None:
    """UserError unless one leg of the suite samples three or more outputs at a temperature above 0, and it is known which."""
    named = suite.parameters.get("leg")
    legs = [leg for leg in suite.legs if leg.temperature > 0 and leg.samples >= agreement.MINIMUM_OUTPUTS]
    if named is not None and named not in {leg.name for leg in suite.legs}:
        raise results_io.UserError(f"{suite.id}: parameters.leg is {named!r}; the suite has no leg of that name")
    if not legs or (named is None and len(legs) > 1):
        raise results_io.UserError(
            f"{suite.id}: {len(legs)} legs draw {agreement.MINIMUM_OUTPUTS} or more samples at a temperature above 0; "
            "expected one, or its name in parameters.leg"
        )


def sampled(case: Case, parameters: Mapping[str, Any]) -> list[Outcome]:
    """The outcomes that are compared: those of the declared leg, otherwise all that are not greedy."""
    leg = parameters.get("leg")
    return [one for one in case.outcomes if (one.leg == leg if leg is not None else one.leg != GREEDY)]


def _greedy(case: Case) -> Detection:
    texts = [outcome.text for outcome in case.outcomes if outcome.finish != "error"]
    if not texts:
        return rates.unjudged("error", "no output", "verified")
    detail = {"identical": len(set(texts)) == 1} if len(texts) > 1 else {}
    return rates.unjudged(
        "not_applicable", "only run at temperature 0, where variance says nothing", "verified", detail=detail
    )
