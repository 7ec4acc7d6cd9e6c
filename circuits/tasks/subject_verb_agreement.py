"""Subject-verb agreement across an attractor: "The key near the cabinets" -> is, not are.

After Linzen et al. 2016 (arXiv 1611.01368).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

from circuits.tasks import lexicon
from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, held_out, last_word
from circuits.tasks.wordings import crossed, extended

FRAMES = {
    "preposition": "The {subject} {preposition} the {attractor}",
    "adjective_preposition": "The {adjective} {subject} {preposition} the {attractor}",
    "relative_clause": "The {subject} that the {attractor} {clause_verb}",
}
# The larger grammar: an opening before the subject, and a phrase between subject and verb.
OPENINGS = {
    "the": "The {subject} ",
    "adjective": "The {adjective} {subject} ",
    "very": "The very {adjective} {subject} ",
    "month": "It was a {length} {gathering} in {month}. The {subject} ",
    "found": "{name} {found} a {object} at the {place}. The {subject} ",
    "day": "One {day} {name} {went} to the {place}. The {subject} ",
    "adverb": "{adverb}, {name} {went} to the {place}. The {subject} ",
}
MODIFIERS = {
    "preposition": "{preposition} the {attractor}",
    "preposition_color": "{preposition} the {color} {attractor}",
    "preposition_very": "{preposition} the very {color} {attractor}",
    "of": "of the {attractor}",
    "near_with": "near the {place} with the {attractor}",
    "relative_clause": "that the {attractor} {clause_verb}",
}
MORE = extended(FRAMES, crossed(OPENINGS, MODIFIERS))
NUMBERS = ("singular", "plural")
VERBS = {"singular": lexicon.SINGULAR_VERBS, "plural": lexicon.PLURAL_VERBS}


def other(number: str) -> str:
    """Return plural for singular and singular for plural."""
    return NUMBERS[1 - NUMBERS.index(number)]


def inflect(noun: str, number: str) -> str:
    """Return the noun in the given number."""
    return noun if number == "singular" else lexicon.PLURAL_OF[noun]


def draw_nouns(rng: random.Random, unseen: bool) -> tuple[str, str]:
    """Return a subject and an attractor whose combination is held out from training (`unseen`) or is not."""
    while True:
        subject, attractor = rng.sample(lexicon.NOUNS, 2)
        if held_out(subject, attractor) == unseen:
            return subject, attractor


def draw_words(rng: random.Random, frame: str, nouns: tuple[str, str], numbers: tuple[str, str]) -> dict[str, str]:
    """Return the words of every slot; `nouns` and `numbers` are those of the subject and of the attractor."""
    return lexicon.draw_words(
        rng,
        frame,
        subject=inflect(nouns[0], numbers[0]),
        attractor=inflect(nouns[1], numbers[1]),
        clause_verb=rng.choice(VERBS[numbers[1]][lexicon.AUXILIARIES :]),
    )


def sample(rng: random.Random, frames: Mapping[str, str] = FRAMES) -> Example:
    """Return one prompt pair over held-out nouns; the corrupted subject has the other number."""
    template = rng.choice(tuple(frames))
    nouns = draw_nouns(rng, unseen=True)
    number, attractor_number = rng.choice(NUMBERS), rng.choice(NUMBERS)
    words = draw_words(rng, frames[template], nouns, (number, attractor_number))
    clean, spans = fill(frames[template], **words)
    corrupted, _ = fill(frames[template], **words | {"subject": inflect(nouns[0], other(number))})
    return Example(
        clean=clean,
        corrupted=corrupted,
        answers=VERBS[number],
        wrong=VERBS[other(number)],
        template=template,
        cluster=" ".join(sorted(nouns)),
        positions={
            "subject": spans["subject"],
            "attractor": spans["attractor"],
            "end": last_word(clean),
        },
        factors={
            "subject_number": number,
            "attractor_match": "same" if number == attractor_number else "different",
        },
    )


TASK = Task(
    name="subject_verb_agreement",
    title="Subject-verb agreement across an attractor",
    sample=sample,
    roles=("subject", "attractor", "end"),
    companions=("ioi", "greater_than", "gendered_pronoun", "induction"),
    more=Grammar(partial(sample, frames=MORE), tuple(MORE)),
)
