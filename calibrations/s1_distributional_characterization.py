"""S1 distributional characterization: do circuit heads stand out in direct logit attribution?

Published value: mean over circuit heads of |mean attribution|, divided by the same for all other heads (`abs_of_mean`). The
wording can also mean a mean over prompts of |attribution| (`mean_of_abs`), a different number, which is a companion.

Estimate and verdict do not use that ratio. With few prompts, noise makes |mean| positive even for a head without attribution,
so the ratio and all its resamples lie too close to 1. Correcting that would need the true mean. The bias of a squared mean,
however, is its squared standard error, which is known. The estimate therefore compares root mean squares,

    share = in / (in + out),   in^2 = mean over circuit heads of (mean^2 - SE^2),   out^2 likewise over the others,

either of which is 0 if noise explains it. A ratio in / out of 2 is a share of 2/3. The share orders circuits as the ratio
does, but stays finite if few prompts cannot tell `out` from 0. With heavy-tailed attributions one random circuit in ten
exceeds a ratio of 2, so the share needs a relabelling p as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from calibrations.evidence import Evidence
from calibrations.preconditions import NO_RULE, require_behaviour, require_prompts, resamples, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    PermutationTest,
    bootstrap_means,
    effective_rank_of_spectrum,
    excess_kurtosis,
    head_label_permutation,
    mean_contrast,
    or_none,
    percentile_interval,
    published_verdict,
    require_attainable,
    skewness,
    threshold_p,
    variances_of_means,
)

ID = "S1"
NUMBER = "73"
NAME = "distributional_characterization"
TITLE = "distributional characterization"
INPUTS = ("01", "03", "20", "21", "26")
NODES = (
    "Left out: attribution and knock-outs are of single heads at all positions; MLPs stand neither inside nor outside."
)

RULE = "mean |mean attribution| of circuit heads / of other heads > {threshold_ratio}"


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """S1.distributional_characterization: attribution of circuit heads against that of the others.

    Published: mean over circuit heads of |mean attribution| over the same for the others, above 2. Verdict: the share
    in / (in + out) of the module's docstring, its percentile 90 % interval over clusters of prompts against 2/3. pass if it
    lies above, relabelled heads reach the share in less than 5 % of the draws, and the published ratio exceeds 2 as
    well; fail if it lies below.

    S1.total_effect: the same for the heads' total effects (21), which also sees circuits that act through MLPs. It has no
    published rule. Two heads are enough, since the relabelling p reflects how little so few heads can show.
    """

    def published() -> Published:
        ratio = _ratio(np.abs(_attribution(evidence).mean(axis=0)), evidence)
        threshold = config["threshold_ratio"]
        return Published(ratio, RULE.format(**config), published_verdict(ratio, ">", threshold))

    return [
        judge(
            "S1.distributional_characterization",
            published,
            lambda: _decide(evidence, config, _attribution(evidence), config["min_circuit_heads"]),
            rule=RULE.format(**config),
            n=sizes(evidence, heads=len(evidence.heads), circuit_heads=len(evidence.circuit_heads)),
            companions=or_none(lambda: _full_profile(evidence, config, _attribution(evidence))) or {},
        ),
        judge(
            "S1.total_effect",
            lambda: Published(None, NO_RULE, "none"),
            lambda: _decide(evidence, config, evidence.head_effect("21", "effect"), config["min_circuit_heads_total"]),
            rule=NO_RULE,
            n=sizes(evidence, heads=len(evidence.heads), circuit_heads=len(evidence.circuit_heads)),
            gating=False,
        ),
    ]


def _attribution(evidence: Evidence) -> Float[np.ndarray, "prompt head"]:
    return evidence.head_effect("03", "attribution")


def _ratio(magnitude: Float[np.ndarray, " head"], evidence: Evidence) -> float:
    """Mean over circuit heads / mean over the others. Raises Insufficient if it is undefined."""
    member = evidence.in_circuit
    if not member.any() or member.all():
        raise Insufficient("n_heads" if not member.any() else "all_selected", "no two groups of heads to compare")
    outside = magnitude[~member].mean()
    if outside <= 0:
        raise Insufficient("ratio_undefined", "heads outside the circuit have no attribution at all")
    return float(magnitude[member].mean() / outside)


def _decide(
    evidence: Evidence, config: Mapping[str, Any], effects: Float[np.ndarray, "prompt head"], fewest: int
) -> dict[str, Any]:
    """pass: the 90 % interval of the share lies above 2/3, relabelled heads rarely reach the share, and the published ratio
    exceeds 2 (with root mean squares alone, one strong head could outweigh six silent ones).
    """
    require_behaviour(evidence, config)
    _require_sizes(evidence, config, fewest)
    published = _ratio(np.abs(effects.mean(axis=0)), evidence)
    squares, draws = squared_attribution(evidence, config, effects)
    share, resampled = (float(circuit_share(squares, evidence)), circuit_share(draws, evidence))
    if np.isnan(share):
        raise Insufficient(
            "ratio_undefined", "noise alone explains the attribution of every head", needs="more prompts"
        )
    threshold = config["threshold_ratio"] / (1 + config["threshold_ratio"])
    relabelled = _relabel(squares, evidence, config)
    require_attainable(relabelled.minimum_p, config["alpha"])
    ci90, above = _interval(resampled, 0.90), threshold_p(np.nan_to_num(resampled, nan=0.0), threshold)
    verdict, reasons = decide_above(ci90, threshold), ()
    if verdict == "pass" and relabelled.p >= config["alpha"]:
        verdict, reasons = "inconclusive", ("random head sets of this size reach the share as often",)
    elif verdict == "pass" and published <= config["threshold_ratio"]:
        verdict, reasons = (
            "inconclusive",
            (f"few loud heads make the share: the ratio of mean sizes is {published:.2f}",),
        )
    elif verdict == "fail":
        reasons = ("circuit heads do not stand out in direct attribution",)
    elif verdict == "inconclusive":
        reasons = (f"the interval of the share holds {threshold:.3f}, a ratio of {config['threshold_ratio']:g}",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "estimate": share,
        "ci90": ci90,
        "ci95": _interval(resampled, 0.95),
        "ci_method": "percentile bootstrap of the noise-corrected share over clusters of prompts",
        "p": max(above, relabelled.p),
        "p_kind": "larger of bootstrap-threshold and head relabelling",
        "effect_size": share / (1 - share) if share < 1 else None,
        "companions": {
            **_companions(evidence, config, effects, squares, relabelled),
            "p_threshold": above,
            "share_threshold": threshold,
        },
    }


def squared_attribution(
    evidence: Evidence, config: Mapping[str, Any], attribution: Float[np.ndarray, "prompt head"]
) -> tuple[Float[np.ndarray, " head"], Float[np.ndarray, "resample head"]]:
    """Squared mean attribution less what noise adds to it: the estimates and their resamples.

    E mean^2 = mu^2 + SE^2. A resample adds the noise a second time, so it loses 2 SE^2.
    """
    noise = variances_of_means(attribution, evidence.clusters, evidence.templates)
    means = bootstrap_means(resamples(evidence, config, config["bootstrap_resamples_p"]), attribution)
    return attribution.mean(axis=0) ** 2 - noise, means**2 - 2 * noise


def circuit_share(squares: Float[np.ndarray, "... head"], evidence: Evidence) -> Float[np.ndarray, ...]:
    """in / (in + out) of root mean squares over heads; NaN where both are 0."""
    member = evidence.in_circuit
    inside, outside = (np.sqrt(np.clip(squares[..., own].mean(axis=-1), 0.0, None)) for own in (member, ~member))
    total = inside + outside
    return np.divide(inside, total, out=np.full_like(total, np.nan), where=total > 0)


def _interval(draws: Float[np.ndarray, " resample"], level: float) -> Interval:
    """Percentile interval. A resample without any attribution counts as share 0 for the lower end and 1 for the upper."""
    low, high = (percentile_interval(np.nan_to_num(draws, nan=missing), level) for missing in (0.0, 1.0))
    return low[0], high[1]


def _require_sizes(evidence: Evidence, config: Mapping[str, Any], fewest: int) -> None:
    require_prompts(evidence, config["min_prompts"])
    heads, members = len(evidence.heads), len(evidence.circuit_heads)
    if members < fewest or heads < config["min_heads"]:
        least = f"at least {fewest} of {config['min_heads']} are needed"
        raise Insufficient("n_heads", f"{members} circuit heads of {heads}; {least}")


def _relabel(
    squares: Float[np.ndarray, " head"],
    evidence: Evidence,
    config: Mapping[str, Any],
    by_layer: bool = False,
) -> PermutationTest:
    """Test by relabelling heads. The total is fixed, so the contrast of mean squares orders head sets as the share does."""
    return head_label_permutation(
        mean_contrast(squares),
        evidence.in_circuit,
        n_resamples=config["permutations"],
        seed=config["permutation_seed"],
        layers=evidence.layers if by_layer else None,
    )


def _companions(
    evidence: Evidence,
    config: Mapping[str, Any],
    attribution: np.ndarray,
    squares: Float[np.ndarray, " head"],
    relabelled: PermutationTest,
) -> dict[str, Any]:
    return {
        "p_relabelling": relabelled.p,
        "p_relabelling_within_layers": _relabel(squares, evidence, config, by_layer=True).p,
        "smallest_attainable_p": relabelled.minimum_p,
        "ratio_mean_of_abs": or_none(lambda: _ratio(np.abs(attribution).mean(axis=0), evidence)),
        "ratio_abs_of_mean": or_none(lambda: _ratio(np.abs(attribution.mean(axis=0)), evidence)),
        "moments": "skewness and excess kurtosis of type 2 (unbiased for normal data)",
        **_full_profile(evidence, config, attribution),
    }


def _full_profile(
    evidence: Evidence, config: Mapping[str, Any], attribution: Float[np.ndarray, "prompt head"]
) -> dict[str, Any]:
    """The published profile of every head, and of the circuit's heads and the others as two groups."""
    member = evidence.in_circuit
    profiles = _profiles(evidence, config, attribution)
    groups = {
        name: [profile for profile, one in zip(profiles, member, strict=True) if one == inside]
        for name, inside in (("circuit", True), ("others", False))
    }
    together = {name: _group_profile(groups[name], attribution[:, member == (name == "circuit")]) for name in groups}
    return {**groups, "groups": together}


