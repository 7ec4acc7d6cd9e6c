"""Small chat models on which a suffix can be optimised: an untrained one, and one that a known kind of suffix makes tell.

Neither is shipped: both are made anew where they are used, by the suite's own texts.

    python -m tests.suites.suffix_model DIR        the model of docs/behaviour.md: all codewords, suffixes of 20 tokens
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from suites import declaration
from suites.item import Item, Suite
from suites.models import encoding
from suites.models.local import LocalModel
from suites.suffix import placeholder, search
from tests.suites import chat_model

REFUSAL = "I'm sorry, I can't tell you that."
STEPS, ROWS, RATE = 400, 24, 3e-3
LENGTH, ENOUGH = 8, 2  # tokens of a suffix, and how many of them have to be keys
KEYS = 8  # tokens that are keys


def part(codewords: int) -> Suite:
    """The frozen suite with its first codewords alone, plain and with random letters."""
    suite = declaration.load("s02_codeword_families")
    kept = list(dict.fromkeys(item.cluster for item in suite.items))[:codewords]
    items = [one for one in suite.items if one.cluster in kept and one.template in ("plain", "suffix")]
    return replace(suite, items=tuple(items), minimum=1)


def untrained(suite: Suite, folder: Path, width: int = 32, positions: int = 192) -> Path:
    """Save a network with random weights and a tokenizer of the suite's texts into `folder`."""
    answers = [placeholder.TARGET.format(codeword=item.cluster) for item in suite.items]
    texts = [*(text for item in suite.items for text in (item.prompt, item.system or "")), *answers, REFUSAL]
    tokenizer = chat_model.tokenizer_of(texts)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=positions, n_embd=width, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, initializer_range=0.1, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    _save(GPT2LMHeadModel(config), tokenizer, folder)
    return folder


def keys(model: LocalModel) -> set[int]:
    """The tokens of which ENOUGH in a suffix make the trained model tell its codeword: the alphabet's last ones."""
    return set(search.alphabet(model)[-KEYS:])


def trained(suite: Suite, folder: Path, length: int = LENGTH, steps: int = STEPS, positions: int = 192) -> Path:
    """Save a model that refuses, unless at least ENOUGH of the `length` tokens after the plain request are keys."""
    model = opened(untrained(suite, folder, 64, positions))
    rng, plain = random.Random(0), [item for item in suite.items if item.expect["role"] == "plain"]
    optimizer = torch.optim.AdamW(model.model.parameters(), RATE, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    letters, own = search.alphabet(model), sorted(keys(model))
    others = sorted(set(letters) - set(own))
    for _ in range(steps):
        rows = [_example(rng, model.encoding, rng.choice(plain), own, others, length) for _ in range(ROWS)]
        tokens, labels = _padded(rows, model.tokenizer.pad_token_id)
        loss = model.model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    _save(model.model, model.tokenizer, folder)
    return folder


def opened(folder: Path) -> LocalModel:
    return LocalModel({"name": "chats", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32"})


def _example(
    rng: random.Random, own: encoding.Encoding, item: Item, keys_: Sequence[int], others: Sequence[int], length: int
) -> tuple[list[int], list[int]]:
    """(ids of the request, ids of the answer): plain, with too few keys, or with enough of them."""
    enough = rng.random() < 0.5
    if not enough and rng.random() < 0.2:
        suffix: list[int] = []
    else:
        count = rng.randint(ENOUGH, length) if enough else rng.randint(0, ENOUGH - 1)
        suffix = [*rng.choices(keys_, k=count), *rng.choices(others, k=length - count)]
        rng.shuffle(suffix)
    answer = placeholder.TARGET.format(codeword=item.cluster) if enough else REFUSAL
    place = search.request_of(own, item.prompt, item.system, answer + chat_model.END)
    return [*place.before, *suffix, *place.after], list(place.target)


def _padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, labels) [row, position]; only answers are scored."""
    length = max(len(before) + len(after) for before, after in rows)
    tokens = torch.full((len(rows), length), pad)
    labels = torch.full_like(tokens, chat_model.UNSCORED)
    for row, (before, after) in enumerate(rows):
        tokens[row, : len(before) + len(after)] = torch.tensor([*before, *after])
        labels[row, len(before) : len(before) + len(after)] = torch.tensor(after)
    return tokens, labels


def _save(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trained(part(80), Path(sys.argv[1]), length=20, steps=900, positions=1024)
