"""C30: how much does faithfulness move when the prompts are drawn again?

C11 and C16 test-retest measure the same variation at another sample size, so the three count as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, PublishedVerdict, Record, judge
from calibrations.statistics import (
    Insufficient,
    Ratio,
    bootstrap_ratio_errors,
    bootstrap_ratios,
    c30_label,
    percentile_interval,
    ratio_of_means,
    threshold_p,
)
from calibrations.statistics.moments import coefficient_of_variation, cv_interval

ID = "C30"
NUMBER = "30"
NAME = "seed_variance"
TITLE = "seed variance"
INPUTS = ("01", "19", "20")
NODES = (
    "Counted in full: faithfulness on every draw is that of the circuit as claimed, its MLPs and positions included."
)

VERDICT_OF: Mapping[str, PublishedVerdict] = {
    "excellent": "pass",
    "acceptable": "pass",
    "marginal": "none",
    "problematic": "fail",
}


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C30.seed_variance: coefficient of variation of faithfulness over samples of a third of the prompts.

    Published: SD / |mean| (ddof 0) over five seeded samples of the evaluation size, each drawn without replacement from a pool
    of fresh prompts (measurement 19) three times that size; below 0.10 acceptable, above 0.20 problematic, unnamed between.
    Verdict: bootstrap interval of the CV over independent samples of a third of the prompts,
    SE(theta) sqrt(pool / size) / |theta|; pass if the upper bound is below 0.10, fail if the lower bound is above 0.20.
    """
    rule = f"CV over {len(config['seeds'])} seeds below {config['acceptable_below']}"
    return [
        judge(
            "C30.seed_variance",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, seeds=len(config["seeds"])),
        )
    ]


def subsample_size(evidence: Evidence, config: Mapping[str, Any]) -> int:
    """A third of the pool, so the pool holds at least three samples."""
    return len(evidence.clean) // config["pool_factor"]


def thetas_by_seed(evidence: Evidence, config: Mapping[str, Any]) -> list[float]:
    """Faithfulness on each seeded third of the prompts at hand. Raises Insufficient("n_prompts") if one would be empty."""
    size, pool = subsample_size(evidence, config), len(evidence.clean)
    if size < 1:
        raise Insufficient("n_prompts", f"{pool} prompts cannot hold {config['pool_factor']} samples")
    intact = evidence.ablated("circuit")
    chosen = [np.random.default_rng(seed).choice(pool, size, replace=False) for seed in config["seeds"]]
    return [ratio_of_means(intact[rows], evidence.clean[rows]).value for rows in chosen]


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    pool = evidence.fresh("pool")
    chosen = [np.random.default_rng(seed).choice(len(pool.clean), pool.size, replace=False) for seed in config["seeds"]]
    cv = coefficient_of_variation([ratio_of_means(pool.circuit[r], pool.clean[r]).value for r in chosen], ddof=0)
    label = c30_label(
        cv,
        excellent=config["excellent_below"],
        acceptable=config["acceptable_below"],
        problematic=config["problematic_above"],
    )
    return Published(cv, rule, VERDICT_OF[label], label)


def sample_cv_draws(evidence: Evidence, config: Mapping[str, Any], ratio: Ratio, size: int) -> tuple[float, np.ndarray]:
    """CV of faithfulness over independent samples of `size` prompts, and its bootstrap draws.

    SE(theta) sqrt(P / size) / |theta|, with both recomputed in every resample of the clusters.
    """
    scale = math.sqrt(len(evidence.clean) / size)
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples_p"])
    intact = evidence.ablated("circuit")
    errors = bootstrap_ratio_errors(counts, intact, evidence.clean, evidence.clusters)
    thetas = np.abs(bootstrap_ratios(counts, intact, evidence.clean))
    draws = scale * np.divide(errors, thetas, out=np.full(len(counts), np.nan), where=thetas > 0)
    return scale * ratio.standard_error / abs(ratio.value), draws


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["pool_factor"] * config["minimum_subsample"])
    ratio = preconditions.faithfulness(evidence, config)
    if abs(ratio.value) < config["min_theta_t"] * ratio.standard_error:
        raise Insufficient("ratio_undefined", f"faithfulness {ratio.value:.3f} is near 0 for its standard error")
    preconditions.require_faithful(evidence, config)
    size = subsample_size(evidence, config)
    cv, draws = sample_cv_draws(evidence, config, ratio, size)
    ci90, limit = percentile_interval(draws, 0.90), config["acceptable_below"]
    verdict = "pass" if ci90[1] < limit else "fail" if ci90[0] > config["problematic_above"] else "inconclusive"
    needed = math.ceil(len(evidence.clean) * (ci90[1] / limit) ** 2)
    return {
        "verdict": verdict,
        "estimate": cv,
        "ci90": ci90,
        "ci95": percentile_interval(draws, 0.95),
        "ci_method": "percentile bootstrap over clusters",
        "p": threshold_p(draws, limit, "less"),
        "p_kind": "bootstrap",
        "effect_size": cv,
        "reasons": () if verdict == "pass" else (f"CV {cv:.3f}, 90 % interval {ci90[0]:.3f} to {ci90[1]:.3f}",),
        "needs": None if verdict == "pass" else f"about {needed} prompts",
        "companions": _companions(evidence, config, ratio, size),
    }


def _companions(evidence: Evidence, config: Mapping[str, Any], ratio: Ratio, size: int) -> dict[str, Any]:
    thetas, fraction = thetas_by_seed(evidence, config), size / len(evidence.clean)
    corrected = coefficient_of_variation(thetas, ddof=1, pool_fraction=fraction)
    return {
        "faithfulness": ratio.value,
        "faithfulness_by_seed": dict(zip(map(str, config["seeds"]), thetas, strict=True)),
        "prompts_per_sample": size,
        "cv_ddof1": coefficient_of_variation(thetas, ddof=1),
        "cv_corrected_for_shared_pool": corrected,
        "cv_corrected_chi2_90": cv_interval(corrected, len(thetas) - 1, 0.90),
        "cv_of_whole_pool": ratio.standard_error / abs(ratio.value),
    }
