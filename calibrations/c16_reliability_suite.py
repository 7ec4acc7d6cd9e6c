"""C16: would the same measurement on other prompts give the same answer?

Reliability means that a profile can be measured, not that the circuit is right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

from calibrations import preconditions
from calibrations.c30_seed_variance import sample_cv_draws
from calibrations.evidence import Evidence
from calibrations.head_scores import mean_difference
from calibrations.record import Published, Record, Verdict, decide_above, decide_below, judge, worst_of
from calibrations.statistics import (
    Insufficient,
    SplitHalf,
    agreement_p,
    c16_split_half,
    covariance_of_means,
    cronbach_alpha,
    generalisability,
    generalisability_p,
    intraclass_correlation,
    mcdonald_omega,
    mean_inter_item_correlation,
    mean_of_ratios,
    or_reason,
    percentile_interval,
    ratio_of_means,
    split_half_profile,
    threshold_p,
)
from calibrations.statistics.moments import coefficient_of_variation

ID = "C16"
NUMBER = "16"
NAME = "reliability_suite"
TITLE = "reliability"
INPUTS = ("01", "02", "19", "20")
NODES = (
    "Faithfulness counts MLPs and positions; the reliability of single nodes is of heads at all positions, MLPs "
    "are left out of it."
)

EFFECT = ("02", "denoising")  # per-head activation patching effects


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C16.test_retest, C16.split_half and C16.cronbach_alpha.

    Published: 1 - CV of faithfulness over fresh prompts of three seeds; Spearman-Brown of even against odd prompts
    (its expectation is 0 whatever the circuit); Cronbach's alpha of the circuit's heads over prompts.
    Verdicts: upper bound of the bootstrap CV, and retest ICC(A,1) of the head profile or its standard error of measurement;
    head-level split-half; generalisability with heads as targets and prompts as raters. The head profile is the mean of both
    directions of patching: of heads that need each other, denoising one restores nothing; of heads that stand in for each
    other, noising one costs nothing.
    """
    parts = [
        ("test_retest", "1 - CV", config["test_retest_above"], _published_test_retest, _test_retest, True),
        ("split_half", "corrected r", config["split_half_above"], _published_split_half, _split_half, True),
        ("cronbach_alpha", "alpha", config["alpha_above"], _published_alpha, _alpha, False),
    ]
    return [
        _record(evidence, config, f"C16.{name}", f"{quantity} above {limit}", limit, published, decide, gating)
        for name, quantity, limit, published, decide, gating in parts
    ]


def _record(
    evidence: Evidence,
    config: Mapping[str, Any],
    metric: str,
    rule: str,
    limit: float,
    published: Callable[..., float],
    decide: Callable[..., dict[str, Any]],
    gating: bool,
) -> Record:
    def seed() -> Published:
        value = published(evidence, config)
        return Published(value, rule, "pass" if value > limit else "fail")

    def sound() -> dict[str, Any]:
        preconditions.require_behaviour(evidence, config)
        preconditions.require_prompts(evidence, config["minimum_prompts"])
        preconditions.require_faithful(evidence, config)
        return decide(evidence, config)

    n = preconditions.sizes(evidence, heads=len(evidence.circuit_heads))
    return judge(metric, seed, sound, rule=rule, gating=gating, n=n)


# --- test-retest ---------------------------------------------------------------------------------------


def batches(evidence: Evidence, config: Mapping[str, Any]) -> list[np.ndarray]:
    """Disjoint batches of prompts; each seed draws one from the prompts that the earlier seeds left.

    Raises Insufficient("n_prompts") if a batch would be empty, which must not count as a faithfulness of 0.
    """
    seeds, rest = config["batch_seeds"], np.arange(len(evidence.clean))
    size, chosen = len(rest) // len(seeds), []
    if size < 1:
        raise Insufficient("n_prompts", f"{len(rest)} prompts cannot fill {len(seeds)} batches")
    for seed in seeds:
        rows = np.sort(np.random.default_rng(seed).choice(rest, size, replace=False))
        chosen.append(rows)
        rest = np.setdiff1d(rest, rows)
    return chosen


def _published_test_retest(evidence: Evidence, config: Mapping[str, Any]) -> float:
    """Each seed draws its own prompts (measurement 19), as many as the evaluation split has."""
    drawn = [evidence.fresh(str(seed)) for seed in config["batch_seeds"]]
    return 1 - coefficient_of_variation([ratio_of_means(one.circuit, one.clean).value for one in drawn], ddof=0)


def head_profile(evidence: Evidence) -> Float[np.ndarray, "prompt head"]:
    """(denoising + noising)/2 of every head on every prompt, in units of the task's metric (02)."""
    return (evidence.head_effect(*EFFECT) + evidence.head_effect("02", "noising")) / 2


