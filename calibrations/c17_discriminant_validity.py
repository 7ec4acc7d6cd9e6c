"""C17 discriminant validity: do the circuit's heads matter for its own task and not for others?

M[A, B] is the mean activation-patching effect of circuit A's heads on task B's prompts, in units of task B's
gap (mean of clean minus corrupted logit difference). The published ratio M[A,A] / mean M[A,B] divides by what
should be zero: pure noise passes "> 3" in 10 to 28 %. The verdict asks the same without division and of every
companion by itself, M[A,A] - 3 M[A,B] > 0 for all B: heads that serve one of four companions in full have a mean
off-diagonal of a quarter, which three times over is still below their own effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from calibrations.evidence import Evidence, Head
from calibrations.preconditions import require_behaviour, resamples
from calibrations.record import Published, Record, Verdict, decide_above, judge
from calibrations.statistics import (
    Insufficient,
    Interval,
    bootstrap_counts,
    bootstrap_means,
    discriminant_null_pass,
    discriminant_ratios,
    head_relabellings,
    percentile_interval,
    published_verdict,
    rank_among,
    set_overlap,
    simultaneous_intervals,
    threshold_p,
)

ID = "C17"
NUMBER = "17"
NAME = "discriminant_validity"
TITLE = "discriminant validity"
INPUTS = ("01", "02", "20", "27")

RULE = "effect on the own task / mean effect on other tasks > {threshold_ratio}"
MATRIX_RULE = "none: mean ratio over circuits"


@dataclass(frozen=True)
class Task:
    """One column: patching effects, the gap that normalises them, the circuit found for the task.

    `gap_per_prompt` (own task only) is resampled together with the effects.
    """

    name: str
    effects: Float[np.ndarray, "prompt head"]
    gap: float
    heads: Bool[np.ndarray, " head"] | None
    gap_per_prompt: Float[np.ndarray, " prompt"] | None = None

    @property
    def mean_effect(self) -> Float[np.ndarray, " head"]:
        return self.effects.mean(axis=0) / self.gap


@dataclass(frozen=True)
class Comparison:
    """The circuit's own task first, companion tasks in order of name, and why others were left out."""

    tasks: tuple[Task, ...]
    left_out: Mapping[str, str]
    layers: Int[np.ndarray, " head"]

    @property
    def own(self) -> Task:
        return self.tasks[0]

    @property
    def sources(self) -> list[Task]:
        """Tasks with a circuit: the rows of the matrix."""
        return [task for task in self.tasks if task.heads is not None]

    @cached_property
    def matrix(self) -> Float[np.ndarray, "source task"]:
        return np.stack([[task.mean_effect[source.heads].mean() for task in self.tasks] for source in self.sources])

    def square(self) -> Float[np.ndarray, "source source"]:
        """The matrix restricted to tasks that have a circuit."""
        return self.matrix[:, [task.heads is not None for task in self.tasks]]

    def require(self, least: int) -> None:
        if len(self.tasks) < least:
            detail = f"{len(self.tasks)} tasks with a behaviour; at least {least} are needed"
            left = "".join(f"; {name} left out: {why}" for name, why in self.left_out.items())
            raise Insufficient("n_tasks", detail + left, needs=f"{least - len(self.tasks)} more tasks")


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """C17.discriminant_validity (gating) and C17.discriminant_matrix (descriptive): M[A, B] of the module's docstring.

    Published: M[A, A] over the mean of M[A, B], above 3, from two tasks on. Verdict: the contrast M[A, A] - 3 M[A, B] of
    every companion B, its percentile 90 % interval over clusters of prompts, drawn within each task by itself. pass if
    M[A, A] and all contrasts lie above 0 (an intersection-union test, which needs no correction); fail if one
    contrast lies below 0. The matrix has no threshold and no verdict.
    """
    rule = RULE.format(**config)
    n = {"prompts": len(evidence.rows), "heads": len(evidence.circuit_heads)}
    try:
        comparison = compare(evidence, config)
    except Insufficient as missing:
        return _without_tasks(missing, rule, n)
    n = {**n, "tasks": len(comparison.tasks)}
    return [
        judge(
            "C17.discriminant_validity",
            lambda: _published_ratio(comparison, rule, config),
            lambda: _decide(evidence, comparison, config),
            rule=rule,
            n=n,
            companions={"left_out": dict(comparison.left_out)},
        ),
        _matrix_record(comparison, n, config),
    ]


def _without_tasks(missing: Insufficient, rule: str, n: Mapping[str, int]) -> list[Record]:
    def refuse() -> Any:
        raise missing

    return [
        judge("C17.discriminant_validity", refuse, refuse, rule=rule, n=n),
        judge("C17.discriminant_matrix", refuse, refuse, rule=MATRIX_RULE, gating=False, n=n),
    ]


