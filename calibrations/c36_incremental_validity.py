"""C36: is the circuit more faithful than the same number of heads with the largest output norm?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from calibrations import preconditions
from calibrations.claimed_nodes import ClaimedNode, names
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    bootstrap_ratios,
    c36_label,
    discrimination,
    hodges_lehmann,
    mcnemar,
    or_reason,
    percentile_interval,
    ratio_of_means,
    set_overlap,
    threshold_p,
    top_k_mask,
)

ID = "C36"
NUMBER = "36"
NAME = "incremental_validity"
TITLE = "incremental validity"
INPUTS = ("01", "02", "20", "26")
NODES = (
    "Counted in full: the baseline has as many heads and as many MLPs as the claim, the largest of each kind, all "
    "of them at all positions; membership among heads leaves MLPs out."
)

BASELINE = "top_k_norm"
HARDER = "top_k_attribution"
IDENTICAL = "the baseline is the circuit itself"


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C36.incremental_validity: delta = theta(circuit) - theta(top k heads by output norm).

    Published: delta above 0 adds value, above 0.1 substantial. Verdict: paired bootstrap interval of
    theta(circuit) - max(0, theta(baseline)) above 0: a harmful baseline counts as one without effect.
    The distance to 1 must shrink as well: a theta of 1.6 is larger than 1.0 but no better.
    """
    rule = f"delta above {config['adds_value_above']:g}"
    return [
        judge(
            "C36.incremental_validity",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, heads=len(evidence.circuit_heads)),
        )
    ]


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    delta = ratio_of_means(evidence.ablated("circuit") - evidence.ablated(BASELINE), evidence.clean).value
    limits = {"adds_value": config["adds_value_above"], "substantial": config["substantial_above"]}
    verdict = "pass" if delta > config["adds_value_above"] else "fail"
    return Published(delta, rule, verdict, c36_label(delta, **limits))


def _baseline_heads(evidence: Evidence, which: str) -> list[tuple[int, int]]:
    stored = evidence.data("20")["baselines"]
    if which not in stored:
        raise Insufficient("not_run", f"no baseline {which}")
    return [(layer, head) for layer, head in stored[which]]


def _baseline_nodes(evidence: Evidence, which: str) -> list[str]:
    """The nodes of a baseline by name: as many heads and as many MLPs as the claim has, each at all positions."""
    heads = _baseline_heads(evidence, which)
    stored: Mapping[str, Any] = evidence.data("20")["baselines"]
    return names({"heads": heads, **({"nodes": stored["nodes"][which]} if "nodes" in stored else {})})


def gains(circuit: Any, baseline: Any, floor: float) -> tuple[Any, Any]:
    """With b = max(floor, theta_b): the gain theta_c - b, and the gain in distance to 1, |1 - b| - |1 - theta_c|."""
    base = np.maximum(floor, baseline)
    return circuit - base, np.abs(1 - base) - np.abs(1 - circuit)


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    preconditions.require_faithful(evidence, config)
    identical = {node.name for node in evidence.claimed} == set(_baseline_nodes(evidence, BASELINE))
    floor, zero = config["baseline_floor"], config["adds_value_above"]
    thetas = [preconditions.faithfulness(evidence, config, subset).value for subset in ("circuit", BASELINE)]
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples_p"])
    intact = np.stack([evidence.ablated(subset) for subset in ("circuit", BASELINE)])
    resampled = bootstrap_ratios(counts, intact, evidence.clean)
    draws, closer = gains(resampled[:, 0], resampled[:, 1], floor)
    delta, _ = gains(thetas[0], thetas[1], floor)
    ci90, closer90 = percentile_interval(draws, 0.90), percentile_interval(closer, 0.90)
    verdict = "fail" if identical else decide_above(ci90, zero)
    if verdict == "pass" and closer90[0] <= zero:
        verdict = "inconclusive" if closer90[1] >= zero else "fail"
    return {
        "verdict": verdict,
        "estimate": float(delta),
        "ci90": ci90,
        "ci95": percentile_interval(draws, 0.95),
        "ci_method": "paired percentile bootstrap over clusters",
        "p": max(threshold_p(draws, zero), threshold_p(closer, zero)),
        "p_kind": "bootstrap",
        "effect_size": float(delta),
        "reasons": _reasons(verdict, identical, ci90, closer90, zero),
        "notes": _notes(ci90, config),
        "needs": _needs(verdict, float(delta), draws, len(evidence.clean), config),
        "against_baseline": {
            "value": thetas[0],
            "baseline": thetas[1],
            "ci95": percentile_interval(resampled[:, 0] - resampled[:, 1], 0.95),
        },
        "companions": _companions(evidence, config, thetas, closer90),
    }


