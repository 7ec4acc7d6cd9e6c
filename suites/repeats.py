"""Estimates from the outputs that failure modes do not judge: repeats of a leg, and legs after the first.

A mode of a single output judges the first one only. Here outputs sampled at a temperature give the chance that one of k, or all
k, pass (pass@k, pass^k). Outputs at temperature 0 show whether they are the same each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from suites.estimate import Estimate, missing
from suites.item import SamplingLeg
from suites.judgement import JudgedSuite
from suites.outcome import Case, Outcome
from suites.statistics import agreement, bootstrap, passing

SEED = 0  # of the bootstrap over clusters
ATTEMPTS = (1, 5, 10)  # k of pass@k and pass^k up to a leg's number of samples, which is a k as well


def estimates(judged: JudgedSuite) -> dict[str, Estimate]:
    """All estimates of this file for one suite, by name; empty if the suite does not apply.

    `pass_at_k[leg=...,k=...]` and `pass_hat_k[...]` of sampled outputs, `determinism[leg=...]` of repeats at temperature 0, and
    `pairwise_agreement[leg=...]` of either kind from three samples on. k is 1 (the accuracy of one draw), 5, 10 and all of a
    leg's samples. Samples at temperature 0 are a single draw, so pass@k is undefined there. Left out: a first leg with one
    sample, since the mode judges it, and a leg that the model cannot do.
    """
    found: dict[str, Estimate] = {}
    if not judged.applies:
        return found
    cases = [case for case, _ in judged.cases]
    for place, leg in enumerate(judged.suite.legs):
        if leg.name in judged.dropped_legs or (place == 0 and leg.samples == 1):
            continue
        if leg.temperature == 0 and leg.samples > 1:
            outputs = [[one.text if one.error is None else None for one in _of_leg(case, leg)] for case in cases]
            same = agreement.determinism(list(zip(*outputs, strict=True)), [case.cluster for case in cases])
            found[f"determinism[leg={leg.name}]"] = same
            reason = f"one draw: the {leg.samples} samples were taken at temperature 0"
            name, unit = f"pass_at_k[leg={leg.name},k={leg.samples}]", f"share at k = {leg.samples}"
            found[name] = missing("undefined", reason, unit, len(cases), detail={"temperature": 0.0})
        else:
            found |= _passing(cases, leg)
        if leg.samples >= agreement.MINIMUM_OUTPUTS:
            found[f"pairwise_agreement[leg={leg.name}]"] = _agreeing(cases, leg)
    return found


def _agreeing(cases: Sequence[Case], leg: SamplingLeg) -> Estimate:
    """Mean over items of the share of equal pairs among an item's normalised outputs, with a bootstrap over clusters.

    An item with fewer than three outputs that are no error is excluded. Under 20 clusters there is no interval.
    """
    per_item = [
        (case.cluster, agreement.pairwise_agreement([None if one.error else one.text for one in _of_leg(case, leg)]))
        for case in cases
    ]
    kept = [(cluster, one.number) for cluster, one in per_item if one.status == "ok"]
    lost = len(per_item) - len(kept)
    excluded = {"fewer than three outputs": lost} if lost else {}
    unit = "share of pairs"
    if not kept:
        return missing("insufficient_data", "no item has three outputs that are no error", unit, excluded=excluded)
    values, clusters = [value for _, value in kept], [cluster for cluster, _ in kept]
    if len(set(clusters)) < bootstrap.MINIMUM_CLUSTERS:
        return Estimate(sum(values) / len(values), unit, len(values), excluded=excluded)
    mean = bootstrap.mean(values, clusters, seed=SEED, unit=unit)
    return replace(mean, n=len(values), excluded=excluded)


def _passing(cases: Sequence[Case], leg: SamplingLeg) -> dict[str, Estimate]:
    """pass@1, and pass@k and pass^k for 5, 10 and all samples, over the items that have a verdict on every sample.

    `detail` has the temperature, since pass@k holds for that temperature alone.
    """
    outputs = [(case.cluster, _of_leg(case, leg)) for case in cases]
    kept = [(cluster, own) for cluster, own in outputs if all(one.correct is not None for one in own)]
    attempts = [(len(own), sum(bool(one.correct) for one in own)) for _, own in kept]
    unjudged = [own for _, own in outputs if any(one.correct is None for one in own)]
    why = Counter("error" if any(one.error is not None for one in own) else "not scored" for own in unjudged)
    excluded = dict(sorted(why.items()))
    names = [("pass_at_k", passing.pass_at_k, 1)]
    for k in sorted({leg.samples, *(k for k in ATTEMPTS if k <= leg.samples)} - {1}):
        names += [("pass_at_k", passing.pass_at_k, k), ("pass_hat_k", passing.pass_hat_k, k)]
    found = {}
    for name, function, k in names:
        if kept:
            estimate = function(attempts, k, seed=SEED, clusters=[cluster for cluster, _ in kept])
        else:
            status = "insufficient_data" if "error" in excluded else "not_applicable"
            reason = "the suite's scorer has a verdict on every sample of no item"
            estimate = missing(status, reason, f"share at k = {k}")
        detail = {**estimate.detail, "temperature": leg.temperature}
        found[f"{name}[leg={leg.name},k={k}]"] = replace(estimate, excluded=excluded, detail=detail)
    return found


def _of_leg(case: Case, leg: SamplingLeg) -> list[Outcome]:
    return [one for one in case.outcomes if one.leg == leg.name]
