"""C17 discriminant validity: do the circuit's heads matter for its own task and not for others?

M[A, B] is the mean activation-patching effect of circuit A's heads on task B's prompts, in units of task B's
gap (mean of clean minus corrupted logit difference). The published ratio M[A,A] / mean M[A,B] divides by what
should be zero: pure noise passes "> 3" in 10 to 28 % of cases. The verdict asks the same without division and of every
companion: M[A,A] - 3 M[A,B] > 0 for all B. A mean over companions would hide a shared circuit. For example, heads that serve
one of four companions as much as their own task have a mean effect of 1/4 on the companions, and 3/4 is still below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Int

from calibrations.evidence import Evidence, Head, sampling_units
from calibrations.preconditions import require_behaviour, resamples
from calibrations.record import Published, Record, Verdict, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    bootstrap_means,
    discriminant_null_pass,
    discriminant_ratios,
    head_relabellings,
    percentile_interval,
    pooled_if_single,
    published_verdict,
    rank_among,
    set_overlap,
    simultaneous_intervals,
    threshold_p,
)
from result_types import CompanionTask

ID = "C17"
NUMBER = "17"
NAME = "discriminant_validity"
TITLE = "discriminant validity"
INPUTS = ("01", "02", "20", "27")
NODES = (
    "Left out: only heads are patched on other tasks, so MLPs are not part of the matrix, and a head claimed at a "
    "position is patched at all of them."
)

RULE = "effect on the own task / mean effect on other tasks > {threshold_ratio}"
MATRIX_RULE = "none: mean ratio over circuits"
COMPANIONS = "task.companions"


@dataclass(frozen=True)
class TaskEffects:
    """One column of the matrix: patching effects, the gap that normalises them, the heads of that task's circuit.

    `heads` is all False if no circuit is known. `gap_per_prompt` (the circuit's own task only) is resampled with the effects.
    `clusters` and `templates` are those of that task's prompts.
    """

    name: str
    effects: Float[np.ndarray, "prompt head"]
    gap: float
    heads: Bool[np.ndarray, " head"]
    clusters: np.ndarray
    templates: np.ndarray
    gap_per_prompt: Float[np.ndarray, " prompt"] | None = None

    @property
    def mean_effect(self) -> Float[np.ndarray, " head"]:
        return self.effects.mean(axis=0) / self.gap


@dataclass(frozen=True)
class EffectMatrix:
    """The circuit's own task first, then companion tasks by name; why others were left out; `named`: how many companions the
    task names."""

    tasks: tuple[TaskEffects, ...]
    left_out: Mapping[str, str]
    layers: Int[np.ndarray, " head"]
    named: int = 1

    @property
    def own(self) -> TaskEffects:
        return self.tasks[0]

    @property
    def sources(self) -> list[TaskEffects]:
        """Tasks with a circuit: the rows of the matrix."""
        return [task for task in self.tasks if task.heads.any()]

    @cached_property
    def mean_effects(self) -> Float[np.ndarray, "source task"]:
        """M[A, B] of the module's docstring, A the rows."""
        return np.stack([[task.mean_effect[source.heads].mean() for task in self.tasks] for source in self.sources])

    def square(self) -> Float[np.ndarray, "source source"]:
        """`mean_effects` restricted to tasks that have a circuit."""
        return self.mean_effects[:, [task.heads.any() for task in self.tasks]]

    def require(self, least: int) -> None:
        if len(self.tasks) < least:
            if not self.named:
                raise Insufficient(
                    "n_tasks",
                    f"the task names no companions, so nothing tells its own heads from those that serve any task; name at least "
                    f"{least - 1}, other tasks or files of prompt pairs, with {COMPANIONS}",
                    needs=f"{least - 1} companions",
                )
            detail = f"{len(self.tasks)} tasks with a behaviour; at least {least} are needed"
            left = "".join(f"; {name} left out: {why}" for name, why in self.left_out.items())
            raise Insufficient("n_tasks", detail + left, needs=f"{least - len(self.tasks)} more tasks")


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C17.discriminant_validity (gating) and C17.discriminant_matrix (descriptive): M[A, B] of the module's docstring.

    Published: M[A, A] over the mean of M[A, B], above 3, for two or more tasks. Verdict: the contrast M[A, A] - 3 M[A, B] of
    every companion B, with its percentile 90 % interval over clusters of prompts, resampled independently in each task. pass
    if M[A, A] and all contrasts lie above 0 (an intersection-union test, which needs no correction); fail if one contrast lies
    below 0. The matrix has no threshold and no verdict.
    """
    rule = RULE.format(**config)
    n = {"prompts": len(evidence.rows), "heads": len(evidence.circuit_heads)}
    try:
        matrix = effect_matrix(evidence, config)
    except Insufficient as missing:
        return _without_tasks(missing, rule, n)
    n = {**n, "tasks": len(matrix.tasks)}
    return [
        judge(
            "C17.discriminant_validity",
            lambda: _published_ratio(matrix, rule, config),
            lambda: _decide(evidence, matrix, config),
            rule=rule,
            n=n,
            companions={"left_out": dict(matrix.left_out)},
        ),
        _matrix_record(matrix, n, config),
    ]


def _without_tasks(missing: Insufficient, rule: str, n: Mapping[str, int]) -> list[Record]:
    def refuse() -> NoReturn:
        raise missing

    return [
        judge("C17.discriminant_validity", refuse, refuse, rule=rule, n=n),
        judge("C17.discriminant_matrix", refuse, refuse, rule=MATRIX_RULE, gating=False, n=n),
    ]


def effect_matrix(evidence: Evidence, config: Mapping[str, Any]) -> EffectMatrix:
    """The tasks of the matrix. Raises Insufficient("not_run"), and ("behaviour_absent") for the circuit's own task."""
    require_behaviour(evidence, config)
    gap = evidence.clean - evidence.corrupted
    if gap.mean() <= 0:
        raise Insufficient("behaviour_absent", f"clean minus corrupted logit difference is {gap.mean():.4g} on average")
    own = TaskEffects(
        evidence.circuit["task"],
        evidence.head_effect("02", "denoising"),
        float(gap.mean()),
        evidence.in_circuit,
        evidence.clusters,
        evidence.templates,
        gap,
    )
    if not own.heads.any():
        raise Insufficient("n_heads", "the circuit has no heads")
    tasks, left_out, cross = [own], {}, evidence.data("27")
    for name, stored in sorted(cross["tasks"].items()):
        reason = _why_not(stored, config)
        if reason:
            left_out[name] = reason
        else:
            tasks.append(_companion(name, stored, evidence.heads))
    return EffectMatrix(
        tuple(tasks), left_out, evidence.layers, len(cross["tasks"]) + len(cross.get("unavailable", {}))
    )


def _why_not(stored: CompanionTask, config: Mapping[str, Any]) -> str | None:
    """Why a companion task cannot test specificity (no head can serve an absent behaviour), or None if it can."""
    if stored["accuracy"] <= config["min_accuracy"]:
        return f"accuracy {stored['accuracy']:.3g} is no better than {config['min_accuracy']}"
    if stored["gap"] <= 0:
        return f"gap {stored['gap']:.3g} between clean and corrupted is not positive"
    if len(stored["prompt_id"]) < config["min_prompts"]:
        return f"{len(stored['prompt_id'])} prompts; at least {config['min_prompts']} are needed"
    return None


def _companion(name: str, stored: CompanionTask, heads: list[Head]) -> TaskEffects:
    order = np.argsort(np.array(stored["prompt_id"]))
    members = {(layer, head) for layer, head in (stored["circuit"]["heads"] if stored["circuit"] else [])}
    mask = np.array([head in members for head in heads])
    templates, names = (np.array(stored[field])[order] for field in ("template", "cluster"))
    effects = np.asarray(stored["denoising"], dtype=float)[order]
    return TaskEffects(name, effects, float(stored["gap"]), mask, sampling_units(templates, names), templates)


def _published_ratio(matrix: EffectMatrix, rule: str, config: Mapping[str, Any]) -> Published:
    matrix.require(config["min_tasks"])
    row = matrix.mean_effects[0]
    off = float(row[1:].mean())
    if off == 0:
        raise Insufficient("ratio_undefined", "the mean effect on other tasks is exactly 0")
    ratio = float(row[0] / off)
    return Published(ratio, rule, published_verdict(ratio, ">", config["threshold_ratio"]))


@dataclass(frozen=True)
class Contrast:
    """own - factor x effect on one companion: estimate, bootstrap draws and the one-sided verdict of "above 0"."""

    name: str
    estimate: float
    draws: Float[np.ndarray, " resample"]

    @cached_property
    def ci90(self) -> Interval:
        """The two-sided 90 % interval, whose ends are the one-sided 5 % tests of a gate."""
        return percentile_interval(self.draws, 0.90)

    @property
    def verdict(self) -> Verdict:
        return decide_above(self.ci90, 0.0)


def _decide(evidence: Evidence, matrix: EffectMatrix, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: own > 0 and own - 3 x other > 0 at 90 % for every companion; fail: one contrast is below 0.

    It is an intersection-union test, so p is the largest and needs no correction. Estimate and interval are those of the
    companion with the smallest contrast.
    """
    matrix.require(config["min_tasks_gate"])
    own, others = effect_draws(evidence, matrix, config)
    contrasts = contrasts_with_others(matrix, own, others, config)
    worst = min(contrasts, key=lambda one: (one.estimate, one.name))
    own90 = percentile_interval(own, 0.90)
    verdict, reasons = _verdict(own90, contrasts, config)
    return {
        "verdict": verdict,
        "reasons": reasons,
        "needs": _needs(worst, len(evidence.rows)) if verdict == "inconclusive" else None,
        "estimate": worst.estimate,
        "ci90": _together(contrasts, 0.90)[worst.name],
        "ci95": _together(contrasts, 0.95)[worst.name],
        "ci_method": "bootstrap, clusters within each task independently; simultaneous over companions (each is judged by "
        f"its own), against {worst.name}",
        "p": max(threshold_p(draws, 0.0) for draws in (own, *(one.draws for one in contrasts))),
        "p_kind": "largest of bootstrap-threshold for own > 0 and for every companion's contrast",
        "effect_size": float(matrix.mean_effects[0, 0]),
        "notes": _notes(matrix, own90, others),
        "against_baseline": _against_random_heads(evidence, matrix, config),
        "companions": {
            "contrasts": {one.name: {"estimate": one.estimate, "ci90": one.ci90} for one in contrasts},
            **_row_companions(matrix, own, others.mean(axis=0), config),
            "left_out": dict(matrix.left_out),
        },
    }


def _together(contrasts: list[Contrast], level: float) -> dict[str, Interval]:
    """Simultaneous intervals over all companions, because the contrast shown is selected as the smallest."""
    estimates, draws = np.array([one.estimate for one in contrasts]), np.stack([one.draws for one in contrasts], axis=1)
    return dict(zip([one.name for one in contrasts], simultaneous_intervals(estimates, draws, level), strict=True))


def contrasts_with_others(
    matrix: EffectMatrix,
    own: Float[np.ndarray, " resample"],
    others: Float[np.ndarray, "companion resample"],
    config: Mapping[str, Any],
) -> list[Contrast]:
    factor, row = config["threshold_ratio"], matrix.mean_effects[0]
    return [
        Contrast(task.name, float(row[0] - factor * effect), own - factor * draws)
        for task, effect, draws in zip(matrix.tasks[1:], row[1:], others, strict=True)
    ]


def _verdict(own90: Interval, contrasts: list[Contrast], config: Mapping[str, Any]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict over all companions and why, naming the tasks."""
    failed = [one.name for one in contrasts if one.verdict == "fail"]
    open_ = [one.name for one in contrasts if one.verdict == "inconclusive"]
    if failed:
        return "fail", (f"the heads matter for other tasks as well: {', '.join(failed)}",)
    if own90[0] <= 0:
        return "inconclusive", ("the effect on the own task is not above 0",)
    if open_:
        factor = config["threshold_ratio"]
        return "inconclusive", (f"the interval of own - {factor:g} x other holds 0 for {', '.join(open_)}",)
    return "pass", ()


def _needs(worst: Contrast, n_prompts: int) -> str | None:
    """Prompts at which the interval of the smallest contrast would lie above 0; None if its estimate does not."""
    if worst.estimate <= 0:
        return None
    ratio = (worst.ci90[1] - worst.ci90[0]) / 2 / worst.estimate
    return f"about {int(np.ceil(max(ratio, 1.0) ** 2 * n_prompts))} prompts per task"


def effect_draws(
    evidence: Evidence, matrix: EffectMatrix, config: Mapping[str, Any]
) -> tuple[Float[np.ndarray, " resample"], Float[np.ndarray, "companion resample"]]:
    """Bootstrap draws of the circuit's effect on its own task and on each of the others."""
    member = matrix.own.heads
    draws = []
    for place, task in enumerate(matrix.tasks):
        counts = _counts(evidence, task, place, config)
        gap = task.gap if task.gap_per_prompt is None else bootstrap_means(counts, task.gap_per_prompt)
        draws.append(bootstrap_means(counts, task.effects[:, member].mean(axis=1)) / gap)
    return draws[0], np.stack(draws[1:])


def _counts(
    evidence: Evidence, task: TaskEffects, place: int, config: Mapping[str, Any]
) -> Int[np.ndarray, "resample prompt"]:
    """Resampled clusters of one task, within templates; pooled if a companion's template has a single cluster."""
    n_resamples = config["bootstrap_resamples_p"]
    if task.gap_per_prompt is not None:
        return resamples(evidence, config, n_resamples)
    return pooled_if_single(
        len(task.effects),
        n_resamples,
        seed=config["bootstrap_seed"] + place,
        clusters=task.clusters,
        strata=task.templates,
    )


def _notes(matrix: EffectMatrix, own90: Interval, others: Float[np.ndarray, "companion resample"]) -> tuple[str, ...]:
    """What the reader should know, whatever the verdict.

    If a companion's stored circuit has some of these heads, that may explain a small contrast (`shared_circuit`). The verdict
    does not change: a shared circuit is not specific.
    """
    names = [task.name for task in matrix.tasks[1:]]
    against = [name for name, draws in zip(names, others, strict=True) if percentile_interval(draws, 0.90)[1] < 0]
    notes = []
    if against:
        notes.append(f"negative_transfer: the heads do matter for {', '.join(against)}, against the answer")
    if own90[0] <= 0 or percentile_interval(others.mean(axis=0), 0.90)[0] <= 0:
        notes.append("ratio_undefined: own and other effect are not both above 0, judged on the contrast")
    shared = [name for name, jaccard in _jaccards(matrix).items() if jaccard > 0]
    if shared:
        notes.append(f"shared_circuit: heads in common with the circuits of {', '.join(shared)}")
    return tuple(notes)


def _jaccards(matrix: EffectMatrix) -> dict[str, float]:
    """Jaccard of the circuit's heads with each companion circuit's."""
    own = np.flatnonzero(matrix.own.heads).tolist()
    return {task.name: set_overlap(own, np.flatnonzero(task.heads).tolist()).jaccard for task in matrix.sources[1:]}


def _row_companions(
    matrix: EffectMatrix, own: np.ndarray, off: np.ndarray, config: Mapping[str, Any]
) -> dict[str, Any]:
    row, difference = matrix.mean_effects[0], own - off
    defined = percentile_interval(own, 0.90)[0] > 0 and percentile_interval(off, 0.90)[0] > 0
    positive = (own > 0) & (off > 0)
    return {
        "own": float(row[0]),
        "own_ci90": percentile_interval(own, 0.90),
        "others": {task.name: float(value) for task, value in zip(matrix.tasks[1:], row[1:], strict=True)},
        "others_mean": float(row[1:].mean()),
        "others_ci90": percentile_interval(off, 0.90),
        "difference": float(row[0] - row[1:].mean()),
        "difference_ci90": percentile_interval(difference, 0.90),
        "log_ratio_ci90": percentile_interval(np.log(own[positive] / off[positive]), 0.90) if defined else None,
        "jaccard_with": _jaccards(matrix),
        "random_heads": _random_heads(matrix, config),
        "false_pass_of_published_rule_under_noise": discriminant_null_pass(
            len(matrix.tasks), config["threshold_ratio"]
        ),
    }


def _matrix_record(matrix: EffectMatrix, n: Mapping[str, int], config: Mapping[str, Any]) -> Record:
    def published() -> Published:
        matrix.require(config["min_tasks"])
        return Published(float(discriminant_ratios(matrix.square()).mean()), MATRIX_RULE, "none")

    def decide() -> dict[str, Any]:
        matrix.require(config["min_tasks"])
        ratios = discriminant_ratios(matrix.square())
        positive = ratios[ratios > 0]
        return {
            "verdict": "inconclusive",
            "reasons": ("descriptive: the mean of ratios is ruled by the smallest denominator",),
            "estimate": float(np.median(np.log(positive))) if len(positive) else None,
            "ci_method": "estimate is the median log-ratio over circuits with a positive ratio",
        }

    return judge(
        "C17.discriminant_matrix",
        published,
        decide,
        rule=MATRIX_RULE,
        gating=False,
        n=n,
        companions={**_matrix_companions(matrix, config), "left_out": dict(matrix.left_out)},
    )


def _matrix_companions(matrix: EffectMatrix, config: Mapping[str, Any]) -> dict[str, Any]:
    gaps = np.array([task.gap for task in matrix.tasks])
    return {
        "sources": [task.name for task in matrix.sources],
        "tasks": [task.name for task in matrix.tasks],
        "gap": gaps.tolist(),
        "normalised": matrix.mean_effects.tolist(),
        "raw": (matrix.mean_effects * gaps).tolist(),
        "random": [_random_row(matrix, source, config) for source in matrix.sources],
    }


def _random_heads(matrix: EffectMatrix, config: Mapping[str, Any]) -> dict[str, Any]:
    """By task: mean and SD of the effect of equally many random heads in the same layers, and the p of the circuit's heads.

    The published text asks for effects on other tasks that are comparable to those of random heads.
    """
    row = _random_row(matrix, matrix.own, config)
    sd = row["sd"] or [None] * len(matrix.tasks)
    return {
        task.name: {"mean": mean, "sd": spread, "p_above_random": p}
        for task, mean, spread, p in zip(matrix.tasks, row["mean"], sd, row["p_above_random"], strict=True)
    }


def _against_random_heads(evidence: Evidence, matrix: EffectMatrix, config: Mapping[str, Any]) -> dict[str, Any]:
    """The effect on the circuit's own task beside the mean of random heads in the same layers, on the same prompts."""
    own = matrix.own
    masks, _ = head_relabellings(own.heads, config["random_sets"], config["random_seed"], matrix.layers)
    counts = _counts(evidence, own, 0, config)
    value, baseline = (own.effects @ (mask / own.heads.sum()) for mask in (own.heads, masks.mean(axis=0)))
    gap = own.gap if own.gap_per_prompt is None else bootstrap_means(counts, own.gap_per_prompt)
    return {
        "value": float(value.mean() / own.gap),
        "baseline": float(baseline.mean() / own.gap),
        "ci95": percentile_interval(bootstrap_means(counts, value - baseline) / gap, 0.95),
    }


def _random_row(matrix: EffectMatrix, source: TaskEffects, config: Mapping[str, Any]) -> dict[str, Any]:
    """The source's effect on each task among random head sets of its size and layer profile."""
    masks, _ = head_relabellings(source.heads, config["random_sets"], config["random_seed"], matrix.layers)
    null = np.stack([masks @ task.mean_effect / source.heads.sum() for task in matrix.tasks])
    effects = [task.mean_effect[source.heads].mean() for task in matrix.tasks]
    return {
        "source": source.name,
        "mean": null.mean(axis=1).tolist(),
        "sd": null.std(axis=1, ddof=1).tolist() if null.shape[1] > 1 else None,
        "p_above_random": [rank_among(float(x), row).p for x, row in zip(effects, null, strict=True)],
    }
