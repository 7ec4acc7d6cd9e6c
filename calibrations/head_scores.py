"""How methods score heads: declared orientation, ties of negligible effects, heads that write to the answer.

C12 and F59, which compare methods, share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from calibrations.evidence import Evidence
from calibrations.statistics import (
    Insufficient,
    Interval,
    bootstrap_means,
    mean_spearman_draws,
    spearman_brown,
    top_k_mask,
    usable_draws,
)

Orientation = Literal["magnitude", "higher", "lower"]

ABOUT_LOGITS = ("03", "05", "07", "08", "10")  # measurements in nats whatever the task's metric is


@dataclass(frozen=True)
class ScoringMethod:
    """One way to score heads: effects per prompt, `values` [prompt head], or one number for each head, `values` [head].

    `orientation` says which scores mark members of the circuit: large effects of either sign ("magnitude"), high scores or low
    scores. Effects per prompt are in the unit of their measurement (nats, or the task's metric); means within +- `tie` count
    as 0. A head that lacks a value on any prompt has no score, since its mean would be over other prompts than those of the
    other heads.
    """

    name: str
    orientation: Orientation
    values: Float[np.ndarray, "*prompt head"]
    tie: float
    direct: bool = False  # sees only what the head itself writes to the answer

    @property
    def by_prompt(self) -> bool:
        return self.values.ndim == 2

    def score(self, collapse: bool = True) -> Float[np.ndarray, " head"]:
        """Oriented score per head, larger for likelier members; NaN where the method has no score."""
        return self._finish(self.values.mean(axis=0) if self.by_prompt else self.values, collapse)

    def resampled(self, counts: Int[np.ndarray, "resample prompt"]) -> Float[np.ndarray, "resample head"]:
        """The score in each bootstrap resample; a prompt-free score does not vary."""
        n_heads = self.values.shape[-1]
        if not self.by_prompt:
            return np.broadcast_to(self.score(), (len(counts), n_heads))
        scored = np.isfinite(self.values).all(axis=0)
        means = np.full((len(counts), n_heads), np.nan)
        means[:, scored] = bootstrap_means(counts, self.values[:, scored])
        return self._finish(means, collapse=True)

    def missing_share(self) -> float:
        """Share of the heads that have no score."""
        return float((~np.isfinite(self.score())).mean())

    def _finish(self, means: np.ndarray, collapse: bool) -> np.ndarray:
        if collapse and self.by_prompt:
            means = np.where(np.abs(means) < self.tie, 0.0, means)
        return {"magnitude": np.abs, "higher": np.array, "lower": np.negative}[self.orientation](means)


def read_method(
    evidence: Evidence,
    entry: Mapping[str, Any],
    name: str,
    orientation: Orientation,
    tie: float,
    direct: bool,
) -> ScoringMethod:
    """The method that an entry {number, field, per_prompt} declares. Raises Insufficient("not_run")."""
    read = evidence.head_effect if entry["per_prompt"] else evidence.head_score
    return ScoringMethod(name, orientation, read(entry["number"], entry["field"]), tie, direct)


def rank_reliability(
    method: ScoringMethod, halves: Bool[np.ndarray, "split prompt"], heads: Int[np.ndarray, " head"]
) -> float | None:
    """Split-half reliability of the ranks of `heads`: median over splits of the Spearman-Brown step-up of rho between halves.

    None for a score without prompts, and if a half gives all heads one score. C12 needs it for the disattenuated rho; C16's
    head-level split-half is the same for effects instead of ranks of oriented scores.
    """
    if not method.by_prompt:
        return None
    both = np.stack([method.resampled(half.astype(int))[:, heads] for half in (halves, ~halves)], axis=2)
    try:
        rho = usable_draws(mean_spearman_draws(both))
        return float(np.median([spearman_brown(r) for r in rho]))
    except Insufficient:
        return None


def mean_difference(evidence: Evidence, number: str) -> float:
    """Mean D in the unit of measurement `number`: in nats if it is about logits whatever the task's metric."""
    return float((evidence.clean_in_logits if number in ABOUT_LOGITS else evidence.clean).mean())


def writes_to_answer(evidence: Evidence, fraction: float) -> Bool[np.ndarray, " head"]:
    """Heads whose |mean logit attribution| is at least `fraction` of the mean clean logit difference."""
    return np.abs(evidence.head_effect("03", "attribution").mean(axis=0)) >= fraction * evidence.clean_in_logits.mean()


def select_top(scores: Float[np.ndarray, "... head"], k: int, zero_is_nothing: bool) -> Bool[np.ndarray, "... head"]:
    """The k heads with the largest scores, ties to the lower (layer, head).

    With `zero_is_nothing`, heads whose score is 0 (a negligible effect) are never selected, so there may be fewer than k.
    Filling up with tied heads by index would make any two methods agree.
    """
    chosen = top_k_mask(scores, k)
    return chosen & (scores > 0) if zero_is_nothing else chosen


def kappa_of_selections(
    first: Bool[np.ndarray, "... head"], second: Bool[np.ndarray, "... head"]
) -> Float[np.ndarray, " ..."]:
    """Cohen's kappa of two selections of heads (last axis); NaN where expected agreement is 1 (0/0)."""
    a, b = first.mean(axis=-1), second.mean(axis=-1)
    observed = (first == second).mean(axis=-1)
    expected = a * b + (1 - a) * (1 - b)
    room = 1 - expected
    return np.divide(observed - expected, room, out=np.full(np.shape(observed), np.nan), where=room > 1e-12)


def mean_kappa(selections: Bool[np.ndarray, "... rater head"]) -> Float[np.ndarray, " ..."]:
    """Mean Cohen's kappa over pairs of raters."""
    pairs = zip(*np.triu_indices(selections.shape[-2], 1), strict=True)
    return np.mean([kappa_of_selections(selections[..., i, :], selections[..., j, :]) for i, j in pairs], axis=0)


def covering(interval: Interval, estimate: float) -> Interval:
    """`interval`, extended to include `estimate`.

    Resampling adds the noise of small effects a second time, so resampled agreement is too low and the interval may miss
    the estimate. A lower end that is too low is conservative, but the upper end must not lie below the estimate.
    """
    return min(interval[0], estimate), max(interval[1], estimate)
