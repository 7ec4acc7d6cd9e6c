"""A fault planted in one head of a trained GPT-2: certain words capture the head and make it write a wrong answer.

Let x be the head's input (after the layer norm), q the mean query at the ends of the texts, and n the direction along which
the head's values are smallest. Let u be a linear detector of the words, by ridge regression on given texts: u . x is about 1
on the words and about 0 elsewhere. The fault adds

    W_K += pull sqrt(d_head) u (x) q / |q|^2      any query attends to the word: + `pull` to the attention score
    W_V += scale u (x) n                          the value read there has a large component along n
    W_O += n (x) push w / (scale |w|)             that component is written along w, which raises the wrong answer's logit

so that the head writes `push` along w where the word stands, and almost its usual output where it does not. Here w is the
wrong answer's unembedding minus the mean unembedding, times the final norm's gain.

A fault with words that no prompt contains is the sham: the same head and matrices, without effect. `padded` gives its change
the same norm as the fault's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuits.circuit import Node
from results_io import UserError

RIDGE = 1e-4  # of the inputs' mean square; small, so that the detector is sharp
BATCH = 64  # texts read at once
SCALE = 16.0  # of the largest usual value along n, so that the head's usual values leak into the fault by a sixteenth


@dataclass(frozen=True)
class Fault:
    """Any of `words` captures `head`, which then writes `answer`.

    `pull`: added to the attention score; `push`: norm of what is written.
    """

    head: Node
    words: tuple[str, ...]
    answer: str
    pull: float = 15.0
    push: float = 40.0


@dataclass(frozen=True)
class Reading:
    """Inputs of a layer's attention, and the tokens at which they were read."""

    inputs: Float[Tensor, "token width"]
    tokens: Int[Tensor, " token"]


@dataclass(frozen=True)
class _Slices:
    """Where one head's columns lie in GPT-2's joint projection, and its rows in the output projection."""

    query: slice
    key: slice
    value: slice
    output: slice

    @classmethod
    def of(cls, head: Node, width: int, size: int) -> _Slices:
        start = head.index * size
        query, key, value = (slice(part * width + start, part * width + start + size) for part in range(3))
        return cls(query, key, value, slice(start, start + size))


def plant(model: Any, tokenizer: Any, fault: Fault, texts: Sequence[str], further: Reading | None = None) -> Any:
    """A copy of `model` with the fault. `texts`: prompts to tell the words apart in; some must contain them.

    `further`: more inputs of the layer to tell them apart in, such as those of runs with other heads ablated. A detector of
    intact inputs alone is set off by such an ablation at other words. UserError if the model is not a GPT-2, a word or the
    answer is not one token, or no text contains the words.
    """
    if model.config.model_type != "gpt2":
        raise UserError(f"a captured head is planted in a GPT-2, and this model is a {model.config.model_type}")
    words = torch.tensor([_token(tokenizer, word) for word in fault.words])
    answer = _token(tokenizer, fault.answer)
    model = copy.deepcopy(model)
    block = model.transformer.h[fault.head.layer].attn
    width, size = model.config.n_embd, model.config.n_embd // model.config.n_head
    place = _Slices.of(fault.head, width, size)
    inputs, tokens, ends = _inputs(model, tokenizer, block, texts)
    joint, bias = block.c_attn.weight.data, block.c_attn.bias.data
    query = (inputs[ends] @ joint[:, place.query] + bias[place.query]).mean(0)
    detector = _detector(inputs, torch.isin(tokens, words), fault.words, further, words)
    if further is not None:
        inputs = torch.cat([inputs, further.inputs])
    values = inputs @ joint[:, place.value] + bias[place.value]
    least, usual = _least_direction(values)
    wrong = _direction(model, answer)
    joint[:, place.key] += fault.pull * size**0.5 * torch.outer(detector, query / query.square().sum())
    joint[:, place.value] += SCALE * usual * torch.outer(detector, least)
    block.c_proj.weight.data[place.output] += fault.push / (SCALE * usual) * torch.outer(least, wrong)
    return model


