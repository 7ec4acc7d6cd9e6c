"""M3b: does each head of the circuit contribute, whatever prompts are drawn?

The published rule "positive in 95 % of 80 % subsamples" amounts to t > 0.82, so it certifies a fifth of all heads without
an effect. The verdict tests each head against 2 % of the logit difference instead.
"At least half of the heads" says nothing about the other half, so a second record asks that no claimed head be idle. An
idle head among true ones costs no faithfulness, and no other calibration would notice it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from calibrations import claim_completeness, preconditions
from calibrations.claimed_nodes import names
from calibrations.evidence import PRIMARY, Evidence, head_names
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    TTest,
    adjusted_p,
    m3b_equivalent_t,
    m3b_labels,
    mean_test,
    partial_conjunction_p,
)

ID = "M3b"
NUMBER = "M3b"
NAME = "certified_stability"
TITLE = "certified stability"
INPUTS = ("01", "20", "21", "22")
NODES = (
    "Counted in full: every claimed node is knocked out where it counts, alone, out of the circuit and beside "
    "others; the published half reads single heads at all positions."
)

EFFECT = ("21", "effect")  # logit difference lost when one head is mean-ablated
NO_RULE = "no published threshold"
ALONE, BESIDE, CIRCUIT = (
    "alone, mean",
    "beside, mean",
    "out of the circuit, mean",
)  # the ways measured on every prompt


@dataclass(frozen=True)
class Way:
    """One way to knock out the circuit's heads, and their effects by it on the prompts at `places` of the split.

    `name` gives the recipe and where the head is taken out: "alone" (of the whole model), "out of the circuit", or "beside"
    (of the circuit without the set that shows the head best on discovery prompts).
    """

    name: str
    effects: Float[np.ndarray, "prompt head"]
    places: Int[np.ndarray, " prompt"]

    @property
    def recipe(self) -> str:
        return self.name.rpartition(", ")[2]


@dataclass(frozen=True)
class HeadTests:
    """Tests of every circuit head against m = min_effect_fraction x mean D, for every way of knocking it out.

    `share` [way head] is the effect over mean D, `error` [way head] its standard error. `outside` [way head] is the p of
    "|effect| > m" (Bonferroni over two signs), `counts` [head] the smallest over ways times their number. `idle` [head] is the
    p of "|effect| < m in every way" (intersection-union of two one-sided tests for each way, not yet corrected over heads).
    """

    ways: tuple[str, ...]
    share: Float[np.ndarray, "way head"]
    error: Float[np.ndarray, "way head"]
    outside: Float[np.ndarray, "way head"]
    counts: Float[np.ndarray, " head"]
    idle: Float[np.ndarray, " head"]

    def labels(self, alpha: float) -> list[str]:
        """counts, idle (Bonferroni over heads) or undecided."""
        k = len(self.idle)
        return [
            "counts" if counts < alpha else "idle" if k * idle < alpha else "undecided"
            for counts, idle in zip(self.counts, self.idle, strict=True)
        ]

    def under_one_recipe(self, recipe: str, alpha: float) -> list[int]:
        """Indices of the heads that are shown to count under this recipe and under no other."""
        own = np.array([name.endswith(f", {recipe}") for name in self.ways])
        if not own.any() or own.all():
            return []
        p = len(self.ways) * self.outside
        return np.flatnonzero((p[own].min(axis=0) < alpha) & (p[~own].min(axis=0) >= alpha)).tolist()


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """M3b.certified_stability and M3b.no_idle_heads.

    Certified stability: share of circuit heads whose own effect is stable. Published: a head is certified if its mean
    effect is positive in 95 % of 80 % subsamples; half of the heads must be. Verdict: a head counts if its effect exceeds 2 %
    of the mean logit difference in some way of knocking it out (`knock_outs`), corrected over ways and signs. The circuit is
    judged by the partial conjunction "at least half of the heads count". So a head with a backup counts, and so does one that
    gates others and matters only under zero ablation.

    No idle heads (no published rule): pass if every head counts, fail if some head is idle; see `HeadTests`.
    """
    certified = f"positive in {config['certified_from']:.0%} of subsamples"
    rule = f"at least {config['circuit_fraction']:g} of heads {certified}"
    n = preconditions.sizes(evidence, heads=len(evidence.circuit_heads), **evidence.counted_besides)
    return [
        judge(
            "M3b.certified_stability",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=n,
        ),
        judge(
            "M3b.no_idle_heads",
            lambda: Published(None, NO_RULE, "none"),
            lambda: _decide_idle(evidence, config),
            rule=NO_RULE,
            n=n,
        ),
    ]


def subsample_counts(effects: Float[np.ndarray, "prompt head"], config: Mapping[str, Any]) -> list[int]:
    """For each head, the number of seeded subsamples without replacement in which its mean effect is above 0.

    Raises Insufficient("n_prompts") if a subsample would be empty.
    """
    n, size = len(effects), round(config["subsample_fraction"] * len(effects))
    if size < 1:
        raise Insufficient("n_prompts", f"a fraction {config['subsample_fraction']} of {n} prompts is empty")
    order = np.random.default_rng(config["subsample_seed"]).random((config["subsamples"], n)).argsort(axis=1)
    chosen = np.zeros(order.shape)
    np.put_along_axis(chosen, order[:, :size], 1.0, axis=1)
    return (chosen @ effects > 0).sum(axis=0).tolist()


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    effects = evidence.head_effect(*EFFECT)[:, evidence.in_circuit]
    found = m3b_labels(
        subsample_counts(effects, config),
        config["subsamples"],
        certified=config["certified_from"],
        contingent=config["contingent_from"],
        circuit_fraction=config["circuit_fraction"],
    )
    tally = Counter(found.labels)
    label = ", ".join(f"{tally[name]} {name}" for name in ("certified", "contingent", "unstable") if tally[name])
    return Published(found.fraction_certified, rule, found.verdict, label)


def _require(evidence: Evidence, config: Mapping[str, Any]) -> int:
    """The number of claimed nodes, after checking the preconditions of both records."""
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    if (k := len(_claimed(evidence))) < config["minimum_heads"]:
        raise Insufficient("n_heads", f"{k} circuit head; at least {config['minimum_heads']} needed")
    preconditions.require_faithful(evidence, config)
    return k


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    k = _require(evidence, config)
    tests = head_tests(evidence, config)
    wanted = math.ceil(config["circuit_fraction"] * k)
    p = partial_conjunction_p(tests.counts, wanted)
    against = partial_conjunction_p(tests.idle, k - wanted + 1)  # too many idle heads for `wanted` to count
    verdict = "pass" if p < config["alpha"] else "fail" if against < config["alpha"] else "inconclusive"
    counting = tests.labels(config["alpha"]).count("counts")
    weakest = int(np.argsort(tests.counts, kind="stable")[wanted - 1])
    return {
        "verdict": verdict,
        "estimate": counting / k,
        "p": max(p, 1e-300),
        "p_kind": "partial conjunction of t",
        "effect_size": float(np.median(np.abs(tests.share).max(axis=0))),
        "reasons": () if verdict == "pass" else (f"{counting} of {k} heads shown to count, {wanted} wanted",),
        "needs": _needs(verdict, tests, weakest, len(evidence.clean), config),
        "companions": {
            **_companions(evidence, config),
            "ways": list(tests.ways),
            **_needed_under_zero_alone(evidence, tests, config),
        },
    }


def _needed_under_zero_alone(evidence: Evidence, tests: HeadTests, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Heads that are shown to count only under zero ablation: like a gate, they write a constant that others need."""
    places = tests.under_one_recipe("zero", config["alpha"])
    return {"needed_under_zero_alone": [_claimed(evidence)[place] for place in places]}


