"""C13: does faithfulness depend on the template, or on the names, the answer or the order?

Invariance is an equivalence claim: a difference that is not significant is no evidence of equality.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Published, Record, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    OneWayEffects,
    UnitsEffect,
    bootstrap_ratios,
    c13_label,
    clustered_f,
    equivalence_test,
    eta2_interval,
    eta2_permutation,
    noncentral_f_cdf,
    one_way_effects,
    ratio_of_means,
    simultaneous_intervals,
    split_groups,
    units_effect,
    welch_anova,
)

ID = "C13"
NUMBER = "13"
NAME = "measurement_invariance"
TITLE = "measurement invariance"
INPUTS = ("01", "20")
NODES = "Counted in full: faithfulness is that of the circuit as claimed, its MLPs and positions included."

LENGTH = "length"  # factor of 01 that the published fallback groups by
CLUSTER = "cluster"
LARGEST_MARGIN = 0.99  # of eta squared: beyond it the noncentrality overflows, and p is 0 anyway


@dataclass(frozen=True)
class Grouping:
    """Prompts split by one label: scores and sampling units per group, names, one-way table, interval of eta squared.

    A unit is a template frame with a name set. Prompts of one unit resemble each other in any group, so groups differ only if
    their units differ by more than units within a group do. A unit with several levels of a factor counts as one unit in each
    level. `between_sd` is the SD of the true group means (moment estimate). With almost no noise even a tiny difference has a
    large eta squared, so groups fail only if `between_sd` is at least `min_spread`.
    """

    groups: list[np.ndarray]
    units: list[np.ndarray]
    names: list[str]
    table: OneWayEffects
    effect: UnitsEffect
    ci90: Interval
    within_sd: float

    @property
    def between_sd(self) -> float:
        table = self.table
        excess = (table.f - self.effect.design_effect) * table.df_between / table.n
        return self.within_sd * math.sqrt(max(0.0, excess))

    def unit_means(self) -> list[np.ndarray]:
        """Mean score of every unit, per group: what a permutation exchanges between groups."""
        members = [np.unique(units, return_inverse=True)[1] for units in self.units]
        return [np.bincount(m, g) / np.bincount(m) for m, g in zip(members, self.groups, strict=True)]


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C13.measurement_invariance: eta squared of per-prompt faithfulness between templates.

    Scores are the linearised y_p = theta + (F_p - theta D_p) / mean D. Published: eta2 below 0.01 invariant, above 0.06
    template-sensitive. Verdict: pass if Wellek's equivalence test with Welch's F shows that group means differ by less than
    the margin or spread by less than `min_spread`; fail if the lower noncentral-F bound exceeds the margin and group means
    spread by at least `min_spread`. Name sets and every other factor can fail it as well, since a head that works only for
    some names is invisible by template. Clusters of prompts are the sampling units of every F.
    """
    rule = f"eta squared below {config['invariant_below']}; above {config['sensitive_above']} is sensitive"
    return [
        judge(
            "C13.measurement_invariance",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, templates=len(np.unique(evidence.templates))),
        )
    ]


def _scores(evidence: Evidence) -> np.ndarray:
    """Linearised faithfulness of each prompt. (The clean logit difference would say nothing about the circuit.)"""
    return ratio_of_means(evidence.ablated("circuit"), evidence.clean).scores


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    labels, prefix = evidence.templates, ""
    if len(np.unique(labels)) < 2:
        labels, prefix = _by_length(evidence, config), "by length: "
    eta2 = one_way_effects(split_groups(_scores(evidence), labels)[0]).eta2
    invariant, sensitive = config["invariant_below"], config["sensitive_above"]
    verdict = "pass" if eta2 < invariant else "fail" if eta2 > sensitive else "none"
    return Published(eta2, rule, verdict, prefix + c13_label(eta2, invariant=invariant, sensitive=sensitive))


def _by_length(evidence: Evidence, config: Mapping[str, Any]) -> np.ndarray:
    """Thirds of the prompts by length: the published fallback for a single template, though it asks another question."""
    if LENGTH not in evidence.factors:
        raise Insufficient("n_clusters", "one template, and no prompt lengths to group by instead")
    length, names = evidence.factors[LENGTH].astype(float), config["length_groups"]
    edges = np.quantile(length, np.arange(1, len(names)) / len(names))
    return np.array(names)[np.searchsorted(edges, length, side="left")]


