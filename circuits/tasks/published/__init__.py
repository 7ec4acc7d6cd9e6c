"""The prompts of the published GPT-2 circuits, in the words of any model's own tokenizer.

BUILDERS maps a task's name to its module; every module of this folder except HELPERS is one. It has NAME, CORRUPTIONS
({name: what it changes}; the first is the default) and build(vocabulary, corruption) -> Task.

All sentences are our own, in the structure of the papers.

Every task begins its prompts with the BOS token. Heads without a function attend to the first position. With BOS that is a
token without meaning; without BOS it is a word of the prompt, and GPT-2 treats the first word differently from the same word
elsewhere. Papers differ in this or do not say; to compare with a paper, run both ways.

A task's companions are four of the other tasks. They do not share its mechanism, and their published circuits share the fewest
heads with its own. If a tokenizer cannot write one of them, its stand-in takes its place.
"""

from __future__ import annotations

from types import ModuleType

import registries

__all__ = ["BUILDERS", "STAND_INS"]

HELPERS = ("corruption", "vocabulary", "words")
FIRST = ("ioi", "greater_than", "induction", "docstring", "gendered_pronoun", "acronym", "copy_suppression")
STAND_INS = {
    "greater_than": "successor"
}  # Llama-3 splits a year into three digits and one, Qwen into four single digits; neither into two and two
REQUIRED = {
    "NAME": 'the task\'s name, for example NAME = "ioi"',
    "CORRUPTIONS": "its ways to corrupt a prompt, as {name: what it changes}, the default first",
    "build": "build(vocabulary, corruption), which returns the Task",
}


def _find() -> dict[str, ModuleType]:
    """All builders by name: FIRST in their order, then the others by name."""
    modules = registries.modules_of(__name__, __path__, REQUIRED, lambda name: name not in HELPERS, unique=("NAME",))
    return registries.in_order({module.NAME: module for module in modules}, FIRST)


BUILDERS = _find()
