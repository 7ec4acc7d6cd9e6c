"""Rates over judged cases: how often a mode fails, with the excluded cases counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from statsmodels.stats.proportion import confint_proportions_2indep

import results_io
from suites.estimate import Estimate, Interval, Status, missing
from suites.item import Item
from suites.outcome import Case, Detection, Tier
from suites.statistics import bootstrap, paired, proportions

CANARY = {
    "type": ["string", "array"],
    "minLength": 1,
    "items": {"type": "string", "minLength": 1, "description": "a text that is not empty"},
    "description": "a text that is not empty, or a list of them",
}
JudgedCases = Sequence[tuple[Case, Detection]]
Unjudged = Literal["error", "not_applicable", "insufficient_data", "wrong_when_clean", "control", "unknown"]


def unjudged(kind: Unjudged, reason: str, tier: Tier, **rest) -> Detection:
    """A detection that is neither failed nor passed; it is counted under its subtype `kind`."""
    return Detection(None, tier, reason=reason, subtype=kind, **rest)


def unusable(case: Case, tier: Tier) -> Detection | None:
    """The detection of a case without a first output (the call failed or never took place); None if there is an output."""
    if not case.outcomes:
        return unjudged("error", "no output was recorded", tier)
    if case.first.finish == "error":
        return unjudged("error", case.first.error or "the call failed", tier)
    return None


def decided(judged: JudgedCases) -> list[Detection]:
    """The detections that are failed or passed."""
    return [seen for _, seen in judged if seen.failed is not None]


def excluded(judged: JudgedCases) -> dict[str, int]:
    """Number of cases that neither failed nor passed, by kind."""
    return dict(sorted(Counter(seen.subtype or "unknown" for _, seen in judged if seen.failed is None).items()))


def proportion(
    successes: int, n: int, reason: str, minimum: int = 1, left_out: Mapping[str, int] | None = None
) -> Estimate:
    """successes / n with Wilson's interval; insufficient if n < `minimum`. `reason` names what is counted."""
    if n < minimum:
        return missing(
            "insufficient_data", f"{n} {reason}; at least {minimum} are needed", "share", n, excluded=left_out or {}
        )
    return replace(proportions.wilson(successes, n), excluded=left_out or {})


def share(outcomes: Sequence[bool], clusters: Sequence[str], reason: str) -> Estimate:
    """Share of true `outcomes` [case], with an interval that allows for `clusters` [case] of dependent cases.

    Insufficient without any case. `reason` names what is counted.
    """
    if not outcomes:
        return proportion(0, 0, reason)
    return proportions.clustered(outcomes, clusters)


def failure_rate(judged: JudgedCases, what: str = "judged cases", minimum: int = 1) -> Estimate:
    """Failed / (failed + passed), with Wilson's interval. A failed call is never a failure; it is excluded and counted.

    Insufficient under `minimum` judged cases, which messages call `what`. Without any judged case: "error" if all calls failed,
    "not_applicable" if the mode applies to none of them, otherwise "insufficient_data".
    """
    verdicts = [bool(seen.failed) for seen in decided(judged)]
    left_out = excluded(judged)
    if verdicts:
        return proportion(sum(verdicts), len(verdicts), what, minimum, left_out)
    if not judged:
        return missing("insufficient_data", "no cases", "share")
    alone: Mapping[str, Status] = {"error": "error", "not_applicable": "not_applicable"}
    only = next(iter(left_out)) if len(left_out) == 1 else ""
    status: Status = alone.get(only, "insufficient_data")
    reasons = Counter(seen.reason for _, seen in judged)
    return missing(status, f"none of {len(judged)} cases: {reasons.most_common(1)[0][0]}", "share", excluded=left_out)


def clustered(rate: Estimate, judged: JudgedCases) -> Estimate:
    """A failure rate with an interval that allows for dependent cases, those of the same original or cluster.

    ValueError if the rate is over another number of cases than were judged.
    """
    if rate.status != "ok":
        return rate
    verdicts = [(bool(seen.failed), case.cluster) for case, seen in judged if seen.failed is not None]
    if len(verdicts) != rate.n:
        raise ValueError(f"a failure rate over {rate.n} cases, of which the mode judged {len(verdicts)}")
    honest = proportions.clustered([failed for failed, _ in verdicts], [cluster for _, cluster in verdicts])
    return replace(rate, ci=honest.ci, assumptions=honest.assumptions, detail={**rate.detail, **honest.detail})