def compare(evidence: Evidence, config: Mapping[str, Any]) -> Comparison:
    """The tasks of the matrix. Raises Insufficient("not_run"), and ("behaviour_absent") for the own task."""
    require_behaviour(evidence, config)
    gap = evidence.clean - evidence.corrupted
    if gap.mean() <= 0:
        raise Insufficient("behaviour_absent", f"clean minus corrupted logit difference is {gap.mean():.4g} on average")
    own = Task(
        evidence.circuit["task"],
        evidence.head_effect("02", "denoising"),
        float(gap.mean()),
        evidence.in_circuit if evidence.circuit_heads else None,
        gap,
    )
    if own.heads is None:
        raise Insufficient("n_heads", "the circuit has no heads")
    tasks, left_out = [own], {}
    for name, stored in sorted(evidence.data("27")["tasks"].items()):
        reason = _why_not(stored, config)
        if reason:
            left_out[name] = reason
        else:
            tasks.append(_companion(name, stored, evidence.heads))
    return Comparison(tuple(tasks), left_out, evidence.layers)


def _why_not(stored: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Why a companion task is no test of specificity, or None: an absent behaviour needs no heads at all."""
    if stored["accuracy"] <= config["min_accuracy"]:
        return f"accuracy {stored['accuracy']:.3g} is no better than {config['min_accuracy']}"
    if stored["gap"] <= 0:
        return f"gap {stored['gap']:.3g} between clean and corrupted is not positive"
    if len(stored["prompt_id"]) < config["min_prompts"]:
        return f"{len(stored['prompt_id'])} prompts; at least {config['min_prompts']} are needed"
    return None


def _companion(name: str, stored: Mapping[str, Any], heads: list[Head]) -> Task:
    order = np.argsort(np.array(stored["prompt_id"]))
    members = {tuple(head) for head in (stored["circuit"] or {"heads": []})["heads"]}
    mask = np.array([head in members for head in heads]) if members else None
    return Task(name, np.asarray(stored["denoising"], dtype=float)[order], float(stored["gap"]), mask)


def _published_ratio(comparison: Comparison, rule: str, config: Mapping[str, Any]) -> Published:
    comparison.require(config["min_tasks"])
    row = comparison.matrix[0]
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
        return percentile_interval(self.draws, 0.90)

    @property
    def verdict(self) -> Verdict:
        return decide_above(self.ci90, 0.0)


def _decide(evidence: Evidence, comparison: Comparison, config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: own > 0 and own - 3 x other > 0 at 90 % for every companion; fail: for one the contrast is below 0.

    An intersection-union test, so p is the largest and needs no correction; estimate and interval are those of the
    companion with the smallest contrast.
    """
    comparison.require(config["min_tasks_gate"])
    own, others = effect_draws(evidence, comparison, config)
    contrasts = contrasts_with_others(comparison, own, others, config)
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
        "effect_size": float(comparison.matrix[0, 0]),
        "notes": _notes(comparison, own90, others),
        "companions": {
            "contrasts": {one.name: {"estimate": one.estimate, "ci90": one.ci90} for one in contrasts},
            **_row_companions(comparison, own, others.mean(axis=0), config),
            "left_out": dict(comparison.left_out),
        },
    }


def _together(contrasts: list[Contrast], level: float) -> dict[str, Interval]:
    """Intervals that hold for all companions at once: the smallest contrast is one that was chosen."""
    estimates, draws = np.array([one.estimate for one in contrasts]), np.stack([one.draws for one in contrasts], axis=1)
    return dict(zip([one.name for one in contrasts], simultaneous_intervals(estimates, draws, level), strict=True))


