"""Induction on repeated random words: "Words: w1 ... wk w1 ... wj" -> w(j+1).

After Olsson et al. 2022 (arXiv 2209.11895). The list occurs once in full and begins a second time. Its length k and the
number j of repeated words depend on the template, so the answer has no fixed place or distance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example
from circuits.tasks.published import words
from circuits.tasks.published.corruption import choose
from circuits.tasks.published.vocabulary import Vocabulary

NAME = "induction"
CORRUPTIONS = {
    "other_words": "The first reading holds other words, so nothing is repeated and no answer is known.",
    "other_next": "Only the answer's first occurrence becomes another word, which is then the answer.",
}
REPEATED = {
    "list_8_repeat_3": (8, 3),
    "list_8_repeat_5": (8, 5),
    "list_12_repeat_5": (12, 5),
    "list_12_repeat_8": (12, 8),
    "list_16_repeat_6": (16, 6),
    "list_16_repeat_10": (16, 10),
}  # words in the list, words repeated
OPENING = "Words:"  # so that also the first word of the list is preceded by a space
# The larger grammar: every layout after every opening; random words have no other wording.
OPENINGS = {
    "list": "List:",
    "words_are": "The words are:",
    "read": "Read this list:",
    "here": "Here they are:",
    "in_order": "In this order:",
    "again": "Say them again:",
}
LAYOUTS = {name: (OPENING, *layout) for name, layout in REPEATED.items()}  # opening, words in the list, words repeated
MORE = LAYOUTS | {
    f"{name}_{start}": (opening, *layout) for start, opening in OPENINGS.items() for name, layout in REPEATED.items()
}
FEWEST_WORDS = 2 * max(length for length, _ in REPEATED.values())


@dataclass(frozen=True, eq=False)
class Prompts:
    """Draws prompt pairs from these words with this corruption."""

    words: tuple[str, ...]
    corruption: str
    layouts: Mapping[str, tuple[str, int, int]]

    def __call__(self, rng: random.Random) -> Example:
        """Return one prompt pair; no word occurs twice in the list."""
        template = rng.choice(tuple(self.layouts))
        opening, length, repeated = self.layouts[template]
        drawn = rng.sample(self.words, 2 * length)
        listed, unrelated = drawn[:length], drawn[length:]
        changed = range(length) if self.corruption == "other_words" else (repeated,)
        first_reading = [unrelated[i] if i in changed else word for i, word in enumerate(listed)]
        clean, spans = self.write(opening, listed, listed[:repeated])
        corrupted, _ = self.write(opening, first_reading, listed[:repeated])
        return Example(
            clean=clean,
            corrupted=corrupted,
            answers=(listed[repeated],),
            wrong=tuple(word for word in listed if word != listed[repeated]),
            template=template,
            cluster=" ".join(listed),
            positions={
                "first_occurrence": spans[repeated - 1],
                "first_next": spans[repeated],
                "end": spans[-1],
            },
        )

    def write(self, opening: str, listed: list[str], again: list[str]) -> tuple[str, list[tuple[int, int]]]:
        """Return the prompt of one full and one begun reading, and the character span of each of their words."""
        text, spans = opening, []
        for word in listed + again:
            spans.append((len(text) + 1, len(text) + 1 + len(word)))
            text += " " + word
        return text, spans


def build(vocabulary: Vocabulary, corruption: str | None = None) -> Task:
    """Return the task in the words that are one token each.

    Raises UserError if too few words are one token, or if the corruption is unknown.
    """
    corruption = choose(NAME, corruption, CORRUPTIONS)
    prompts = Prompts(vocabulary.require(f"words of task {NAME}", words.NOUNS, FEWEST_WORDS), corruption, LAYOUTS)
    return Task(
        name=NAME,
        title="Induction on repeated random words",
        sample=prompts,
        roles=("first_occurrence", "first_next", "end"),
        # Neither ioi nor docstring, which repeat words and rest on induction heads in part, nor greater-than, whose
        # published circuit holds four of them.
        companions=("subject_verb_agreement", "gendered_pronoun", "acronym", "copy_suppression"),
        bos=True,  # see circuits.tasks.published
        vocabulary=vocabulary,
        corruption=corruption,
        templates=tuple(LAYOUTS),
        more=Grammar(replace(prompts, layouts=MORE), tuple(MORE)),
    )