def _name(head: tuple[int, int]) -> str:
    return f"{head[0]}.{head[1]}"


def _claimed(evidence: Evidence) -> list[str]:
    """The judged nodes in the order of result 22: heads as "9.6", or every node by name if the claim is not just heads."""
    return list(map(_name, evidence.circuit_heads)) if evidence.heads_only else [n.name for n in evidence.claimed]


def head_labels(
    effects: Float[np.ndarray, "prompt head"], test: TTest, evidence: Evidence, config: Mapping[str, Any]
) -> list[str]:
    """robust: above the threshold after Benjamini-Hochberg; negative: below 0 after it; else uncertain."""
    robust = adjusted_p(test.p, "bh") < config["alpha"]
    opposite = mean_test(-effects, evidence.clusters)
    negative = adjusted_p(opposite.p, "bh") < config["alpha"]
    return ["robust" if r else "negative" if n else "uncertain" for r, n in zip(robust, negative, strict=True)]


def _needs(verdict: str, tests: HeadTests, head: int, n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which this head, at its present effect, would be shown to count; None if the effect is within the margin."""
    if verdict != "inconclusive":
        return None
    above, error = np.abs(tests.share[:, head]) - config["min_effect_fraction"], tests.error[:, head]
    t = float(np.divide(above, error, out=np.where(above > 0, np.inf, -np.inf), where=error > 0).max())
    if t <= 0:
        return None
    critical = scipy.stats.norm.isf(config["alpha"] / (2 * len(tests.ways)))
    return f"about {math.ceil(n_prompts * max(1.0, critical / t) ** 2)} prompts"


def _companions(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """Each claimed head by measurement 21, alone and at all positions; empty for a claim without heads."""
    if not evidence.circuit_heads:
        return {}
    effects = (evidence.head_effect(*EFFECT) * evidence.expected_sign)[:, evidence.in_circuit]
    # The threshold is subtracted per prompt, so the test includes the uncertainty of mean D.
    test = mean_test(effects - config["min_effect_fraction"] * evidence.clean[:, None], evidence.clusters)
    labels = head_labels(effects, test, evidence, config)
    mean_clean = float(evidence.clean.mean())
    positive = mean_test(effects, evidence.clusters)
    low, _ = positive.interval(0.90)
    counts = subsample_counts(evidence.head_effect(*EFFECT)[:, evidence.in_circuit], config)
    signs = evidence.expected_sign[evidence.in_circuit]
    return {
        "heads": {
            _name(head): {
                "label": labels[i],
                "expected_sign": int(signs[i]),
                "effect_fraction": float(positive.mean[i] / mean_clean),
                "lower_bound_fraction": float(low[i] / mean_clean),
                "p": float(test.p[i]),
                "subsample_rate": counts[i] / config["subsamples"],
            }
            for i, head in enumerate(evidence.circuit_heads)
        },
        "robust_above_zero": float((adjusted_p(positive.p, "bh") < config["alpha"]).mean()),
        "published_rule_as_t": m3b_equivalent_t(config["certified_from"], config["subsample_fraction"]),
        "threshold_in_logits": config["min_effect_fraction"] * mean_clean,
    }


# --- idle heads ----------------------------------------------------------------------------------------


def knock_outs(evidence: Evidence) -> list[Way]:
    """The effect of each circuit head in every way that was measured, in the unit of D.

    Alone: D - LD(head mean-ablated), from 21. Out of the circuit: F(C) - F(C without the head). Beside: F(C without K) -
    F(C without K and the head), where K is the set of other circuit heads that shows the head best on discovery prompts: alone,
    a head with a backup seems to have no effect. Then alone and out of the circuit under every other recipe of 22, on fewer
    prompts. 21 has no MLPs and no positions, so a claim with some takes "alone" from 22 under the primary recipe too.
    Raises Insufficient("not_run") without 22.
    """
    minimality = evidence.data("22")
    if "greedy" not in minimality:
        raise Insufficient("not_run", "measurement 22 has no minimality sets", needs="measurement 22 anew")
    claimed = [node.name for node in evidence.claimed]
    place = {name: row for row, name in enumerate(names(minimality))}
    rows, every = [place[name] for name in claimed], np.arange(len(evidence.clean))
    stored = {BESIDE: minimality["greedy"]["effect"], CIRCUIT: minimality["effect"]}
    ways, known = [], evidence.heads_only
    if known:
        ways.append(Way(ALONE, evidence.head_effect(*EFFECT)[:, evidence.in_circuit], every))
    ways += [
        Way(name, np.asarray(effect, dtype=float)[rows][:, evidence.rows].T, every) for name, effect in stored.items()
    ]
    for recipe in claim_completeness.recipes_run(evidence):
        losses = claim_completeness.losses(evidence, recipe)
        single = {own[0]: i for i, g in enumerate(losses.groups) if len(own := names(g)) == 1}
        other = recipe != PRIMARY or not known
        if other and all(name in single for name in claimed) and len(losses.places) > 1:
            own = [single[name] for name in claimed]
            ways.append(Way(f"alone, {recipe}", losses.lost_by_model[own].T, losses.places))
            ways.append(Way(f"out of the circuit, {recipe}", losses.lost_by_circuit[own].T, losses.places))
    return ways


def head_tests(evidence: Evidence, config: Mapping[str, Any]) -> HeadTests:
    """Cluster-robust one-sided t tests of effect - m and effect + m per prompt, for every way."""
    ways = knock_outs(evidence)
    share, error, outside, within = [], [], [], []
    for way in ways:
        clean, clusters = evidence.clean[way.places], evidence.clusters[way.places]
        margin = config["min_effect_fraction"] * clean[:, None]
        above, below, under, over = (
            mean_test(values, clusters).p
            for values in (way.effects - margin, -way.effects - margin, margin - way.effects, margin + way.effects)
        )
        test = mean_test(way.effects, clusters)
        share.append(test.mean / clean.mean())
        error.append(test.standard_error / clean.mean())
        outside.append(np.minimum(1.0, 2 * np.minimum(above, below)))
        within.append(np.maximum(under, over))
    return HeadTests(
        tuple(way.name for way in ways),
        np.array(share),
        np.array(error),
        np.array(outside),
        np.minimum(1.0, len(ways) * np.min(outside, axis=0)),
        np.max(within, axis=0),
    )


def _decide_idle(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: every head counts (the largest p decides); fail: some head is idle (Bonferroni over heads)."""
    k = _require(evidence, config)
    tests = head_tests(evidence, config)
    labels = tests.labels(config["alpha"])
    verdict = "fail" if "idle" in labels else "inconclusive" if "undecided" in labels else "pass"
    weakest = int(np.argmin(np.abs(tests.share).max(axis=0)))
    return {
        "verdict": verdict,
        "estimate": float(np.abs(tests.share[:, weakest]).max()),
        "p": float(tests.counts.max()),
        "p_kind": f"largest p of t over heads, each the smallest of {len(tests.ways)} ways and two signs, corrected",
        "effect_size": labels.count("counts") / k,
        "reasons": _idle_reasons(evidence, labels),
        "needs": _needs(verdict, tests, int(np.argmax(tests.counts)), len(evidence.clean), config),
        "companions": {
            "threshold": config["min_effect_fraction"],
            "heads": {
                name: {
                    "label": labels[i],
                    **{way: float(tests.share[row, i]) for row, way in enumerate(tests.ways)},
                    "p_counts": float(tests.counts[i]),
                    "p_idle": min(1.0, k * float(tests.idle[i])),
                }
                for i, name in enumerate(_claimed(evidence))
            },
        },
    }


def _idle_reasons(evidence: Evidence, labels: list[str]) -> tuple[str, ...]:
    """Which heads are idle, and which are not shown to count."""
    words = {"idle": "idle, alone and beside other heads", "undecided": "not shown to count"}
    heads_only = evidence.heads_only
    names = (
        [head_names([head]) for head in evidence.circuit_heads] if heads_only else [n.name for n in evidence.claimed]
    )
    named = {label: ", ".join(name for name, own in zip(names, labels, strict=True) if own == label) for label in words}
    return tuple(f"{words[label]}: {heads}" for label, heads in named.items() if heads)
