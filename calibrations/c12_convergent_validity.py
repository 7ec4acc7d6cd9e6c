"""C12 convergent validity: do different metric families rank the heads alike?

Published value: mean pairwise Spearman over the published families (activation patching, mediation, oCSE,
local learning coefficient), of |mean effects| and unchanged scores. Only heads scored by every method count: a missing
score filled with 0 turns perfect disagreement into a correlation of .97.

For the verdict, effects below 1 % of the mean logit difference tie. Some methods see only what a head writes to the answer:
direct logit attribution, and oCSE, which is computed from it. About other heads they hold only noise, so they are compared on
heads that write to the answer. Each pair of families thus has its own heads, and the verdict rests on the mean rho over pairs.
The heads of a model are its whole population, so the interval is over prompts. Chance is what independently relabelled heads
give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from calibrations.evidence import Evidence
from calibrations.head_scores import (
    ScoringMethod,
    covering,
    mean_difference,
    rank_reliability,
    read_method,
    select_top,
    writes_to_answer,
)
from calibrations.preconditions import require_behaviour, resamples, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    disattenuated,
    discrimination,
    half_splits,
    intraclass_correlation,
    kendall_tau_b,
    mean_spearman,
    mean_spearman_draws,
    mean_spearman_of_pairs,
    or_none,
    overlap_p,
    partial_spearman,
    percentile_interval,
    permutation_p,
    published_verdict,
    single_rating_correlations,
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
NODES = (
    "Left out: the methods score heads, so MLPs have no rank, and a head claimed at a position is a member as it "
    "is at all of them."
)

RULE = "mean pairwise Spearman rho > {threshold_rho}"


@dataclass(frozen=True)
class MethodPanel:
    """The families that can be compared, and on which heads.

    `heads` [head] are the heads that every family scored. `writers` [head] marks those that write to the answer. `dropped`
    maps each family that was measured but is not compared to the reason.
    """

    methods: tuple[ScoringMethod, ...]
    heads: Int[np.ndarray, " head"]
    writers: Bool[np.ndarray, " head"]
    dropped: Mapping[str, str]

    @property
    def scores(self) -> Float[np.ndarray, "head method"]:
        return np.column_stack([method.score() for method in self.methods])[self.heads]

    @property
    def pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """(method, method, heads) as indices into `scores`: writers only if either method sees only what a head writes."""
        everything, writing = np.arange(len(self.heads)), np.flatnonzero(self.writers)
        return [
            (i, j, writing if self.methods[i].direct or self.methods[j].direct else everything)
            for i, j in combinations(range(len(self.methods)), 2)
        ]

    def mean_rho(self, tables: Float[np.ndarray, "resample head method"]) -> Float[np.ndarray, " resample"]:
        return mean_spearman_of_pairs(tables, self.pairs)

    def with_orientation(self, name: str, orientation: str) -> MethodPanel:
        """The same panel with one family read the other way."""
        turned = [replace(m, orientation=orientation) if m.name == name else m for m in self.methods]
        return replace(self, methods=tuple(turned))


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C12.convergent_validity: Spearman's rho between two families' head scores, averaged over pairs of metric families.

    Published: rho of |mean effects| and unchanged scores, over the heads that every family scored; above 0.5. Verdict: effects
    under 1 % of mean D tie, and a family that sees only what a head writes to the answer is compared on heads that write to
    it. pass if the percentile 90 % interval over clusters of prompts lies above 0.5 and independently relabelled heads reach
    the same rho in less than 5 % of the draws; fail if that interval lies below 0.5. The interval over heads, as if they were
    a sample, is a companion.
    """
    families = scoring_methods(evidence, config, "families")
    companions = {
        **_companions(evidence, [*families, *scoring_methods(evidence, config, "companions")], config),
        "published": _published_companions(families, config),
    }
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


def scoring_methods(evidence: Evidence, config: Mapping[str, Any], which: str) -> list[ScoringMethod]:
    """The declared methods whose measurement exists; effects under 1 % of mean D tie."""
    return [
        read_method(
            evidence,
            entry,
            entry["family"],
            entry["orientation"],
            config["tie_fraction"] * mean_difference(evidence, entry["number"]),
            direct=entry.get("writers_only", False),
        )
        for entry in config[which]
        if evidence.has(entry["number"])
    ]


