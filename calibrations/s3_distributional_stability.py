"""S3 distributional stability: do moments of each head's attribution agree between subsets of prompts?

Published value: share of circuit heads whose coefficient of variation over 5 random subsets is below .20 for both mean
and variance. One random partition is a lottery. Over random subsets of m prompts both coefficients have a closed form,

    CV of the mean = SD / (|mean| sqrt(m)),    CV of the variance = sqrt(2 / (m - 1) + excess kurtosis / m),

so the verdict judges these, with an interval over prompts, on heads that write to the answer: the attribution of another
head is rounding (planted circuit: excess kurtosis 25 in heads that act only through others). Where no head writes directly,
their total effects take its place. Normal data need m = 51, so fewer
than 255 prompts cannot meet the criterion. The kurtosis of a sample is biased low, so heavy-tailed heads a little beyond the
limit pass too often. With 400 prompts, 24 to 29 % pass for t with 8 degrees of freedom (true CV of the variance .21), and 2 %
for t with 6 (.25). Random subsets differ by chance alone, so a companion repeats the question between templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from calibrations.evidence import Evidence, Head
from calibrations.head_scores import writes_to_answer
from calibrations.preconditions import require_faithful, resamples, sizes
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    adjusted_p,
    cv_of_variance,
    percentile_interval,
    plus_one_p,
    published_verdict,
)

ID = "S3"
NUMBER = "74"
NAME = "distributional_stability"
TITLE = "distributional stability"
INPUTS = ("01", "03", "20", "21")

RULE = "share of circuit heads with CV of mean and of variance < {threshold_cv} over {n_subsets} subsets"
MARK = "; pass mark {threshold_fraction} is ours"


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """S3.distributional_stability: share of the circuit's heads whose CV of mean and of variance over subsets are below 0.20.

    Published: both CVs (ddof 1) as observed over the five subsets of one random partition; ours is the pass mark, a share of at
    least 0.5. Verdict: the CVs in closed form at a fifth of the prompts, on heads that write to the answer, and the
    percentile 90 % interval of the share over clusters of prompts: pass if its lower end is at least 0.5, fail if its
    upper end is below.
    """
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
    """Random disjoint subsets of the prompts, several times; the first is the published one."""
    rng = np.random.default_rng(config["partition_seed"])
    if n_prompts < 3 * config["n_subsets"]:
        raise Insufficient("n_prompts", f"{n_prompts} prompts cannot fill {config['n_subsets']} subsets with 3 each")
    return [np.array_split(rng.permutation(n_prompts), config["n_subsets"]) for _ in range(config["n_partitions"])]


def _observed_cvs(
    attribution: Float[np.ndarray, "prompt head"], subsets: Sequence[np.ndarray]
) -> Float[np.ndarray, "moment head"]:
    """Coefficients of variation (ddof 1) over these subsets: of the mean, of the variance."""
    parts = [attribution[subset] for subset in subsets]
    moments = np.stack([[part.mean(axis=0), part.var(axis=0, ddof=1)] for part in parts])
    centre = np.maximum(np.abs(moments.mean(axis=0)), np.finfo(float).tiny)
    return moments.std(axis=0, ddof=1) / centre


def expected_cvs(
    attribution: Float[np.ndarray, "prompt head"],
    counts: Int[np.ndarray, "resample prompt"],
    size: float,
) -> Float[np.ndarray, "resample moment head"]:
    """CV of the mean and of the variance over random subsets of `size` prompts, in each resample.

    SD / (|mean| sqrt(size)) and sqrt(2 / (size - 1) + excess kurtosis / size), moments with the resample's weights.
    Infinite for a head whose mean, or whose variance, is 0. Source: sampling variance of a mean and of a variance.
    """
    weights = counts / counts.sum(axis=1, keepdims=True)
    shifted = attribution - attribution.mean(axis=0)  # near 0: no cancellation in the higher moments
    first, second, third, fourth = (weights @ shifted**power for power in (1, 2, 3, 4))
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


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: the 90 % interval (over prompts) of the share of stable heads does not go below the pass mark."""
    require_faithful(evidence, config)
    attribution, heads, notes = judged_heads(evidence, config)
    _require_prompts(len(attribution), config)
    size, mark = len(attribution) / config["n_subsets"], config["threshold_fraction"]
    cvs = expected_cvs(attribution, np.ones((1, len(attribution)), dtype=int), size)[0]
    stable = stable_heads(cvs, config)
    drawn = expected_cvs(attribution, resamples(evidence, config, config["bootstrap_resamples_p"]), size)
    shares = stable_heads(drawn, config).mean(axis=1)
    ci90 = percentile_interval(shares, 0.90)
    verdict = "pass" if ci90[0] >= mark else "fail" if ci90[1] < mark else "inconclusive"
    unstable = [list(head) for head, good in zip(heads, stable, strict=True) if not good]
    reasons = () if verdict == "pass" else (f"{len(unstable)} of {len(heads)} heads are not stable: {unstable}",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "needs": "more prompts" if verdict == "inconclusive" else None,
        "estimate": float(stable.mean()),
        "ci90": ci90,
        "ci95": percentile_interval(shares, 0.95),
        "ci_method": "percentile bootstrap over clusters; CVs in closed form",
        "p": plus_one_p(int((shares < mark).sum()), len(shares)),
        "p_kind": "bootstrap",
        "notes": notes,
        "n": sizes(evidence, circuit_heads=len(evidence.circuit_heads), heads=len(heads)),
        "companions": {
            "heads": _table(heads, cvs, stable),
            "cv_over_expected": _observed_over_expected(attribution, cvs, config),
            "cv_of_variance_expected_if_normal": cv_of_variance(int(size)),
            "between_templates": _between_templates(evidence, attribution, config),
        },
    }


