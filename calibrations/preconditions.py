"""What must hold before a calibration says anything: the behaviour exists, and the circuit reproduces it.

A circuit without any effect is stable and invariant, and noise certifies its heads, so the calibrations
that would pass it ask `require_faithful` first. The four conditions are also records of their own, because the certificate
rests on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibrations.evidence import PRIMARY, Evidence
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    Ratio,
    TTest,
    bootstrap_counts,
    bootstrap_ratios,
    mean_test,
    percentile_interval,
    rank_among,
    ratio_of_means,
    reportable_ratio,
    threshold_p,
)

METHODS = ("zero", "mean", "mean_pooled", "resample", "noise")
NO_RULE = "no published threshold"
SAME_CIRCUIT = 1e-5  # a random draw may be the circuit itself, run in another batch: rounding must not tell them apart


@dataclass(frozen=True)
class RankAmongRandom:
    """Faithfulness of the circuit and of the random circuits on the prompts that the random circuits ran on.

    `p` is the +1 rank p of the circuit among them, `floor` the smallest p that this number of circuits can give.
    """

    theta: float
    null: Float[np.ndarray, " circuit"]
    p: float
    floor: float
    n_prompts: int


def resamples(evidence: Evidence, config: Mapping[str, Any], n_resamples: int) -> Int[np.ndarray, "resample prompt"]:
    """The shared bootstrap counts: clusters drawn within their template.

    Every calibration uses the same seed and prompts, so all statistics keep their joint distribution.
    """
    return bootstrap_counts(
        len(evidence.clean),
        n_resamples,
        seed=config["bootstrap_seed"],
        clusters=evidence.clusters,
        strata=evidence.templates,
    )


def sizes(evidence: Evidence, **others: int) -> dict[str, int]:
    """The `n` of a record: prompts, clusters and whatever else the calibration counts."""
    return {"prompts": len(evidence.clean), "clusters": len(np.unique(evidence.clusters)), **others}


def on_distribution(evidence: Evidence) -> tuple[str, ...]:
    """The recipes that tier 2 asks about: the claim's primary one, and resample, which stays on the model's distribution."""
    return tuple(dict.fromkeys((evidence.primary_recipe, "resample")))


def about_the_outside(evidence: Evidence) -> tuple[str, ...]:
    """The recipes under which heads outside the claim are judged: the claim's primary one, mean and resample.

    The mean is always among them: a claim chooses its primary recipe, and no later tier asks P.outside again.
    """
    return tuple(dict.fromkeys((evidence.primary_recipe, PRIMARY, "resample")))


def every_recipe(evidence: Evidence) -> tuple[str, ...]:
    """The recipes that are always run, and the claim's primary one if it is not among them."""
    return tuple(dict.fromkeys((*METHODS, evidence.primary_recipe)))


def require_prompts(evidence: Evidence, minimum: int) -> None:
    """Raises Insufficient("n_prompts") for fewer prompts than `minimum`."""
    if len(evidence.clean) < minimum:
        detail = f"{len(evidence.clean)} prompts; at least {minimum} needed"
        raise Insufficient("n_prompts", detail, needs=f"at least {minimum} prompts")


def require_behaviour(evidence: Evidence, config: Mapping[str, Any]) -> None:
    """Raises Insufficient("behaviour_absent") if mean(D) <= 0, ("denominator") if mean(D)/SE is too small."""
    ratio_of_means(evidence.clean, evidence.clean, evidence.clusters).require_denominator(config["min_denominator_t"])


def faithfulness(
    evidence: Evidence, config: Mapping[str, Any], subset: str = "circuit", method: str = PRIMARY
) -> Ratio:
    """theta = sum F / sum D with only `subset` intact under `method`. Raises as `reportable_ratio`."""
    return _ratio(evidence.ablated(subset, method), evidence, config)


def normalised_faithfulness(evidence: Evidence, method: str = PRIMARY) -> float:
    """(sum F - sum F_0) / (sum D - sum F_0), F_0 with every head ablated, so 0 is the model without any head.

    Raises Insufficient("denominator") if ablating every head costs nothing.
    """
    floor, clean = evidence.ablated("empty", method).sum(), evidence.clean.sum()
    if clean <= floor:
        raise Insufficient("denominator", f"without any head the {method} logit difference is no smaller")
    return float((evidence.ablated("circuit", method).sum() - floor) / (clean - floor))


