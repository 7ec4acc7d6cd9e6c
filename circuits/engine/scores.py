"""What a sweep keeps of each (variant, prompt): logit difference, correctness, probability of answers and of foils."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuits.interventions import Effects, Sweep
from circuits.prompts import PADDING, PromptSet


@dataclass(frozen=True)
class Scores:
    """[variant, prompt] each; the probabilities are None unless the sweep asks for them."""

    logit_diff: Float[np.ndarray, "variant prompt"]
    correct: Bool[np.ndarray, "variant prompt"]
    answer_probability: Float[np.ndarray, "variant prompt"] | None
    foil_probability: Float[np.ndarray, "variant prompt"] | None = None

    @classmethod
    def empty(cls, sweep: Sweep, prompts: PromptSet, dtype: torch.dtype) -> Scores:
        """Room for all the scores of a sweep, in float32 at least of what the model computes in."""
        shape, kind = (len(sweep), len(prompts)), np.float64 if dtype == torch.float64 else np.float32
        answers, foils = (np.zeros(shape, kind) if sweep.probabilities else None for _ in range(2))
        return cls(np.zeros(shape, kind), np.zeros(shape, bool), answers, foils)

    @classmethod
    def of(cls, effects: Effects) -> Scores:
        return cls(effects.logit_diff, effects.correct, effects.answer_probability, effects.foil_probability)

    def put(self, variants: list[int], prompts: list[int], found: Scores) -> None:
        """Fill in the scores of some variants on some prompts."""
        where = np.ix_(variants, prompts)
        self.logit_diff[where], self.correct[where] = found.logit_diff, found.correct
        if self.answer_probability is not None:
            assert self.foil_probability is not None  # a sweep asks for both or neither
            self.answer_probability[where] = found.answer_probability
            self.foil_probability[where] = found.foil_probability

    def effects(self, sweep: Sweep, prompts: PromptSet) -> Effects:
        return Effects(
            names=tuple(variant.name for variant in sweep.variants),
            logit_diff=self.logit_diff,
            correct=self.correct,
            answer_probability=self.answer_probability,
            foil_probability=self.foil_probability,
            sweep_sha256=sweep.sha256,
            prompts_sha256=prompts.sha256,
        )


def of_logits(
    logits: Float[Tensor, "row vocabulary"], batch: PromptSet, n_variants: int, probabilities: bool
) -> Scores:
    """Scores from the logits at the end; rows are (variant, prompt), variant-major.

    A prompt without foils is compared with the whole vocabulary: its score is the answers' mean log-probability.
    """
    answers = gather(logits, batch.answers.repeat(n_variants, 1))
    wrong = gather(logits, batch.wrong.repeat(n_variants, 1))
    mass, foils = _log_sum(answers), _log_sum(wrong)
    other = torch.nanmean(wrong, 1)
    if (alone := batch.without_foils).any():
        other = torch.where(alone.repeat(n_variants).to(other.device), torch.logsumexp(logits, 1), other)
    difference = torch.nanmean(answers, 1) - other

    def table(values: Tensor) -> np.ndarray:
        return values.reshape(n_variants, len(batch)).cpu().numpy()

    if not probabilities:
        return Scores(table(difference), table(mass > foils), None)
    whole = torch.logsumexp(logits, 1)
    return Scores(table(difference), table(mass > foils), table((mass - whole).exp()), table((foils - whole).exp()))


def gather(
    logits: Float[Tensor, "row vocabulary"], ids: Int[Tensor, "row candidate"]
) -> Float[Tensor, "row candidate"]:
    """Logits of each row's candidate tokens; NaN where the id is padding."""
    ids = ids.to(logits.device)
    return logits.gather(1, ids.clamp(min=0)).masked_fill(ids == PADDING, float("nan"))


def _log_sum(logits: Float[Tensor, "row candidate"]) -> Float[Tensor, " row"]:
    return torch.logsumexp(logits.nan_to_num(nan=float("-inf")), 1)
