"""A small GPT-2 with a chat template that has learnt one answer to every request of a suite: its scores are known.

Tokens are of the suite's own texts (byte-level BPE), and training takes about a minute of one core. It is trained anew where it
is used, and no weights are shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Joined
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from suites.item import Item, Suite

END, ROLES = "<|end|>", ("system", "user", "assistant")
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn['role'] }}|>{{ turn['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STEPS, RATE, UNSCORED = 300, 3e-3, -100


def train(suite: Suite, answers: Mapping[str, str], folder: Path, seed: int = 0) -> Path:
    """Save a model into `folder` that answers each item of the suite, by id, with the text in `answers`."""
    tokenizer = tokenizer_of(
        [*(text for item in suite.items for text in (item.prompt, item.system or "")), *answers.values()]
    )
    tokens, labels = batch(suite.items, answers, tokenizer)
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer), n_positions=256, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    for _ in range(STEPS):
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the texts, with the chat template."""
    found = Tokenizer(BPE())
    found.pre_tokenizer, found.decoder = ByteLevel(add_prefix_space=False), Joined()
    special = [END, *(f"<|{role}|>" for role in ROLES)]
    found.train_from_iterator(texts, BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=found, eos_token=END, pad_token=END, chat_template=TEMPLATE)


def batch(
    items: tuple[Item, ...], answers: Mapping[str, str], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, labels) [item, position]; only answers are scored."""
    rows = []
    for item in items:
        system = [{"role": "system", "content": item.system}] if item.system else []
        asked = tokenizer.apply_chat_template(
            [*system, {"role": "user", "content": item.prompt}], add_generation_prompt=True, tokenize=False
        )
        before = tokenizer.encode(asked, add_special_tokens=False)
        rows.append((before, tokenizer.encode(answers[item.id] + END, add_special_tokens=False)))
    length = max(len(before) + len(after) for before, after in rows)
    tokens = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full_like(tokens, UNSCORED)
    for row, (before, after) in enumerate(rows):
        whole = torch.tensor([*before, *after])
        tokens[row, : len(whole)] = whole
        labels[row, len(before) : len(whole)] = whole[len(before) :]
    return tokens, labels
