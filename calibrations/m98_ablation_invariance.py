"""M98: does faithfulness depend on how the other heads are ablated (zero, mean, resample)?

E1b asks the same of zero, mean and noise (`calibrations.e1b_method_invariance`): one criterion with four
methods. In the companions, each role is knocked out of the model as a group. A backup that is active only while the role is
silent stands in for it under zero ablation, but not under a recipe that leaves the role a typical output. This does not
affect the verdict, since the same heads under other role labels would give another result. P.completeness asks without labels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, Verdict, decide_below, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    bootstrap_ratios,
    divergence,
    or_reason,
    percentile_interval,
    ratio_of_means,
    reportable_ratio,
    simultaneous_intervals,
    threshold_p,
)

ID = "M98"
NUMBER = "98"
NAME = "ablation_invariance"
TITLE = "ablation invariance"
INPUTS = ("01", "20")
NODES = (
    "Counted in full: recipes are compared on the circuit as claimed, and a role goes with its MLPs, at its positions."
)

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
            lambda: _published(evidence, config, rule),
            lambda: decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, methods=len(config["methods"])),
        )
    ]


def published_divergence(evidence: Evidence, config: Mapping[str, Any]) -> float:
    """max - min of theta over the methods, each a ratio of means. Raises Insufficient("not_run") if a method is missing,
    with the divergence of the others."""
    return divergence({method: _theta(evidence, method) for method in config["methods"]})


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    value = published_divergence(evidence, config)
    return Published(value, rule, "pass" if value < config["max_divergence"] else "fail")


def _theta(evidence: Evidence, method: str) -> float | None:
    try:
        return ratio_of_means(evidence.ablated("circuit", method), evidence.clean).value
    except Insufficient as missing:
        if missing.reason != "not_run":
            raise
        return None


def decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict of M98 and E1b: equivalence of every two methods of `config`, on shared resamples."""
    methods, margin = config["methods"], config["max_divergence"]
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    published_divergence(evidence, config)  # refuses a missing method
    for method, minimum in config["minimum_draws"].items():
        if (found := len(evidence.draws("circuit", method))) < minimum:
            raise Insufficient("not_run", f"{found} draws of {method}", needs=f"{minimum} draws of {method}")
    preconditions.require_faithful(evidence, config)
    pairs = _pairs(evidence, config, methods)
    verdict = _verdict([pair["ci90"] for pair in pairs.values()], margin)
    name, widest = max(pairs.items(), key=lambda item: (abs(item[1]["difference"]), item[0]))
    sign = math.copysign(1.0, widest["difference"])
    outside = [pair for pair, found in pairs.items() if not _inside(found["ci90"], margin)]
    return {
        "verdict": verdict,
        "estimate": sign * widest["difference"],
        "ci90": _oriented(widest["together"]["ci90"], sign),
        "ci95": _oriented(widest["together"]["ci95"], sign),
        "ci_method": f"paired bootstrap over clusters, {name}, simultaneous over pairs (each is judged by its own)",
        "p": max(pair["p"] for pair in pairs.values()),
        "p_kind": "bootstrap (two one-sided tests of each pair of methods)",
        "effect_size": sign * widest["difference"],
        "reasons": tuple(f"{pair}: {_words(pairs[pair]['ci90'])}" for pair in outside),
        "needs": _needs(pairs, len(evidence.clean), config) if verdict == "inconclusive" else None,
        "companions": {
            **_companions(evidence, config, pairs),
            "knockouts": or_reason(lambda: backups(evidence, config)) if "knockout_methods" in config else None,
        },
    }


def _oriented(interval: Interval, sign: float) -> Interval:
    return interval if sign > 0 else (-interval[1], -interval[0])


def _words(interval: Interval) -> str:
    return f"difference {interval[0]:.3f} to {interval[1]:.3f}"


def _inside(interval: Interval, margin: float) -> bool:
    return -margin < interval[0] and interval[1] < margin


def _verdict(intervals: list[Interval], margin: float) -> Verdict:
    if all(_inside(interval, margin) for interval in intervals):
        return "pass"
    outside = any(low > margin or high < -margin for low, high in intervals)
    return "fail" if outside else "inconclusive"


