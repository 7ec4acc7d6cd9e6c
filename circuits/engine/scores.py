"""What a sweep stores for each (variant, prompt): logit difference, correctness, probability of answers and of foils."""

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
        """Zeros for all scores of a sweep, to be filled by `put`; float64 if the model computes in it, else float32."""
        shape, kind = (len(sweep), len(prompts)), np.float64 if dtype == torch.float64 else np.float32
        answers, foils = (np.zeros(shape, kind) if sweep.probabilities else None for _ in range(2))
        return cls(np.zeros(shape, kind), np.zeros(shape, bool), answers, foils)

    @classmethod
    def of(cls, effects: Effects) -> Scores:
        return cls(effects.logit_diff, effects.correct, effects.answer_probability, effects.foil_probability)

    @classmethod
    def of_table(cls, table: Float[np.ndarray, "score variant prompt"]) -> Scores:
        """From a table of `table_of_logits`."""
        difference, correct, *probabilities = table
        return cls(difference, correct > 0, *(probabilities or (None, None)))

    def put(self, variants: list[int], prompts: list[int], found: Scores) -> None:
        """Fill in the scores of some variants on some prompts."""
        where = np.ix_(variants, prompts)
        self.logit_diff[where], self.correct[where] = found.logit_diff, found.correct
        if self.answer_probability is not None:
            assert self.foil_probability is not None  # a sweep has both or neither
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
    """Scores from the logits at the end; rows are (variant, prompt), variant-major."""
    alone = any(batch.without_foils.tolist())
    found = table_of_logits(logits, batch.answers, batch.wrong, alone, probabilities)
    assert found.shape[1] == n_variants
    return Scores.of_table(found.cpu().numpy())


def table_of_logits(
    logits: Float[Tensor, "row vocabulary"],
    answers: Int[Tensor, "prompt answer"],
    wrong: Int[Tensor, "prompt foil"],
    alone: bool,
    probabilities: bool,
) -> Float[Tensor, "score variant prompt"]:
    """Logit difference, correctness (1 or 0) and, if asked for, probabilities of answers and of foils, on the logits' device.

    `alone`: some prompts have no foils. Their score is the mean log-probability of the answers in the whole vocabulary.
    """
    n_variants = len(logits) // len(answers)
    answers, wrong = (ids.to(logits.device).repeat(n_variants, 1) for ids in (answers, wrong))
    right, other = gather(logits, answers), gather(logits, wrong)
    mass, foils = _log_sum(right), _log_sum(other)
    compared = torch.nanmean(other, 1)
    if alone:
        compared = torch.where((wrong == PADDING).all(1), torch.logsumexp(logits, 1), compared)
    found = [torch.nanmean(right, 1) - compared, (mass > foils).to(logits)]
    if probabilities:
        whole = torch.logsumexp(logits, 1)
        found += [(mass - whole).exp(), (foils - whole).exp()]
    return torch.stack(found).unflatten(1, (n_variants, len(logits) // n_variants))


def gather(
    logits: Float[Tensor, "row vocabulary"], ids: Int[Tensor, "row candidate"]
) -> Float[Tensor, "row candidate"]:
    """Logits of each row's candidate tokens; NaN where the id is padding."""
    ids = ids.to(logits.device)
    return logits.gather(1, ids.clamp(min=0)).masked_fill(ids == PADDING, float("nan"))


def _log_sum(logits: Float[Tensor, "row candidate"]) -> Float[Tensor, " row"]:
    return torch.logsumexp(logits.nan_to_num(nan=float("-inf")), 1)
