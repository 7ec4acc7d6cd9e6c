"""S3 distributional stability: do moments of each head's attribution agree between subsets of prompts?

Published value: share of circuit heads whose coefficient of variation over 5 random subsets is below .20 for both mean
and variance. A single random partition is a noisy estimate. Over random subsets of m prompts both coefficients have a closed
form,

    CV of the mean = SD / (|mean| sqrt(m)),    CV of the variance = sqrt(2 / (m - 1) + excess kurtosis / m),

so the verdict judges these, on heads that write to the answer: the attribution of any other head is rounding error (planted
circuit: excess kurtosis 25 in heads that act only through others). If no head writes directly, the heads' total effects are
judged instead. Normal data need m = 51, so fewer than 255 prompts cannot meet the criterion.

Sample kurtosis is biased low, more so for heavier tails, and its bootstrap repeats the bias: heads just beyond the limit (t
with 8 degrees of freedom, 400 prompts, true CV of the variance .21) passed in 24 to 29 % of cases. So every head is tested.
It is stable if the bootstrap of its mean stays below the limit, and if samples from the Student t whose CV lies *at* the limit
rarely have as small a kurtosis. The tests of all heads then bound the share of stable heads (partial conjunction), which
corrects for picking the stable half among many. Random subsets differ by chance alone, so a companion asks the same between
templates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from calibrations.evidence import Evidence, Head, head_names
from calibrations.preconditions import require_faithful, require_prompts, resamples, sizes
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    adjusted_p,
    bootstrap_means,
    covariance_of_means,
    cv_of_variance,
    false_hypotheses,
    mean_test,
    or_none,
    partial_conjunction_p,
    published_verdict,
    skewness,
    student_kurtoses,
)

ID = "S3"
NUMBER = "74"
NAME = "distributional_stability"
TITLE = "distributional stability"
INPUTS = ("01", "03", "20", "21")
NODES = "Left out: attribution and knock-outs are of single heads at all positions, so MLPs are not judged."

RULE = "share of circuit heads with CV of mean and of variance < {threshold_cv} over {n_subsets} subsets"
MARK = "; pass mark {threshold_fraction} is ours"
ROUNDED_TO = 10  # independent prompts are rounded down to tens, so that fewer reference distributions are drawn


@dataclass(frozen=True)
class JudgedValues:
    """What is judged: the values of these heads per prompt, and notes on how they were chosen."""

    values: Float[np.ndarray, "prompt head"]
    heads: list[Head]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StabilityTests:
    """For each head: p of "both CVs are below the limit", p of "one is above", and the number of independent prompts."""

    stable: Float[np.ndarray, " head"]
    unstable: Float[np.ndarray, " head"]
    independent_prompts: Int[np.ndarray, " head"]

    def share(self, level: float) -> Interval:
        """Interval of the share of stable heads: from those shown to be stable to all except those shown not to be."""
        n_heads, alpha = len(self.stable), (1 - level) / 2
        low, unstable = (false_hypotheses(p, alpha) for p in (self.stable, self.unstable))
        return low / n_heads, 1 - unstable / n_heads

    def p(self, share: float) -> float:
        """p of "at least this share of the heads is stable"."""
        return partial_conjunction_p(self.stable, max(1, math.ceil(share * len(self.stable))), "positive")


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """S3.distributional_stability: share of the circuit's heads whose CV of mean and of variance over subsets are below 0.20.

    Published: both CVs (ddof 1) as observed over the five subsets of one random partition. The pass mark, a share of at least
    0.5, is ours. The CV of skewness belongs to the published profile and has no threshold; it is near 0/0 for symmetric heads.
    Verdict: the CVs in closed form at a fifth of the prompts, on heads that write to the answer. Each head is tested against
    the limit, and the tests together give a 90 % interval of the share of stable heads: pass if its lower end is at least 0.5,
    fail if its upper end is below 0.5.
    """
    rule = (RULE + MARK).format(**config)
    profile = {"published_profile": or_none(lambda: _profile(evidence, config))}
    return [
        judge(
            "S3.distributional_stability",
            lambda: _published(_attribution(evidence), rule, config),
            lambda: _decide(evidence, profile, config),
            rule=rule,
            n=sizes(evidence, circuit_heads=len(evidence.circuit_heads)),
            companions=profile,
        )
    ]


def _attribution(evidence: Evidence) -> Float[np.ndarray, "prompt head"]:
    """Attributions of the circuit heads. Raises Insufficient("n_heads") if there are none."""
    attribution = evidence.head_effect("03", "attribution")[:, evidence.in_circuit]
    if not attribution.shape[1]:
        raise Insufficient("n_heads", "the circuit has no heads")
    return attribution


def _require_varying(attribution: Float[np.ndarray, "prompt head"], heads: Sequence[Any]) -> None:
    """Raises Insufficient("zero_variance") for a constant head, whose CVs are 0/0."""
    flat = [head for head, spread in zip(heads, np.ptp(attribution, axis=0), strict=True) if spread == 0]
    if flat:
        raise Insufficient("zero_variance", f"heads {flat} have the same attribution on every prompt")


def _partitions(n_prompts: int, config: Mapping[str, Any]) -> list[list[np.ndarray]]:
    """Random partitions of the prompts into disjoint subsets; the first is the published one."""
    rng = np.random.default_rng(config["partition_seed"])
    if n_prompts < 3 * config["n_subsets"]:
        raise Insufficient("n_prompts", f"{n_prompts} prompts cannot fill {config['n_subsets']} subsets with 3 each")
    return [np.array_split(rng.permutation(n_prompts), config["n_subsets"]) for _ in range(config["n_partitions"])]


def _observed_cvs(
    attribution: Float[np.ndarray, "prompt head"], subsets: Sequence[np.ndarray]
) -> Float[np.ndarray, "moment head"]:
    """Coefficients of variation (ddof 1) of the mean and of the variance over these subsets."""
    parts = [attribution[subset] for subset in subsets]
    return _coefficients(np.stack([[part.mean(axis=0), part.var(axis=0, ddof=1)] for part in parts]))


def _coefficients(moments: np.ndarray) -> np.ndarray:
    """SD / |mean| of each moment over the subsets (first axis)."""
    centre = np.maximum(np.abs(moments.mean(axis=0)), np.finfo(float).tiny)
    return moments.std(axis=0, ddof=1) / centre


def _profile(evidence: Evidence, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The published profile of every circuit head: CV of mean, variance and skewness (type 2) over the published subsets."""
    attribution = _attribution(evidence)
    _require_varying(attribution, evidence.circuit_heads)
    subsets = _partitions(len(attribution), config)[0]
    of_mean, of_variance = _observed_cvs(attribution, subsets)
    skewnesses = [or_none(lambda x=x: [skewness(x[subset]) for subset in subsets]) for x in attribution.T]
    return [
        {
            "head": list(head),
            "cv_mean": float(of_mean[i]),
            "cv_variance": float(of_variance[i]),
            "cv_skewness": None if found is None else float(_coefficients(np.array(found))),
        }
        for i, (head, found) in enumerate(zip(evidence.circuit_heads, skewnesses, strict=True))
    ]


