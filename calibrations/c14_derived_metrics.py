"""C14 derived metrics: signal detection between circuit heads and others, and values forwarded from results.

Twenty published sub-metrics, one record each. d' gates; the rest is reported, most of it without a threshold. A
sub-metric whose source was not measured says so. A published head set is read from the circuit's provenance: a discovered
circuit names the published or planted circuit of its task there. Without one the overlap is insufficient.

Where a published definition is unsound, its number stays the published value and the estimate differs. d' compares with all
other heads: random heads would include some of the circuit's own. Composition is tested by relabelling heads, because edges
that share heads are not independent, as a t test assumes. Recovery under scrubbing is counted from what the empty hypothesis
recovers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float

from calibrations import weight_classifier_rates
from calibrations.evidence import Evidence, Head
from calibrations.head_scores import select_top
from calibrations.preconditions import completeness, faithfulness, require_behaviour, resamples, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    Ratio,
    adjusted_p,
    auroc_interval,
    bootstrap_means,
    cliff_delta,
    clustered_f,
    cohen_d,
    cohen_d_interval,
    d_prime_rms,
    discrimination,
    edge_contrast,
    eta2_interval,
    head_label_permutation,
    head_relabellings,
    hedges_g,
    mean_contrast,
    one_way_effects,
    or_none,
    overlap_p,
    percentile_interval,
    published_verdict,
    ratio_of_means,
    reportable_ratio,
    require_attainable,
    set_overlap,
    signal_detection,
    split_groups,
    units_effect,
)
from results_io import UserError

ID = "C14"
NUMBER = "14"
NAME = "derived_metrics"
TITLE = "derived metrics"
INPUTS = ("01", "02", "08", "09", "10", "20", "22", "24", "26")
NODES = (
    "Sparsity, faithfulness, completeness, minimality and recovery count MLPs and positions; scores of weights, "
    "patching and attribution exist for heads alone, so MLPs are left out of them and a head claimed at a "
    "position counts as it is at all of them."
)

DESCRIPTIVE = "descriptive: no published threshold"
NO_RULE = "none"
D_PRIME_RULE = "(mean circuit - mean {group}) / sqrt((s_circuit^2 + s_{group}^2) / 2) > {threshold_d_prime}"
SIGN = "positive: the circuit's heads have the larger learning coefficients"

Computed = Mapping[str, Any]  # Record fields of a descriptive sub-metric; `estimate` is also its published value


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """The twenty C14.* records in the order in which they were published; of these, C14.d_prime gates.

    d' = (m1 - m2) / sqrt((s1^2 + s2^2) / 2). m and s are mean and SD, over heads inside (1) and outside (2) the circuit, of a
    head's mean patching effect with the sign of its role. Published: d' without these signs and against random heads of the
    model, above 1; d' of the learning coefficient against the other heads, above 1; hit rate of the weight classifier above
    0.9 and its false alarms below 0.2; the others have no threshold. Verdict: pass if the 90 % interval of d' (Bonett 2008,
    unequal variances, over heads) lies above 1 and relabelled heads reach the same d' in less than 5 % of the draws; fail if it
    lies below 1. The coefficient's d' is judged in the same way, the two rates by Wilson's 90 % interval. The rest is never
    passed or failed.
    """
    n = _sizes(evidence)
    records = [
        _descriptive("sparsity", lambda: {"estimate": len(_whole(evidence)) / evidence.in_scope}, evidence),
        _node_overlap(evidence),
        _summarised("spectral_norm_ratio", evidence, config),
        _summarised("sv_entropy_ratio", evidence, config),
        _d_prime(evidence, config),
        _llc_d_prime(evidence, config),
        weight_classifier_rates.hit_rate(evidence, config, n),
        weight_classifier_rates.false_alarm_rate(evidence, config, n),
        _descriptive("partial_eta_sq", lambda: _partial_eta_sq(evidence, config), evidence),
        _summarised("pc_ratio_circuit_mean", evidence, config),
        _summarised("pc_ratio_noncircuit_mean", evidence, config),
        _summarised("pc_ratio_d_prime", evidence, config),
        _composition("ov_composition_pval", evidence, config),
        _composition("q_composition_pval", evidence, config),
        _composition("k_composition_pval", evidence, config),
        _descriptive("attribution_auroc", lambda: _attribution_auroc(evidence, config), evidence),
        _descriptive("faithfulness", lambda: _ratio_fields(evidence, config, faithfulness), evidence),
        _descriptive("completeness", lambda: _ratio_fields(evidence, config, completeness), evidence),
        _descriptive("minimality_mean_importance", lambda: _minimality(evidence, config), evidence),
        _recovery(evidence, config),
    ]
    return _with_adjusted_p(records)


def _with_adjusted_p(records: list[Record]) -> list[Record]:
    """BH over the exploratory sub-metrics that have a p-value; gates are corrected by M93, not here."""
    tested = {i: record.p for i, record in enumerate(records) if record.p is not None and not record.gating}
    if not tested:
        return records
    for i, p in zip(tested, adjusted_p(list(tested.values()), "bh"), strict=True):
        extra = {"p_bh": float(p), "p_bh_family": len(tested)}
        records[i] = replace(records[i], companions={**records[i].companions, **extra})
    return records


def _descriptive(
    name: str,
    compute: Callable[[], Computed],
    evidence: Evidence,
    published: Callable[[], float] | None = None,
    notes: tuple[str, ...] = (),
) -> Record:
    """A sub-metric without a threshold: the value is shown, never passed or failed.

    The published value is the estimate, unless `published` computes another.
    """
    once = cache(compute)

    def decide() -> dict[str, Any]:
        return {"verdict": "inconclusive", "reasons": (DESCRIPTIVE,), **once()}

    return judge(
        f"C14.{name}",
        lambda: Published(published() if published else once()["estimate"], NO_RULE, "none"),
        decide,
        rule=NO_RULE,
        gating=False,
        notes=notes,
        n=_sizes(evidence),
    )


def _sizes(evidence: Evidence) -> dict[str, int]:
    own = {"heads": len(evidence.heads), "circuit_heads": len(evidence.circuit_heads)}
    return sizes(evidence, **own, **evidence.counted_besides)


def _whole(evidence: Evidence) -> set[tuple[str, int, int]]:
    """The claimed heads and MLPs, whatever positions they are claimed at."""
    return {node.whole for node in evidence.claimed}


# --- circuit against published set --------------------------------------------------------------------------


def _node_overlap(evidence: Evidence) -> Record:
    """Published: min/max of the set sizes, an upper bound of Jaccard. Estimate: Jaccard of the head ids."""

    def published_heads() -> set[Head]:
        heads = evidence.circuit["provenance"].get("published_heads")
        if not heads:
            raise Insufficient("n_heads", "no published head set to compare with: the circuit's provenance names none")
        unknown = [head for head in heads if not isinstance(head, list | tuple) or tuple(head) not in evidence.heads]
        if unknown:
            raise UserError(
                f"published_heads of the circuit's provenance holds {unknown[0]!r}, which is no [layer, head] of the model; "
                "write for example [3, 2]"
            )
        return {(layer, head) for layer, head in heads}

    def decide() -> dict[str, Any]:
        theirs, ours = published_heads(), set(evidence.circuit_heads)
        overlap = set_overlap(ours, theirs)
        return {
            "verdict": "inconclusive",
            "reasons": (DESCRIPTIVE,),
            "estimate": overlap.jaccard,
            "p": overlap_p(len(ours & theirs), len(evidence.heads), len(ours), len(theirs)),
            "p_kind": "hypergeometric",
            "companions": {
                "dice": overlap.dice,
                "published_heads": len(theirs),
                "published_circuit": evidence.circuit["provenance"].get("published_circuit"),
            },
        }

    return judge(
        "C14.node_overlap_jaccard",
        lambda: Published(set_overlap(evidence.circuit_heads, published_heads()).size_ratio, NO_RULE, "none"),
        decide,
        rule=NO_RULE,
        gating=False,
        n=_sizes(evidence),
    )


# --- d' -----------------------------------------------------------------------------------------------------


def _d_prime(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    rule = D_PRIME_RULE.format(group="random", **config)

    def effects() -> Float[np.ndarray, " head"]:
        _require_groups(evidence, config)
        return evidence.head_effect("02", "denoising").mean(axis=0)

    def published() -> Published:
        value = _against_random_heads(effects(), evidence.in_circuit)
        return Published(value, rule, published_verdict(value, ">", config["threshold_d_prime"]))

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        oriented = effects() * evidence.expected_sign  # heads of negative roles should have negative effects
        fields = _decide_d_prime(oriented, evidence.in_circuit, config)
        mean, member = effects(), evidence.in_circuit
        forms = {
            "against_random_heads": _against_random_heads(mean, member),
            "against_other_heads": d_prime_rms(mean[member], mean[~member]),
        }
        more = _d_prime_companions(evidence, oriented, config)
        return {**fields, "companions": {**fields["companions"], **forms, **more}}

    return judge("C14.d_prime", published, decide, rule=rule, n=_sizes(evidence))


def _against_random_heads(mean: Float[np.ndarray, " head"], member: Bool[np.ndarray, " head"]) -> float:
    """d' of the circuit's heads against heads drawn at random from the model, some of which are the circuit's own.

    It uses mean and SD of the distribution they are drawn from, that is of all heads: a single draw would vary too much.
    """
    return d_prime_rms(mean[member], mean)


def _require_groups(evidence: Evidence, config: Mapping[str, Any]) -> None:
    """Raises Insufficient if too few heads are inside ("n_heads") or outside ("all_selected") for an SD.

    For a single circuit head the detail gives the rank of its effect.
    """
    k, n_heads = len(evidence.circuit_heads), len(evidence.heads)
    if k == 1:
        mean = evidence.head_effect("02", "denoising").mean(axis=0)
        rank = int((mean >= mean[evidence.in_circuit]).sum())
        raise Insufficient(
            "n_heads", f"one head has no SD; its effect ranks {rank} of {n_heads} (p = {rank / n_heads:.3g})"
        )
    if k < config["min_circuit_heads"]:
        raise Insufficient("n_heads", f"{k} circuit heads; an SD over heads needs {config['min_circuit_heads']}")
    if k > n_heads - config["min_circuit_heads"]:
        raise Insufficient(
            "all_selected", f"{k} of {n_heads} heads are in the circuit; too few are left to compare with"
        )


def d_prime_interval(first: Float[np.ndarray, " head"], second: Float[np.ndarray, " head"], level: float) -> Interval:
    """Interval of d' = (m1 - m2)/sqrt((s1^2 + s2^2)/2) with unequal variances: d' +- z SE.

    SE^2 = d'^2 (s1^4/(n1-1) + s2^4/(n2-1)) / (8 s^4) + (s1^2/(n1-1) + s2^2/(n2-1)) / s^2 with s^2 the mean of
    the two variances. Source: Bonett 2008, Psychological Methods 13, 99-109. Raises as `d_prime_rms`.
    """
    half = scipy.stats.norm.ppf((1 + level) / 2) * _d_prime_error(first, second)
    value = d_prime_rms(first, second)
    return float(value - half), float(value + half)


def _d_prime_error(first: np.ndarray, second: np.ndarray) -> float:
    value = d_prime_rms(first, second)
    variances = np.array([first.var(ddof=1), second.var(ddof=1)])
    freedom = np.array([len(first) - 1, len(second) - 1])
    pooled = variances.mean()
    return math.sqrt(value**2 * (variances**2 / freedom).sum() / (8 * pooled**2) + (variances / freedom).sum() / pooled)


def _decide_d_prime(
    oriented: Float[np.ndarray, " head"], member: Bool[np.ndarray, " head"], config: Mapping[str, Any]
) -> dict[str, Any]:
    """pass: 90 % interval above 1, and relabelled heads rarely reach the observed d'. `oriented`: larger for members."""
    threshold = config["threshold_d_prime"]
    inside, outside = oriented[member], oriented[~member]
    value, error = d_prime_rms(inside, outside), _d_prime_error(inside, outside)
    ci90 = d_prime_interval(inside, outside, 0.90)
    relabelled = head_label_permutation(
        mean_contrast(oriented), member, n_resamples=config["permutations"], seed=config["permutation_seed"]
    )
    above = float(scipy.stats.norm.sf((value - threshold) / error))
    verdict, reasons = decide_above(ci90, threshold), ()
    if verdict == "pass" and relabelled.p >= config["alpha"]:
        verdict, reasons = "inconclusive", ("random head sets of this size separate as well",)
    elif verdict != "pass":
        reasons = (f"the interval [{ci90[0]:.2f}, {ci90[1]:.2f}] is not above {threshold:g}",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "needs": "more circuit heads: the uncertainty is over heads" if verdict == "inconclusive" else None,
        "estimate": value,
        "ci90": ci90,
        "ci95": d_prime_interval(inside, outside, 0.95),
        "ci_method": "Bonett 2008 for unequal variances, over heads",
        "p": max(above, relabelled.p),
        "p_kind": "larger of normal test against the threshold and head relabelling",
        "effect_size": value,
        "companions": {"p_threshold": above, "p_relabelling": relabelled.p},
    }


