"""04 Logit lens: what the model would answer if it stopped after each layer.

The residual stream at the last position goes through the model's own final norm and unembedding (nostalgebraist 2020),
so the last row is the model's actual prediction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.engine.scores import gather
from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "04", "logit_lens"


@torch.no_grad()
def measure(study: Study) -> dict[str, Any]:
    """Rank, probability and logit difference of the answer after every layer, and the layer where it emerges."""
    model, prompts = study.model, study.prompts
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    names.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    stored = study.engine.activations(prompts, "clean", tuple(names))
    prompt = torch.arange(len(prompts))
    layers = [read_out(study, stored[name][prompt, prompts.end]) for name in names]
    scores = [_score(logits, prompts) for logits in layers]
    rank, probability, logit_diff = (torch.stack(values).numpy() for values in zip(*scores, strict=True))
    error = float((layers[-1] - study.engine.end_logits(prompts)).abs().max())
    return {
        "rank": rank,
        "probability": probability,
        "logit_diff": logit_diff,
        "emergence_layer": emergence(rank),
        "max_error": error,
    }


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


def _score(logits: Float[Tensor, "prompt vocabulary"], prompts: PromptSet) -> tuple[Tensor, Tensor, Tensor]:
    answers, wrong = gather(logits, prompts.answers), gather(logits, prompts.wrong)
    best = answers.nan_to_num(nan=float("-inf")).amax(1, keepdim=True)
    rank = (logits > best).sum(1)
    mass = torch.logsumexp(answers.nan_to_num(nan=float("-inf")), 1)
    probability = (mass - torch.logsumexp(logits, 1)).exp()
    return rank, probability, torch.nanmean(answers, 1) - torch.nanmean(wrong, 1)