def completeness(evidence: Evidence, config: Mapping[str, Any], method: str = PRIMARY) -> Ratio:
    """1 - sum G / sum D with the circuit ablated, as the ratio of D - G to D."""
    return _ratio(evidence.clean - evidence.ablated("complement", method), evidence, config)


def _ratio(numerator: np.ndarray, evidence: Evidence, config: Mapping[str, Any]) -> Ratio:
    return reportable_ratio(numerator, evidence.clean, evidence.clusters, config["min_denominator_t"])


def random_circuits(evidence: Evidence, config: Mapping[str, Any]) -> RankAmongRandom:
    """Faithfulness of the circuit among random circuits of its size and layer profile (or size only), on the same prompts.

    p = (1 + #{theta_random >= theta_circuit}) / (R + 1), but at least 1 / (number of distinct such circuits), since a repeated
    draw is no new evidence. Raises Insufficient("min_p_unreachable") if no such p can reach alpha, and whatever the ratio on
    those prompts raises.
    """
    _, index = evidence.random_circuits
    clean, clusters = evidence.clean[index], evidence.clusters[index]
    theta = reportable_ratio(evidence.ablated("circuit")[index], clean, clusters, config["min_denominator_t"]).value
    null = random_faithfulness(evidence)
    matching = matching_circuits(evidence)
    floor = max(1 / (len(null) + 1), 1 / matching)
    if matching == 1:
        raise Insufficient(
            "min_p_unreachable",
            f"the circuit holds every head{' of its layers' * evidence.matched_by_layer}, so no other is like it",
            needs="a claim of fewer heads",
        )
    if floor >= config["alpha"]:
        needed = math.floor(1 / config["alpha"])
        few = matching <= needed
        raise Insufficient(
            "min_p_unreachable",
            f"{matching} circuits have this size{' in these layers' * evidence.matched_by_layer}; best p = {floor:.3g}"
            if few
            else f"{len(null)} random circuits give at best p = {floor:.3g}",
            needs=f"more than {needed} circuits of this shape" if few else f"at least {needed} random circuits",
        )
    p = rank_among(theta - SAME_CIRCUIT, null).p
    return RankAmongRandom(theta, null, max(p, floor), floor, len(index))


def null_words(any_layers: bool) -> str:
    """What random circuits have in common with the circuit, in words."""
    return "its size, from any layers (too few have its layers)" if any_layers else "its size and layers"


def random_faithfulness(evidence: Evidence) -> Float[np.ndarray, " circuit"]:
    """Faithfulness of every random circuit that was measured, on the prompts it was measured on."""
    values, index = evidence.random_circuits
    return values.sum(axis=1) / evidence.clean[index].sum()


def matching_circuits(evidence: Evidence) -> int:
    """Size of the random-circuit null: sets with the circuit's number of heads in each layer, of MLPs, and of nodes at each
    position. Where random circuits do not match the layers, only the total number of heads counts.
    """
    layers = evidence.layers if evidence.matched_by_layer else np.zeros_like(evidence.layers)
    inside = np.bincount(layers, minlength=evidence.n_layers)
    chosen = np.bincount(layers[evidence.in_circuit], minlength=evidence.n_layers)
    n_mlps = len({node.whole for node in evidence.claimed if node.kind == "mlp"})
    choices = math.prod(math.comb(int(n), int(k)) for n, k in zip(inside, chosen, strict=True))
    return choices * math.comb(evidence.n_layers, n_mlps) * _arrangements(evidence)


def _arrangements(evidence: Evidence) -> int:
    """Number of ways to assign the claimed positions to the heads of each layer (or of all layers) and to the MLPs."""
    positions: dict[tuple[str, int, int], tuple[str, ...]] = {}
    for node in evidence.claimed:
        positions[node.whole] = (*positions.get(node.whole, ()), node.position)
    alike: dict[tuple[str, int], list[tuple[str, ...]]] = {}
    for (kind, layer, _), where in positions.items():
        alike.setdefault((kind, layer if kind == "head" and evidence.matched_by_layer else 0), []).append(where)
    return math.prod(
        math.factorial(len(group)) // math.prod(math.factorial(n) for n in Counter(group).values())
        for group in alike.values()
    )


