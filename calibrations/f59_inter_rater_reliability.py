"""F59 inter-rater reliability: do independent ways of scoring heads agree on the circuit's members?

Raters: activation patching, direct logit attribution, norm of the OV circuit on the answer direction.
Published values: Kendall's W, mean Spearman and mean Cohen's kappa of the top-k sets (k = circuit size). W of
three raters is (1 + 2 mean rho)/3, so W > 0.5 means a mean rho above .25, which is what the verdict tests.
The two direct raters cannot see heads that act through other heads. If enough heads write to the answer, all raters are
compared on those only. If not, a disagreement is inconclusive as long as there are heads that the direct raters cannot see.
Where hardly any head writes to the answer (heads may feed an MLP that does), the direct raters have nothing to rate. The verdict
then compares raters of total effects. The published values keep the published raters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from calibrations.evidence import Evidence
from calibrations.head_scores import (
    Orientation,
    ScoringMethod,
    covering,
    mean_difference,
    mean_kappa,
    read_method,
    select_top,
    writes_to_answer,
)
from calibrations.preconditions import require_behaviour, resamples, sizes
from calibrations.record import Published, Record, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    kendall_w,
    krippendorff_alpha,
    mean_spearman,
    mean_spearman_draws,
    mean_spearman_permutation,
    percentile_interval,
    permutation_p,
    published_verdict,
    spearman_matrix,
    threshold_p,
    usable_draws,
)

ID = "F59"
NUMBER = "59"
NAME = "inter_rater_reliability"
TITLE = "inter-rater reliability"
INPUTS = ("01", "02", "03", "09", "20", "21")
NODES = (
    "Left out: the raters score heads, so MLPs are not rated, and a head claimed at a position counts as it is at "
    "all of them."
)

W_RULE = "Kendall's W > {threshold_w}"
RHO_RULE = "none: mean pairwise Spearman rho"
KAPPA_RULE = "mean pairwise Cohen's kappa of top-k > {threshold_kappa}"
ORIENTATION: Mapping[str, Orientation] = {"absolute": "magnitude", "signed": "higher"}


@dataclass(frozen=True)
class RaterPanel:
    """The raters that were run, the heads they are judged on, and which circuit heads those include.

    `indirect` counts heads that have a patching effect but write next to nothing to the answer.
    """

    raters: tuple[ScoringMethod, ...]
    missing: tuple[str, ...]
    heads: Int[np.ndarray, " head"]
    population: str
    circuit: Bool[np.ndarray, " head"]
    indirect: int

    @cached_property
    def scores(self) -> Float[np.ndarray, "head rater"]:
        """Scores with negligible effects tied at 0."""
        return np.column_stack([rater.score() for rater in self.raters])[self.heads]

    @property
    def k(self) -> int:
        return int(self.circuit.sum())

    def draws(self, counts: Int[np.ndarray, "resample prompt"]) -> Float[np.ndarray, "resample head rater"]:
        return np.stack([rater.resampled(counts)[:, self.heads] for rater in self.raters], axis=2)

    def require_three(self, config: Mapping[str, Any]) -> None:
        if len(self.raters) < config["n_raters"]:
            numbers = ", ".join(self.missing)
            detail = f"{len(self.raters)} of {config['n_raters']} raters; measurement {numbers} has not been run"
            raise Insufficient("missing_rater", detail, needs=f"measurement {numbers}")


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """F59.kendalls_w and F59.mean_kappa (gating), F59.mean_spearman: agreement of the raters about the heads.

    W = (1 + 2 rho) / 3 for three raters. rho is the mean Spearman of their pairs; kappa is the mean Cohen's kappa of the pairs'
    top-k sets, k the circuit's size (for the verdict at least 3). Published: W above 0.5, kappa above 0.4, over all heads; rho
    has no threshold. Verdict: the percentile 90 % interval over clusters of prompts, of rho against 0.25 (W of 0.5) and of
    kappa against 0.4, on heads that write to the answer if there are enough. pass if it lies above and relabelled heads agree
    as well in less than 5 % of the draws; fail if it lies below, but inconclusive if heads are judged that the direct raters
    cannot see. Where fewer heads than `min_k` write to the answer, the verdict takes the raters of total effects instead
    (patching in both directions and knock-outs).
    """
    raters, missing = present_raters(evidence, config["raters"], config)
    common = {"n": sizes(evidence, heads=len(evidence.heads), raters=len(raters))}
    notes = (f"{len(raters)} of {config['n_raters']} raters",) if missing else ()
    companions = _companions(evidence, raters, config)

    def panel() -> RaterPanel:
        require_behaviour(evidence, config)
        return judged_panel(evidence, config)

    parts = [
        ("F59.kendalls_w", W_RULE, _published_w, _decide_w, True),
        ("F59.mean_spearman", RHO_RULE, _published_rho, _decide_rho, False),
        ("F59.mean_kappa", KAPPA_RULE, _published_kappa, _decide_kappa, True),
    ]
    return [
        judge(
            metric,
            lambda published=published: published(evidence, raters, missing, config),
            lambda decide=decide: decide(evidence, panel(), config),
            rule=rule.format(**config),
            gating=gating,
            notes=notes,
            companions=companions,
            **common,
        )
        for metric, rule, published, decide, gating in parts
    ]


def present_raters(
    evidence: Evidence, declared: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> tuple[list[ScoringMethod], list[str]]:
    """The raters of `declared` whose measurement exists, and the numbers of the missing measurements.

    Effects per prompt are ranked by the convention in force; a norm keeps its own orientation.
    """
    present = [entry for entry in declared if evidence.has(entry["number"])]
    orientation = ORIENTATION[config["convention"]]
    raters = [
        read_method(
            evidence,
            entry,
            entry["name"],
            orientation if entry["per_prompt"] else "higher",
            config["tie_fraction"] * mean_difference(evidence, entry["number"]),
            direct=entry["direct"],
        )
        for entry in present
    ]
    return raters, [entry["number"] for entry in declared if entry not in present]


def judged_panel(evidence: Evidence, config: Mapping[str, Any]) -> RaterPanel:
    """The raters of the verdict: the published ones, or those of total effects where hardly a head writes to the answer."""
    raters, missing = present_raters(evidence, config["raters"], config)
    if too_few_writers(evidence, raters, config):
        raters, missing = present_raters(evidence, config["total_raters"], config)
    return rater_panel(evidence, raters, missing, config)


def too_few_writers(evidence: Evidence, raters: list[ScoringMethod], config: Mapping[str, Any]) -> bool:
    """Whether a direct rater would rate fewer than `min_k` heads: fewer have a mean attribution of 1 % of the mean D."""
    if not any(rater.direct for rater in raters) or not evidence.has("03"):
        return False
    return int(writes_to_answer(evidence, config["tie_fraction"]).sum()) < config["min_k"]


def rater_panel(
    evidence: Evidence, raters: list[ScoringMethod], missing: list[str], config: Mapping[str, Any]
) -> RaterPanel:
    """Raters on the heads that all of them score: only heads that write to the answer if there are enough, else all."""
    table = _table(raters, config, collapse=True)
    scored = np.isfinite(table).all(axis=1)
    indirect, population = 0, "all heads"
    if any(rater.direct for rater in raters) and evidence.has("03"):
        writers = writes_to_answer(evidence, config["tie_fraction"])
        seen = np.any([rater.score() > 0 for rater in raters if not rater.direct], axis=0)
        indirect = int((scored & seen & ~writers).sum())
        if (scored & writers).sum() >= config["min_heads"]:
            scored, population = scored & writers, "heads that write to the answer"
    heads = np.flatnonzero(scored)
    if len(heads) < config["min_heads"]:
        raise Insufficient("n_heads", f"{len(heads)} heads scored by every rater; {config['min_heads']} are needed")
    flat = [rater.name for rater in raters if np.ptp(rater.score()[heads]) == 0]
    if flat:
        raise Insufficient("zero_variance", f"{', '.join(flat)} scores every head alike")
    return RaterPanel(tuple(raters), tuple(missing), heads, population, evidence.in_circuit[heads], indirect)


def _table(raters: list[ScoringMethod], config: Mapping[str, Any], collapse: bool) -> Float[np.ndarray, "head rater"]:
    if len(raters) < config["min_raters"]:
        raise Insufficient("missing_rater", f"{len(raters)} raters; agreement needs at least {config['min_raters']}")
    return np.column_stack([rater.score(collapse) for rater in raters])


def _complete(raters: list[ScoringMethod], config: Mapping[str, Any]) -> Float[np.ndarray, "head rater"]:
    """Scores as published: no ties imposed, heads scored by every rater."""
    table = _table(raters, config, collapse=False)
    return table[np.isfinite(table).all(axis=1)]


# --- published values ---------------------------------------------------------------------------------------


def _published_w(
    evidence: Evidence, raters: list[ScoringMethod], missing: list[str], config: Mapping[str, Any]
) -> Published:
    if missing:
        raise Insufficient("missing_rater", f"measurement {', '.join(missing)} has not been run")
    w = kendall_w(_complete(raters, config).T).w
    return Published(w, W_RULE.format(**config), published_verdict(w, ">", config["threshold_w"]))


def _published_rho(
    evidence: Evidence, raters: list[ScoringMethod], missing: list[str], config: Mapping[str, Any]
) -> Published:
    return Published(mean_spearman(_complete(raters, config)), RHO_RULE, "none")


def _published_kappa(
    evidence: Evidence, raters: list[ScoringMethod], missing: list[str], config: Mapping[str, Any]
) -> Published:
    scores, k = _complete(raters, config), len(evidence.circuit_heads)
    _require_k(k, len(scores), config)
    kappa = float(mean_kappa(select_top(scores.T, k, zero_is_nothing=False)))
    return Published(kappa, KAPPA_RULE.format(**config), published_verdict(kappa, ">", config["threshold_kappa"]))


def _require_k(k: int, n_heads: int, config: Mapping[str, Any]) -> None:
    if k < config["min_k"]:
        raise Insufficient("n_heads", f"k = {k}: kappa of fewer than {config['min_k']} heads is a coin flip")
    if k >= n_heads:
        raise Insufficient("all_selected", f"k = {k} selects all {n_heads} heads; kappa is 0/0")


# --- verdicts -----------------------------------------------------------------------------------------------


def _decide_w(evidence: Evidence, panel: RaterPanel, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: 90 % interval of the mean rho above .25 (W above .5 with three raters), W significant."""
    panel.require_three(config)
    w = kendall_w(panel.scores.T)
    return {
        **_decide_rho(evidence, panel, config),
        "effect_size": w.w,
        "companions": {
            **_companions(evidence, list(panel.raters), config),
            "w_of_ties_corrected": w.w,
            "w_uncorrected": w.w_uncorrected,
            "w_null_mean": 1 / len(panel.raters),
            "p_chi2": w.p,
            "population": panel.population,
        },
    }


