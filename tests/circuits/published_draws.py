"""Examples of the published tasks that several test files read: the tokenizers by name, and 1160 prompts of each task."""

from __future__ import annotations

from functools import cache

import pytest
from transformers import PreTrainedTokenizerFast

from circuits import prompts as prompt_sets
from circuits.tasks.base import Task
from circuits.tasks.example import Example
from circuits.tasks.published import BUILDERS
from circuits.tasks.published.vocabulary import Vocabulary
from tests.circuits import gpt2_tokenizer, whole_word_tokenizer

SIZES = {"discovery": 200, "evaluation": 400, "held_out": 200, "reference": 360}
TOKENIZERS = ("whole_words", "gpt2")
WAYS = [(name, corruption) for name, module in BUILDERS.items() for corruption in module.CORRUPTIONS]
# Every corruption with GPT-2's tokenizer, and the default ones with the stand-in.
DRAWS = [("gpt2", *way) for way in WAYS] + [
    ("whole_words", name, next(iter(module.CORRUPTIONS))) for name, module in BUILDERS.items()
]


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer of this kind; skips the test where GPT-2's merges file is absent."""
    if kind == "whole_words":
        return whole_word_tokenizer.build()
    merges = gpt2_tokenizer.merges()
    if merges is None:
        pytest.skip(f"GPT-2's merges file is absent: put it at {gpt2_tokenizer.STORED} or name it in GPT2_MERGES")
    return gpt2_tokenizer.build(merges)


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer(kind))


@cache
def task(kind: str, name: str, corruption: str | None = None) -> Task:
    return BUILDERS[name].build(vocabulary(kind), corruption)


@cache
def splits(kind: str, name: str, corruption: str | None = None) -> dict[str, list[Example]]:
    return prompt_sets.draw_examples(task(kind, name, corruption), SIZES, seed=0)


@cache
def examples(kind: str, name: str, corruption: str | None = None) -> tuple[Example, ...]:
    """All 1160 examples of the four splits."""
    return tuple(example for drawn in splits(kind, name, corruption).values() for example in drawn)


def words_at(example: Example) -> dict[str, str]:
    """The clean prompt's word at each role."""
    return {role: example.clean[slice(*span)] for role, span in example.positions.items()}