def require_faithful(evidence: Evidence, config: Mapping[str, Any]) -> None:
    """Raises Insufficient("not_faithful") for a circuit that does nothing.

    Faithfulness (primary recipe) must reach `min_faithfulness`, both as the plain ratio and normalised by the all-ablated
    floor, and lie above the random circuits (p < alpha). Raises as `require_behaviour` and `random_circuits`.
    """
    require_behaviour(evidence, config)
    theta, above_floor = faithfulness(evidence, config).value, normalised_faithfulness(evidence)
    if min(theta, above_floor) < config["min_faithfulness"]:
        detail = f"faithfulness {theta:.3f}, {above_floor:.3f} above the floor; at least {config['min_faithfulness']}"
        raise Insufficient("not_faithful", detail)
    p = random_circuits(evidence, config).p
    if p >= config["alpha"]:
        raise Insufficient("not_faithful", f"not above random circuits of the same size: p = {p:.3g}")


# --- records -------------------------------------------------------------------------------------------


def records(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """Gating records: behaviour, denominator, faithfulness (`on_distribution`, and under every recipe), random circuits."""
    parts = {
        "P.behaviour": _behaviour,
        "P.denominator": _denominator,
        "P.faithfulness": lambda evidence, config: _faithfulness(evidence, config, on_distribution(evidence)),
        "P.faithfulness_every_recipe": lambda evidence, config: _faithfulness(evidence, config, every_recipe(evidence)),
        "P.random_circuits": _random_circuits,
    }
    return [
        judge(
            metric,
            lambda: Published(None, NO_RULE, "none"),
            lambda decide=decide: decide(evidence, config),
            rule=NO_RULE,
            n=sizes(evidence),
        )
        for metric, decide in parts.items()
    ]


def _behaviour(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Mean clean logit difference above 0: otherwise there is no behaviour to explain."""
    test = mean_test(evidence.clean[:, None], evidence.clusters)
    mean, ci90, ci95 = float(test.mean[0]), _at(test, 0.90), _at(test, 0.95)
    verdict = decide_above(ci90, 0.0) if mean > 0 else "insufficient"
    reason = "behaviour_not_shown" if verdict == "inconclusive" else "behaviour_absent"
    return {
        "verdict": verdict,
        "estimate": mean,
        "ci90": ci90,
        "ci95": ci95,
        "ci_method": "cluster-robust t",
        "p": float(test.p[0]),
        "p_kind": "t",
        "effect_size": mean / sd if (sd := float(evidence.clean.std(ddof=1))) > 0 else None,
        "reasons": () if verdict == "pass" else (f"{reason}: mean {evidence.metric} {mean:.4g}",),
        "companions": {
            "share_positive": float((evidence.clean > 0).mean()),
            "mean_corrupted_logit_difference": float(evidence.corrupted.mean()),
        },
    }


def absence(evidence: Evidence, config: Mapping[str, Any]) -> str | None:
    """A predicate for the model's name if it lacks the behaviour; None if P.behaviour passes or cannot be judged.

    Reads only measurement 01, so it can be called before anything else is measured.
    """
    try:
        found = _behaviour(evidence, config)
    except Insufficient:
        return None
    if found["verdict"] == "pass":
        return None
    low, high = found["ci90"]
    does = "does not do the task" if found["verdict"] == "insufficient" else "is not shown to do the task"
    return f"{does} (mean {evidence.metric} {found['estimate']:.3g} [{low:.3g}, {high:.3g}] on {len(evidence.clean)} prompts)"


def _at(test: TTest, level: float) -> Interval:
    low, high = test.interval(level)
    return float(low[0]), float(high[0])


def _denominator(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """t of mean(D): below 3, the interval of a ratio over D is unbounded too often."""
    ratio = ratio_of_means(evidence.clean, evidence.clean, evidence.clusters)
    t, minimum = ratio.denominator_t, config["min_denominator_t"]
    if t < minimum:
        more = math.ceil(len(evidence.clean) * (minimum / t) ** 2) if t > 0 else None
        raise Insufficient(
            "denominator",
            f"t of mean(D) is {t:.2f}, below {minimum}",
            needs=f"about {more} prompts" if more else None,
        )
    ratio.fieller(0.95)
    return {"verdict": "pass", "estimate": t if math.isfinite(t) else None}


def recipe_draws(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Float[np.ndarray, " resample"]]:
    """Faithfulness under every ablation recipe in each bootstrap resample of the clusters; recipes share the resamples."""
    counts = resamples(evidence, config, config["bootstrap_resamples_p"])
    return {m: bootstrap_ratios(counts, evidence.ablated("circuit", m), evidence.clean) for m in every_recipe(evidence)}


def _faithfulness(evidence: Evidence, config: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """Faithfulness two-sided under each of `methods`: every 90 % interval inside [0.8, 1.2].

    The gate is the intersection over recipes, so it needs no correction: it passes if all pass and fails if one lies
    wholly outside. The estimate is that of the primary recipe; `companions` has the others.
    """
    require_behaviour(evidence, config)
    every, primary = recipe_draws(evidence, config), evidence.primary_recipe
    band = (config["faithfulness_low"], config["faithfulness_high"])
    intervals = {method: percentile_interval(every[method], 0.90) for method in methods}
    verdicts = {inside(interval, band) for interval in intervals.values()}
    draws = [every[method] for method in methods]
    theta = faithfulness(evidence, config, method=primary).value
    return {
        "verdict": next(verdict for verdict in ("fail", "inconclusive", "pass") if verdict in verdicts),
        "estimate": theta,
        "ci90": intervals[primary],
        "ci95": percentile_interval(every[primary], 0.95),
        "ci_method": "percentile bootstrap over clusters",
        "p": max(max(threshold_p(d, band[0], "greater"), threshold_p(d, band[1], "less")) for d in draws),
        "p_kind": "bootstrap",
        "effect_size": theta,
        "reasons": tuple(reason for item in intervals.items() for reason in _outside(*item, band)),
        "companions": {"by_method": by_method(evidence, config), "recipes": list(methods)},
    }


def _outside(method: str, interval: Interval, band: Interval) -> list[str]:
    """Why one recipe's interval is not inside the band."""
    low, high = interval
    name = method.replace("_", " ")
    reasons = [f"not_faithful: {name} reaches down to {low:.2f}, below {band[0]}"] if low < band[0] else []
    return reasons + ([f"over_faithful: {name} reaches up to {high:.2f}, above {band[1]}"] if high > band[1] else [])


def inside(interval: Interval, band: Interval) -> str:
    """Verdict for "the quantity lies in `band`": its 90 % interval inside, wholly outside, or neither."""
    if band[0] < interval[0] and interval[1] < band[1]:
        return "pass"
    return "fail" if interval[1] < band[0] or interval[0] > band[1] else "inconclusive"


def by_method(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Faithfulness with its 90 % Fieller interval under every ablation method that was measured."""
    table = {}
    for method in every_recipe(evidence):
        try:
            ratio = faithfulness(evidence, config, method=method)
            table[method] = {
                "faithfulness": ratio.value,
                "ci90": ratio.fieller(0.90),
                "normalised": normalised_faithfulness(evidence, method),
            }
        except Insufficient as missing:
            table[method] = {"insufficient": str(missing)}
    return table


def _random_circuits(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Faithfulness above random circuits of the same size and layer profile."""
    require_behaviour(evidence, config)
    found = random_circuits(evidence, config)
    median = float(np.median(found.null))
    missed = "fail" if found.theta < median else "inconclusive"
    verdict = "pass" if found.p < config["alpha"] else missed
    low, high = np.quantile(found.null, (0.05, 0.95))
    return {
        "verdict": verdict,
        "estimate": found.theta,
        "p": found.p,
        "p_kind": "random circuits",
        "effect_size": found.theta - median,
        "reasons": () if verdict == "pass" else (f"not_faithful: p = {found.p:.3g} among {len(found.null)}",),
        "n": sizes(evidence, random_circuits=len(found.null), random_circuit_prompts=found.n_prompts),
        "companions": {
            "random_median": median,
            "random_90": (float(low), float(high)),
            "random_maximum": float(found.null.max()),
            **({} if evidence.matched_by_layer else {"any_layers": True}),
            "smallest_attainable_p": found.floor,
        },
    }