def _reasons(verdict: str, identical: bool, ci90: Any, closer90: Any, zero: float) -> tuple[str, ...]:
    if verdict == "pass":
        return ()
    if identical:
        return (IDENTICAL,)
    if ci90[0] > zero:
        return (f"over_faithful: larger but not closer to 1 (gain {closer90[0]:.3f} to {closer90[1]:.3f})",)
    return (f"delta {ci90[0]:.3f} to {ci90[1]:.3f}",)


def _notes(ci90: Any, config: Mapping[str, Any]) -> tuple[str, ...]:
    limit = config["substantial_above"]
    return (f"substantial: the lower bound is above {limit}",) if ci90[0] > limit else ()


def _needs(verdict: str, delta: float, draws: np.ndarray, n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which this delta would be detected with the target power."""
    if verdict != "inconclusive" or delta <= 0:
        return None
    z = scipy.stats.norm.ppf(1 - config["alpha"]) + scipy.stats.norm.ppf(config["target_power"])
    return f"about {math.ceil(n_prompts * (z * np.nanstd(draws) / delta) ** 2)} prompts"


def _companions(evidence: Evidence, config: Mapping[str, Any], thetas: list[float], closer90: Any) -> dict[str, Any]:
    difference = evidence.ablated("circuit") - evidence.ablated(BASELINE)
    scores = ratio_of_means(difference, evidence.clean, evidence.clusters).scores
    sd = float(scores.std(ddof=1))
    whole = {ClaimedNode(*node.whole).name for node in evidence.claimed}
    shared = sorted(set(evidence.circuit_heads) & set(_baseline_heads(evidence, BASELINE)))
    optional = {
        "random_circuits_p": lambda: preconditions.random_circuits(evidence, config).p,
        "against_top_k_attribution": lambda: _against(evidence, HARDER),
        "mcnemar": lambda: _mcnemar(evidence),
        "membership_auroc": lambda: _membership(evidence),
        "baseline_jaccard": lambda: set_overlap(sorted(whole), _baseline_nodes(evidence, BASELINE)).jaccard,
    }
    return {
        "faithfulness": thetas[0],
        "baseline_faithfulness": thetas[1],
        "gain_in_distance_to_1_90": closer90,
        "paired_d": float(scores.mean()) / sd if sd > 0 else None,
        "hodges_lehmann": hodges_lehmann(scores),
        "shared_heads": [list(head) for head in shared],
        "baseline_selected_on": evidence.data("20")["baselines"].get("selected_on"),
        **{name: or_reason(value) for name, value in optional.items()},
    }


def _against(evidence: Evidence, subset: str) -> dict[str, Any]:
    """The same difference against another baseline, with its 90 % Fieller interval."""
    difference = evidence.ablated("circuit") - evidence.ablated(subset)
    ratio = ratio_of_means(difference, evidence.clean, evidence.clusters)
    return {
        "delta": ratio.value,
        "ci90": ratio.fieller(0.90),
        "heads": [list(head) for head in _baseline_heads(evidence, subset)],
    }


def _mcnemar(evidence: Evidence) -> dict[str, Any]:
    """Prompts that only one of the two answers correctly (logit difference above 0), with the exact binomial p."""
    ours, theirs = evidence.ablated("circuit") > 0, evidence.ablated(BASELINE) > 0
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    test = mcnemar(only_ours, only_theirs)
    return {"circuit_only": only_ours, "baseline_only": only_theirs, "p_exact": test.p_exact}


def _membership(evidence: Evidence) -> dict[str, Any]:
    """AUROC for the k heads of largest patching effect on the other split: by norm, and by membership with norm as tie-break."""
    other = evidence.on("held_out" if evidence.split == "evaluation" else "evaluation")
    effect = other.head_effect("02", "denoising").mean(axis=0)
    norm = evidence.head_score("26", "discovery_norm")
    important = top_k_mask(effect * evidence.expected_sign, int(evidence.in_circuit.sum()))
    rank = scipy.stats.rankdata(norm) / (len(norm) + 1)
    alone, together = (discrimination(important, x).auroc for x in (rank, evidence.in_circuit + rank))
    return {"norm": alone, "norm_and_membership": together, "gain": together - alone}
