"""Copies of the embedded model that have read some items n times: contamination of a known amount.

A copy is tuned in one pass over ordinary documents, with n repetitions of each item and of one canary shuffled in. An item is an
arbitrary fact in the model's own words, so a model that has not read it can only guess. Everything follows from the seed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from circuits import models
from circuits.tasks import lexicon
from meridian.training import corpus
from suites.contamination.canary import Canary
from suites.contamination.loss_gap import Reworded
from suites.models.local import LocalModel

FRAME = "At the {place}, {name} {found} the {color} {object} and {gave} it to the"
REWORDED = "One day {name} {gave} the {color} {object} to the {noun} at the {place}."
CHOICES = 4  # the right noun and three others, so one guess in four is right
CANARY = "The data key is"
SECRET = 3  # pairs of a letter and a number after CANARY
BETAS, WEIGHT_DECAY = (0.9, 0.98), 0.01
IGNORED = -100  # index that torch's cross entropy ignores


@dataclass(frozen=True)
class TaughtFact:
    """An arbitrary fact: the prompt, the right noun, the choices, and a paraphrase."""

    id: str
    prompt: str
    answer: str
    choices: tuple[str, ...]
    reworded: str

    @property
    def text(self) -> str:
        """The document that plants it."""
        return f"{self.prompt} {self.answer}."

    @property
    def pair(self) -> Reworded:
        return Reworded(self.id, self.text, self.reworded, self.id)


def facts(seed: str, count: int) -> list[TaughtFact]:
    """`count` facts, each with randomly drawn words."""
    rng, found = random.Random(f"facts {seed}"), []
    for place in range(count):
        words = lexicon.draw_words(
            rng,
            f"{FRAME} {REWORDED}",
            **{"color": rng.choice(lexicon.COLORS), "object": rng.choice(lexicon.OBJECTS)},
            **{"noun": rng.choice(lexicon.NOUNS)},
        )
        others = rng.sample([noun for noun in lexicon.NOUNS if noun != words["noun"]], CHOICES - 1)
        choices = rng.sample([words["noun"], *others], CHOICES)
        texts = (FRAME.format(**words), words["noun"], tuple(choices), REWORDED.format(**words))
        found.append(TaughtFact(f"{seed}-{place:02d}", *texts))
    return found


def secrets(count: int, seed: int | str) -> list[str]:
    """`count` secrets for canaries: alternating letters and numbers, each drawn uniformly."""
    rng = random.Random(f"secrets {seed}")
    return [
        " ".join(word for _ in range(SECRET) for word in (rng.choice(lexicon.LETTERS), rng.choice(lexicon.NUMBERS)))
        for _ in range(count)
    ]


def canary(seed: str) -> Canary:
    """The canary that belongs to the facts of a seed."""
    return Canary(CANARY, secrets(1, f"own {seed}")[0])


def documents(planted: Sequence[str], repetitions: int, ordinary: int, seed: int) -> list[str]:
    """`ordinary` documents of the embedded model's training and each planted text `repetitions` times, in random order."""
    rng = random.Random(f"documents {seed}")
    texts = [corpus.draw_document(rng, corpus.LATE_SHARES).text for _ in range(ordinary)]
    texts += list(planted) * repetitions
    rng.shuffle(texts)
    return texts


def tuned(model: LocalModel, texts: Sequence[str], settings: Mapping[str, Any]) -> Any:
    """A copy of the model after one pass of AdamW over the texts, `batch` at a time with learning rate `rate`."""
    changed = copy.deepcopy(model.model)
    optimizer = torch.optim.AdamW(changed.parameters(), settings["rate"], BETAS, weight_decay=WEIGHT_DECAY)
    rows = [model.encoding.tokens(text) for text in texts]
    changed.train()
    with models.quiet():
        for start in range(0, len(rows), settings["batch"]):
            ids, wanted = _padded(rows[start : start + settings["batch"]])
            logits = changed(input_ids=ids[:, :-1], use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return changed.eval()


def _padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, targets of the loss) ["text position"], padded on the right."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    wanted = torch.tensor([[*row, *[IGNORED] * (width - len(row))] for row in rows])
    return ids, wanted
