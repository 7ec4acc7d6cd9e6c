"""C12 convergent validity: do different metric families rank the heads alike?

Published value: mean pairwise Spearman over the published families (activation patching, mediation, oCSE,
local learning coefficient). Only heads scored by every method count: a missing score filled with 0 turns
perfect disagreement into a correlation of .97. Effects below 1 % of the mean logit difference tie, and
methods that see only what a head writes to the answer (direct logit attribution) are compared on heads that
write to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from calibrations.evidence import Evidence
from calibrations.head_scores import Method, covering, read_method, select_top, writes_to_answer
from calibrations.preconditions import require_behaviour, resamples, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    UsableScores,
    head_bootstrap_mean_spearman,
    intraclass_correlation,
    kendall_tau_b,
    mean_spearman,
    mean_spearman_draws,
    mean_spearman_permutation,
    overlap_p,
    partial_spearman,
    percentile_interval,
    published_verdict,
    spearman,
    spearman_interval,
    threshold_p,
    usable_scores,
)

ID = "C12"
NUMBER = "12"
NAME = "convergent_validity"
TITLE = "convergent validity"
INPUTS = ("01", "02", "03", "05", "07", "08", "10", "20", "21", "26")

RULE = "mean pairwise Spearman rho > {threshold_rho}"


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C12.convergent_validity."""
    families = _methods(evidence, config, "families")
    companions = _companions(evidence, [*families, *_methods(evidence, config, "companions")], config)
    rule = RULE.format(**config)
    return [
        judge(
            "C12.convergent_validity",
            lambda: _published(families, rule, config),
            lambda: _decide(evidence, families, companions, config),
            rule=rule,
            n=sizes(evidence, heads=len(evidence.heads), methods=len(families)),
            companions=companions,
        )
    ]


def _methods(evidence: Evidence, config: Mapping[str, Any], which: str) -> list[Method]:
    """The declared methods whose measurement exists; effects within the tie are those under 1 % of mean D."""
    tie = config["tie_fraction"] * float(evidence.clean.mean())
    return [
        read_method(
            evidence,
            entry,
            entry["family"],
            entry["orientation"],
            tie,
            direct=entry.get("writers_only", False),
        )
        for entry in config[which]
        if evidence.has(entry["number"])
    ]


def _scores(methods: list[Method], config: Mapping[str, Any], collapse: bool) -> Float[np.ndarray, "head method"]:
    """Oriented scores, NaN where there is none. Raises Insufficient naming the families to come."""
    if len(methods) < config["min_families"]:
        missing = [e["number"] for e in config["families"] if e["family"] not in {method.name for method in methods}]
        detail = f"{len(methods)} of the published families measured; {', '.join(missing)} have not been run"
        raise Insufficient("not_run", detail, needs=f"one of the measurements {', '.join(missing)}")
    return np.column_stack([method.score(collapse) for method in methods])


def _published(families: list[Method], rule: str, config: Mapping[str, Any]) -> Published:
    usable = usable_scores(_scores(families, config, collapse=False), config["min_heads"], config["min_families"])
    rho = mean_spearman(usable.scores)
    return Published(rho, rule, published_verdict(rho, ">", config["threshold_rho"]))


def _decide(
    evidence: Evidence, families: list[Method], companions: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """pass: the wider 90 % interval (over prompts or heads) lies above .5, and chance rarely does as well."""
    usable = usable_scores(_scores(families, config, collapse=True), config["min_heads"], config["min_families"])
    require_behaviour(evidence, config)
    kept = [families[i] for i in usable.methods]
    draws = _draws(evidence, kept, usable, config)
    relabelled = mean_spearman_permutation(
        usable.scores, n_resamples=config["permutations"], seed=config["permutation_seed"]
    )
    rho = relabelled.statistic
    intervals = {source: covering(percentile_interval(values, 0.90), rho) for source, values in draws.items()}
    wider = max(intervals, key=lambda source: intervals[source][1] - intervals[source][0])
    threshold = config["threshold_rho"]
    above = threshold_p(draws[wider], threshold)
    verdict = decide_above(intervals[wider], threshold)
    verdict = "inconclusive" if verdict == "pass" and relabelled.p >= config["alpha"] else verdict
    return {
        "verdict": verdict,
        "reasons": () if verdict == "pass" else (f"the interval over {wider} is {_words(intervals[wider])}",),
        "needs": _needs(evidence, wider) if verdict == "inconclusive" else None,
        "estimate": rho,
        "ci90": intervals[wider],
        "ci95": covering(percentile_interval(draws[wider], 0.95), rho),
        "ci_method": f"percentile bootstrap over {wider} (wider than the other), extended to the estimate",
        "p": max(above, relabelled.p),
        "p_kind": "larger of bootstrap-threshold and head relabelling",
        "n": sizes(evidence, heads=len(usable.heads), methods=len(kept)),
        "companions": {
            **companions,
            "ci90_over": intervals,
            "p_threshold": above,
            "p_relabelling": relabelled.p,
            "families": [method.name for method in kept],
            "agreement": _agreement(usable.scores, config),
        },
    }


def _draws(
    evidence: Evidence, methods: list[Method], usable: UsableScores, config: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, " resample"]]:
    """Resampled mean rho: over prompts (measurement noise) and over heads (those of this model)."""
    n_resamples = config["bootstrap_resamples_p"]
    over_prompts = _stack(methods, resamples(evidence, config, n_resamples), usable.heads)
    return {
        "prompts": mean_spearman_draws(over_prompts),
        "heads": head_bootstrap_mean_spearman(usable.scores, n_resamples=n_resamples, seed=config["bootstrap_seed"]),
    }