def _d_prime_companions(evidence: Evidence, oriented: np.ndarray, config: Mapping[str, Any]) -> dict[str, Any]:
    member = evidence.in_circuit
    inside, outside = oriented[member], oriented[~member]
    k = int(member.sum())
    d = cohen_d(inside, outside)
    top = np.argsort(-oriented, kind="stable")[:k]
    hits = int(member[top].sum())
    rates = signal_detection(hits, k - hits, k - hits, len(outside) - (k - hits))
    return {
        "over_heads_ci90": or_none(lambda: percentile_interval(_head_draws(inside, outside, config), 0.90)),
        "over_prompts_ci90": percentile_interval(_prompt_draws(evidence, config), 0.90),
        "cohen_d": d,
        "cohen_d_ci90": cohen_d_interval(d, k, len(outside), 0.90),
        "hedges_g": hedges_g(inside, outside),
        "cliff_delta": cliff_delta(inside, outside),
        "auroc": discrimination(member, oriented).auroc,
        "auroc_ci90": or_none(lambda: auroc_interval(member, oriented, 0.90)),
        "d_prime_of_top_k_rates": rates.d_prime_loglinear,
        "upstream_form": _upstream(evidence, config),
    }


def _head_draws(inside: np.ndarray, outside: np.ndarray, config: Mapping[str, Any]) -> Float[np.ndarray, " resample"]:
    rng = np.random.default_rng(config["bootstrap_seed"])
    size = config["head_bootstrap_resamples"]
    return _d_primes(*(rng.choice(group, (size, len(group))) for group in (inside, outside)))