def contrasts_with_others(
    comparison: Comparison,
    own: Float[np.ndarray, " resample"],
    others: Float[np.ndarray, "companion resample"],
    config: Mapping[str, Any],
) -> list[Contrast]:
    factor, row = config["threshold_ratio"], comparison.matrix[0]
    return [
        Contrast(task.name, float(row[0] - factor * effect), own - factor * draws)
        for task, effect, draws in zip(comparison.tasks[1:], row[1:], others, strict=True)
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
    """Prompts at which the smallest contrast would clear 0 at its present value; None if that is not above 0."""
    if worst.estimate <= 0:
        return None
    ratio = (worst.ci90[1] - worst.ci90[0]) / 2 / worst.estimate
    return f"about {int(np.ceil(max(ratio, 1.0) ** 2 * n_prompts))} prompts per task"


def effect_draws(
    evidence: Evidence, comparison: Comparison, config: Mapping[str, Any]
) -> tuple[Float[np.ndarray, " resample"], Float[np.ndarray, "companion resample"]]:
    """Bootstrap draws of the circuit's effect on its own task and on each of the others."""
    member = comparison.own.heads
    draws = []
    for place, task in enumerate(comparison.tasks):
        counts = _counts(evidence, task, place, config)
        gap = task.gap if task.gap_per_prompt is None else bootstrap_means(counts, task.gap_per_prompt)
        draws.append(bootstrap_means(counts, task.effects[:, member].mean(axis=1)) / gap)
    return draws[0], np.stack(draws[1:])


def _counts(
    evidence: Evidence, task: Task, place: int, config: Mapping[str, Any]
) -> Int[np.ndarray, "resample prompt"]:
    """Resampled prompts of one task; companions store no clusters, so there the unit is the prompt."""
    n_resamples = config["bootstrap_resamples_p"]
    if task.gap_per_prompt is not None:
        return resamples(evidence, config, n_resamples)
    return bootstrap_counts(len(task.effects), n_resamples, seed=config["bootstrap_seed"] + place)


def _notes(comparison: Comparison, own90: Interval, others: Float[np.ndarray, "companion resample"]) -> tuple[str, ...]:
    """What the reader should know whatever the verdict.

    Heads that the companion's stored circuit has as well may make a small contrast legitimate (`shared_circuit`), but a
    shared circuit is not specific, so the verdict stands: exempting it would let a claim excuse itself.
    """
    names = [task.name for task in comparison.tasks[1:]]
    against = [name for name, draws in zip(names, others, strict=True) if percentile_interval(draws, 0.90)[1] < 0]
    notes = []
    if against:
        notes.append(f"negative_transfer: the heads do matter for {', '.join(against)}, against the answer")
    if own90[0] <= 0 or percentile_interval(others.mean(axis=0), 0.90)[0] <= 0:
        notes.append("ratio_undefined: own and other effect are not both above 0, judged on the contrast")
    shared = [name for name, jaccard in _jaccards(comparison).items() if jaccard > 0]
    if shared:
        notes.append(f"shared_circuit: heads in common with the circuits of {', '.join(shared)}")
    return tuple(notes)


def _jaccards(comparison: Comparison) -> dict[str, float]:
    """Jaccard of the circuit's heads with each companion circuit's."""
    own = np.flatnonzero(comparison.own.heads).tolist()
    return {task.name: set_overlap(own, np.flatnonzero(task.heads).tolist()).jaccard for task in comparison.sources[1:]}


def _row_companions(
    comparison: Comparison, own: np.ndarray, off: np.ndarray, config: Mapping[str, Any]
) -> dict[str, Any]:
    row, difference = comparison.matrix[0], own - off
    defined = percentile_interval(own, 0.90)[0] > 0 and percentile_interval(off, 0.90)[0] > 0
    positive = (own > 0) & (off > 0)
    log_ratio = np.log(own[positive] / off[positive]) if defined else None
    return {
        "own": float(row[0]),
        "own_ci90": percentile_interval(own, 0.90),
        "others": {task.name: float(value) for task, value in zip(comparison.tasks[1:], row[1:], strict=True)},
        "others_mean": float(row[1:].mean()),
        "others_ci90": percentile_interval(off, 0.90),
        "difference": float(row[0] - row[1:].mean()),
        "difference_ci90": percentile_interval(difference, 0.90),
        "log_ratio_ci90": percentile_interval(log_ratio, 0.90) if defined else None,
        "jaccard_with": _jaccards(comparison),
        "false_pass_of_published_rule_under_noise": discriminant_null_pass(
            len(comparison.tasks), config["threshold_ratio"]
        ),
    }


def _matrix_record(comparison: Comparison, n: Mapping[str, int], config: Mapping[str, Any]) -> Record:
    def published() -> Published:
        comparison.require(config["min_tasks"])
        return Published(float(discriminant_ratios(comparison.square()).mean()), MATRIX_RULE, "none")

    def decide() -> dict[str, Any]:
        comparison.require(config["min_tasks"])
        ratios = discriminant_ratios(comparison.square())
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
        companions={**_matrix_companions(comparison, config), "left_out": dict(comparison.left_out)},
    )


def _matrix_companions(comparison: Comparison, config: Mapping[str, Any]) -> dict[str, Any]:
    gaps = np.array([task.gap for task in comparison.tasks])
    return {
        "sources": [task.name for task in comparison.sources],
        "tasks": [task.name for task in comparison.tasks],
        "gap": gaps.tolist(),
        "normalised": comparison.matrix.tolist(),
        "raw": (comparison.matrix * gaps).tolist(),
        "random": [_random_row(comparison, source, config) for source in comparison.sources],
    }


def _random_row(comparison: Comparison, source: Task, config: Mapping[str, Any]) -> dict[str, Any]:
    """The source's effect on each task among random head sets of its size and layer profile."""
    masks, _ = head_relabellings(source.heads, config["random_sets"], config["random_seed"], comparison.layers)
    null = np.stack([masks @ task.mean_effect / source.heads.sum() for task in comparison.tasks])
    effects = [task.mean_effect[source.heads].mean() for task in comparison.tasks]
    return {
        "source": source.name,
        "mean": null.mean(axis=1).tolist(),
        "sd": null.std(axis=1, ddof=1).tolist() if null.shape[1] > 1 else None,
        "p_above_random": [rank_among(float(x), row).p for x, row in zip(effects, null, strict=True)],
    }
