"""C14 derived metrics: signal detection between circuit heads and others, and values forwarded from results.

Twenty published sub-metrics, one record each. d' gates (and hit and false alarm rate once there is a weight
classifier); the rest is descriptive. A sub-metric whose source was not measured says so instead of vanishing,
and nothing is typed in: a published head set is read from the circuit's provenance or the overlap is not
assessable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from calibrations.evidence import Evidence, Head
from calibrations.preconditions import completeness, faithfulness, require_behaviour, resamples, sizes
from calibrations.record import Published, Record, decide_above, decide_below, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    Ratio,
    adjusted_p,
    auroc_interval,
    bootstrap_means,
    cliff_delta,
    cohen_d,
    cohen_d_interval,
    d_prime_rms,
    discrimination,
    eta2_interval,
    head_label_permutation,
    head_relabellings,
    hedges_g,
    mean_contrast,
    one_way_effects,
    overlap_p,
    percentile_interval,
    published_verdict,
    ratio_of_means,
    set_overlap,
    signal_detection,
    split_groups,
    wilson_interval,
)

ID = "C14"
NUMBER = "14"
NAME = "derived_metrics"
TITLE = "derived metrics"
INPUTS = ("01", "02", "08", "09", "10", "20", "22", "24")

DESCRIPTIVE = "descriptive: no published threshold"
NO_RULE = "none"
D_PRIME_RULE = "(mean circuit - mean other) / sqrt((s_circuit^2 + s_other^2) / 2) > {threshold_d_prime}"
HIT_RULE = "hit rate > {threshold_hit_rate}"
ALARM_RULE = "false alarm rate < {threshold_false_alarm_rate}"

Computed = Mapping[str, Any]  # Record fields of a descriptive sub-metric; `estimate` is also its published value


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """The twenty C14.* records in the order in which they were published."""
    records = [
        _descriptive("sparsity", lambda: _sparsity(evidence), evidence),
        _node_overlap(evidence),
        _forwarded("spectral_norm_ratio", evidence, config),
        _forwarded("sv_entropy_ratio", evidence, config),
        _d_prime(evidence, config),
        _forwarded("llc_d_prime", evidence, config),
        _hit_rate(evidence, config),
        _false_alarm_rate(evidence, config),
        _descriptive("partial_eta_sq", lambda: _partial_eta_sq(evidence, config), evidence),
        *(_forwarded(name, evidence, config) for name in _LATER),
        _descriptive("faithfulness", lambda: _ratio_fields(evidence, config, faithfulness), evidence),
        _descriptive("completeness", lambda: _ratio_fields(evidence, config, completeness), evidence),
        _descriptive("minimality_mean_importance", lambda: _minimality(evidence, config), evidence),
        _forwarded("logit_diff_recovery", evidence, config),
    ]
    return _with_adjusted_p(records)


_LATER = (
    "pc_ratio_circuit_mean",
    "pc_ratio_noncircuit_mean",
    "pc_ratio_d_prime",
    "ov_composition_pval",
    "q_composition_pval",
    "k_composition_pval",
    "attribution_auroc",
)


def _with_adjusted_p(records: list[Record]) -> list[Record]:
    """BH over the exploratory sub-metrics that have a p-value; gates are corrected by M93, not here."""
    places = [i for i, record in enumerate(records) if record.p is not None and not record.gating]
    if not places:
        return records
    adjusted = adjusted_p([records[i].p for i in places], "bh")
    for i, p in zip(places, adjusted, strict=True):
        extra = {"p_bh": float(p), "p_bh_family": len(places)}
        records[i] = replace(records[i], companions={**records[i].companions, **extra})
    return records


def _descriptive(name: str, compute: Callable[[], Computed], evidence: Evidence) -> Record:
    """A sub-metric without a threshold: the value is shown, never passed or failed."""

    def decide() -> dict[str, Any]:
        return {"verdict": "inconclusive", "reasons": (DESCRIPTIVE,), **compute()}

    return judge(
        f"C14.{name}",
        lambda: Published(compute()["estimate"], NO_RULE, "none"),
        decide,
        rule=NO_RULE,
        gating=False,
        n=_sizes(evidence),
    )


def _sizes(evidence: Evidence) -> dict[str, int]:
    return sizes(evidence, heads=len(evidence.heads), circuit_heads=len(evidence.circuit_heads))


# --- circuit against published set --------------------------------------------------------------------------


def _sparsity(evidence: Evidence) -> Computed:
    """Share of the model's heads that are in the circuit, with the model's own number of heads."""
    return {"estimate": len(evidence.circuit_heads) / len(evidence.heads)}


def _node_overlap(evidence: Evidence) -> Record:
    """Published: min/max of the set sizes, an upper bound of Jaccard. Estimate: Jaccard of the head ids."""

    def published_heads() -> set[Head]:
        heads = evidence.circuit["provenance"].get("published_heads")
        if not heads:
            raise Insufficient("not_run", "the circuit's provenance gives no published head set")
        return {tuple(head) for head in heads}

    def decide() -> dict[str, Any]:
        theirs, ours = published_heads(), set(evidence.circuit_heads)
        overlap = set_overlap(ours, theirs)
        return {
            "verdict": "inconclusive",
            "reasons": (DESCRIPTIVE,),
            "estimate": overlap.jaccard,
            "p": overlap_p(len(ours & theirs), len(evidence.heads), len(ours), len(theirs)),
            "p_kind": "hypergeometric",
            "companions": {"dice": overlap.dice, "published_heads": len(theirs)},
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
    rule = D_PRIME_RULE.format(**config)

    def effects() -> Float[np.ndarray, " head"]:
        _require_groups(evidence, config)
        return evidence.head_effect("02", "denoising").mean(axis=0)

    def published() -> Published:
        mean, member = effects(), evidence.in_circuit
        value = d_prime_rms(mean[member], mean[~member])
        return Published(value, rule, published_verdict(value, ">", config["threshold_d_prime"]))

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        return _decide_d_prime(evidence, effects() * evidence.expected_sign, config)

    return judge("C14.d_prime", published, decide, rule=rule, n=_sizes(evidence))


def _require_groups(evidence: Evidence, config: Mapping[str, Any]) -> None:
    """Enough circuit heads for an SD over heads, and heads outside. A single head has a rank instead."""
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
    half = stats.norm.ppf((1 + level) / 2) * _d_prime_error(first, second)
    value = d_prime_rms(first, second)
    return float(value - half), float(value + half)


def _d_prime_error(first: np.ndarray, second: np.ndarray) -> float:
    variances = np.array([first.var(ddof=1), second.var(ddof=1)])
    freedom = np.array([len(first) - 1, len(second) - 1])
    pooled = variances.mean()
    value = d_prime_rms(first, second)
    return math.sqrt(value**2 * (variances**2 / freedom).sum() / (8 * pooled**2) + (variances / freedom).sum() / pooled)


def _decide_d_prime(
    evidence: Evidence, oriented: Float[np.ndarray, " head"], config: Mapping[str, Any]
) -> dict[str, Any]:
    """pass: 90 % interval above 1, and relabelled heads rarely separate as well. Negative roles count as
    such.
    """
    member, threshold = evidence.in_circuit, config["threshold_d_prime"]
    inside, outside = oriented[member], oriented[~member]
    value, error = d_prime_rms(inside, outside), _d_prime_error(inside, outside)
    ci90 = d_prime_interval(inside, outside, 0.90)
    relabelled = head_label_permutation(
        mean_contrast(oriented), member, n_resamples=config["permutations"], seed=config["permutation_seed"]
    )
    above = float(stats.norm.sf((value - threshold) / error))
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
        "companions": {
            "p_threshold": above,
            "p_relabelling": relabelled.p,
            **_d_prime_companions(evidence, oriented, config),
        },
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
        "over_heads_ci90": _or_none(lambda: percentile_interval(_head_draws(inside, outside, config), 0.90)),
        "over_prompts_ci90": percentile_interval(_prompt_draws(evidence, config), 0.90),
        "cohen_d": d,
        "cohen_d_ci90": cohen_d_interval(d, k, len(outside), 0.90),
        "hedges_g": hedges_g(inside, outside),
        "cliff_delta": cliff_delta(inside, outside),
        "auroc": discrimination(member, oriented).auroc,
        "auroc_ci90": _or_none(lambda: auroc_interval(member, oriented, 0.90)),
        "d_prime_of_top_k_rates": rates.d_prime_loglinear,
        "upstream_form": _upstream(evidence, config),
    }


def _or_none(compute: Callable[[], Any]) -> Any:
    """The value, or None where the data support none."""
    try:
        return compute()
    except Insufficient:
        return None


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
    """The form found elsewhere: |means|, and an SD of random-set means, which shrinks with circuit size."""
    mean, member = evidence.head_effect("02", "denoising").mean(axis=0), evidence.in_circuit
    masks, _ = head_relabellings(member, config["permutations"], config["permutation_seed"])
    sets = masks @ mean / member.sum()
    scale = math.sqrt((mean[member].var(ddof=1) + sets.var(ddof=1)) / 2)
    return float((abs(mean[member].mean()) - abs(sets.mean())) / scale) if scale > 0 else None


# --- weight classifier --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classification:
    """Counts of a classifier's predicted circuit heads against the circuit."""

    hits: int
    positives: int
    false_alarms: int
    negatives: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.positives

    @property
    def false_alarm_rate(self) -> float:
        """FP / (heads outside the circuit), not 1 - precision."""
        return self.false_alarms / self.negatives

    @property
    def one_minus_precision(self) -> float | None:
        """FP / predicted: a false discovery proportion. None if nothing was predicted."""
        predicted = self.hits + self.false_alarms
        return self.false_alarms / predicted if predicted else None


