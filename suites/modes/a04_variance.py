"""A4: repeated runs of one prompt disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import results_io
from suites import schema
from suites.estimate import Estimate, missing
from suites.item import Suite
from suites.modes import rates
from suites.normalise import normalise
from suites.outcome import Case, Detection
from suites.statistics import agreement, bootstrap

ID = "A4"
NAME = "variance"
TITLE = "High variance across runs"
TIER = "verified"
TRACEABLE = "no"
TRACE_NOTE = "A property of a distribution: at temperature 0 there is nothing to patch."
PARAMETERS = schema.object_of(
    ["leg"],
    threshold={"type": "number", "minimum": 0, "maximum": 1, "description": "least mode consistency that passes (0.8)"},
    leg=schema.text("the name of the leg whose samples are compared: above temperature 0, 3 samples or more"),
    numeric=schema.flag("numbers are equal in any written form"),
)
THRESHOLD = 0.8  # least mode consistency that passes: four of five outputs agree


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if mode consistency max_k count_k / n over the outputs of the leg is below the threshold; n < 3 is insufficient.

    Outputs of other legs are ignored, since those at temperature 0 show no variance. A case without outputs of the leg (the model
    cannot sample) is not applicable.
    """
    if all(outcome.finish == "error" for outcome in case.outcomes):
        return rates.unjudged("error", "every call failed, or none took place", "verified")
    samples = [outcome for outcome in case.outcomes if outcome.leg == parameters["leg"]]
    if not samples:
        reason = f"no output of the leg {parameters['leg']!r}, whose samples are compared"
        return rates.unjudged("not_applicable", reason, "verified")
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
    """Failure rate, and mean mode consistency (bootstrap over items)."""
    shares = [seen.detail["mode_consistency"] for _, seen in judged if "mode_consistency" in seen.detail]
    mean = missing("insufficient_data", "no item with three runs", "share")
    if shares:
        mean = replace(bootstrap.mean(shares, seed=0), excluded=rates.excluded(judged))
    return {"failure_rate": rates.failure_rate(judged), "mode_consistency": mean}


def check(suite: Suite) -> None:
    """UserError unless `leg` samples three or more outputs at a temperature above 0."""
    sampling = [leg.name for leg in suite.legs if leg.temperature != 0 and leg.samples >= agreement.MINIMUM_OUTPUTS]
    name = suite.parameters.get("leg")
    if name not in sampling:
        known = ", ".join(sampling) or "none; declare one"
        raise results_io.UserError(
            f"{suite.id}: parameters.leg is {name!r}; expected a leg with {agreement.MINIMUM_OUTPUTS} or more samples at a "
            f"temperature above 0; those are: {known}"
        )
