"""M3b: does each head of the circuit contribute, whatever prompts are drawn?

The published rule "positive in 95 % of 80 % subsamples" is t > 0.82, so it certifies a fifth of heads without
any effect; the verdict tests each head against 2 % of the logit difference instead (spec finding 5 and
section 7).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    benjamini_hochberg,
    m3b_equivalent_t,
    m3b_labels,
    partial_conjunction_p,
)
from calibrations.statistics.paired import TTest

ID = "M3b"
NUMBER = "M3b"
NAME = "certified_stability"
TITLE = "certified stability"
INPUTS = ("01", "20", "21")

EFFECT = ("21", "effect")  # logit difference lost when one head is mean-ablated


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """M3b.certified_stability: share of circuit heads whose own effect is stable.

    Published: head certified if its mean effect is positive in 95 % of 80 % subsamples; half of the heads
    certified. Verdict: one-sided cluster-robust t per head of "effect (in the head's declared direction)
    above 2 % of the mean logit difference", Benjamini-Hochberg over heads for the labels, and the partial
    conjunction "at least half of the heads" for the circuit.
    """
    certified = f"positive in {config['certified_from']:.0%} of subsamples"
    rule = f"at least {config['circuit_fraction']:g} of heads {certified}"
    return [
        judge(
            "M3b.certified_stability",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, heads=len(evidence.circuit_heads)),
        )
    ]


def subsample_counts(effects: Float[np.ndarray, "prompt head"], config: Mapping[str, Any]) -> list[int]:
    """In how many seeded subsamples without replacement the mean effect of each head is above 0.

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


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    if (k := len(evidence.circuit_heads)) < config["minimum_heads"]:
        raise Insufficient("n_heads", f"{k} circuit head; at least {config['minimum_heads']} needed")
    preconditions.require_faithful(evidence, config)
    effects = (evidence.head_effect(*EFFECT) * evidence.expected_sign)[:, evidence.in_circuit]
    # Contrast with the threshold: the uncertainty of mean D is then part of the test.
    above = effects - config["min_effect_fraction"] * evidence.clean[:, None]
    test = preconditions.mean_test(above, evidence.clusters)
    wanted = math.ceil(config["circuit_fraction"] * k)
    p = partial_conjunction_p(test.p, wanted)
    against = partial_conjunction_p(1 - test.p, k - wanted + 1)  # too many heads below for `wanted` to be above
    verdict = "pass" if p < config["alpha"] else "fail" if against < config["alpha"] else "inconclusive"
    labels = head_labels(effects, test, evidence, config)
    robust = labels.count("robust")
    return {
        "verdict": verdict,
        "estimate": robust / k,
        "p": max(p, 1e-300),
        "p_kind": "partial conjunction of t",
        "effect_size": float(np.median(effects.mean(axis=0)) / evidence.clean.mean()),
        "reasons": () if verdict == "pass" else (f"{robust} of {k} heads robust, {wanted} wanted",),
        "needs": _needs(verdict, test, wanted, len(evidence.clean), config),
        "companions": _companions(evidence, config, effects, test, labels),
    }


def head_labels(
    effects: Float[np.ndarray, "prompt head"], test: TTest, evidence: Evidence, config: Mapping[str, Any]
) -> list[str]:
    """robust: above the threshold after Benjamini-Hochberg; negative: below 0 after it; else uncertain."""
    robust = benjamini_hochberg(test.p) < config["alpha"]
    opposite = preconditions.mean_test(-effects, evidence.clusters)
    negative = benjamini_hochberg(opposite.p) < config["alpha"]
    return ["robust" if r else "negative" if n else "uncertain" for r, n in zip(robust, negative, strict=True)]


def _needs(verdict: str, test: TTest, wanted: int, n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which the weakest head that is still wanted would pass at its present effect."""
    if verdict != "inconclusive":
        return None
    k = len(test.t)
    t = float(np.sort(test.t)[k - wanted])
    if t <= 0:
        return None
    critical = stats.norm.isf(config["alpha"] / (k - wanted + 1))
    return f"about {math.ceil(n_prompts * (critical / t) ** 2)} prompts"


def _companions(
    evidence: Evidence, config: Mapping[str, Any], effects: np.ndarray, test: TTest, labels: list[str]
) -> dict[str, Any]:
    mean_clean = float(evidence.clean.mean())
    positive = preconditions.mean_test(effects, evidence.clusters)
    low, _ = positive.interval(0.90)
    counts = subsample_counts(evidence.head_effect(*EFFECT)[:, evidence.in_circuit], config)
    signs = evidence.expected_sign[evidence.in_circuit]
    return {
        "heads": {
            f"{layer}.{head}": {
                "label": labels[i],
                "expected_sign": int(signs[i]),
                "effect_fraction": float(positive.mean[i] / mean_clean),
                "lower_bound_fraction": float(low[i] / mean_clean),
                "p": float(test.p[i]),
                "subsample_rate": counts[i] / config["subsamples"],
            }
            for i, (layer, head) in enumerate(evidence.circuit_heads)
        },
        "robust_above_zero": float((benjamini_hochberg(positive.p) < config["alpha"]).mean()),
        "published_rule_as_t": m3b_equivalent_t(config["certified_from"], config["subsample_fraction"]),
        "threshold_in_logits": config["min_effect_fraction"] * mean_clean,
    }