def grouping(scores: np.ndarray, labels: np.ndarray, clusters: np.ndarray, minimum: int) -> Grouping:
    """`scores` [prompt] split by `labels` [prompt], with `clusters` [prompt] as units.

    Raises Insufficient("n_prompts") for a group under `minimum` prompts, ("n_clusters") for a group of one unit.
    """
    groups, names = split_groups(scores, labels)
    smallest = min(len(group) for group in groups)
    if len(groups) > 1 and smallest < minimum:
        detail = f"the smallest of {len(groups)} groups has {smallest} prompts; at least {minimum} needed"
        raise Insufficient("n_prompts", detail, needs=f"at least {minimum} prompts in each group")
    units = split_groups(np.unique(clusters, return_inverse=True)[1], labels)[0]
    table, ci90 = one_way_effects(groups), eta2_interval(groups, 0.90, units)
    within_sd = math.sqrt(sum(((g - g.mean()) ** 2).sum() for g in groups) / table.df_within)
    return Grouping(groups, units, [str(name) for name in names], table, units_effect(groups, units), ci90, within_sd)


def _f2(eta2: float) -> float:
    return eta2 / (1 - eta2)


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    preconditions.require_prompts(evidence, config["minimum_prompts"])
    preconditions.require_faithful(evidence, config)
    scores = _scores(evidence)
    split = grouping(scores, evidence.templates, evidence.clusters, config["minimum_per_group"])
    test = equivalence_test(split.groups, _margin(split, config), units=split.units)
    by_factor = _by_factor(evidence, config, scores)
    varying = [name for name, found in by_factor.items() if found.get("varies")]
    verdict = "pass" if test.p < config["alpha"] else "inconclusive"
    if _differs(split, config) or varying:
        verdict = "fail"
    return {
        "verdict": verdict,
        "estimate": split.table.eta2,
        "ci90": split.ci90,
        "ci95": eta2_interval(split.groups, 0.95, split.units),
        "ci_method": "noncentral F over clusters",
        "p": max([test.p, *(by_factor[name]["equivalence_p"] for name in varying)]),
        "p_kind": "F (equivalence)",
        "effect_size": split.table.omega2,
        "reasons": _reasons(verdict, split, test.p, varying, config),
        "needs": _needs(split, config) if verdict == "inconclusive" else None,
        "companions": {**_companions(evidence, config, split), "by_factor": by_factor},
    }


def _margin(split: Grouping, config: Mapping[str, Any]) -> float:
    """Eta squared up to which groups are equivalent: the larger of the relative margin and that of `min_spread`.

    Groups fail only if they differ by more than both (`_differs`), so they are equivalent if they differ by less than
    either. One test at the larger margin covers both. Without `min_spread`, the groups of a circuit with almost no noise
    would have to agree to within a fraction of that noise.
    """
    f2 = (config["min_spread"] / split.within_sd) ** 2 if split.within_sd > 0 else math.inf
    return max(config["equivalence_margin"], min(f2 / (1 + f2) if math.isfinite(f2) else 1.0, LARGEST_MARGIN))


def _differs(split: Grouping, config: Mapping[str, Any]) -> bool:
    """Groups differ significantly (lower bound of eta squared above the margin) and by enough to matter."""
    return split.ci90[0] > config["equivalence_margin"] and split.between_sd >= config["min_spread"]