def _require_measured(families: list[ScoringMethod], config: Mapping[str, Any]) -> None:
    """Raises Insufficient("not_run") with the measurements that are missing."""
    if len(families) < config["min_families"]:
        missing = [e["number"] for e in config["families"] if e["family"] not in {method.name for method in families}]
        detail = f"{len(families)} of the published families measured; {', '.join(missing)} have not been run"
        raise Insufficient("not_run", detail, needs=f"one of the measurements {', '.join(missing)}")


def _scored(families: list[ScoringMethod], config: Mapping[str, Any]) -> tuple[list[ScoringMethod], dict[str, str]]:
    """The families that score enough heads, and why the others do not count.

    Families are compared on the heads that all of them score, so one family with many gaps would decide which heads count.
    """
    gaps = {method.name: method.missing_share() for method in families}
    limit = config["max_missing_share"]
    dropped = {
        name: f"no score for {gap:.0%} of the heads, above {limit:.0%}" for name, gap in gaps.items() if gap > limit
    }
    return [method for method in families if method.name not in dropped], dropped


def _published(families: list[ScoringMethod], rule: str, config: Mapping[str, Any]) -> Published:
    """Mean rho over all heads that every family scored."""
    _require_measured(families, config)
    rho = mean_spearman(usable_scores(_as_printed(families), config["min_heads"], config["min_families"]).scores)
    return Published(rho, rule, published_verdict(rho, ">", config["threshold_rho"]))


def _as_printed(families: Iterable[ScoringMethod]) -> Float[np.ndarray, "head method"]:
    """|mean effect| or score of every head, without ties; families that scored no head are left out."""
    scores = [method.score(collapse=False) for method in families]
    if not (scored := [score for score in scores if np.isfinite(score).any()]):
        raise Insufficient("missing_rater", "no family scored any head")
    return np.column_stack(scored)


def _published_companions(families: list[ScoringMethod], config: Mapping[str, Any]) -> dict[str, Any]:
    """The published ICC(2) of the same table, and what the published rho would be with a family read the other way."""
    turned = {e["family"]: e["other_orientation"] for e in config["families"] if "other_orientation" in e}
    icc = or_none(
        lambda: _icc(usable_scores(_as_printed(families), config["min_heads"], config["min_families"]).scores)[
            "ICC(A,1)"
        ]
    )
    reoriented = {}
    for name in sorted(turned.keys() & {method.name for method in families}):
        other = [replace(m, orientation=turned[name]) if m.name == name else m for m in families]
        reoriented[name] = {
            "orientation": turned[name],
            "mean_rho": or_none(lambda other=other: _published(other, "", config).value),
        }
    return {
        "icc2": icc,
        "icc2_verdict": None if icc is None else published_verdict(icc, ">", config["threshold_icc"]),
        "reoriented": reoriented,
    }


def _require_families(kept: list[ScoringMethod], dropped: Mapping[str, str], config: Mapping[str, Any]) -> None:
    if len(kept) < config["min_families"]:
        why = "; ".join(f"{name}: {reason}" for name, reason in dropped.items())
        raise Insufficient("n_methods", f"{len(kept)} families can be compared ({why})")


def comparable_panel(evidence: Evidence, families: list[ScoringMethod], config: Mapping[str, Any]) -> MethodPanel:
    """The families on the heads they can be compared on.

    A family is dropped if it leaves too many heads without a score, if it sees only heads that write to the answer and
    they are too few, or if it gives all its heads one score. Raises Insufficient("not_run"), ("n_heads"), ("n_methods").
    """
    _require_measured(families, config)
    kept, dropped = _scored(families, config)
    writers = _writers(evidence, config)
    heads = _common(kept)
    if len(heads) < config["min_heads"]:
        raise Insufficient("n_heads", f"{len(heads)} heads are scored by every method; {config['min_heads']} needed")
    for method in list(kept):
        own = heads[writers[heads]] if method.direct else heads
        if len(own) < config["min_heads"]:
            reason = f"sees only heads that write to the answer, which {len(own)} do; {config['min_heads']} needed"
        elif np.ptp(method.score()[own]) == 0:
            reason = "scores every head alike"
        else:
            continue
        kept.remove(method)
        dropped[method.name] = reason
    _require_families(kept, dropped, config)
    heads = _common(kept)
    return MethodPanel(tuple(kept), heads, writers[heads], dropped)


