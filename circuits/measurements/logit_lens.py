"""04 Logit lens: what the model would answer if it stopped after each layer.

The residual stream at the last position goes through the model's own final norm and unembedding (nostalgebraist 2020),
so the last row is the model's actual prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.engine.scores import gather
from circuits.interventions import Base
from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "04", "logit_lens"


def measure(study: Study) -> dict[str, Any]:
    """Rank, probability and logit difference of the answer after every layer, and the layer where it emerges."""
    found = lens(study, study.prompts)
    return {
        "rank": found.rank,
        "probability": found.probability,
        "logit_diff": found.logit_diff,
        "emergence_layer": emergence(found.rank),
        "max_error": found.max_error,
    }


@dataclass(frozen=True)
class Lens:
    """The answer after every layer: its rank (0 is the top), its probability, and the logit difference in nats.

    `max_error`: how far the last row's logits are from the model's own.
    """

    rank: Int[np.ndarray, "layer prompt"]
    probability: Float[np.ndarray, "layer prompt"]
    logit_diff: Float[np.ndarray, "layer prompt"]
    max_error: float


@torch.no_grad()
def lens(study: Study, prompts: PromptSet, base: Base = "clean") -> Lens:
    """The logit lens at the last position of one of the two runs: entering each layer, and after the last."""
    model = study.model
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    names.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    stored = study.engine.activations(prompts, base, tuple(names))
    prompt = torch.arange(len(prompts))
    layers = [read_out(study, stored[name][prompt, prompts.end]) for name in names]
    scores = [_score(logits, prompts) for logits in layers]
    rank, probability, logit_diff = (torch.stack(values).numpy() for values in zip(*scores, strict=True))
    error = float((layers[-1] - study.engine.end_logits(prompts, base)).abs().max())
    return Lens(rank, probability, logit_diff, error)


def read_out(study: Study, residual: Float[Tensor, "prompt d_model"]) -> Float[Tensor, "prompt vocabulary"]:
    """The model's own final norm and unembedding, applied to any residual stream."""
    return study.model.read_out(residual.to(study.model.device)).float().cpu()


def emergence(rank: np.ndarray) -> list[int | None]:
    """First layer from which on the answer is the top prediction; None if it is not at the end."""
    layers = []
    for ranks in rank.T:
        misses = np.flatnonzero(ranks > 0)
        first = int(misses[-1]) + 1 if len(misses) else 0
        layers.append(first if first < len(ranks) else None)
    return layers


def settling(logit_diff: Float[np.ndarray, "layer prompt"]) -> list[int | None]:
    """First layer from which on the answer's logit is above the foil's for good; None if it is not so at the end."""
    layers = []
    for values in logit_diff.T:
        below = np.flatnonzero(values <= 0)
        first = int(below[-1]) + 1 if len(below) else 0
        layers.append(first if first < len(values) else None)
    return layers


def _score(logits: Float[Tensor, "prompt vocabulary"], prompts: PromptSet) -> tuple[Tensor, Tensor, Tensor]:
    answers, wrong = gather(logits, prompts.answers), gather(logits, prompts.wrong)
    best = answers.nan_to_num(nan=float("-inf")).amax(1, keepdim=True)
    rank = (logits > best).sum(1)
    mass = torch.logsumexp(answers.nan_to_num(nan=float("-inf")), 1)
    probability = (mass - torch.logsumexp(logits, 1)).exp()
    return rank, probability, torch.nanmean(answers, 1) - torch.nanmean(wrong, 1)