def _reasons(verdict: str, split: Grouping, p: float, varying: list[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    if verdict == "pass":
        return ()
    margin, low = config["equivalence_margin"], split.ci90[0]
    reasons = [f"faithfulness varies by {name}" for name in varying]
    if _differs(split, config):
        reasons.append(f"templates differ: eta squared at least {low:.3f}, margin {margin}")
    elif low > margin:
        reasons.append(
            f"templates differ (eta squared at least {low:.3f}, margin {margin}) but only by an SD of {split.between_sd:.3f}"
        )
    return tuple(reasons) or (f"equivalence not shown: p = {p:.3g} at margin {_margin(split, config):.3g}",)


def _needs(split: Grouping, config: Mapping[str, Any]) -> str:
    """Prompts at which the equivalence test has the target power if the templates do not differ at all.

    That is the number of independent prompts times the design effect.
    """
    margin = _margin(split, config)
    k, f2, n = split.table.k, _f2(margin), split.table.k * config["minimum_per_group"]
    while True:
        critical = scipy.stats.ncf.ppf(config["alpha"], k - 1, n - k, n * f2)
        if scipy.stats.f.cdf(critical, k - 1, n - k) >= config["target_power"]:
            return f"about {math.ceil(n * split.effect.design_effect)} prompts"
        n = math.ceil(n * 1.05)  # to within 5 %, which is precise enough for planning


def _by_factor(evidence: Evidence, config: Mapping[str, Any], scores: np.ndarray) -> dict[str, dict[str, Any]]:
    """Name set (cluster) and every factor of 01: effect sizes, permutation p, whether faithfulness varies.

    It varies if `_differs` and the permutation p is below alpha / number of factors. Levels with too few units are left out
    and counted, since so few units say nothing about the spread within a level.
    """
    labels = {CLUSTER: evidence.per_prompt("01", CLUSTER), **evidence.factors}
    labels = {name: values for name, values in labels.items() if len(np.unique(values)) > 1}
    alpha = config["alpha"] / max(len(labels), 1)
    return {name: _factor(scores, values, evidence.clusters, config, alpha) for name, values in sorted(labels.items())}


def _factor(
    scores: np.ndarray, labels: np.ndarray, clusters: np.ndarray, config: Mapping[str, Any], alpha: float
) -> dict[str, Any]:
    levels, member = np.unique(labels, return_inverse=True)
    unit = np.unique(clusters, return_inverse=True)[1]
    count = np.bincount(np.unique(np.column_stack([member, unit]), axis=0)[:, 0])
    kept = count[member] >= config["minimum_per_level"]
    dropped = int((count < config["minimum_per_level"]).sum())
    try:
        if len(levels) - dropped < 2:
            raise Insufficient("n_clusters", f"{len(levels) - dropped} levels with enough clusters of prompts")
        split = grouping(scores[kept], labels[kept], clusters[kept], config["minimum_per_level"])
        test = eta2_permutation(split.unit_means(), n_resamples=config["permutations"], seed=config["permutation_seed"])
    except Insufficient as missing:
        return {"insufficient": str(missing), "levels": len(levels), "levels_left_out": dropped}
    table, effective = split.table, split.table.n / split.effect.design_effect
    f, _ = clustered_f(table, split.effect)
    return {
        "eta2": table.eta2,
        "omega2": table.omega2,
        "eta2_90": split.ci90,
        "between_sd": split.between_sd,
        "permutation_p": test.p,
        "equivalence_p": noncentral_f_cdf(
            f, table.df_between, split.effect.freedom, effective * _f2(config["equivalence_margin"])
        ),
        "varies": bool(_differs(split, config) and test.p < alpha),
        "design_effect": split.effect.design_effect,
        "levels": len(levels),
        "levels_left_out": dropped,
    }


def _companions(evidence: Evidence, config: Mapping[str, Any], split: Grouping) -> dict[str, Any]:
    table, welch = split.table, welch_anova(split.groups)
    test = eta2_permutation(split.unit_means(), n_resamples=config["permutations"], seed=config["permutation_seed"])
    clean = one_way_effects(split_groups(evidence.clean, evidence.templates)[0])
    return {
        "omega2": table.omega2,
        "epsilon2": table.epsilon2,
        "welch_omega2": welch.adjusted_omega2,
        "welch_f": welch.f,
        "welch_p": welch.p,
        "permutation_p": test.p,
        "between_sd": split.between_sd,
        "within_sd": split.within_sd,
        "design_effect": split.effect.design_effect,
        "null_expectation_of_eta2": (table.k - 1) / (table.n - 1),
        "eta2_of_clean_logit_difference": clean.eta2,
        "by_template": _by_template(evidence),
        "largest_difference": _largest_difference(evidence, config, split.names),
    }


def _by_template(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Faithfulness of each template with its 90 % Fieller interval."""
    intact, table = evidence.ablated("circuit"), {}
    for name in np.unique(evidence.templates):
        rows = evidence.templates == name
        try:
            ratio = ratio_of_means(intact[rows], evidence.clean[rows], evidence.clusters[rows])
            table[str(name)] = {
                "faithfulness": ratio.value,
                "ci90": ratio.fieller(0.90),
                "prompts": int(rows.sum()),
            }
        except Insufficient as missing:
            table[str(name)] = {"insufficient": str(missing), "prompts": int(rows.sum())}
    return table


def _largest_difference(evidence: Evidence, config: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Largest difference of faithfulness between two templates, with an interval simultaneous over all pairs."""
    member = np.array([evidence.templates == name for name in np.unique(evidence.templates)], dtype=float)
    intact, clean = evidence.ablated("circuit"), evidence.clean
    counts = preconditions.resamples(evidence, config, config["bootstrap_resamples"])
    try:
        draws = np.stack([bootstrap_ratios(counts, intact * row, clean * row) for row in member])
    except Insufficient as missing:
        return {"insufficient": str(missing)}
    thetas = (member @ intact) / (member @ clean)
    pairs = np.array(list(itertools.combinations(range(len(member)), 2)))
    difference = thetas[pairs[:, 0]] - thetas[pairs[:, 1]]
    spread = draws[pairs[:, 0]] - draws[pairs[:, 1]]
    if not (np.nanstd(spread, axis=1) > 0).all():
        return {"insufficient": "zero_variance"}
    at = int(np.argmax(np.abs(difference)))
    sign = math.copysign(1.0, difference[at])
    low, high = simultaneous_intervals(difference, spread.T, 0.90)[at]
    estimate, interval = abs(float(difference[at])), (low, high) if sign > 0 else (-high, -low)
    pair = [names[i] for i in (pairs[at] if sign > 0 else pairs[at][::-1])]
    return {"templates": pair, "difference": estimate, "simultaneous_90": interval}