@dataclass(frozen=True)
class MeasurementError:
    """Standard error of measurement of the worst head, its 97.5 % upper bound, the error that ties, p of an error that large."""

    estimate: float
    upper: float
    limit: float
    p: float

    @property
    def negligible(self) -> bool:
        return self.upper < self.limit

    def or_agreement(self, verdict: Verdict, p: float) -> tuple[Verdict, float]:
        """Verdict and p of two ways: an agreement that has these, or an error that ties, which is tested at half the level."""
        return "pass" if self.negligible else verdict, min(p, 2 * self.p)

    @property
    def companions(self) -> dict[str, float]:
        """In units of the task's metric."""
        return {
            "error_of_measurement": self.estimate,
            "error_of_measurement_upper": self.upper,
            "error_that_ties": self.limit,
        }


def measurement_error(
    evidence: Evidence, config: Mapping[str, Any], effects: Float[np.ndarray, "prompt head"], size: int
) -> MeasurementError:
    """Standard error of measurement of the heads' mean effects over `size` prompts, against 1 % of mean D.

    SEM = max over heads of sqrt(Var(mean) P / size), with the cluster-robust variance of P prompts in G clusters. The bound is
    SEM sqrt(df / chi2_.025(df)) with df = G - 1. An agreement coefficient is low where targets hardly differ, however small
    the error is; the error says what such a profile is worth (Harvill 1991; Weir 2005).
    """
    covariance, freedom = covariance_of_means(effects, evidence.clusters)
    error = float(np.sqrt(np.diag(covariance).max() * len(effects) / size))
    limit = config["error_below"] * mean_difference(evidence, EFFECT[0])
    upper = error * float(np.sqrt(freedom / scipy.stats.chi2.ppf(0.025, freedom)))
    return MeasurementError(error, upper, limit, float(scipy.stats.chi2.cdf(freedom * (error / limit) ** 2, freedom)))