def _decide_rho(evidence: Evidence, panel: RaterPanel, config: Mapping[str, Any]) -> dict[str, Any]:
    relabelled = mean_spearman_permutation(
        panel.scores, n_resamples=config["permutations"], seed=config["permutation_seed"]
    )
    draws = mean_spearman_draws(panel.draws(resamples(evidence, config, config["bootstrap_resamples_p"])))
    return _verdict(evidence, panel, relabelled.statistic, draws, relabelled.p, "threshold_rho", config)


def _decide_kappa(evidence: Evidence, panel: RaterPanel, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: 90 % interval of the mean kappa above .4 at the circuit's k, at least `min_k`, and overlap beyond chance."""
    if not panel.k:
        raise Insufficient("n_heads", "none of the circuit's heads is among those that the raters are judged on")
    k = max(panel.k, config["min_k"])  # agreement is about heads in general: a small circuit must not shrink the sets
    _require_k(k, len(panel.heads), config)
    chosen = select_top(panel.scores.T, k, zero_is_nothing=True)
    estimate = float(mean_kappa(chosen))
    if not np.isfinite(estimate):
        raise Insufficient("zero_variance", "no rater selects a head: every effect is under the tie")
    rng = np.random.default_rng(config["permutation_seed"])
    shuffled = rng.permuted(np.tile(chosen, (config["permutations"], 1, 1)), axis=2)
    chance = permutation_p(estimate, mean_kappa(shuffled), "greater", exact=False)
    tables = panel.draws(resamples(evidence, config, config["bootstrap_resamples_p"]))
    draws = mean_kappa(select_top(np.swapaxes(tables, 1, 2), k, zero_is_nothing=True))
    result = _verdict(evidence, panel, estimate, draws, chance, "threshold_kappa", config)
    curve = {
        str(k): float(mean_kappa(select_top(panel.scores.T, k, zero_is_nothing=True)))
        for k in config["kappa_curve"]
        if k < len(panel.heads)
    }
    companions = _companions(evidence, list(panel.raters), config)
    return {
        **result,
        "companions": {**companions, "k": k, "curve": curve, "population": panel.population},
    }


def _verdict(
    evidence: Evidence,
    panel: RaterPanel,
    estimate: float,
    draws: Float[np.ndarray, " resample"],
    chance: float,
    threshold_name: str,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    draws, threshold = usable_draws(draws), config[threshold_name]
    ci90 = covering(percentile_interval(draws, 0.90), estimate)
    verdict, reasons = decide_above(ci90, threshold), ()
    if verdict == "pass" and chance >= config["alpha"]:
        verdict, reasons = "inconclusive", (f"relabelled heads agree as well (p = {chance:.3g})",)
    elif verdict != "pass":
        reasons = (f"the interval [{ci90[0]:.2f}, {ci90[1]:.2f}] is not above {threshold}",)
    if verdict == "fail" and panel.indirect and panel.population == "all heads":
        verdict = "inconclusive"
        reasons += (f"{panel.indirect} heads act through other heads, which the direct raters cannot see",)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "estimate": float(estimate),
        "ci90": ci90,
        "ci95": covering(percentile_interval(draws, 0.95), estimate),
        "ci_method": f"percentile bootstrap over clusters, extended to the estimate; {panel.population}",
        "p": max(threshold_p(draws, threshold), chance),
        "p_kind": "larger of bootstrap-threshold and head relabelling",
        "n": sizes(evidence, heads=len(panel.heads), raters=len(panel.raters)),
    }


# --- companions ---------------------------------------------------------------------------------------------


def _companions(evidence: Evidence, raters: list[ScoringMethod], config: Mapping[str, Any]) -> dict[str, Any]:
    """Pairwise correlations, without and with signs, and Krippendorff's alpha over incomplete ratings."""
    signed = [replace(rater, orientation=ORIENTATION["signed"]) if rater.by_prompt else rater for rater in raters]
    pairs = {"absolute": _pairwise(raters), "signed": _pairwise(signed)}
    return {
        "convention": config["convention"],
        "raters": [rater.name for rater in raters],
        "spearman": pairs,
        "krippendorff_alpha": _krippendorff(raters),
    }


def _pairwise(raters: list[ScoringMethod]) -> dict[str, float] | None:
    if len(raters) < 2:
        return None
    try:
        matrix = spearman_matrix(np.column_stack([rater.score() for rater in raters]), missing="pairwise")
    except Insufficient:
        return None
    pairs = zip(*np.triu_indices(len(raters), 1), strict=True)
    return {f"{raters[i].name} / {raters[j].name}": float(matrix[i, j]) for i, j in pairs}


def _krippendorff(raters: list[ScoringMethod]) -> float | None:
    """Alpha of the ranks that each rater gives; unscored heads are left out, never imputed."""
    if len(raters) < 2:
        return None
    try:
        ranks = [scipy.stats.rankdata(rater.score(), nan_policy="omit") for rater in raters]
        return krippendorff_alpha(ranks, "interval")
    except Insufficient:
        return None