def over_clusters(judged: JudgedCases) -> dict[str, Estimate]:
    """The failure rate with a bootstrap interval over clusters, if judged cases share clusters; else {}.

    Wilson's plain interval assumes independent cases and is then too narrow.
    """
    clusters = [case.cluster for case, seen in judged if seen.failed is not None]
    if len(set(clusters)) == len(clusters):
        return {}
    rate = bootstrap.mean([float(bool(seen.failed)) for seen in decided(judged)], clusters, seed=0)
    return {"failure_rate_over_clusters": replace(rate, excluded=excluded(judged))}


def subtypes(judged: JudgedCases) -> dict[str, Estimate]:
    """Share of the judged cases that failed, by subtype."""
    found = decided(judged)
    counts = Counter(seen.subtype for seen in found if seen.failed and seen.subtype)
    return {f"rate_{name}": proportion(count, len(found), "judged cases") for name, count in sorted(counts.items())}


def by_subtype(judged: JudgedCases, parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, and the share of each subtype of failure."""
    return {"failure_rate": failure_rate(judged), **subtypes(judged)}


def excess(
    successes: int, n: int, control: int, n_control: int, what: str, left_out: Mapping[str, int] | None = None
) -> Estimate:
    """successes/n - control/n_control with Newcombe's hybrid score interval for two independent proportions (Newcombe 1998, 10).

    Insufficient without cases on either side.
    """
    if not n or not n_control:
        reason = f"{n} {what}, {n_control} controls; both are needed"
        return missing("insufficient_data", reason, "share", n, excluded=left_out or {})
    low, high = confint_proportions_2indep(successes, n, control, n_control, method="newcomb")
    detail = {"successes": successes, "n": n, "control_successes": control, "control_n": n_control}
    interval = Interval(float(low), float(high), 0.95, "Newcombe hybrid score")
    value = successes / n - control / n_control
    note = "cases and controls count as independent in the interval"
    return Estimate(value, "share", n, interval, assumptions=(note,), excluded=left_out or {}, detail=detail)


def paired_excess(pairs: Sequence[tuple[bool, bool]], clusters: Sequence[str], what: str) -> Estimate:
    """Rate of the cases minus rate of the controls over `pairs` [pair] (control, case), which may share `clusters` [pair].

    Independent pairs: Tango's score interval and the exact McNemar p. Otherwise: percentile interval over whole clusters (none
    under 20) and p by sign flips of whole clusters; if no cluster changes, Tango's interval of as many pairs.
    Insufficient without a pair. `what` names what is counted.
    """
    if not pairs:
        return missing("insufficient_data", f"no {what} beside their controls", "share")
    if len(set(clusters)) == len(clusters):
        first, second = ({str(place): pair[side] for place, pair in enumerate(pairs)} for side in (0, 1))
        return paired.difference(paired.cells(first, second))
    changes = [int(case) - int(control) for control, case in pairs]
    found = bootstrap.mean(changes, clusters, seed=0, shares=False)
    if found.value is not None and not any(changes):
        found = replace(found, ci=paired.score_interval(paired.Cells(0, 0, 0, len(set(clusters)))))
    if found.value is None:
        found = Estimate(sum(changes) / len(changes), "share", len(set(clusters)), detail={"note": found.reason})
    p = paired.cluster_p(changes, clusters)
    return replace(found, p_value=p, test="sign flips of whole clusters")


def left_out(estimate: Estimate, counts: Mapping[str, int]) -> Estimate:
    """The estimate with further exclusions by reason; reasons with a count of 0 are omitted."""
    return replace(estimate, excluded={**estimate.excluded, **{why: count for why, count in counts.items() if count}})


def canaries(item: Item) -> tuple[str, ...]:
    """The texts (`expect.canary`, one or several) that no right output contains."""
    given = item.expect.get("canary", ())
    return (given,) if isinstance(given, str) else tuple(given)


def check_role(suite: str, item: Item, roles: Sequence[str]) -> None:
    """UserError unless the item's `expect.role` is one of the roles."""
    if item.expect.get("role") not in roles:
        expected = " or ".join(map(repr, roles))
        raise results_io.UserError(
            f"{suite}: {item.id}: expect.role is {item.expect.get('role')!r}; expected {expected}"
        )