def expected_cvs(
    attribution: Float[np.ndarray, "prompt head"],
    counts: Int[np.ndarray, "resample prompt"],
    size: float,
) -> Float[np.ndarray, "resample moment head"]:
    """CV of the mean and of the variance over random subsets of `size` prompts, in each resample.

    SD / (|mean| sqrt(size)) and sqrt(2 / (size - 1) + excess kurtosis / size), moments with the resample's weights.
    Infinite for a head whose mean or variance is 0. Source: sampling variance of a mean and of a variance.
    """
    shifted = attribution - attribution.mean(axis=0)  # near 0: no cancellation in the higher moments
    first, second, third, fourth = (bootstrap_means(counts, shifted**power) for power in (1, 2, 3, 4))
    variance = second - first**2
    central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    mean = np.abs(first + attribution.mean(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        of_mean = np.sqrt(variance / size) / mean
        of_variance = np.sqrt(np.maximum(2 / (size - 1) + (central / variance**2 - 3) / size, 0.0))
    return np.nan_to_num(np.stack([of_mean, of_variance], axis=1), nan=np.inf)


def _published(attribution: np.ndarray, rule: str, config: Mapping[str, Any]) -> Published:
    _require_varying(attribution, range(attribution.shape[1]))
    share = float(stable_heads(_observed_cvs(attribution, _partitions(len(attribution), config)[0]), config).mean())
    return Published(share, rule, published_verdict(share, ">=", config["threshold_fraction"]))


def stable_heads(cvs: Float[np.ndarray, "*resample moment head"], config: Mapping[str, Any]) -> np.ndarray:
    """Heads whose CV is below the threshold for both moments, [*resample head]."""
    return (cvs < config["threshold_cv"]).all(axis=-2)


def _decide(evidence: Evidence, profile: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: the lower end of the 90 % interval of the share of stable heads reaches the pass mark."""
    require_faithful(evidence, config)
    judged = judged_heads(evidence, config)
    require_prompts(evidence, config["min_prompts"])
    size, mark = len(judged.values) / config["n_subsets"], config["threshold_fraction"]
    cvs = expected_cvs(judged.values, np.ones((1, len(judged.values)), dtype=int), size)[0]
    stable, tests = stable_heads(cvs, config), head_tests(evidence, judged.values, config)
    ci90 = tests.share(0.90)
    verdict = "pass" if ci90[0] >= mark else "fail" if ci90[1] < mark else "inconclusive"
    return {
        "verdict": verdict,
        "reasons": () if verdict == "pass" else _reasons(judged.heads, stable, ci90),
        "needs": "more prompts" if verdict == "inconclusive" else None,
        "estimate": float(stable.mean()),
        "ci90": ci90,
        "ci95": tests.share(0.95),
        "ci_method": "partial conjunction of tests of every head against the limit (Benjamini & Heller 2008)",
        "p": tests.p(mark),
        "p_kind": "partial conjunction of bootstrap (mean) and Monte Carlo (variance, Student's t at the limit)",
        "notes": judged.notes,
        "n": sizes(evidence, circuit_heads=len(evidence.circuit_heads), heads=len(judged.heads)),
        "companions": {
            **profile,
            "heads": _table(judged.heads, cvs, stable, tests),
            "cv_over_expected": _observed_over_expected(judged.values, cvs, config),
            "cv_of_variance_expected_if_normal": cv_of_variance(int(size)),
            "between_templates": _between_templates(evidence, judged.values, config),
        },
    }


def _reasons(heads: Sequence[Head], stable: np.ndarray, interval: Interval) -> tuple[str, ...]:
    """How many heads are shown to be stable, how many to be unstable, and which are estimated to be beyond the limit."""
    shown, refuted = round(interval[0] * len(heads)), round((1 - interval[1]) * len(heads))
    beyond = [head for head, good in zip(heads, stable, strict=True) if not good]
    as_estimated = f"; estimated beyond the limit: {head_names(beyond)}" if beyond else ""
    return (f"{shown} of {len(heads)} heads are shown to be stable, {refuted} not to be{as_estimated}",)


def head_tests(
    evidence: Evidence, values: Float[np.ndarray, "prompt head"], config: Mapping[str, Any]
) -> StabilityTests:
    """Tests of every head against the limit, for "stable" and for "not stable".

    "Stable" needs both moments, so its p is the larger of two; "not stable" needs one, so its p is twice the smaller. For the
    mean, p is the share of bootstrap draws of its CV on the other side of the limit. For the variance, p is the share of
    samples from Student's t, with the CV at the limit and as many independent prompts, whose kurtosis is as small (or as
    large). Raises Insufficient("n_prompts") if even normal data lie beyond the limit.
    """
    size, limit = len(values) / config["n_subsets"], config["threshold_cv"]
    of_mean = expected_cvs(values, resamples(evidence, config, config["bootstrap_resamples_p"]), size)[:, 0]
    beyond, n_draws = (of_mean >= limit).sum(axis=0), len(of_mean)
    independent, observed = independent_prompts(values, evidence.clusters), scipy.stats.kurtosis(values, axis=0)
    excess = limiting_kurtosis(size, limit)
    laws = [
        student_kurtoses(int(n), excess, config["reference_samples"], config["reference_seed"]) for n in independent
    ]
    smaller = np.array([np.searchsorted(law, k, "right") for law, k in zip(laws, observed, strict=True)])
    larger = np.array([len(law) - np.searchsorted(law, k, "left") for law, k in zip(laws, observed, strict=True)])
    n_samples = config["reference_samples"]
    stable = np.maximum((1 + beyond) / (1 + n_draws), (1 + smaller) / (1 + n_samples))
    unstable = 2 * np.minimum((1 + n_draws - beyond) / (1 + n_draws), (1 + larger) / (1 + n_samples))
    return StabilityTests(stable, np.minimum(unstable, 1.0), independent)


def limiting_kurtosis(size: float, limit: float) -> float:
    """Excess kurtosis at which the CV of the variance over subsets of `size` prompts is `limit`: size (limit^2 - 2/(size-1)).

    Raises Insufficient("n_prompts") if it is negative, since then even normal data lie beyond the limit.
    """
    excess = size * (limit**2 - cv_of_variance(int(size)) ** 2)
    if excess < -1e-9:
        detail = f"subsets of {size:g} prompts: the variance of normal data has a CV above {limit:g}"
        raise Insufficient("n_prompts", detail, needs=f"subsets of at least {math.ceil(1 + 2 / limit**2)} prompts")
    return max(excess, 0.0)


def independent_prompts(values: Float[np.ndarray, "prompt head"], clusters: np.ndarray) -> Int[np.ndarray, " head"]:
    """Effective number of prompts for each head: as many independent ones would give its kurtosis the same sampling variance.

    It is n over the design effect of the influence function z^4 - k - 2 k (z^2 - 1) - 4 g z (k kurtosis, g skewness), at most
    n, rounded down to tens.
    """
    z = (values - values.mean(axis=0)) / values.std(axis=0)
    skew, kurtosis = (z**3).mean(axis=0), (z**4).mean(axis=0)
    influence = z**4 - kurtosis - 2 * kurtosis * (z**2 - 1) - 4 * skew * z
    clustered, alone = (np.diag(covariance_of_means(influence, labels)[0]) for labels in (clusters, None))
    effect = np.maximum(np.divide(clustered, alone, out=np.ones_like(alone), where=alone > 0), 1.0)
    return np.maximum((len(values) / effect / ROUNDED_TO).astype(int), 1) * ROUNDED_TO


def judged_heads(evidence: Evidence, config: Mapping[str, Any]) -> JudgedValues:
    """Direct attribution of the circuit's heads, without those that are shown to write nothing to the answer.

    A head is left out if the 90 % interval of its mean attribution lies inside +-1 % of mean D; a small estimate is not
    enough. If this leaves no head, the circuit acts through other parts of the model, and the heads' total effects (21) are
    judged instead. Raises Insufficient("n_heads") for a circuit without heads, ("not_run") if 21 is needed and missing, and
    ("zero_variance") for a head that does not vary.
    """
    attribution, heads = _attribution(evidence), evidence.circuit_heads
    margin = config["writer_fraction"] * float(evidence.clean_in_logits.mean())
    low, high = mean_test(attribution, evidence.clusters).interval(0.90)
    silent = (-margin < low) & (high < margin)
    if silent.all():
        effects = evidence.head_effect("21", "effect")[:, evidence.in_circuit]
        _require_varying(effects, heads)
        return JudgedValues(
            effects, heads, ("no head writes to the answer directly, so total effects (21) are judged",)
        )
    kept, left_out = ([list(h) for h, out in zip(heads, silent, strict=True) if out == want] for want in (False, True))
    _require_varying(attribution[:, ~silent], kept)
    notes = (f"not judged, as they do not write to the answer: {left_out}",) if left_out else ()
    return JudgedValues(attribution[:, ~silent], [(layer, index) for layer, index in kept], notes)


def _table(heads: Sequence[Head], cvs: np.ndarray, stable: np.ndarray, tests: StabilityTests) -> list[dict[str, Any]]:
    return [
        {
            "head": list(head),
            "cv_mean": float(cvs[0, i]) if np.isfinite(cvs[0, i]) else None,
            "cv_variance": float(cvs[1, i]) if np.isfinite(cvs[1, i]) else None,
            "stable": bool(stable[i]),
            "p_stable": float(tests.stable[i]),
            "p_unstable": float(tests.unstable[i]),
            "independent_prompts": int(tests.independent_prompts[i]),
        }
        for i, head in enumerate(heads)
    ]


def _observed_over_expected(
    attribution: np.ndarray, cvs: Float[np.ndarray, "moment head"], config: Mapping[str, Any]
) -> dict[str, float]:
    """CVs averaged over random partitions, divided by the closed form: about .94, because an SD of five values is biased."""
    observed = np.mean([_observed_cvs(attribution, part) for part in _partitions(len(attribution), config)], axis=0)
    return dict(zip(("mean", "variance"), np.median(observed / cvs, axis=1).tolist(), strict=True))


def _between_templates(evidence: Evidence, attribution: np.ndarray, config: Mapping[str, Any]) -> dict[str, Any]:
    """The same criteria with templates as subsets, and tests for spread beyond sampling (BH over heads)."""
    names = np.unique(evidence.templates)
    subsets = [np.flatnonzero(evidence.templates == name) for name in names]
    subsets = [subset for subset in subsets if len(subset) >= config["min_group"]]
    if len(subsets) < 2:
        return {"templates": len(subsets)}
    cvs = _observed_cvs(attribution, subsets)
    parts = [attribution[subset] for subset in subsets]
    variance = np.sum([part.var(axis=0, ddof=1) * (len(part) - 1) for part in parts], axis=0)
    variance /= sum(len(part) - 1 for part in parts)
    centre = np.concatenate(parts).mean(axis=0)
    chi2 = np.sum([len(part) * (part.mean(axis=0) - centre) ** 2 for part in parts], axis=0) / variance
    p_mean = scipy.stats.chi2.sf(chi2, len(parts) - 1)
    p_variance = scipy.stats.levene(*parts, center="median", axis=0).pvalue
    return {
        "templates": len(subsets),
        "share_stable": float(stable_heads(cvs, config).mean()),
        "heads_whose_mean_differs": int((adjusted_p(p_mean, "bh") < config["alpha"]).sum()),
        "heads_whose_variance_differs": int((adjusted_p(p_variance, "bh") < config["alpha"]).sum()),
    }
