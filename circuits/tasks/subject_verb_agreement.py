"""Subject-verb agreement across an attractor: "The key near the cabinets" -> is, not are.

After Linzen et al. 2016 (arXiv 1611.01368).
"""

from __future__ import annotations

import random

from circuits.tasks import lexicon
from circuits.tasks.base import Task
from circuits.tasks.example import Example, fill, held_out

FRAMES = {
    "preposition": "The {subject} {preposition} the {attractor}",
    "adjective_preposition": "The {adjective} {subject} {preposition} the {attractor}",
    "relative_clause": "The {subject} that the {attractor} {clause_verb}",
}
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


def sample(rng: random.Random) -> Example:
    """Return one prompt pair over held-out nouns; the corrupted subject has the other number."""
    template = rng.choice(tuple(FRAMES))
    nouns = draw_nouns(rng, unseen=True)
    number, attractor_number = rng.choice(NUMBERS), rng.choice(NUMBERS)
    words = draw_words(rng, FRAMES[template], nouns, (number, attractor_number))
    clean, spans = fill(FRAMES[template], **words)
    corrupted, _ = fill(FRAMES[template], **words | {"subject": inflect(nouns[0], other(number))})
    last_slot = "clause_verb" if template == "relative_clause" else "attractor"
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
            "end": spans[last_slot],
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
)