def _common(methods: Iterable[ScoringMethod]) -> Int[np.ndarray, " head"]:
    """Heads that every method scored: a missing score is never filled."""
    return np.flatnonzero(np.all([np.isfinite(method.score()) for method in methods], axis=0))


def _writers(evidence: Evidence, config: Mapping[str, Any]) -> Bool[np.ndarray, " head"]:
    """Heads that write to the answer; none without measurement 03."""
    if not evidence.has("03"):
        return np.zeros(len(evidence.heads), dtype=bool)
    return writes_to_answer(evidence, config["writer_fraction"])


def _decide(
    evidence: Evidence, families: list[ScoringMethod], companions: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """pass: the 90 % interval over prompts lies above .5, and relabelled heads rarely reach the observed rho."""
    panel = comparable_panel(evidence, families, config)
    require_behaviour(evidence, config)
    _require_by_prompt(panel, config)
    rho = float(panel.mean_rho(panel.scores[None])[0])
    draws = rho_draws(evidence, panel, config)
    undefined = {source: float((~np.isfinite(values)).mean()) for source, values in draws.items()}
    over_prompts = _defined(draws["prompts"], config)
    chance = permutation_p(rho, panel.mean_rho(relabelled_scores(panel, config)), "greater", exact=False)
    ci90, threshold = covering(percentile_interval(over_prompts, 0.90), rho), config["threshold_rho"]
    above, verdict = threshold_p(over_prompts, threshold), decide_above(ci90, threshold)
    reasons = () if verdict == "pass" else (f"the interval over prompts is [{ci90[0]:.2f}, {ci90[1]:.2f}]",)
    if verdict == "pass" and chance >= config["alpha"]:
        verdict, reasons = "inconclusive", (f"heads relabelled at random agree as well with p = {chance:.2g}",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "notes": tuple(f"{name} left out: {reason}" for name, reason in panel.dropped.items()),
        "needs": f"more than {len(evidence.rows)} prompts, or a further family" if verdict == "inconclusive" else None,
        "estimate": rho,
        "ci90": ci90,
        "ci95": covering(percentile_interval(over_prompts, 0.95), rho),
        "ci_method": "percentile bootstrap over clusters of prompts, extended to the estimate",
        "p": max(above, chance),
        "p_kind": "larger of bootstrap-threshold and head relabelling",
        "n": sizes(evidence, heads=len(panel.heads), methods=len(panel.methods)),
        "companions": {
            **companions,
            "ci90_over_heads": or_none(
                lambda: covering(percentile_interval(_defined(draws["heads"], config), 0.90), rho)
            ),
            "undefined_draws": undefined,
            "p_threshold": above,
            "p_relabelling": chance,
            "families": [method.name for method in panel.methods],
            "prompt_free": [method.name for method in panel.methods if not method.by_prompt],
            "dropped": dict(panel.dropped),
            "both_orientations": _both_orientations(panel, config),
            "agreement": _agreement(panel.scores, config, _icc),
        },
    }


def _require_by_prompt(panel: MethodPanel, config: Mapping[str, Any]) -> None:
    """Raises Insufficient("not_run") if no family is measured per prompt: the interval would have no width."""
    if not any(method.by_prompt for method in panel.methods):
        numbers = ", ".join(entry["number"] for entry in config["families"] if entry["per_prompt"])
        detail = "no family that can be compared is measured per prompt, so prompts leave no doubt to judge by"
        raise Insufficient("not_run", detail, needs=f"one of the measurements {numbers}")


def _defined(draws: Float[np.ndarray, " resample"], config: Mapping[str, Any]) -> Float[np.ndarray, " resample"]:
    """The draws in which every family orders its heads; in the others a rho is 0/0.

    Raises Insufficient("degenerate_bootstrap") if more than `max_undefined_draws` are not defined.
    """
    defined, limit = np.isfinite(draws), config["max_undefined_draws"]
    if (share := float((~defined).mean())) > limit:
        detail = f"a family scores all its heads alike in {share:.0%} of the resamples, above {limit:.0%}"
        raise Insufficient("degenerate_bootstrap", detail)
    return draws[defined]


def rho_draws(
    evidence: Evidence, panel: MethodPanel, config: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, " resample"]]:
    """Resampled mean rho over prompts (measurement noise), which decides, and over heads, as if they were a sample.

    NaN where a family gives all heads of a pair one score.
    """
    n_resamples = config["bootstrap_resamples_p"]
    over_prompts = _stack(panel.methods, resamples(evidence, config, n_resamples), panel.heads)
    return {
        "prompts": panel.mean_rho(over_prompts),
        "heads": panel.mean_rho(panel.scores[_head_resamples(panel, n_resamples, config["bootstrap_seed"])]),
    }


