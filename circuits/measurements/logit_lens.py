"""04 Logit lens: what the model would answer after each layer.

The residual stream at the last position goes through the model's own final norm and unembedding (nostalgebraist 2020),
so the last row is the model's actual prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuits.engine import memory
from circuits.engine.scores import gather
from circuits.interventions import Base
from circuits.measurements.baseline import EXAMPLES
from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "04", "logit_lens"
SETTINGS = ("site_prompts",)
DEPENDS_ON_CIRCUIT = False


def measure(study: Study) -> dict[str, Any]:
    """Rank, probability and logit difference of the answer after every layer, and the layer where it emerges."""
    found = lens(study, study.prompts)
    return {
        "rank": found.rank,
        "probability": found.probability,
        "logit_diff": found.logit_diff,
        "emergence_layer": emergence(found.rank),
        "max_error": found.max_error,
        "by_position": by_position(study),
        "examples": examples(study),
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
    """The logit lens at the last position of one of the two runs, on the stream entering each layer and after the last.

    It takes as many prompts at a time as the engine has room for logits.
    """
    rows = memory.balanced(len(prompts), study.engine.room // study.engine.shape.logits_row)
    parts = [_lens(study, prompts.select(list(range(len(prompts)))[part]), base) for part in rows]
    return Lens(
        np.concatenate([part.rank for part in parts], 1),
        np.concatenate([part.probability for part in parts], 1),
        np.concatenate([part.logit_diff for part in parts], 1),
        max(part.max_error for part in parts),
    )


def _lens(study: Study, prompts: PromptSet, base: Base) -> Lens:
    """As `lens`, with all prompts at once and the logits of one layer at a time."""
    names, logits, scores = _stream_names(study), torch.empty(0), []
    at_end = study.engine.at_end(prompts, base, names)
    for name in names:
        logits = lens_logits(study, at_end[name])
        scores.append(_score(logits, prompts))
    rank, probability, logit_diff = (torch.stack(values).numpy() for values in zip(*scores, strict=True))
    error = float((logits - study.engine.end_logits(prompts, base)).abs().max())
    return Lens(rank, probability, logit_diff, error)


@torch.no_grad()
def by_position(study: Study) -> dict[str, Any]:
    """The logit lens of the prompt's answer at every named position: means over some evaluation prompts.

    `logit_diff` [L+1][R] in nats and `probability` [L+1][R] of the answer, on prompts `rows`, at positions `roles` [R].
    """
    rows = study.subset(study.settings["site_prompts"])
    prompts = study.prompts.select(rows)
    prompt, roles = torch.arange(len(prompts)), list(prompts.positions)
    scores = [
        [_score(lens_logits(study, stream[prompt, prompts.positions[role]]), prompts) for role in roles]
        for stream in _streams(study, prompts, "clean")
    ]
    return {
        "rows": rows,
        "roles": roles,
        "probability": [[probability.mean() for _, probability, _ in layer] for layer in scores],
        "logit_diff": [[difference.mean() for _, _, difference in layer] for layer in scores],
    }


@torch.no_grad()
def examples(study: Study) -> list[dict[str, Any]]:
    """The usual logit lens table for the prompts that 01 shows: every position's top token after every layer.

    For each prompt `tokens` [T], `top_token` [L+1][T], `top_probability` [L+1][T], `logit_diff` [L+1][T] in nats.
    """
    shown = []
    for row in range(min(EXAMPLES, len(study.prompts))):
        one = study.prompts.select([row])
        end = int(one.end[0]) + 1
        many = study.prompts.select([row] * end)  # each position of the prompt is scored as a prompt
        layers = [lens_logits(study, stream[0, :end]) for stream in _streams(study, one, "clean")]
        top = [logits.softmax(1).max(1) for logits in layers]
        shown.append(
            {
                "tokens": _names(study, one.clean[0, :end]),
                "top_token": [_names(study, best.indices) for best in top],
                "top_probability": [best.values.tolist() for best in top],
                "logit_diff": [_score(logits, many)[2].tolist() for logits in layers],
            }
        )
    return shown


def _names(study: Study, ids: Int[Tensor, " token"]) -> list[str]:
    """Tokens as text; `<id 50300>` for an id that the tokenizer lacks, since an unembedding may be padded."""
    numbers = ids.tolist()
    tokens = study.model.tokenizer.convert_ids_to_tokens(numbers)
    return [f"<id {number}>" if token is None else token for number, token in zip(numbers, tokens, strict=True)]


def _streams(study: Study, prompts: PromptSet, base: Base) -> list[Float[Tensor, "prompt position d_model"]]:
    """The residual stream entering each layer, and after the last."""
    names = _stream_names(study)
    stored = study.engine.activations(prompts, base, names)
    return [stored[name] for name in names]


def _stream_names(study: Study) -> tuple[str, ...]:
    last = study.model.n_layers - 1
    return (*(f"blocks.{layer}.hook_resid_pre" for layer in range(last + 1)), f"blocks.{last}.hook_resid_post")


def lens_logits(study: Study, residual: Float[Tensor, "prompt d_model"]) -> Float[Tensor, "prompt vocabulary"]:
    """The model's own final norm and unembedding, applied to any residual stream."""
    return study.model.logits_of(residual).float().cpu()


def emergence(rank: np.ndarray) -> list[int | None]:
    """First layer from which on the answer is the top prediction; None if it is not at the end."""
    return _after_last(rank > 0)


def settling(logit_diff: Float[np.ndarray, "layer prompt"]) -> list[int | None]:
    """First layer from which on the answer's logit stays above the foil's; None if it is not above at the end."""
    return _after_last(logit_diff <= 0)


def _after_last(wrong: Bool[np.ndarray, "layer prompt"]) -> list[int | None]:
    """For each prompt the layer after the last wrong one; None if the last layer is wrong."""
    after = [int(max(np.flatnonzero(layers), default=-1)) + 1 for layers in wrong.T]
    return [layer if layer < len(wrong) else None for layer in after]


def _score(logits: Float[Tensor, "prompt vocabulary"], prompts: PromptSet) -> tuple[Tensor, Tensor, Tensor]:
    answers, wrong = gather(logits, prompts.answers), gather(logits, prompts.wrong)
    best = answers.nan_to_num(nan=float("-inf")).amax(1, keepdim=True)
    rank = (logits > best).sum(1)
    mass = torch.logsumexp(answers.nan_to_num(nan=float("-inf")), 1)
    probability = (mass - torch.logsumexp(logits, 1)).exp()
    return rank, probability, torch.nanmean(answers, 1) - torch.nanmean(wrong, 1)
