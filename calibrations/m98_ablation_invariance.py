"""M98: does faithfulness depend on how the other heads are ablated (zero, mean, resample)?

E1b asks the same of zero, mean and noise (`calibrations.e1b_method_invariance`): one criterion with four
methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    bootstrap_ratios,
    divergence,
    percentile_interval,
    ratio_of_means,
    reportable_ratio,
    threshold_p,
)

ID = "M98"
NUMBER = "98"
NAME = "ablation_invariance"
TITLE = "ablation invariance"
INPUTS = ("01", "20")

FOUR = ("zero", "mean", "resample", "noise")


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """M98.ablation_invariance: largest difference of faithfulness between ablation methods.

    Published: max - min of theta below 0.20. Verdict: every paired difference (F_a - F_b) / mean D has its 90
    % interval inside (-0.20, 0.20) (two one-sided tests, intersection-union); one wholly outside fails.
    """
    rule = f"largest difference below {config['max_divergence']}"
    return [
        judge(
            "M98.ablation_invariance",
            lambda: published_divergence(evidence, config, rule),
            lambda: decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, methods=len(config["methods"])),
        )
    ]


def published_divergence(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    """max - min of theta over the methods, each a ratio of means. A missing method raises not_run."""
    thetas = {method: _theta(evidence, method) for method in config["methods"]}
    value = divergence(thetas)
    return Published(value, rule, "pass" if value < config["max_divergence"] else "fail")


def _theta(evidence: Evidence, method: str) -> float | None:
    try:
        return ratio_of_means(evidence.ablated("circuit", method), evidence.clean).value
    except Insufficient as missing:
        if missing.reason != "not_run":
            raise
        return None


def decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """The sound half of M98 and E1b: equivalence of all methods of `config`, in pairs on shared resamples."""
    methods, margin = config["methods"], config["max_divergence"]
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    divergence({method: _theta(evidence, method) for method in methods})  # a missing method, with the rest shown
    for method, minimum in config["minimum_draws"].items():
        if (found := len(evidence.draws("circuit", method))) < minimum:
            raise Insufficient("not_run", f"{found} draws of {method}", needs=f"{minimum} draws of {method}")
    preconditions.require_faithful(evidence, config)
    pairs = _pairs(evidence, config, methods)
    verdict = _verdict([pair["ci90"] for pair in pairs.values()], margin)
    name, widest = max(pairs.items(), key=lambda item: (abs(item[1]["difference"]), item[0]))
    sign = math.copysign(1.0, widest["difference"])
    outside = [pair for pair, found in pairs.items() if not _inside(found["ci90"], margin)]
    knockouts = _knockouts(evidence, config)
    return {
        "verdict": verdict,
        "estimate": sign * widest["difference"],
        "ci90": _oriented(widest["ci90"], sign),
        "ci95": _oriented(widest["ci95"], sign),
        "ci_method": f"paired percentile bootstrap over clusters, {name}",
        "p": max(pair["p"] for pair in pairs.values()),
        "p_kind": "bootstrap (two one-sided tests)",
        "effect_size": sign * widest["difference"],
        "reasons": tuple(f"{pair}: {_words(pairs[pair]['ci90'])}" for pair in outside),
        "notes": _backup_notes(knockouts, config["knockout_methods"]),
        "needs": _needs(verdict, pairs, len(evidence.clean), config),
        "companions": {**_companions(evidence, config, pairs), "knockouts": knockouts},
    }


def _oriented(interval: Interval, sign: float) -> Interval:
    return interval if sign > 0 else (-interval[1], -interval[0])


def _words(interval: Interval) -> str:
    return f"difference {interval[0]:.3f} to {interval[1]:.3f}"


def _inside(interval: Interval, margin: float) -> bool:
    return -margin < interval[0] and interval[1] < margin


def _verdict(intervals: list[Interval], margin: float) -> str:
    if all(_inside(interval, margin) for interval in intervals):
        return "pass"
    outside = any(low > margin or high < -margin for low, high in intervals)
    return "fail" if outside else "inconclusive"


def _pairs(evidence: Evidence, config: Mapping[str, Any], methods: Any) -> dict[str, dict[str, Any]]:
    """Difference of faithfulness of every two methods: estimate, intervals, p of both one-sided tests."""
    intact = np.stack([evidence.ablated("circuit", method) for method in methods])
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples_p"])
    draws, margin = bootstrap_ratios(counts, intact, evidence.clean), config["max_divergence"]
    thetas = intact.sum(axis=1) / evidence.clean.sum()
    table = {}
    for i, j in itertools.combinations(range(len(methods)), 2):
        difference = draws[:, i] - draws[:, j]
        table[f"{methods[i]} - {methods[j]}"] = {
            "difference": float(thetas[i] - thetas[j]),
            "ci90": percentile_interval(difference, 0.90),
            "ci95": percentile_interval(difference, 0.95),
            "p": max(threshold_p(difference, -margin, "greater"), threshold_p(difference, margin, "less")),
            "standard_error": float(np.nanstd(difference)),
        }
    return table


def _backup_notes(knockouts: Mapping[str, Any], methods: Any) -> tuple[str, ...]:
    return tuple(
        f"knocking out {role} leaves "
        + " and ".join(f"{found[method]:.2f} under {method}" for method in methods)
        + ": a backup may have been left out"
        for role, found in knockouts.items()
        if found.get("differs")
    )


def _needs(verdict: str, pairs: Mapping[str, Any], n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which the two one-sided tests would have the target power at the differences seen."""
    room = [config["max_divergence"] - abs(pair["difference"]) for pair in pairs.values()]
    if verdict != "inconclusive" or min(room) <= 0:
        return None
    beta = (1 - config["target_power"]) / 2  # either side may miss
    z = stats.norm.ppf(1 - config["alpha"]) + stats.norm.ppf(1 - beta)
    share = max(pair["standard_error"] / space for pair, space in zip(pairs.values(), room, strict=True))
    return f"about {math.ceil(n_prompts * (z * share) ** 2)} prompts"


