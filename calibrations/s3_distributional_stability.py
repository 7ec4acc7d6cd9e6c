"""S3 distributional stability: do moments of each head's attribution agree between subsets of prompts?

Published value: share of circuit heads whose coefficient of variation over 5 random subsets is below .20 for
both. A variance of normal data over m prompts has CV sqrt(2/(m-1)), so fewer than 255 prompts cannot meet it;
one random partition is a lottery, so the verdict averages each head's CV over 50. Random subsets hold no
instability by construction: the companion repeats the question between templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from calibrations.evidence import Evidence
from calibrations.preconditions import require_faithful, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    adjusted_p,
    cv_of_variance,
    published_verdict,
    wilson_interval,
)

ID = "S3"
NUMBER = "74"
NAME = "distributional_stability"
TITLE = "distributional stability"
INPUTS = ("01", "03", "20")

RULE = "share of circuit heads with CV of mean and of variance < {threshold_cv} over {n_subsets} subsets"
MARK = "; pass mark {threshold_fraction} is ours"


@dataclass(frozen=True)
class Spread:
    """Coefficients of variation (ddof 1) over subsets, and the SD of subset means over the pooled SD."""

    cv_mean: Float[np.ndarray, " head"]
    cv_variance: Float[np.ndarray, " head"]
    scaled_sd_of_means: Float[np.ndarray, " head"]
    mean_skewness_sd: float

    def of_mean(self, t: Float[np.ndarray, " head"], minimum_t: float) -> Float[np.ndarray, " head"]:
        """CV of the mean; for heads whose mean is within noise of 0, the scaled SD instead."""
        return np.where(t > minimum_t, self.cv_mean, self.scaled_sd_of_means)

    def stable(self, t: Float[np.ndarray, " head"], config: Mapping[str, Any]) -> Bool[np.ndarray, " head"]:
        below = config["threshold_cv"]
        return (self.of_mean(t, config["min_t"]) < below) & (self.cv_variance < below)


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """S3.distributional_stability."""
    rule = (RULE + MARK).format(**config)
    return [
        judge(
            "S3.distributional_stability",
            lambda: _published(_attribution(evidence), rule, config),
            lambda: _decide(evidence, config),
            rule=rule,
            n=sizes(evidence, circuit_heads=len(evidence.circuit_heads)),
        )
    ]


def _attribution(evidence: Evidence) -> Float[np.ndarray, "prompt head"]:
    """Attributions of the circuit heads. Raises Insufficient for a constant head, whose CVs are 0/0."""
    attribution = evidence.head_effect("03", "attribution")[:, evidence.in_circuit]
    flat = np.flatnonzero(np.ptp(attribution, axis=0) == 0)
    if not attribution.shape[1]:
        raise Insufficient("n_heads", "the circuit has no heads")
    if len(flat):
        heads = [evidence.circuit_heads[i] for i in flat]
        raise Insufficient("zero_variance", f"heads {heads} have the same attribution on every prompt")
    return attribution


def _partitions(n_prompts: int, config: Mapping[str, Any]) -> list[list[np.ndarray]]:
    """Random disjoint subsets of the prompts, several times; the first is the published one."""
    rng = np.random.default_rng(config["partition_seed"])
    if n_prompts < 3 * config["n_subsets"]:
        raise Insufficient("n_prompts", f"{n_prompts} prompts cannot fill {config['n_subsets']} subsets with 3 each")
    return [np.array_split(rng.permutation(n_prompts), config["n_subsets"]) for _ in range(config["n_partitions"])]


def _spread(attribution: Float[np.ndarray, "prompt head"], subsets: Sequence[np.ndarray]) -> Spread:
    parts = [attribution[subset] for subset in subsets]
    means = np.stack([part.mean(axis=0) for part in parts])
    variances = np.stack([part.var(axis=0, ddof=1) for part in parts])
    skews = np.stack([_skewness(part) for part in parts])
    sd_of_means = means.std(axis=0, ddof=1)
    centre = np.maximum(np.abs(means.mean(axis=0)), np.finfo(float).tiny)
    return Spread(
        cv_mean=sd_of_means / centre,
        cv_variance=variances.std(axis=0, ddof=1) / np.maximum(variances.mean(axis=0), np.finfo(float).tiny),
        scaled_sd_of_means=sd_of_means / attribution.std(axis=0, ddof=1),
        mean_skewness_sd=float(skews.std(axis=0, ddof=1).mean()),
    )


def _skewness(part: np.ndarray) -> np.ndarray:
    """Type 1 skewness per head; 0 for a head that is constant within the subset."""
    centred = part - part.mean(axis=0)
    second = (centred**2).mean(axis=0)
    return np.divide((centred**3).mean(axis=0), second**1.5, out=np.zeros(part.shape[1]), where=second > 0)


def _published(attribution: np.ndarray, rule: str, config: Mapping[str, Any]) -> Published:
    spread = _spread(attribution, _partitions(len(attribution), config)[0])
    stable = (spread.cv_mean < config["threshold_cv"]) & (spread.cv_variance < config["threshold_cv"])
    share = float(stable.mean())
    return Published(share, rule, published_verdict(share, ">=", config["threshold_fraction"]))


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: the 90 % Wilson interval of the share of stable heads lies above the pass mark."""
    require_faithful(evidence, config)
    attribution = _attribution(evidence)
    n_prompts, n_heads = attribution.shape
    _require_prompts(n_prompts, config)
    spreads = [_spread(attribution, subsets) for subsets in _partitions(n_prompts, config)]
    average = _average(spreads)
    t = np.abs(attribution.mean(axis=0)) / (attribution.std(axis=0, ddof=1) / np.sqrt(n_prompts))
    stable = average.stable(t, config)
    count, mark = int(stable.sum()), config["threshold_fraction"]
    ci90 = wilson_interval(count, n_heads, 0.90)
    verdict = decide_above(ci90, mark)
    unstable = [list(head) for head, good in zip(evidence.circuit_heads, stable, strict=True) if not good]
    reasons = () if verdict == "pass" else (f"{len(unstable)} of {n_heads} heads are not stable: {unstable}",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "needs": "more heads or more prompts" if verdict == "inconclusive" else None,
        "estimate": count / n_heads,
        "ci90": ci90,
        "ci95": wilson_interval(count, n_heads, 0.95),
        "ci_method": "Wilson over heads; CVs averaged over random partitions",
        "p": _score_p(count, n_heads, mark),
        "p_kind": "score test of the share, the dual of the Wilson interval",
        "companions": {
            **_sampling(attribution, average, config),
            "heads": _table(evidence, t, average, config),
            "mean_share_over_partitions": float(np.mean([spread.stable(t, config).mean() for spread in spreads])),
            "mean_sd_of_skewness": average.mean_skewness_sd,
            "between_templates": _between_templates(evidence, attribution, config),
        },
    }