def _pairs(evidence: Evidence, config: Mapping[str, Any], methods: Any) -> dict[str, dict[str, Any]]:
    """Difference of faithfulness of every two methods: estimate, intervals, p of both one-sided tests.

    `ci90` is pointwise and decides the pair's two tests; `together` is simultaneous over all pairs, as the largest needs.
    """
    intact = np.stack([evidence.ablated("circuit", method) for method in methods])
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples_p"])
    draws, margin = bootstrap_ratios(counts, intact, evidence.clean), config["max_divergence"]
    thetas = intact.sum(axis=1) / evidence.clean.sum()
    places = list(itertools.combinations(range(len(methods)), 2))
    estimates = np.array([thetas[i] - thetas[j] for i, j in places])
    differences = np.stack([draws[:, i] - draws[:, j] for i, j in places], axis=1)
    together = {level: simultaneous_intervals(estimates, differences, level) for level in (0.90, 0.95)}
    return {
        f"{methods[i]} - {methods[j]}": {
            "difference": float(estimates[place]),
            "ci90": percentile_interval(difference, 0.90),
            "together": {"ci90": together[0.90][place], "ci95": together[0.95][place]},
            "p": max(threshold_p(difference, -margin, "greater"), threshold_p(difference, margin, "less")),
            "standard_error": float(np.nanstd(difference)),
        }
        for place, ((i, j), difference) in enumerate(zip(places, differences.T, strict=True))
    }


def _needs(pairs: Mapping[str, Any], n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which all one-sided tests would have the target power at the observed differences."""
    rooms = [(config["max_divergence"] - abs(pair["difference"]), pair["standard_error"]) for pair in pairs.values()]
    if min(room for room, _ in rooms) <= 0:
        return None
    beta = (1 - config["target_power"]) / 2  # either side may miss
    z = scipy.stats.norm.ppf(1 - config["alpha"]) + scipy.stats.norm.ppf(1 - beta)
    return f"about {math.ceil(n_prompts * (z * max(error / room for room, error in rooms)) ** 2)} prompts"


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
    """SD of faithfulness over the draws of one method, that is its Monte Carlo noise."""
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
    """Friedman test of the linearised scores over methods: do they differ at all, however little?"""
    scores = [ratio_of_means(evidence.ablated("circuit", method), evidence.clean).scores for method in methods]
    if all(np.array_equal(scores[0], other) for other in scores[1:]):
        return {"insufficient": "zero_variance: the methods agree exactly"}
    test = scipy.stats.friedmanchisquare(*scores)
    return {"chi2": float(test.statistic), "p": float(test.pvalue)}


# --- group knock-outs ----------------------------------------------------------------------------------


def backups(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Whether something outside a role stands in for it: one table row per role, with its verdict.

    kept[method] = sum LD(model without the role) / sum D, clipped to [0, 1] for differences, since below 0 the answer is
    reversed and above 1 it is exaggerated. `excess` is the smallest of kept under zero minus kept under another of
    `knockout_methods`. fail: the 90 % interval of every difference lies above the margin (intersection-union). pass: one
    difference lies below it, with Bonferroni over the methods, because a bootstrap of the smallest of equal differences is
    biased (it passed such ties in 15 % of cases). `excess_90` has the two bounds. Only a positive excess indicates a backup:
    zero may keep less than a mean because it removes a constant. Means by position are left out, since they reveal the
    position of the repeated name. Raises Insufficient("not_run") without the knock-outs.
    """
    methods, margin = config["knockout_methods"], config["max_divergence"]
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples_p"])
    table: dict[str, dict[str, Any]] = {}
    for role in sorted(evidence.circuit["roles"]):
        left = np.stack([evidence.ablated(f"without:{role}", method) for method in methods])
        draws = _differences(bootstrap_ratios(counts, left, evidence.clean))
        kept = left.sum(axis=1) / evidence.clean.sum()
        bounds = _bounds(draws, config["alpha"])
        table[role] = {
            **{method: float(share) for method, share in zip(methods, kept, strict=True)},
            "excess": float(_differences(kept).min()),
            "excess_90": bounds,
            "standard_error": float(np.nanstd(draws, axis=0).max()),
            "p": min(1.0, draws.shape[1] * min(threshold_p(own, margin, "less") for own in draws.T)),
            "verdict": decide_below(bounds, margin),
        }
    return table


def _differences(kept: Float[np.ndarray, "... method"]) -> Float[np.ndarray, "... other"]:
    """Kept under the first method minus kept under each other method, both clipped to [0, 1]."""
    share = np.clip(kept, 0.0, 1.0)
    return share[..., :1] - share[..., 1:]


def _bounds(draws: Float[np.ndarray, "resample other"], alpha: float) -> Interval:
    """Lower and upper bound, each at one-sided level `alpha`, of the smallest true difference."""
    low = min(percentile_interval(own, 1 - 2 * alpha)[0] for own in draws.T)
    high = min(percentile_interval(own, 1 - 2 * alpha / draws.shape[1])[1] for own in draws.T)
    return low, high