def _head_resamples(panel: MethodPanel, n_resamples: int, seed: int) -> Int[np.ndarray, "resample head"]:
    """Heads drawn with replacement, the same for all pairs of families.

    Where a family is judged on writers only, writers are replaced by writers, so every pair keeps its number of heads.
    """
    stratum = panel.writers if any(method.direct for method in panel.methods) else np.zeros(len(panel.heads), bool)
    rng = np.random.default_rng(seed)
    index = np.empty((n_resamples, len(panel.heads)), dtype=int)
    for own in (np.flatnonzero(stratum), np.flatnonzero(~stratum)):
        index[:, own] = own[rng.integers(max(len(own), 1), size=(n_resamples, len(own)))]
    return index


def relabelled_scores(panel: MethodPanel, config: Mapping[str, Any]) -> Float[np.ndarray, "relabelling head method"]:
    """Scores with the head labels permuted independently in every family."""
    rng = np.random.default_rng(config["permutation_seed"])
    return rng.permuted(np.tile(panel.scores, (config["permutations"], 1, 1)), axis=1)


def _both_orientations(panel: MethodPanel, config: Mapping[str, Any]) -> dict[str, Any]:
    """Mean rho with a family in the verdict's orientation and in the opposite one, where the literature has both."""
    both = {}
    for entry in config["families"]:
        other, name = entry.get("other_orientation"), entry["family"]
        if other and name in {method.name for method in panel.methods}:
            turned = panel.with_orientation(name, other)
            both[name] = {
                orientation: float(which.mean_rho(which.scores[None])[0])
                for orientation, which in ((entry["orientation"], panel), (other, turned))
            }
    return both


def _stack(
    methods: Iterable[ScoringMethod], counts: Int[np.ndarray, "resample prompt"], heads: Int[np.ndarray, " head"]
) -> Float[np.ndarray, "resample head method"]:
    return np.stack([method.resampled(counts)[:, heads] for method in methods], axis=2)


# --- companions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampling:
    """Resamples of the prompts that all pairs share: bootstrap counts and random halves, None if there can be none."""

    counts: Int[np.ndarray, "resample prompt"] | None
    halves: Bool[np.ndarray, "split prompt"] | None


def _companions(evidence: Evidence, methods: list[ScoringMethod], config: Mapping[str, Any]) -> dict[str, Any]:
    """Companions of every two measured methods, whether published families or not."""
    measured = {method.name for method in methods}
    declared = [*config["families"], *config["companions"]]
    writers = _writers(evidence, config)
    prompts = Resampling(
        or_none(lambda: resamples(evidence, config, config["bootstrap_resamples"])),
        or_none(lambda: _halves(evidence, config)),
    )
    pairs = [_pair(evidence, first, second, writers, prompts, config) for first, second in combinations(methods, 2)]
    return {
        "not_run": sorted(entry["number"] for entry in declared if entry["family"] not in measured),
        "orientation": {method.name: method.orientation for method in methods},
        "heads_that_write_to_the_answer": int(writers.sum()) if evidence.has("03") else None,
        "pairs": pairs,
    }


def _halves(evidence: Evidence, config: Mapping[str, Any]) -> Bool[np.ndarray, "split prompt"]:
    return half_splits(
        len(evidence.clean),
        config["reliability_splits"],
        seed=config["reliability_seed"],
        clusters=evidence.clusters,
        strata=evidence.templates,
    )


