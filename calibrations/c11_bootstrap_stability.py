"""C11: is faithfulness (completeness) precise enough to be quoted?

It measures precision only: the faithfulness of random heads can be as precise as that of a good circuit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, decide_below, judge
from calibrations.statistics import (
    Ratio,
    bootstrap_counts,
    bootstrap_ratios,
    clustered_mean,
    mean_of_ratios,
    or_reason,
    percentile_interval,
    ratio_of_means,
    reportable_ratio,
)
from calibrations.statistics.moments import sd_bounds

ID = "C11"
NUMBER = "11"
NAME = "bootstrap_stability"
TITLE = "bootstrap stability"
INPUTS = ("01", "20")
NODES = "Counted in full: what is bootstrapped is of the circuit as claimed, its MLPs and positions included."

NO_SPREAD = 1e-12  # a standard error below this is rounding


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C11.bootstrap_faithfulness and C11.bootstrap_completeness: standard deviation over resampled prompts.

    Published: percentile interval and sigma (ddof 0) of theta over 1000 resamples of the prompts; sigma <=
    0.1. Verdict: chi-square bounds of the linearised standard error of theta = sum F / sum D, below 0.1. Clusters are
    drawn within their templates, which are fixed by design. The degrees of freedom are the effective ones of the clusters
    (`clustered_mean`).
    """
    rule = f"standard deviation over {config['bootstrap_resamples']} resamples at most {config['max_sigma']}"
    return [
        judge(
            f"C11.bootstrap_{inner}",
            lambda inner=inner: _published(numerator_of(evidence, inner), evidence.clean, config, rule),
            lambda inner=inner: _decide(evidence, config, inner),
            rule=rule,
            n=preconditions.sizes(evidence),
        )
        for inner in ("faithfulness", "completeness")
    ]


def numerator_of(evidence: Evidence, inner: str, method: str = "mean") -> np.ndarray:
    """F of faithfulness; D - G of completeness = 1 - sum G / sum D."""
    if inner == "faithfulness":
        return evidence.ablated("circuit", method)
    return evidence.clean - evidence.ablated("complement", method)


def _published(numerator: np.ndarray, clean: np.ndarray, config: Mapping[str, Any], rule: str) -> Published:
    theta = ratio_of_means(numerator, clean).value
    counts = bootstrap_counts(len(clean), config["bootstrap_resamples"], seed=config["bootstrap_seed"])
    draws = bootstrap_ratios(counts, numerator, clean)
    low, high = percentile_interval(draws, 0.95)
    sigma = float(np.nanstd(draws))  # ddof 0: spread of the resamples themselves
    label = f"sigma {sigma:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    return Published(theta, rule, "pass" if sigma <= config["max_sigma"] else "fail", label)


def _decide(evidence: Evidence, config: Mapping[str, Any], inner: str) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    preconditions.require_faithful(evidence, config)
    numerator = numerator_of(evidence, inner)
    ratio = reportable_ratio(numerator, evidence.clean, evidence.clusters, config["min_denominator_t"])
    sigma, freedom = _standard_error(ratio, evidence)
    limit = config["max_sigma"]
    ci90 = sd_bounds(sigma, freedom, 0.90)
    verdict = decide_below(ci90, limit)
    needed = prompts_needed(len(evidence.clean), sigma, config)
    flat = sigma <= NO_SPREAD
    return {
        "verdict": verdict,
        "estimate": sigma,
        "ci90": ci90,
        "ci95": sd_bounds(sigma, freedom, 0.95),
        "ci_method": "chi-square of the linearised standard error over clusters within templates",
        # "sigma >= limit" is rejected by a small chi-square: df (sigma / limit)^2.
        "p": None if flat else max(float(scipy.stats.chi2.cdf(freedom * (sigma / limit) ** 2, freedom)), 1e-300),
        "p_kind": None if flat else "chi2",
        "effect_size": ratio.score_sd,
        "reasons": () if verdict == "pass" else (f"sigma {sigma:.3f}, 90 % bounds {ci90[0]:.3f} to {ci90[1]:.3f}",),
        "notes": ("zero_variance: the logit differences are exactly proportional",) if flat else (),
        "needs": None if verdict == "pass" else f"about {needed} prompts",
        "companions": {**_companions(evidence, config, inner, ratio, sigma), "degrees_of_freedom": freedom},
    }


def _standard_error(ratio: Ratio, evidence: Evidence) -> tuple[float, float]:
    """Standard error of theta and its degrees of freedom; 0 if F and D are proportional in every template."""
    if np.ptp(ratio.scores) <= NO_SPREAD:
        return 0.0, float(ratio.degrees_of_freedom)
    found = clustered_mean(ratio.scores, evidence.clusters, evidence.templates)
    return found.standard_error, found.degrees_of_freedom


def prompts_needed(n_prompts: int, sigma: float, config: Mapping[str, Any]) -> int:
    """n* = n (sigma / limit)^2 with the sampling margin of the bound."""
    return math.ceil(config["needed_prompts_factor"] * n_prompts * (sigma / config["max_sigma"]) ** 2)


def _companions(
    evidence: Evidence, config: Mapping[str, Any], inner: str, ratio: Ratio, sigma: float
) -> dict[str, Any]:
    numerator, clean = numerator_of(evidence, inner), evidence.clean
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples"])
    draws = bootstrap_ratios(counts, numerator, clean)
    low, high = percentile_interval(draws, 0.95)
    return {
        inner: ratio.value,
        "percentile_95": (low, high),
        "fieller_95": ratio.fieller(0.95),
        "width_95": high - low,
        "width_over_estimate": (high - low) / abs(ratio.value) if ratio.value else None,
        "bootstrap_sigma_ddof0": float(np.nanstd(draws)),
        "linearised_standard_error": sigma,
        "with_templates_drawn_too": or_reason(lambda: ratio_of_means(numerator, clean, evidence.frames).standard_error),
        "sd_of_scores": ratio.score_sd,
        "prompts_for_sigma": prompts_needed(len(clean), sigma, config),
        "mean_of_ratios": or_reason(lambda: mean_of_ratios(numerator, clean)._asdict()),
        "normalised": or_reason(lambda: _normalised(evidence, config, inner)),
    }


def _normalised(evidence: Evidence, config: Mapping[str, Any], inner: str) -> dict[str, Any]:
    """(F - F_empty) / (D - F_empty): 0 is every head ablated. Completeness: 1 minus that of G."""
    floor = evidence.ablated("empty")
    gap = evidence.clean - floor
    top = evidence.ablated("circuit") - floor if inner == "faithfulness" else numerator_of(evidence, inner)
    ratio = reportable_ratio(top, gap, evidence.clusters, config["min_denominator_t"])
    return {"value": ratio.value, "fieller_95": ratio.fieller(0.95)}