def judged_heads(
    evidence: Evidence, config: Mapping[str, Any]
) -> tuple[Float[np.ndarray, "prompt head"], list[Head], tuple[str, ...]]:
    """What is judged, its heads, and the notes: direct attribution of the heads that write to the answer.

    A circuit without direct writers acts through other parts of the model; its heads' total effects (21) are judged instead.
    """
    try:
        attribution, heads = written_attribution(evidence, config)
        return attribution, heads, _left_out(evidence, heads)
    except Insufficient as missing:
        if missing.reason != "n_heads" or not evidence.has("21") or not evidence.circuit_heads:
            raise
    effects, heads = evidence.head_effect("21", "effect")[:, evidence.in_circuit], evidence.circuit_heads
    _require_varying(effects, heads)
    return effects, heads, ("no head writes to the answer directly, so total effects (21) are judged",)


def written_attribution(
    evidence: Evidence, config: Mapping[str, Any]
) -> tuple[Float[np.ndarray, "prompt head"], list[Head]]:
    """Attributions of the circuit heads that write to the answer. Raises Insufficient("n_heads"), ("zero_variance")."""
    attribution = _attribution(evidence)
    writes = writes_to_answer(evidence, config["writer_fraction"])[evidence.in_circuit]
    heads = [head for head, one in zip(evidence.circuit_heads, writes, strict=True) if one]
    if len(heads) < config["min_heads"]:
        detail = f"{len(heads)} circuit heads write to the answer; {config['min_heads']} needed"
        raise Insufficient("n_heads", detail)
    _require_varying(attribution[:, writes], heads)
    return attribution[:, writes], heads


def _left_out(evidence: Evidence, heads: Sequence[Head]) -> tuple[str, ...]:
    others = [list(head) for head in evidence.circuit_heads if head not in heads]
    return (f"not judged, as they do not write to the answer: {others}",) if others else ()


def _require_prompts(n_prompts: int, config: Mapping[str, Any]) -> None:
    least = config["min_prompts"]
    if n_prompts < least:
        detail = f"{n_prompts} prompts: the variance criterion cannot be met below {least}"
        raise Insufficient("n_prompts", detail, needs=f"at least {least} prompts")


def _table(heads: Sequence[Head], cvs: np.ndarray, stable: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "head": list(head),
            "cv_mean": float(cvs[0, i]),
            "cv_variance": float(cvs[1, i]),
            "stable": bool(stable[i]),
        }
        for i, head in enumerate(heads)
    ]


def _observed_over_expected(
    attribution: np.ndarray, cvs: Float[np.ndarray, "moment head"], config: Mapping[str, Any]
) -> dict[str, float]:
    """CVs averaged over random partitions, divided by the closed form: about .94, the bias of an SD of five values."""
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
    p_mean = stats.chi2.sf(chi2, len(parts) - 1)
    p_variance = stats.levene(*parts, center="median", axis=0).pvalue
    return {
        "templates": len(subsets),
        "share_stable": float(stable_heads(cvs, config).mean()),
        "heads_whose_mean_differs": int((adjusted_p(p_mean, "bh") < config["alpha"]).sum()),
        "heads_whose_variance_differs": int((adjusted_p(p_variance, "bh") < config["alpha"]).sum()),
    }
