"""Flips: cases that are wrong when changed, of those whose original is right. Shared by A9, A10 and A11."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from suites.estimate import Estimate, missing
from suites.item import Item
from suites.modes import rates
from suites.outcome import Case, Detection
from suites.statistics import paired

JudgedCases = rates.JudgedCases
CLUSTER_FLIPS = "sign flips of whole clusters"


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Failed: right on the original, wrong on this variant of it. Passed: right on both. Otherwise unjudged.

    Unjudged kinds: "not_applicable" (an original, or no scorer), "error" (either call failed), "wrong_when_clean".
    """
    if case.parent is None:
        return rates.unjudged("not_applicable", "an original: there is nothing to compare it with", "verified")
    for side in (case.parent, case):
        if (bad := rates.unusable(side, "verified")) is not None:
            return bad
    clean, changed = case.parent.first.correct, case.first.correct
    if clean is None or changed is None:
        return rates.unjudged("not_applicable", "the suite's scorer does not say which answer is right", "verified")
    detail = {"right_clean": clean, "right_changed": changed}
    if not clean:
        return rates.unjudged("wrong_when_clean", "wrong on the original already", "verified", detail=detail)
    if changed:
        return Detection(False, "verified", detail=detail)
    kind = case.item.variant.kind if case.item.variant else ""
    evidence = f"right without the change, then {case.first.text.strip()!r}"
    return Detection(True, "verified", subtype=kind, span=(0, len(case.first.text)), evidence=evidence, detail=detail)


def rated(item: Item) -> bool:
    """Whether the item is a variant; originals are only the comparison."""
    return item.variant is not None


def flip_rate(judged: JudgedCases) -> Estimate:
    """P(wrong on the variant | right on the original) with Wilson's interval; `n`: variants whose original is right."""
    estimate = rates.failure_rate(judged)
    repeats = Counter(case.item.variant.parent for case, _ in judged if case.item.variant)
    if estimate.status == "ok" and any(count > 1 for count in repeats.values()):
        note = "variants of one original count as independent in the interval"
        return replace(estimate, assumptions=(*estimate.assumptions, note))
    return estimate


def mcnemar(pairs: Sequence[tuple[bool, bool]], clusters: Sequence[str] | None = None) -> Estimate:
    """McNemar's test over pairs (right on the original, right on the variant).

    It is exact for independent pairs. If pairs share `clusters` [pair], p comes from sign flips of whole clusters
    (`paired.cluster_p`), and the exact p is `p_items` in `detail`.
    """
    if not pairs:
        return missing("insufficient_data", "no pair of an original and a variant with verdicts", "p")
    found = paired.mcnemar(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs))
    if clusters is None or len(set(clusters)) == len(clusters):
        return found
    p = paired.cluster_p([int(b) - int(a) for a, b in pairs], clusters)
    detail = {**found.detail, "p_items": found.p_value, "clusters": len(set(clusters))}
    return replace(
        found, value=p, p_value=p, test=CLUSTER_FLIPS, assumptions=("clusters are independent",), detail=detail
    )


def by_kind(judged: JudgedCases) -> dict[str, Estimate]:
    """Flip rate of each kind of change, if there are several."""
    kinds = sorted({case.item.variant.kind for case, _ in judged if case.item.variant})
    if len(kinds) < 2:
        return {}
    return {
        f"flip_rate_{kind}": flip_rate(
            [(case, seen) for case, seen in judged if case.item.variant and case.item.variant.kind == kind]
        )
        for kind in kinds
    }


def summarise(judged: JudgedCases, parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Flip rate (and its interval over clusters), McNemar's test, both accuracies, flip rates by kind of change."""
    compared = [(case, seen.detail) for case, seen in judged if "right_clean" in seen.detail]
    pairs = [(detail["right_clean"], detail["right_changed"]) for _, detail in compared]
    clusters = [case.cluster for case, _ in compared]
    return {
        "failure_rate": flip_rate(judged),
        **rates.over_clusters(judged),
        "mcnemar": mcnemar(pairs, clusters),
        "accuracy_clean": rates.share([clean for clean, _ in pairs], clusters, "pairs"),
        "accuracy_changed": rates.share([changed for _, changed in pairs], clusters, "pairs"),
        **by_kind(judged),
    }