def _prompt_draws(evidence: Evidence, config: Mapping[str, Any]) -> Float[np.ndarray, " resample"]:
    counts = resamples(evidence, config, config["bootstrap_resamples"])
    means = bootstrap_means(counts, evidence.head_effect("02", "denoising")) * evidence.expected_sign
    return _d_primes(means[:, evidence.in_circuit], means[:, ~evidence.in_circuit])


def _d_primes(inside: np.ndarray, outside: np.ndarray) -> Float[np.ndarray, " resample"]:
    """`d_prime_rms` of every row; NaN where neither group varies."""
    variance = (inside.var(axis=1, ddof=1) + outside.var(axis=1, ddof=1)) / 2
    contrast = inside.mean(axis=1) - outside.mean(axis=1)
    return np.divide(contrast, np.sqrt(variance), out=np.full(len(contrast), np.nan), where=variance > 0)


def _upstream(evidence: Evidence, config: Mapping[str, Any]) -> float | None:
    """Another form of d' in use: |means|, over the SD of means of random sets, which shrinks as the circuit grows."""
    mean, member = evidence.head_effect("02", "denoising").mean(axis=0), evidence.in_circuit
    masks, _ = head_relabellings(member, config["permutations"], config["permutation_seed"])
    sets = masks @ mean / member.sum()
    scale = math.sqrt((mean[member].var(ddof=1) + sets.var(ddof=1)) / 2)
    return float((abs(mean[member].mean()) - abs(sets.mean())) / scale) if scale > 0 else None