def classify(predicted: Collection[Head], circuit: Collection[Head], heads: Collection[Head]) -> Classification:
    """Compare predicted with actual circuit heads. Raises Insufficient if one class is empty."""
    positive, everything = set(circuit), set(heads)
    if not positive:
        raise Insufficient("n_heads", "the circuit has no heads")
    if positive == everything:
        raise Insufficient("all_selected", "every head is in the circuit; there are no false alarms to count")
    called = set(predicted)
    return Classification(len(called & positive), len(positive), len(called - positive), len(everything - positive))


def _classification(evidence: Evidence, config: Mapping[str, Any]) -> Classification:
    stored = _field(evidence, config["classifier"]["source"], config["classifier"]["field"])
    return classify([tuple(head) for head in stored], evidence.circuit_heads, evidence.heads)


def _hit_rate(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    rule, threshold = HIT_RULE.format(**config), config["threshold_hit_rate"]

    def published() -> Published:
        rate = _classification(evidence, config).hit_rate
        return Published(rate, rule, published_verdict(rate, ">", threshold))

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        found = _classification(evidence, config)
        ci90 = wilson_interval(found.hits, found.positives, 0.90)
        p = _share_p(found.hits, found.positives, threshold, "greater")
        return _rate_fields(found.hit_rate, ci90, found.hits, found.positives, decide_above(ci90, threshold), p)

    return judge(
        "C14.hit_rate",
        published,
        decide,
        rule=rule,
        gating=_has_classifier(evidence, config),
        n=_sizes(evidence),
    )


def _false_alarm_rate(evidence: Evidence, config: Mapping[str, Any]) -> Record:
    rule, threshold = ALARM_RULE.format(**config), config["threshold_false_alarm_rate"]

    def published() -> Published:
        rate = _classification(evidence, config).false_alarm_rate
        return Published(rate, rule, published_verdict(rate, "<", threshold))

    def decide() -> dict[str, Any]:
        require_behaviour(evidence, config)
        found = _classification(evidence, config)
        ci90 = wilson_interval(found.false_alarms, found.negatives, 0.90)
        verdict = decide_below(ci90, threshold)
        p = _share_p(found.false_alarms, found.negatives, threshold, "less")
        fields = _rate_fields(found.false_alarm_rate, ci90, found.false_alarms, found.negatives, verdict, p)
        return {**fields, "companions": {"one_minus_precision": found.one_minus_precision}}

    return judge(
        "C14.false_alarm_rate",
        published,
        decide,
        rule=rule,
        gating=_has_classifier(evidence, config),
        n=_sizes(evidence),
    )


def _has_classifier(evidence: Evidence, config: Mapping[str, Any]) -> bool:
    source, field = config["classifier"]["source"], config["classifier"]["field"]
    return evidence.has(source) and field in evidence.data(source)


def _rate_fields(rate: float, ci90: Interval, count: int, total: int, verdict: str, p: float) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "reasons": () if verdict == "pass" else (f"{count} of {total}",),
        "estimate": rate,
        "ci90": ci90,
        "ci95": wilson_interval(count, total, 0.95),
        "ci_method": "Wilson",
        "p": p,
        "p_kind": "score test of the rate, the dual of the Wilson interval",
    }