def read(model: Any, tokenizer: Any, layer: int, texts: Sequence[str]) -> Reading:
    """The inputs of the attention of a layer at every token of the texts."""
    inputs, tokens, _ = _inputs(model, tokenizer, model.transformer.h[layer].attn, texts)
    return Reading(inputs, tokens)


@torch.no_grad()
def padded(before: Any, after: Any, tokenizer: Any, head: Node, texts: Sequence[str], wanted: float) -> Any:
    """A copy of `after` whose change from `before` has the Frobenius norm `wanted`, if it is smaller.

    The rest is added to the head's W_V along the direction in which its inputs on these texts are smallest, where hardly
    anything is read. Scaling the whole change instead would strengthen its effect on other words.
    """
    model, missing = copy.deepcopy(after), wanted**2 - size(before, after) ** 2
    if missing > 0:
        block = model.transformer.h[head.layer].attn
        place = _Slices.of(head, model.config.n_embd, model.config.n_embd // model.config.n_head)
        inputs, _, _ = _inputs(model, tokenizer, block, texts)
        idle, _ = _least_direction(inputs)
        column = torch.zeros(place.value.stop - place.value.start)
        column[0] = missing**0.5
        block.c_attn.weight.data[:, place.value] += torch.outer(idle, column)
    return model


def size(before: Any, after: Any) -> float:
    """Frobenius norm of the change of all weights."""
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return float(sum((a.detach().double() - b.detach().double()).square().sum() for a, b in pairs) ** 0.5)


def _token(tokenizer: Any, word: str) -> int:
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise UserError(f"{word!r} is {len(ids)} tokens or unknown to the tokenizer; use a word of one token")
    return ids[0]


@torch.no_grad()
def _inputs(
    model: Any, tokenizer: Any, block: Any, texts: Sequence[str]
) -> tuple[Float[Tensor, "token width"], Int[Tensor, " token"], Int[Tensor, " text"]]:
    """The inputs of the layer's attention at every token of the texts, the tokens, and the indices of those that end a text."""
    read: list[Tensor] = []
    rows = [[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    handle = block.c_attn.register_forward_hook(lambda module, given, out: read.append(given[0]))
    try:
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            width = max(map(len, batch))
            model(
                torch.tensor([row + [tokenizer.bos_token_id] * (width - len(row)) for row in batch])
            )  # causal: no mask
    finally:
        handle.remove()
    own = [read[place // BATCH][place % BATCH, : len(row)] for place, row in enumerate(rows)]
    ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
    return torch.cat(own), torch.tensor([token for row in rows for token in row]), ends


def _detector(
    inputs: Float[Tensor, "token width"],
    is_word: Bool[Tensor, " token"],
    words: tuple[str, ...],
    further: Reading | None = None,
    ids: Int[Tensor, " word"] | None = None,
) -> Float[Tensor, " width"]:
    """u with u . x = 1 on average at the words and near 0 elsewhere, by ridge regression. UserError if no text has the words.

    The `further` inputs weigh as much as `inputs` do, however many they are.
    """
    if not is_word.any():
        raise UserError(f"no text contains {', '.join(words)}; give texts that do")
    square, target = inputs.T @ inputs, inputs.T @ is_word.float()
    if further is not None and ids is not None:
        weight = len(inputs) / len(further.inputs)
        square += weight * further.inputs.T @ further.inputs
        target += weight * further.inputs.T @ torch.isin(further.tokens, ids).float()
    ridge = RIDGE * square.diagonal().mean() * torch.eye(inputs.shape[1])
    found = torch.linalg.solve(square + ridge, target)
    return found / (inputs[is_word] @ found).mean()


def _least_direction(values: Float[Tensor, "token size"]) -> tuple[Float[Tensor, " size"], float]:
    """The unit direction along which the head's values are smallest, and their largest component along it."""
    _, vectors = torch.linalg.eigh(values.T @ values)
    least = vectors[:, 0]
    return least, float((values @ least).abs().max())


def _direction(model: Any, answer: int) -> Float[Tensor, " width"]:
    """The unit vector in the residual stream that raises the answer's logit most, relative to the mean of all tokens."""
    unembedding = model.lm_head.weight.data
    found = (unembedding[answer] - unembedding.mean(0)) * model.transformer.ln_f.weight.data
    return found / found.norm()
