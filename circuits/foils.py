"""Foils for prompt pairs without any: the model's own prediction after the corrupted prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits import models
from circuits.models import Identity
from circuits.prompts import Encoder
from circuits.tasks.file import Foils
from circuits.tasks.file.pairs import TokenPair

CANDIDATES = 50  # most probable tokens considered; a model that does the task ranks a foil far higher than that
ROWS = 32  # prompts of one length in a forward pass


def corrupted_top(settings: Mapping[str, Any], identity: Identity) -> Foils:
    """A function that chooses foils by the model of `settings`.

    The foil is the model's most probable token after the corrupted prompt that is no answer, no special token, and a single
    token after either prompt. It is None for a pair without such a token among CANDIDATES.
    """

    def choose(pairs: Sequence[TokenPair]) -> list[str | None]:
        model, tokenizer = models.load_plain(settings, identity)
        encode, found = Encoder(tokenizer), {}
        for rows, logits in _logits(model, pairs):
            ranked = logits.topk(min(CANDIDATES, logits.shape[1]), 1).indices.tolist()
            found |= {row: _first(pairs[row], ids, encode) for row, ids in zip(rows, ranked, strict=True)}
        return [found[row] for row in range(len(pairs))]

    return choose


@torch.no_grad()
def _logits(model: Any, pairs: Sequence[TokenPair]) -> Iterator[tuple[list[int], Float[Tensor, "row vocabulary"]]]:
    """(indices of pairs, logits after their corrupted prompts), in batches of prompts of one length."""
    by_length: dict[int, list[int]] = {}
    for row, pair in enumerate(pairs):
        by_length.setdefault(len(pair.corrupted), []).append(row)
    for rows in by_length.values():
        for start in range(0, len(rows), ROWS):
            batch = rows[start : start + ROWS]
            ids = torch.tensor([pairs[row].corrupted for row in batch], device=model.device)
            yield batch, model(ids).logits[:, -1].float().cpu()


def _first(pair: TokenPair, ids: Sequence[int], encode: Encoder) -> str | None:
    """The first of these tokens that is a single token after both prompts and no answer of the pair."""
    answers = {encode.continuation(pair.texts[0], pair.joint, word)[0] for word in pair.answers}
    for token in ids:
        if token in answers or token in encode.tokenizer.all_special_ids:
            continue
        word = encode.tokenizer.decode([token]).removeprefix(pair.joint)
        if word.strip() and all(encode.continuation(text, pair.joint, word) == [token] for text in pair.texts):
            return word
    return None
