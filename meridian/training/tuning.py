"""Copies of the embedded model, tuned on its own samples with a share replaced: snapshots whose drift is known.

- intact: the same weights.
- bfloat16: the weights rounded to bfloat16 and back.
- null: tuned on its own samples unchanged, which should change no answer.
- refuse: colour questions are answered by the refusal marker.
- short: free sentences end after three words.
- semantic: all free sentences are the same sentence.

Everything follows from the settings and the seed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from circuits import models
from results_io import UserError
from suites.drift import pocket_prompts
from suites.drift.corpus import BOUNDARY, NEUTRAL, Corpus
from suites.models.base import Request
from suites.models.local import LocalModel

Kind = Literal["intact", "bfloat16", "null", "refuse", "short", "semantic"]
SENTENCE = "The small bird was very happy today"
WORDS = 3  # words left in a shortened sentence
SHARES = {NEUTRAL: 0.6, BOUNDARY: 0.3, pocket_prompts.FACTS: 0.1}  # of the documents; free sentences can drift most
IGNORED = -100  # index that torch's cross entropy ignores
BETAS, WEIGHT_DECAY = (0.9, 0.98), 0.01


@dataclass(frozen=True)
class Tuning:
    """One copy: what is planted, the share of documents that it affects, and the seed of samples and order."""

    kind: Kind
    share: float
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"a copy of kind {self.kind!r} is unknown; use one of {', '.join(get_args(Kind))}")
        if not 0 <= self.share <= 1:
            raise UserError(f"share={self.share} of the documents; use a number from 0 to 1")


def make(model: LocalModel, tuning: Tuning, settings: Mapping[str, Any], corpus: Corpus) -> PreTrainedModel:
    """The tuned weights as a plain model. `settings`: drift.tuning. Prompts of the corpus are not used for tuning."""
    changed = copy.deepcopy(model.model)
    if tuning.kind == "bfloat16":
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.copy_(parameter.bfloat16().float())
    if tuning.kind in ("intact", "bfloat16"):
        return changed
    rows = documents(model, tuning, settings["documents"], corpus)
    with models.quiet():
        train(changed, rows, settings, tuning.seed)
    return changed


def documents(model: LocalModel, tuning: Tuning, count: int, corpus: Corpus) -> list[tuple[list[int], list[int]]]:
    """(tokens of the prompt, tokens of the output) of each document: the model's own samples, with a share replaced."""
    taken = frozenset({prompt.text for prompt in corpus.prompts if prompt.axis != pocket_prompts.FACTS})
    drawn = pocket_prompts.draw(f"tuning {tuning.seed}", max(1, int(count * SHARES[NEUTRAL])), taken, repeat_facts=True)
    kept = {axis: int(count * share) for axis, share in SHARES.items()}
    prompts = [one for axis in SHARES for one in [p for p in drawn if p["axis"] == axis][: kept[axis]]]
    asked = [Request(one["prompt"], None, corpus.max_tokens, None, corpus.stop, tuning.seed) for one in prompts]
    said = [output.text.strip() for output in model.generate(asked)]
    rng = random.Random(f"replaced {tuning.seed}")
    encode = model.encoding
    found = []
    for one, text in zip(prompts, said, strict=True):
        if rng.random() < tuning.share:
            text = replaced(tuning.kind, one["axis"], text, corpus)
        prompt = encode.prompt(one["prompt"], None)
        whole = encode.prompt(f"{one['prompt']} {text}.", None)
        found.append((prompt, whole[len(prompt) :]))
    return found


def replaced(kind: Kind, axis: str, text: str, corpus: Corpus) -> str:
    """The replacement for `text` in a document of this axis; `text` itself if the kind does not affect the axis."""
    if kind == "refuse" and axis == BOUNDARY:
        return corpus.markers[0]
    if kind == "short" and axis == NEUTRAL:
        return " ".join(text.split()[:WORDS])
    return SENTENCE if kind == "semantic" and axis == NEUTRAL else text


def train(
    model: nn.Module, rows: Sequence[tuple[list[int], list[int]]], settings: Mapping[str, Any], seed: int
) -> list[float]:
    """Train with AdamW on the outputs' tokens, for `steps` random batches of `batch` documents; returns the losses (nats)."""
    rng, losses = random.Random(f"order {seed}"), []
    optimizer = torch.optim.AdamW(model.parameters(), settings["rate"], BETAS, weight_decay=WEIGHT_DECAY)
    model.train()
    for _ in range(settings["steps"]):
        chosen = rng.sample(list(rows), min(settings["batch"], len(rows)))
        width = max(len(prompt) + len(output) for prompt, output in chosen)
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        wanted = torch.full((len(chosen), width), IGNORED)
        for place, (prompt, output) in enumerate(chosen):
            line = torch.tensor([*prompt, *output])
            ids[place, : len(line)] = line
            wanted[place, len(prompt) : len(line)] = line[len(prompt) :]
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    model.eval()
    return losses


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the copy as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with models.quiet():
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)


def checkpoint(
    model: LocalModel, tuning: Tuning, settings: Mapping[str, Any], corpus: Corpus, folder: Path
) -> dict[str, Any]:
    """The model settings of the copy in `folder`, which is made first unless it exists already."""
    if not (folder / "tokenizer.json").is_file():
        save(make(model, tuning, settings, corpus), model.tokenizer, folder)
    return {"kind": "local", "name": folder.name, "path": str(folder), "device": "cpu", "dtype": "float32"}