def _share_p(count: int, total: int, share: float, alternative: str) -> float:
    """One-sided score test of a proportion against `share`."""
    z = (count / total - share) / math.sqrt(share * (1 - share) / total)
    return float(stats.norm.sf(z) if alternative == "greater" else stats.norm.cdf(z))


# --- forwarded values ---------------------------------------------------------------------------------------


def _partial_eta_sq(evidence: Evidence, config: Mapping[str, Any]) -> Computed:
    """Share of the variance of per-prompt faithfulness that lies between templates (C13's eta squared)."""
    groups, _ = split_groups(faithfulness(evidence, config).scores, evidence.templates)
    effects = one_way_effects(groups)
    return {
        "estimate": effects.eta2,
        "ci90": eta2_interval(groups, 0.90),
        "ci_method": "noncentral F",
        "p": effects.p,
        "p_kind": "F",
        "companions": {"omega2": effects.omega2, "templates": effects.k},
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
    """Mean over circuit heads of the faithfulness lost when the head leaves the circuit."""
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
            "smallest_head": list(evidence.data("22")["heads"][least]),
        },
    }


def _field(evidence: Evidence, source: str, field: str) -> Any:
    data = evidence.data(source)
    if field not in data:
        raise Insufficient(
            "not_run", f"measurement {source} holds no {field}", needs=f"{field} in measurement {source}"
        )
    return data[field]