def _test_retest(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Upper bound of the batch CV below 1 - 0.8, and one of two: ICC of the profile above 0.8, or its error below 1 % of D.

    The second way is tried at half the level, so the two together err in at most 7.5 %.
    """
    preconditions.require_prompts(evidence, config["minimum_prompts_per_batch"] * len(config["batch_seeds"]))
    rows = batches(evidence, config)
    ratio = preconditions.faithfulness(evidence, config)
    cv, draws = sample_cv_draws(evidence, config, ratio, len(rows[0]))
    cv90, cv95 = percentile_interval(draws, 0.90), percentile_interval(draws, 0.95)
    effects = head_profile(evidence)
    profile = np.stack([effects[batch].mean(axis=0) for batch in rows], axis=1)
    icc = intraclass_correlation(profile, 0.90)["ICC(A,1)"]
    error = measurement_error(evidence, config, effects, len(rows[0]))
    limit = 1 - config["test_retest_above"]
    agreed, p = error.or_agreement(
        decide_above(icc.interval, config["icc_above"]), agreement_p(profile, config["icc_above"])
    )
    verdict = worst_of(decide_below(cv90, limit), agreed)
    retest = (
        f"CV {cv90[0]:.3f} to {cv90[1]:.3f}, ICC {icc.interval[0]:.3f} to {icc.interval[1]:.3f}, "
        f"error of a head up to {error.upper:.3f} where {error.limit:.3f} ties"
    )
    intact = evidence.ablated("circuit")
    thetas = [ratio_of_means(intact[batch], evidence.clean[batch]).value for batch in rows]
    return {
        "verdict": verdict,
        "estimate": 1 - cv,
        "ci90": (1 - cv90[1], 1 - cv90[0]),
        "ci95": (1 - cv95[1], 1 - cv95[0]),
        "ci_method": "percentile bootstrap over clusters",
        "p": max(threshold_p(draws, limit, "less"), p),
        "p_kind": "larger of bootstrap (CV) and F (ICC), the latter or chi2 (error) times 2 if that is smaller",
        "effect_size": icc.value,
        "reasons": () if verdict == "pass" else (retest,),
        "needs": None if verdict == "pass" else _more_prompts(cv90[1], limit, len(evidence.clean)),
        "companions": {
            "icc_agreement": icc.value,
            "icc_agreement_90": icc.interval,
            **error.companions,
            "faithfulness_by_batch": dict(zip(map(str, config["batch_seeds"]), thetas, strict=True)),
            "prompts_per_batch": len(rows[0]),
            "one_minus_cv_ddof1": 1 - coefficient_of_variation(thetas, ddof=1),
            "one_minus_cv_clipped": min(max(1 - coefficient_of_variation(thetas, ddof=0), 0.0), 1.0),
        },
    }


def _more_prompts(upper: float, limit: float, n_prompts: int) -> str | None:
    return f"about {int(np.ceil(n_prompts * (upper / limit) ** 2))} prompts" if upper > limit else None


# --- split-half ----------------------------------------------------------------------------------------


def _published_split_half(evidence: Evidence, config: Mapping[str, Any]) -> float:
    """Split-half of F_p / D_p: prompts 2i and 2i + 1 in canonical order are a pair."""
    if not evidence.clean.all():
        raise Insufficient("denominator", "a prompt has a clean logit difference of exactly 0")
    return c16_split_half(evidence.ablated("circuit") / evidence.clean)


def _split_half(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Correlation over heads of the mean effects in two random halves of the prompts, or their error below 1 % of D."""
    effects, limit = head_profile(evidence), config["split_half_above"]
    if effects.shape[1] < config["minimum_heads"]:
        raise Insufficient("n_heads", f"{effects.shape[1]} heads; at least {config['minimum_heads']} needed")
    everywhere = split_half_of_heads(evidence, config, effects)
    error = measurement_error(evidence, config, effects, len(effects) // 2)
    # Splits of one sample are not independent draws, so p comes from the F test of the same reliability.
    verdict, p = error.or_agreement(
        decide_above(everywhere.interval, limit), generalisability_p(effects, limit, evidence.clusters)
    )
    low, high = everywhere.interval
    raw = ratio_of_means(evidence.ablated("circuit"), evidence.clean).scores
    near_zero = or_reason(lambda: mean_of_ratios(evidence.ablated("circuit"), evidence.clean).near_zero_denominators)
    return {
        "verdict": verdict,
        "estimate": everywhere.median,
        "ci90": everywhere.interval,
        "ci95": percentile_interval(everywhere.draws, 0.95),
        "ci_method": "percentiles over random halves",
        "p": max(p, 1e-300),
        "p_kind": "F (generalisability), or chi2 (error) times 2 if that is smaller",
        "effect_size": everywhere.median,
        "reasons": () if verdict == "pass" else (f"head profile: {low:.3f} to {high:.3f}",),
        "needs": None if verdict == "pass" else "more prompts, or heads with larger effects",
        "companions": {
            "circuit_heads_only": or_reason(lambda: _median_and_interval(evidence, config, effects)),
            **error.companions,
            "index_pairing_of_linearised_scores": or_reason(lambda: c16_split_half(raw)),
            "near_zero_denominators": near_zero,
        },
    }


def split_half_of_heads(evidence: Evidence, config: Mapping[str, Any], effects: np.ndarray) -> SplitHalf:
    """Head-level split-half within templates; templates with too few prompts are pooled and halved together."""
    names, member, count = np.unique(evidence.templates, return_inverse=True, return_counts=True)
    strata = np.where(count[member] >= config["minimum_group_prompts"], names[member], "rest")
    return split_half_profile(
        effects,
        n_splits=config["split_half_splits"],
        seed=config["split_seed"],
        clusters=evidence.clusters,
        strata=strata,
    )


def _median_and_interval(evidence: Evidence, config: Mapping[str, Any], effects: np.ndarray) -> dict[str, Any]:
    found = split_half_of_heads(evidence, config, effects[:, evidence.in_circuit])
    return {"median": found.median, "ci90": found.interval}


# --- internal consistency ------------------------------------------------------------------------------


def _published_alpha(evidence: Evidence, config: Mapping[str, Any]) -> float:
    return cronbach_alpha(evidence.head_effect(*EFFECT)[:, evidence.in_circuit]).value


def _alpha(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of the circuit as targets, prompts as raters: reliability of the mean effects, 1 - MSE / MSR.

    Prompts of one cluster are one rater: see `generalisability`.
    """
    every = evidence.head_effect(*EFFECT)
    effects, limit = every[:, evidence.in_circuit], config["alpha_above"]
    if effects.shape[1] < config["minimum_items"]:
        raise Insufficient("n_heads", f"{effects.shape[1]} circuit heads; at least {config['minimum_items']} needed")
    clusters = evidence.clusters
    found = generalisability(effects, 0.90, clusters)
    verdict = decide_above(found.interval, limit)
    oriented = effects * np.where(effects.mean(axis=0) < 0, -1.0, 1.0)
    return {
        "verdict": verdict,
        "estimate": found.value,
        "ci90": found.interval,
        "ci95": generalisability(effects, 0.95, clusters).interval,
        "ci_method": "F (generalisability over clusters of prompts)",
        "p": max(generalisability_p(effects, limit, clusters), 1e-300),
        "p_kind": "F (generalisability)",
        "effect_size": found.value,
        "reasons": () if verdict == "pass" else (f"coefficient {found.interval[0]:.3f} to {found.interval[1]:.3f}",),
        "companions": {
            "alpha_90": or_reason(lambda: cronbach_alpha(effects, 0.90).interval),
            "alpha_oriented_by_sign": or_reason(lambda: cronbach_alpha(oriented).value),
            "mean_inter_item_correlation": or_reason(lambda: mean_inter_item_correlation(effects)),
            "mcdonald_omega": or_reason(lambda: _omega(oriented, config)),
            "generalisability_all_heads": or_reason(lambda: generalisability(every, 0.90, clusters).value),
        },
    }


def _omega(effects: np.ndarray, config: Mapping[str, Any]) -> float:
    if effects.shape[1] < config["omega_minimum_items"]:
        raise Insufficient("n_heads", f"{effects.shape[1]} items; one factor needs {config['omega_minimum_items']}")
    from sklearn.exceptions import ConvergenceWarning  # imported here: scikit-learn takes a while

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return mcdonald_omega(effects)
        except ConvergenceWarning as warning:
            raise Insufficient("zero_variance", "no common factor: its fit does not converge") from warning