def _stack(
    methods: list[Method], counts: Int[np.ndarray, "resample prompt"], heads: Int[np.ndarray, " head"]
) -> Float[np.ndarray, "resample head method"]:
    return np.stack([method.resampled(counts)[:, heads] for method in methods], axis=2)


def _words(interval: Interval) -> str:
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]"


def _needs(evidence: Evidence, wider: str) -> str:
    if wider == "prompts":
        return f"more than {len(evidence.rows)} prompts, or a further family"
    return f"a further family, or a model with more than {len(evidence.heads)} heads"


# --- companions ---------------------------------------------------------------------------------------------


def _companions(evidence: Evidence, methods: list[Method], config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that two measured methods allow, published family or not."""
    measured = {method.name for method in methods}
    declared = [*config["families"], *config["companions"]]
    writers = writes_to_answer(evidence, config["writer_fraction"]) if evidence.has("03") else None
    counts = _counts_or_none(evidence, config)
    return {
        "not_run": sorted(entry["number"] for entry in declared if entry["family"] not in measured),
        "orientation": {method.name: method.orientation for method in methods},
        "heads_that_write_to_the_answer": int(writers.sum()) if writers is not None else None,
        "pairs": [
            _pair(evidence, first, second, writers, counts, config) for first, second in combinations(methods, 2)
        ],
    }


def _counts_or_none(evidence: Evidence, config: Mapping[str, Any]) -> np.ndarray | None:
    return _or_none(lambda: resamples(evidence, config, config["bootstrap_resamples"]))


def _or_none(compute: Callable[[], Any]) -> Any:
    """The value, or None where the data support none."""
    try:
        return compute()
    except Insufficient:
        return None


def _pair(
    evidence: Evidence,
    first: Method,
    second: Method,
    writers: Bool[np.ndarray, " head"] | None,
    counts: np.ndarray | None,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Agreement on the heads that both methods score, and that write to the answer if one sees only that."""
    scores = np.column_stack([first.score(), second.score()])
    common = np.isfinite(scores).all(axis=1)
    if first.direct or second.direct:
        common &= writers
    heads = np.flatnonzero(common)
    pair = {"methods": [first.name, second.name], "heads": len(heads)}
    if first.direct or second.direct:
        pair["restricted_to"] = "heads that write to the answer"
    try:
        table = usable_scores(scores[heads], config["min_heads"]).scores
    except Insufficient as missing:
        return {**pair, "insufficient": str(missing)}
    rho = spearman(table[:, 0], table[:, 1]).value
    inside = table[evidence.in_circuit[heads]]
    return {
        **pair,
        "spearman": rho,
        "ci90_heads": _or_none(lambda: spearman_interval(rho, len(table))),
        "ci90_prompts": None if counts is None else _prompt_interval([first, second], counts, heads),
        "kendall_tau_b": kendall_tau_b(table[:, 0], table[:, 1]).value,
        "given_output_norm": _given_norm(evidence, table, heads),
        "circuit_only": {
            "heads": len(inside),
            "spearman": _or_none(lambda: spearman(inside[:, 0], inside[:, 1]).value),
        },
        "top_k": _top_k(table, int(evidence.in_circuit[heads].sum()), [first, second], config),
        **_agreement(table, config),
    }


def _prompt_interval(methods: list[Method], counts: np.ndarray, heads: np.ndarray) -> Interval | None:
    draws = mean_spearman_draws(_stack(methods, counts, heads))
    return _or_none(lambda: percentile_interval(draws, 0.90))


def _given_norm(evidence: Evidence, table: np.ndarray, heads: np.ndarray) -> float | None:
    """Partial Spearman given output norm: methods that only scale with it agree without seeing anything."""
    if not evidence.has("26"):
        return None
    norm = evidence.per_prompt("26", "output_norm").astype(float).mean(axis=0)[heads]
    return _or_none(lambda: partial_spearman(table[:, 0], table[:, 1], norm).value)


def _top_k(table: np.ndarray, k: int, methods: list[Method], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Jaccard of the two top-k sets (k circuit heads) and the p of as large an overlap by chance."""
    if not config["top_k_minimum"] <= k < len(table):
        return None
    chosen = [
        select_top(table[:, i], k, zero_is_nothing=method.orientation == "magnitude")
        for i, method in enumerate(methods)
    ]
    shared, union = int((chosen[0] & chosen[1]).sum()), int((chosen[0] | chosen[1]).sum())
    if not union:
        return None
    p = overlap_p(shared, len(table), int(chosen[0].sum()), int(chosen[1].sum()))
    return {"k": k, "jaccard": shared / union, "p": p}


def _agreement(table: Float[np.ndarray, "head method"], config: Mapping[str, Any]) -> dict[str, Any]:
    """ICC(A,1) on raw scores (the published ICC(2), about 0 for different units) and ICC(C,1) on z-scores."""
    raw = _or_none(lambda: intraclass_correlation(table)["ICC(A,1)"].value)
    standard = _or_none(lambda: intraclass_correlation(stats.zscore(table, axis=0, ddof=1))["ICC(C,1)"].value)
    good = None if raw is None else published_verdict(raw, ">", config["threshold_icc"])
    return {"icc_agreement_raw": raw, "icc_raw_published_verdict": good, "icc_consistency_z": standard}