def _pair(
    evidence: Evidence,
    first: ScoringMethod,
    second: ScoringMethod,
    writers: Bool[np.ndarray, " head"],
    prompts: Resampling,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Agreement on the heads that both methods score; only on writers if one method sees only what a head writes."""
    scores = np.column_stack([first.score(), second.score()])
    common = np.isfinite(scores).all(axis=1)
    pair: dict[str, Any] = {"methods": [first.name, second.name]}
    if first.direct or second.direct:
        common &= writers
        pair["restricted_to"] = "heads that write to the answer"
    heads = np.flatnonzero(common)
    pair["heads"] = len(heads)
    try:
        table = usable_scores(scores[heads], config["min_heads"]).scores
    except Insufficient as missing:
        return {**pair, "insufficient": str(missing)}
    rho = spearman(table[:, 0], table[:, 1]).value
    inside = table[evidence.in_circuit[heads]]
    return {
        **pair,
        "spearman": rho,
        "ci90_heads": or_none(lambda: spearman_interval(rho, len(table))),
        **_over_prompts([first, second], rho, prompts, heads),
        "kendall_tau_b": kendall_tau_b(table[:, 0], table[:, 1]).value,
        "given_output_norm": _given_norm(evidence, table, heads),
        "circuit_only": {
            "heads": len(inside),
            "spearman": or_none(lambda: spearman(inside[:, 0], inside[:, 1]).value),
        },
        "top_k": _top_k(table, int(evidence.in_circuit[heads].sum()), [first, second], config),
        **_agreement(table, config, single_rating_correlations),
    }


def _over_prompts(
    methods: list[ScoringMethod], rho: float, prompts: Resampling, heads: Int[np.ndarray, " head"]
) -> dict[str, Any]:
    """What resampling the prompts says about a pair: an interval of rho, and rho corrected for attenuation.

    The interval covers only the noise of methods that are measured per prompt; `prompt_interval_covers` names them.
    The disattenuated rho needs the reliability of both methods.
    """
    varying = [method.name for method in methods if method.by_prompt]
    interval, reliability = None, dict.fromkeys(method.name for method in methods)
    if prompts.counts is not None and varying:
        draws = mean_spearman_draws(_stack(methods, prompts.counts, heads))
        interval = or_none(lambda: covering(percentile_interval(draws, 0.90), rho))
    if prompts.halves is not None:
        reliability = {method.name: rank_reliability(method, prompts.halves, heads) for method in methods}
    known = [value for value in reliability.values() if value is not None]
    return {
        "ci90_prompts": interval,
        "prompt_interval_covers": varying,
        "reliability": reliability,
        "disattenuated": or_none(lambda: disattenuated(rho, *known)) if len(known) == 2 else None,
    }


def _given_norm(evidence: Evidence, table: np.ndarray, heads: np.ndarray) -> float | None:
    """Partial Spearman given output norm: methods that merely scale with the norm agree for that reason alone."""
    if not evidence.has("26"):
        return None
    norm = evidence.per_prompt("26", "output_norm").astype(float).mean(axis=0)[heads]
    return or_none(lambda: partial_spearman(table[:, 0], table[:, 1], norm).value)


def _top_k(table: np.ndarray, k: int, methods: list[ScoringMethod], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Agreement on the k likeliest members; k is the number of circuit heads among the pair's heads.

    Jaccard of the two top-k sets, the probability of at least this overlap by chance, and the AUROC with which each method's
    score finds the other's set (`auroc_for_top_k_of` names the method whose set is searched for).
    """
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
    found = {methods[i].name: or_none(lambda i=i: discrimination(chosen[i], table[:, 1 - i]).auroc) for i in range(2)}
    return {"k": k, "jaccard": shared / union, "p": p, "auroc_for_top_k_of": found}


def _icc(table: Float[np.ndarray, "head method"]) -> dict[str, float]:
    """The published coefficients, computed by pingouin."""
    return {name: found.value for name, found in intraclass_correlation(table).items()}


def _agreement(
    table: Float[np.ndarray, "head method"],
    config: Mapping[str, Any],
    icc: Callable[[np.ndarray], Mapping[str, float]],
) -> dict[str, Any]:
    """ICC(A,1) on raw scores (the published ICC(2), about 0 for different units) and ICC(C,1) on z-scores.

    `icc` is `_icc`, or the faster `single_rating_correlations` where there are many pairs.
    """
    raw = or_none(lambda: icc(table)["ICC(A,1)"])
    standard = or_none(lambda: icc(np.asarray(scipy.stats.zscore(table, axis=0, ddof=1)))["ICC(C,1)"])
    good = None if raw is None else published_verdict(raw, ">", config["threshold_icc"])
    return {"icc_agreement_raw": raw, "icc_raw_published_verdict": good, "icc_consistency_z": standard}