# --- companions ----------------------------------------------------------------------------------------


def _companions(evidence: Evidence, config: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    shown = [*config["methods"], *config["beside"]]
    every = preconditions.by_method(evidence, config)
    measured = [method for method in FOUR if "faithfulness" in every[method]]
    return {
        "by_method": {method: every[method] for method in shown},
        "spread_over_draws": {
            method: _draw_sd(evidence, method) for method in shown if method in config["minimum_draws"]
        },
        "pairs": dict(pairs),
        "all_pairs": _pairs(evidence, config, measured) if len(measured) == len(FOUR) else {},
        "normalised": _normalised(evidence, config),
        "friedman": _friedman(evidence, config["methods"]),
    }


def _draw_sd(evidence: Evidence, method: str) -> float:
    """SD of faithfulness over the draws of one method: its own noise."""
    return float((evidence.draws("circuit", method).sum(axis=1) / evidence.clean.sum()).std(ddof=1))


def _normalised(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """(F - F_empty) / (D - F_empty) per method: comparable even if a method destroys the model outright."""
    values: dict[str, Any] = {}
    try:
        for method in config["methods"]:
            floor = evidence.ablated("empty", method)
            top, gap = evidence.ablated("circuit", method) - floor, evidence.clean - floor
            values[method] = reportable_ratio(top, gap, evidence.clusters, config["min_denominator_t"]).value
    except Insufficient as missing:
        return {"insufficient": str(missing)}
    return {"by_method": values, "divergence": divergence(values)}


def _friedman(evidence: Evidence, methods: Any) -> dict[str, Any]:
    """Friedman test of the linearised scores over methods: whether they differ at all, however little."""
    scores = [ratio_of_means(evidence.ablated("circuit", method), evidence.clean).scores for method in methods]
    if all(np.array_equal(scores[0], other) for other in scores[1:]):
        return {"insufficient": "zero_variance: the methods agree exactly"}
    test = stats.friedmanchisquare(*scores)
    return {"chi2": float(test.statistic), "p": float(test.pvalue)}


def _knockouts(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Share of the logit difference left without each role, under zero and under mean ablation.

    A backup that wakes only when the role is silent keeps the behaviour under one and not under the other;
    single heads do not show it (spec section 7).
    """
    first, second = config["knockout_methods"]
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples"])
    table: dict[str, dict[str, Any]] = {}
    for role in sorted(evidence.circuit["roles"]):
        try:
            left = np.stack([evidence.ablated(f"without:{role}", method) for method in (first, second)])
            draws = bootstrap_ratios(counts, left, evidence.clean)
            low, high = percentile_interval(draws[:, 0] - draws[:, 1], 0.90)
        except Insufficient as missing:
            table[role] = {"insufficient": str(missing)}
            continue
        kept = left.sum(axis=1) / evidence.clean.sum()
        differs = bool(low > config["max_divergence"] or high < -config["max_divergence"])
        table[role] = {
            first: float(kept[0]),
            second: float(kept[1]),
            "difference_90": (low, high),
            "differs": differs,
        }
    return table