def _forwarded(name: str, evidence: Evidence, config: Mapping[str, Any]) -> Record:
    entry = config["forwarded"][name]

    def compute() -> Computed:
        stored = _field(evidence, entry["source"], entry["field"])
        if entry["form"] in ("value", "p_value"):
            return _scalar(stored, entry["form"] == "p_value")
        scores = np.asarray(stored, dtype=float)
        return _summary(scores, evidence.in_circuit, entry, config)

    return _descriptive(name, compute, evidence)


def _scalar(stored: Any, is_p: bool) -> Computed:
    value = float(stored)
    return {"estimate": value, **({"p": value, "p_kind": "as measured"} if is_p else {})}


def _summary(
    scores: Float[np.ndarray, " head"],
    member: Bool[np.ndarray, " head"],
    entry: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Computed:
    """One number from a score per head: heads without a score are left out, never counted as 0."""
    scored = np.isfinite(scores)
    inside, outside = scores[scored & member], scores[scored & ~member]
    if not len(inside) or not len(outside):
        raise Insufficient("n_heads", f"{len(inside)} circuit heads and {len(outside)} others have a score")
    form = entry["form"]
    if form == "circuit_mean":
        return {"estimate": float(inside.mean())}
    if form == "other_mean":
        return {"estimate": float(outside.mean())}
    if form == "ratio":
        if outside.mean() == 0:
            raise Insufficient("ratio_undefined", "the mean over heads outside the circuit is 0")
        return {"estimate": float(inside.mean() / outside.mean())}
    test = head_label_permutation(
        mean_contrast(scores[scored] * (-1 if entry.get("lower_is_circuit") else 1)),
        member[scored],
        n_resamples=config["permutations"],
        seed=config["permutation_seed"],
    )
    p = {"p": test.p, "p_kind": test.p_kind}
    if form == "auroc":
        return {"estimate": discrimination(member[scored], scores[scored]).auroc, **p}
    if form == "d_prime":
        return {
            "estimate": d_prime_rms(outside, inside) if entry["lower_is_circuit"] else d_prime_rms(inside, outside),
            **p,
        }
    raise ValueError(f"form {form!r} of a forwarded sub-metric is unknown; expected ratio, d_prime, auroc, ...")
