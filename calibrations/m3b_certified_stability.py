"""M3b: does each head of the circuit contribute, whatever prompts are drawn?

The published rule "positive in 95 % of 80 % subsamples" amounts to t > 0.82, so it certifies a fifth of all heads that
have no effect. The verdict tests each head against 2 % of the logit difference instead.
"At least half of the heads" says nothing of the other half, so a second record asks that no claimed head be idle: an idle
head among true ones costs no faithfulness, and no other calibration would notice it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from calibrations import preconditions
from calibrations.evidence import Evidence
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

EFFECT = ("21", "effect")  # logit difference lost when one head is mean-ablated
NO_RULE = "no published threshold"
WAYS = ("alone", "beside")  # knocked out of the model by itself; out of the circuit beside the set that shows it best


@dataclass(frozen=True)
class HeadTests:
    """Tests of every circuit head against m = min_effect_fraction x mean D, by both ways of knocking it out.

    `share` [way head] is the effect over mean D. `counts` is the p of "|effect| > m one way or the other" (Bonferroni
    over two ways and two signs), `idle` the p of "|effect| < m both ways" (intersection-union of two one-sided
    tests by each way, not yet corrected over heads). `error` [way head] is the standard error of `share`.
    """

    share: Float[np.ndarray, "way head"]
    error: Float[np.ndarray, "way head"]
    counts: Float[np.ndarray, " head"]
    idle: Float[np.ndarray, " head"]

    def labels(self, alpha: float) -> list[str]:
        """counts, idle (Bonferroni over heads) or undecided."""
        k = len(self.idle)
        return [
            "counts" if counts < alpha else "idle" if k * idle < alpha else "undecided"
            for counts, idle in zip(self.counts, self.idle, strict=True)
        ]


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """M3b.certified_stability and M3b.no_idle_heads.

    Certified stability: share of circuit heads whose own effect is stable. Published: head certified if its mean
    effect is positive in 95 % of 80 % subsamples; half of the heads certified. Verdict: one-sided cluster-robust t
    per head of "effect (in the head's declared direction) above 2 % of the mean logit difference",
    Benjamini-Hochberg over heads for the labels, and the partial conjunction "at least half of the heads" for the
    circuit.

    No idle heads (no published rule): every head counts (pass), some head is idle (fail), see `HeadTests`.
    """
    certified = f"positive in {config['certified_from']:.0%} of subsamples"
    rule = f"at least {config['circuit_fraction']:g} of heads {certified}"
    n = preconditions.sizes(evidence, heads=len(evidence.circuit_heads))
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


def _require(evidence: Evidence, config: Mapping[str, Any]) -> int:
    """The number of circuit heads, behind the preconditions of both records."""
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    if (k := len(evidence.circuit_heads)) < config["minimum_heads"]:
        raise Insufficient("n_heads", f"{k} circuit head; at least {config['minimum_heads']} needed")
    preconditions.require_faithful(evidence, config)
    return k


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    k = _require(evidence, config)
    effects = (evidence.head_effect(*EFFECT) * evidence.expected_sign)[:, evidence.in_circuit]
    # Contrast with the threshold: the uncertainty of mean D is then part of the test.
    above = effects - config["min_effect_fraction"] * evidence.clean[:, None]
    test = mean_test(above, evidence.clusters)
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
    robust = adjusted_p(test.p, "bh") < config["alpha"]
    opposite = mean_test(-effects, evidence.clusters)
    negative = adjusted_p(opposite.p, "bh") < config["alpha"]
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
    positive = mean_test(effects, evidence.clusters)
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
        "robust_above_zero": float((adjusted_p(positive.p, "bh") < config["alpha"]).mean()),
        "published_rule_as_t": m3b_equivalent_t(config["certified_from"], config["subsample_fraction"]),
        "threshold_in_logits": config["min_effect_fraction"] * mean_clean,
    }


# --- idle heads ----------------------------------------------------------------------------------------


def knock_outs(evidence: Evidence) -> Float[np.ndarray, "way prompt head"]:
    """Logit difference that each circuit head is worth, alone (21) and beside its minimality set (22).

    Alone: D - LD(head mean-ablated). Beside: F(C without K) - F(C without K and the head), K the set of other circuit
    heads that shows it best on discovery prompts, as a head with a backup seems worth nothing alone. Raises
    Insufficient("not_run").
    """
    alone = evidence.head_effect(*EFFECT)[:, evidence.in_circuit]
    minimality = evidence.data("22")
    if "greedy" not in minimality:
        raise Insufficient("not_run", "measurement 22 has no minimality sets", needs="measurement 22 anew")
    place = {tuple(head): row for row, head in enumerate(minimality["heads"])}
    rows = [place[head] for head in evidence.circuit_heads]
    beside = np.asarray(minimality["greedy"]["effect"], dtype=float)[rows][:, evidence.rows].T
    return np.stack([alone, beside])


def head_tests(evidence: Evidence, config: Mapping[str, Any]) -> HeadTests:
    """Cluster-robust one-sided t tests of effect - m and effect + m, prompt by prompt, by both ways."""
    effects, k = knock_outs(evidence), len(evidence.circuit_heads)
    margin = config["min_effect_fraction"] * evidence.clean[:, None]
    wide = np.concatenate(list(effects), axis=1)  # [prompt way*head]

    def p(values: Float[np.ndarray, "prompt column"]) -> Float[np.ndarray, "way head"]:
        return mean_test(values, evidence.clusters).p.reshape(len(WAYS), k)

    above, below = p(wide - margin), p(-wide - margin)
    counts = np.minimum(1.0, 2 * len(WAYS) * np.minimum(above, below).min(axis=0))
    idle = np.maximum(p(margin - wide), p(margin + wide)).max(axis=0)
    test = mean_test(wide, evidence.clusters)
    mean_clean = evidence.clean.mean()
    share, error = (values.reshape(len(WAYS), k) / mean_clean for values in (test.mean, test.standard_error))
    return HeadTests(share, error, counts, idle)


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
        "p_kind": "largest p of t over heads, each the smallest of two ways and two signs times four",
        "effect_size": labels.count("counts") / k,
        "reasons": _idle_reasons(evidence, labels),
        "needs": _idle_needs(verdict, tests, len(evidence.clean), config),
        "companions": {
            "threshold": config["min_effect_fraction"],
            "heads": {
                f"{layer}.{head}": {
                    "label": labels[i],
                    **{way: float(tests.share[row, i]) for row, way in enumerate(WAYS)},
                    "p_counts": float(tests.counts[i]),
                    "p_idle": min(1.0, k * float(tests.idle[i])),
                }
                for i, (layer, head) in enumerate(evidence.circuit_heads)
            },
        },
    }


def _idle_reasons(evidence: Evidence, labels: list[str]) -> tuple[str, ...]:
    """Which heads are idle, and which are not shown to count."""
    words = {"idle": "idle, alone and beside other heads", "undecided": "not shown to count"}
    named = {
        label: ", ".join(
            f"{layer}.{head}" for (layer, head), own in zip(evidence.circuit_heads, labels, strict=True) if own == label
        )
        for label in words
    }
    return tuple(f"{words[label]}: {heads}" for label, heads in named.items() if heads)


def _idle_needs(verdict: str, tests: HeadTests, n_prompts: int, config: Mapping[str, Any]) -> str | None:
    """Prompts at which the head with the largest p would be shown to count at its present effect."""
    if verdict != "inconclusive":
        return None
    t = ((np.abs(tests.share) - config["min_effect_fraction"]) / tests.error).max(axis=0)
    weakest = float(t[int(np.argmax(tests.counts))])
    if weakest <= 0:
        return None
    critical = stats.norm.isf(config["alpha"] / (2 * len(WAYS)))
    return f"about {math.ceil(n_prompts * max(1.0, critical / weakest) ** 2)} prompts"