# --- learning coefficient -----------------------------------------------------------------------------------


def _llc_d_prime(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    """d' of the raw coefficients: positive if those of the circuit's heads are larger.

    The loss is that of the task, which constrains the heads that the task needs. Upstream code counts low coefficients as
    members; the companion `reoriented` has that orientation.
    """
    rule = D_PRIME_RULE.format(group="other", **config)

    def scored() -> tuple[Float[np.ndarray, " head"], Bool[np.ndarray, " head"]]:
        score = evidence.head_score("10", "score")
        known = np.isfinite(score)
        inside, outside = (int((known & group).sum()) for group in (evidence.in_circuit, ~evidence.in_circuit))
        least = config["min_circuit_heads"]
        if min(inside, outside) < least:
            detail = f"{inside} circuit heads and {outside} others have a learning coefficient; {least} of each needed"
            raise Insufficient("n_heads", detail)
        return score[known], evidence.in_circuit[known]

    def published() -> Published:
        score, member = scored()
        value = d_prime_rms(score[member], score[~member])
        return Published(value, rule, published_verdict(value, ">", config["threshold_d_prime"]))

    def decide() -> dict[str, Any]:
        score, member = scored()
        fields = _decide_d_prime(score, member, config)
        spread = score[member].std(ddof=1)
        both = {
            "sign": SIGN,
            "reoriented": {"orientation": "lower", "d_prime": -float(d_prime_rms(score[member], score[~member]))},
            "circuit_mean": float(score[member].mean()),
            "other_mean": float(score[~member].mean()),
            "heads_without_score": len(evidence.heads) - len(score),
            "upstream_form": float((score[~member].mean() - score[member].mean()) / spread) if spread > 0 else None,
        }
        return {**fields, "companions": {**fields["companions"], **both}}

    return judge("C14.llc_d_prime", published, decide, rule=rule, gating=False, notes=(SIGN,), n=_sizes(evidence))


# --- composition of weights ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composition:
    """One composition matrix [sender receiver], its forward edges, and the edges that join two circuit heads."""

    values: Float[np.ndarray, "head head"]
    forward: Bool[np.ndarray, "head head"]
    inside: Bool[np.ndarray, "head head"]

    @property
    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Values of the edges inside the circuit, and of all other forward edges."""
        return self.values[self.inside], self.values[self.forward & ~self.inside]

    def welch_p(self) -> float:
        """Two-sided p of Welch's t test between the groups, as if edges that share a head were independent."""
        if all(np.ptp(group) == 0 for group in self.groups):
            raise Insufficient("zero_variance", "all edges of a kind compose alike")
        _, p = map(float, scipy.stats.ttest_ind(*self.groups, equal_var=False))
        return p


def _read_composition(evidence: Evidence, field: str, config: Mapping[str, Any]) -> Composition:
    values = np.asarray(_field(evidence, "09", field), dtype=float)
    forward = np.isfinite(values) & (evidence.layers[:, None] < evidence.layers)
    inside = forward & np.outer(evidence.in_circuit, evidence.in_circuit)
    edges, others = int(inside.sum()), int((forward & ~inside).sum())
    if min(edges, others) < config["min_edges"]:
        detail = f"{edges} edges join two circuit heads and {others} do not; {config['min_edges']} of each needed"
        raise Insufficient("n_heads", detail)
    return Composition(values, forward, inside)


def _composition(name: str, evidence: Evidence, config: Mapping[str, Any]) -> Record:
    """Do the circuit's heads compose more with each other than heads do elsewhere? One matrix of 09.

    Published: p of Welch's t test of edges. Estimate: p of the same contrast under relabelling of heads within layers.
    """
    read = cache(lambda: _read_composition(evidence, config["composition"][name], config))

    def compute() -> Computed:
        found = read()
        inside, others = found.groups
        test = head_label_permutation(
            edge_contrast(found.values, found.forward),
            evidence.in_circuit,
            n_resamples=config["permutations"],
            seed=config["permutation_seed"],
            layers=evidence.layers,
        )
        require_attainable(test.minimum_p, config["alpha"])
        spread = found.values[found.forward].std(ddof=1)
        means = {"edge_mean": float(inside.mean()), "nonedge_mean": float(others.mean())}
        return {
            "estimate": test.p,
            "p": test.p,
            "p_kind": f"{test.p_kind} of head labels within layers, one-sided",
            "effect_size": float(test.statistic / spread) if spread > 0 else None,
            "companions": {**means, "edges": len(inside), "nonedges": len(others)},
        }

    return _descriptive(name, compute, evidence, published=lambda: read().welch_p())


# --- attribution patching -----------------------------------------------------------------------------------


def _attribution_auroc(evidence: Evidence, config: Mapping[str, Any]) -> Computed:
    """How well |mean effect| estimated by attribution patching finds the circuit's heads."""
    effect, member = evidence.head_effect("08", "effect"), evidence.in_circuit
    score = np.abs(effect.mean(axis=0))
    found = discrimination(member, score)
    relabelled = head_label_permutation(
        _auroc_of(score), member, n_resamples=config["permutations"], seed=config["permutation_seed"]
    )
    draws = np.abs(bootstrap_means(resamples(evidence, config, config["bootstrap_resamples"]), effect))
    k, others = int(member.sum()), int((~member).sum())
    resampled = (scipy.stats.rankdata(draws, axis=1)[:, member].mean(axis=1) - (k + 1) / 2) / others
    return {
        "estimate": found.auroc,
        "ci90": or_none(lambda: auroc_interval(member, score, 0.90)),
        "ci95": or_none(lambda: auroc_interval(member, score, 0.95)),
        "ci_method": "DeLong on the logit scale, over heads",
        "p": relabelled.p,
        "p_kind": relabelled.p_kind,
        "companions": {
            "average_precision": found.average_precision,
            "over_prompts_ci90": percentile_interval(resampled, 0.90),
            "at_k": _at_k(score, member, (int(member.sum()), *config["attribution_at_k"])),
        },
    }


def _auroc_of(scores: Float[np.ndarray, " head"]) -> Callable[[np.ndarray], np.ndarray]:
    """Statistic for `head_label_permutation`: AUROC = (mean rank of the mask - (k + 1)/2) / (H - k)."""
    ranks = scipy.stats.rankdata(scores)

    def statistic(masks: np.ndarray) -> np.ndarray:
        k = masks.sum(1)
        return (masks @ ranks / k - (k + 1) / 2) / (len(ranks) - k)

    return statistic


def _at_k(
    score: Float[np.ndarray, " head"], member: Bool[np.ndarray, " head"], sizes_: tuple[int, ...]
) -> dict[str, dict[str, float]]:
    """Precision and recall of the k heads with the largest scores, ties to the lower (layer, head)."""
    hits = {
        k: int(member[select_top(score, k, zero_is_nothing=False)].sum()) for k in sorted(set(sizes_)) if k < len(score)
    }
    return {str(k): {"precision": hit / k, "recall": hit / int(member.sum())} for k, hit in hits.items()}


# --- forwarded values ---------------------------------------------------------------------------------------


def _partial_eta_sq(evidence: Evidence, config: Mapping[str, Any]) -> Computed:
    """Share of the variance of per-prompt faithfulness that lies between templates (C13's eta squared)."""
    groups, _ = split_groups(faithfulness(evidence, config).scores, evidence.templates)
    units = split_groups(np.unique(evidence.clusters, return_inverse=True)[1], evidence.templates)[0]
    effects, effect = one_way_effects(groups), units_effect(groups, units)
    return {
        "estimate": effects.eta2,
        "ci90": eta2_interval(groups, 0.90, units),
        "ci95": eta2_interval(groups, 0.95, units),
        "ci_method": "noncentral F over clusters",
        "p": clustered_f(effects, effect)[1],
        "p_kind": "F over clusters",
        "companions": {"omega2": effects.omega2, "templates": effects.k, "design_effect": effect.design_effect},
    }


def _ratio_fields(
    evidence: Evidence, config: Mapping[str, Any], ratio: Callable[[Evidence, Mapping[str, Any]], Ratio]
) -> Computed:
    found = ratio(evidence, config)
    return {
        "estimate": found.value,
        "ci90": found.fieller(0.90),
        "ci95": found.fieller(0.95),
        "ci_method": "Fieller, cluster-robust",
    }


def _minimality(evidence: Evidence, config: Mapping[str, Any]) -> Computed:
    """Mean over circuit heads of the faithfulness lost when the head is removed from the circuit."""
    require_behaviour(evidence, config)
    effect = np.asarray(evidence.data("22")["effect"], dtype=float)[:, evidence.rows]
    if not len(effect):
        raise Insufficient("n_heads", "the circuit has no heads")
    ratio = ratio_of_means(effect.mean(axis=0), evidence.clean, evidence.clusters)
    per_head = effect.mean(axis=1) / evidence.clean.mean()
    least = int(np.argmin(per_head))
    return {
        "estimate": ratio.value,
        "ci90": ratio.fieller(0.90),
        "ci95": ratio.fieller(0.95),
        "ci_method": "Fieller, cluster-robust",
        "companions": {
            "heads_above_essential": int((per_head > config["essential_above"]).sum()),
            "smallest": float(per_head[least]),
            "smallest_head": _claimed(evidence)[least],
            "greedy": _beside_backups(evidence, config),
        },
    }


def _claimed(evidence: Evidence) -> list[list[int] | str]:
    """The nodes of result 22 in order: [layer, head] each; all by name if the claim is not just heads."""
    stored = evidence.data("22")
    return list(stored["nodes"]) if "nodes" in stored else [list(head) for head in stored["heads"]]


def _beside_backups(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Effect of each head without the set K that shows it best, as a share of mean D (Wang et al. 2022, section 4.3).

    Sets and signs were chosen on discovery prompts, so the values on these prompts are unbiased. A head is shown to be minimal
    if its 90 % interval lies above the published 1 %.
    """
    greedy, claimed = evidence.data("22")["greedy"], _claimed(evidence)
    sign = np.sign(np.asarray(greedy["discovery_effect"], dtype=float))
    effect = sign[:, None] * np.asarray(greedy["effect"], dtype=float)[:, evidence.rows]
    shares = [ratio_of_means(own, evidence.clean, evidence.clusters) for own in effect]
    mean = ratio_of_means(effect.mean(axis=0), evidence.clean, evidence.clusters)
    least = int(np.argmin([share.value for share in shares]))
    minimal = config["minimal_above"]
    return {
        "mean_importance": mean.value,
        "ci90": mean.fieller(0.90),
        "smallest": shares[least].value,
        "smallest_head": claimed[least],
        "heads_not_shown_minimal": [
            node for node, share in zip(claimed, shares, strict=True) if share.fieller(0.90)[0] <= minimal
        ],
        "kinds": dict(sorted(Counter(kind.partition(":")[0] for kind in greedy["kind"]).items())),
    }


def _recovery(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    """Logit difference recovered under causal scrubbing.

    Published: sum scrubbed / sum of the intact model, which is above 0 even if everything is resampled. Estimate:
    (scrubbed - nothing relevant) / (everything relevant - nothing relevant), a ratio of means over prompts.
    """

    @cache
    def runs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        intact = evidence.per_prompt("24", "everything_relevant").astype(float)
        drawn = [np.asarray(evidence.data("24")[name], dtype=float) for name in ("nothing_relevant", "scrubbed")]
        return intact, drawn[0][:, evidence.rows], drawn[1][:, evidence.rows]

    def published() -> float:
        intact, _, scrubbed = runs()
        return ratio_of_means(scrubbed.mean(axis=0), intact).value

    def compute() -> Computed:
        intact, nothing, scrubbed = runs()
        floor = nothing.mean(axis=0)
        found = reportable_ratio(
            scrubbed.mean(axis=0) - floor, intact - floor, evidence.clusters, config["min_denominator_t"]
        )
        each = (scrubbed.mean(axis=1) - floor.mean()) / (intact.mean() - floor.mean())
        return {
            "estimate": found.value,
            "ci90": found.fieller(0.90),
            "ci95": found.fieller(0.95),
            "ci_method": "Fieller, cluster-robust; draws averaged",
            "companions": {
                "everything_relevant": float(intact.mean()),
                "nothing_relevant": float(floor.mean()),
                "scrubbed": float(scrubbed.mean()),
                "draws": len(scrubbed),
                "recovery_by_draw": [float(value) for value in each],
            },
        }

    return _descriptive("logit_diff_recovery", compute, evidence, published=published)


def _field(evidence: Evidence, source: str, field: str) -> Any:
    data = evidence.data(source)
    if field not in data:
        raise Insufficient(
            "not_run", f"measurement {source} holds no {field}", needs=f"{field} in measurement {source}"
        )
    return data[field]


def _summarised(name: str, evidence: Evidence, config: Mapping[str, Any]) -> Record:
    """One number from the head scores of 09 or 26, in the form that the configuration declares."""
    entry = config["summarised"][name]

    def compute() -> Computed:
        scores = np.asarray(_field(evidence, entry["source"], entry["field"]), dtype=float)
        return _summary(scores, evidence.in_circuit, entry["form"], config)

    return _descriptive(name, compute, evidence, notes=tuple(entry.get("notes", ())))


def _summary(
    scores: Float[np.ndarray, " head"], member: Bool[np.ndarray, " head"], form: str, config: Mapping[str, Any]
) -> Computed:
    """Heads without a score are left out, never counted as 0. No direction is declared, so the p is two-sided."""
    scored = np.isfinite(scores)
    inside, outside = scores[scored & member], scores[scored & ~member]
    if not len(inside) or not len(outside):
        raise Insufficient("n_heads", f"{len(inside)} circuit heads and {len(outside)} others have a score")
    means = {"circuit_mean": float(inside.mean()), "other_mean": float(outside.mean())}
    if form in means:
        return {"estimate": means[form]}
    test = head_label_permutation(
        mean_contrast(scores[scored]),
        member[scored],
        n_resamples=config["permutations"],
        seed=config["permutation_seed"],
        alternative="two-sided",
    )
    fields = {"p": test.p, "p_kind": f"{test.p_kind} of head labels, two-sided", "companions": means}
    if form == "d_prime":
        interval = d_prime_interval(inside, outside, 0.90)
        return {"estimate": d_prime_rms(inside, outside), "ci90": interval, "ci_method": "Bonett 2008", **fields}
    if form != "ratio":
        raise ValueError(f"form {form!r} of a sub-metric is unknown; expected ratio, d_prime, circuit_mean, other_mean")
    if means["other_mean"] == 0:
        raise Insufficient("ratio_undefined", "the mean over heads outside the circuit is 0")
    return {"estimate": means["circuit_mean"] / means["other_mean"], **fields}