def _require_prompts(n_prompts: int, config: Mapping[str, Any]) -> None:
    least = config["min_prompts"]
    if n_prompts < least:
        detail = f"{n_prompts} prompts: the variance criterion cannot be met below {least}"
        raise Insufficient("n_prompts", detail, needs=f"at least {least} prompts")


def _average(spreads: Sequence[Spread]) -> Spread:
    """Each head's spread averaged over partitions."""
    return Spread(
        cv_mean=np.mean([spread.cv_mean for spread in spreads], axis=0),
        cv_variance=np.mean([spread.cv_variance for spread in spreads], axis=0),
        scaled_sd_of_means=np.mean([spread.scaled_sd_of_means for spread in spreads], axis=0),
        mean_skewness_sd=float(np.mean([spread.mean_skewness_sd for spread in spreads])),
    )


def _score_p(count: int, n: int, share: float) -> float:
    """One-sided score test p of "proportion > share": below alpha where the Wilson bound exceeds it."""
    return float(stats.norm.sf((count / n - share) / np.sqrt(share * (1 - share) / n)))


def _table(evidence: Evidence, t: np.ndarray, average: Spread, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    of_mean, stable = average.of_mean(t, config["min_t"]), average.stable(t, config)
    return [
        {
            "head": list(head),
            "t": float(t[i]),
            "spread_of_mean": float(of_mean[i]),
            "cv_variance": float(average.cv_variance[i]),
            "stable": bool(stable[i]),
        }
        for i, head in enumerate(evidence.circuit_heads)
    ]


def _sampling(attribution: np.ndarray, average: Spread, config: Mapping[str, Any]) -> dict[str, float]:
    """Observed CVs over those expected of sampling: about .94 (the bias of an SD of five) if stable."""
    size = len(attribution) / config["n_subsets"]
    magnitude = np.maximum(np.abs(attribution.mean(axis=0)), np.finfo(float).tiny)
    expected_mean = attribution.std(axis=0, ddof=1) / np.sqrt(size) / magnitude
    excess = stats.kurtosis(attribution, axis=0)
    expected_variance = np.sqrt(np.maximum(2 / (size - 1) + excess / size, np.finfo(float).tiny))
    return {
        "cv_mean_over_expected": float(np.median(average.cv_mean / expected_mean)),
        "cv_variance_over_expected": float(np.median(average.cv_variance / expected_variance)),
        "cv_variance_expected_if_normal": cv_of_variance(int(size)),
    }


def _between_templates(evidence: Evidence, attribution: np.ndarray, config: Mapping[str, Any]) -> dict[str, Any]:
    """The same criteria with templates as subsets, and tests for spread beyond sampling (BH over heads)."""
    names = np.unique(evidence.templates)
    subsets = [np.flatnonzero(evidence.templates == name) for name in names]
    subsets = [subset for subset in subsets if len(subset) >= config["min_group"]]
    if len(subsets) < 2:
        return {"templates": len(subsets)}
    spread = _spread(attribution, subsets)
    parts = [attribution[subset] for subset in subsets]
    variance = np.sum([part.var(axis=0, ddof=1) * (len(part) - 1) for part in parts], axis=0)
    variance /= sum(len(part) - 1 for part in parts)
    centre = np.concatenate(parts).mean(axis=0)
    chi2 = np.sum([len(part) * (part.mean(axis=0) - centre) ** 2 for part in parts], axis=0) / variance
    p_mean = stats.chi2.sf(chi2, len(parts) - 1)
    p_variance = stats.levene(*parts, center="median", axis=0).pvalue
    below = config["threshold_cv"]
    return {
        "templates": len(subsets),
        "share_stable": float(((spread.cv_mean < below) & (spread.cv_variance < below)).mean()),
        "heads_whose_mean_differs": int((adjusted_p(p_mean, "bh") < config["alpha"]).sum()),
        "heads_whose_variance_differs": int((adjusted_p(p_variance, "bh") < config["alpha"]).sum()),
    }
