"""Turns a typed prompt into one row of the task's prompts: tokens, answer, foil, positions and wording."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from circuits import prompts as prompt_sets
from circuits.prompts import PromptSet
from circuits.study import Study
from circuits.tasks.example import Example
from results_io import UserError

TYPED = "typed"  # the split of a typed prompt; also its template if it has none of the task's wordings
END = "end"
FREE_OF_TEMPLATE = ("zero", "zero_raw", "mean_pooled", "noise")  # recipes that need no prompts of the same wording


def study_of(study: Study, text: str, answer: str, foil: str, corrupted: str | None = None) -> Study:
    """The study on one typed prompt instead of its own prompts.

    `corrupted`: the other prompt of the pair; None stands for `text` with `answer` and `foil` exchanged. A prompt that looks
    like all reference prompts of one wording (`wording_of`) has that wording: its positions have names, and the means per
    position are known. UserError for an empty text, answer or foil, for an answer equal to the foil, for words that the
    tokenizer does not know, for a pair of different lengths, for an answer or foil of several tokens if the task takes one, and
    for a prompt without both words if `corrupted` is not given.
    """
    for given in (text, answer, foil, "" if corrupted is None else corrupted):
        if not isinstance(given, str):
            raise UserError(f"{given!r} is not a text; give prompt, answer and foil as text, one prompt at a time")
    text, answer, foil = text.rstrip(), answer.strip(), foil.strip()
    if not (text and answer and foil):
        raise UserError("a typed prompt needs a text, an answer and a foil; give all three")
    if answer == foil:
        raise UserError(f"answer and foil are both {answer!r}; give two words that the model can choose between")
    other = exchanged(text, answer, foil) if corrupted is None else corrupted.rstrip()
    example = Example(text, other, (answer,), (foil,), TYPED, TYPED, {})
    row = prompt_sets.tokenize(study.task, [example], study.model.tokenizer, TYPED)
    row = replace(row, positions={END: row.end}, factors={})
    _require_readable(study, row)
    known = wording_of(row, study.engine.reference.prompts)
    if known is not None:
        row = replace(row, templates=known[0], positions=known[1])
    # ids depend on the two texts only, so stored effects of other answers must not be reused
    return replace(study, prompts=row, done={})


def exchanged(text: str, answer: str, foil: str) -> str:
    """The text with the two words exchanged. UserError if it lacks one of them."""
    words = {answer: foil, foil: answer}
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in sorted(words, key=len, reverse=True)))
    found = set(pattern.findall(text))
    if missing := next((word for word in words if word not in found), None):
        raise UserError(
            f"{missing!r} does not stand in {text!r}, so exchanging answer and foil gives no pair; give the corrupted prompt"
        )
    return pattern.sub(lambda match: words[match[0]], text)


def wording_of(row: PromptSet, known: PromptSet) -> tuple[tuple[str, ...], Mapping[str, Tensor]] | None:
    """(template, named positions) of the first wording of `known` that matches the single prompt of `row`; None if none does.

    A wording matches if the prompt has the same number of tokens and the same token wherever all prompts of the wording agree.
    It must also repeat a token at two places where all of them do, and must not where none of them does. This distinguishes the
    two orders of two names.
    """
    length = int(row.end[0]) + 1
    typed = row.clean[0, :length]
    for template in dict.fromkeys(known.templates):
        own = [place for place, name in enumerate(known.templates) if name == template]
        if int(known.end[own[0]]) + 1 != length:
            continue
        texts = known.clean[own, :length]
        fixed = (texts == texts[0]).all(0)
        if torch.equal(typed[fixed], texts[0][fixed]) and _repeats_alike(typed, texts):
            return (template,), _positions(known, own, row)
    return None


def _repeats_alike(typed: Int[Tensor, " position"], texts: Int[Tensor, "prompt position"]) -> bool:
    """Whether the prompt has equal tokens at every two places where all `texts` do, and different ones where all differ."""
    same = texts[:, :, None] == texts[:, None, :]
    own = typed[:, None] == typed[None, :]
    return bool(own[same.all(0)].all()) and not bool(own[(~same).all(0)].any())


def _positions(known: PromptSet, own: Sequence[int], row: PromptSet) -> dict[str, Tensor]:
    """The named positions of a wording that are at the same place in all its prompts."""
    places = {role: where[list(own)] for role, where in known.positions.items()}
    alike = {role: where[:1] for role, where in places.items() if bool((where == where[0]).all())}
    return {**alike, END: row.end}


def _require_readable(study: Study, row: PromptSet) -> None:
    """UserError for a word that the tokenizer does not know, or a prompt longer than the model's positions."""
    tokenizer, most = study.model.tokenizer, int(study.model.bridge.cfg.n_ctx)
    tokens = row.clean[0].tolist()
    unknown = tokenizer.unk_token_id
    if unknown not in (None, tokenizer.eos_token_id, tokenizer.bos_token_id) and unknown in tokens:
        before = tokenizer.decode(tokens[: tokens.index(unknown)], skip_special_tokens=True).strip()
        which = f"the word after {before!r}" if before else "the first word"
        raise UserError(
            f"the tokenizer of {study.model.name} does not know {which}; use words of the task's prompts, "
            "which lab.texts() shows in Python"
        )
    if len(tokens) > most:
        raise UserError(f"the prompt has {len(tokens)} tokens, and {study.model.name} reads at most {most}; shorten it")


def require_recipe(study: Study, recipe: str) -> None:
    """UserError for a recipe that needs reference prompts of the same wording, if the prompt has none of the task's wordings."""
    if study.prompts.templates == (TYPED,) and recipe not in FREE_OF_TEMPLATE:
        raise UserError(
            f"the typed prompt has no wording of {study.task.name}, so recipe={recipe} has no prompts to draw on; use "
            f"{', '.join(FREE_OF_TEMPLATE)}"
        )
