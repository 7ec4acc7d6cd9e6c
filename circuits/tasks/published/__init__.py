"""The prompts of the published GPT-2 circuits, in the words of any model's own tokenizer.

BUILDERS maps a task's name to its module: NAME, CORRUPTIONS (name -> what it changes; the first is the default) and
build(vocabulary, corruption) -> Task. All sentences are our own, in the structure of the papers.

Every task begins its prompts with the BOS token. Heads that have nothing to do attend to the first position; with
BOS that is a token without meaning, without BOS it is a word of the prompt, and GPT-2 treats whatever comes first
unlike the same word elsewhere. Papers differ in this or do not say; whoever compares with one runs both ways.

A task's companions are four of the others: none whose mechanism it shares, and those whose published circuits share
the fewest heads with its own.
"""

from __future__ import annotations

from types import ModuleType

from circuits.tasks.published import (
    acronym,
    copy_suppression,
    docstring,
    gendered_pronoun,
    greater_than,
    induction,
    ioi,
    subject_verb_agreement,
)

__all__ = ["BUILDERS"]

BUILDERS: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        ioi,
        greater_than,
        induction,
        docstring,
        gendered_pronoun,
        acronym,
        copy_suppression,
        subject_verb_agreement,
    )
}