def _profiles(
    evidence: Evidence, config: Mapping[str, Any], attribution: Float[np.ndarray, "prompt head"]
) -> list[dict[str, Any]]:
    """Distribution of each head's attribution over prompts, and effective rank of its output."""
    resampled = bootstrap_means(resamples(evidence, config, config["bootstrap_resamples"]), attribution)
    ranks = _effective_ranks(evidence)
    profiles = []
    for index in range(len(evidence.heads)):
        x = attribution[:, index]
        sd = float(x.std(ddof=1))
        profiles.append(
            {
                "head": list(evidence.heads[index]),
                "mean": float(x.mean()),
                "mean_ci95": percentile_interval(resampled[:, index], 0.95),
                "variance": sd**2,
                "skewness": or_none(lambda x=x: skewness(x)),
                "excess_kurtosis": or_none(lambda x=x: excess_kurtosis(x)),
                "sparsity": float((np.abs(x) < config["sparse_below"]).mean()),
                "sparsity_relative_to_sd": float((np.abs(x) < config["sparse_below_relative"] * sd).mean()),
                **ranks.get(int(index), {}),
            }
        )
    return profiles


def _effective_ranks(evidence: Evidence) -> dict[int, dict[str, float]]:
    """Effective rank of each head's centred last-position output over the evaluation prompts, by index of the head."""
    if not evidence.has("26"):
        return {}
    ranks = {}
    for index, spectrum in enumerate(evidence.head_score("26", "singular_values")):
        try:
            rank = effective_rank_of_spectrum(spectrum)
        except Insufficient:  # a head without any output has no rank
            continue
        ranks[index] = {
            "effective_rank_participation": rank.participation_singular,
            "effective_rank_entropy": rank.entropy,
        }
    return ranks


AVERAGED = ("variance", "skewness", "excess_kurtosis", "sparsity", "sparsity_relative_to_sd",
            "effective_rank_participation", "effective_rank_entropy")  # fmt: skip


def _group_profile(
    profiles: list[dict[str, Any]], attribution: Float[np.ndarray, "prompt head"]
) -> dict[str, float | int | None]:
    """A group of heads: mean magnitudes, and each moment averaged over the heads that have it (None if none has)."""
    if not profiles:
        return {"heads": 0}
    known = {name: [p[name] for p in profiles if p.get(name) is not None] for name in AVERAGED}
    return {
        "heads": len(profiles),
        "mean_abs_of_mean": float(np.abs(attribution.mean(axis=0)).mean()),
        "mean_of_abs": float(np.abs(attribution).mean()),
        **{f"mean_{name}": float(np.mean(values)) if values else None for name, values in known.items()},
    }
