"""Gendered pronoun: "Mary went to the store because" -> she; "At the store, John lost" -> his."""

from __future__ import annotations

import random

from circuits.tasks import lexicon
from circuits.tasks.base import Task
from circuits.tasks.example import Example, fill, held_out

FRAMES = {
    "went_because": "{person} {went} to the {context} {end}",
    "was_because": "{person} was {adjective} at the {context} {end}",
    "said_so": "{person} said that the {context} was {adjective}, {end}",
    "at_lost": "At the {context}, {person} {end}",
}
END_WORDS = {
    "went_because": ("because",),
    "was_because": ("because", "when"),
    "said_so": ("so", "because"),
    "at_lost": lexicon.LOSING_VERBS,
}
GENDERS = ("male", "female")
NAMES = {"male": lexicon.MALE_NAMES, "female": lexicon.FEMALE_NAMES}
SUBJECT_PRONOUN = {"male": "he", "female": "she"}
POSSESSIVE_PRONOUN = {"male": "his", "female": "her"}


def pronouns(template: str) -> dict[str, str]:
    """Return the pronoun of each gender that continues the template."""
    return POSSESSIVE_PRONOUN if template == "at_lost" else SUBJECT_PRONOUN


def draw_person(rng: random.Random, gender: str, unseen: bool) -> tuple[str, str]:
    """Return a name and a place whose combination is held out from training (`unseen`) or is not."""
    while True:
        person, place = rng.choice(NAMES[gender]), rng.choice(lexicon.PLACES)
        if held_out(person, place) == unseen:
            return person, place


def draw_words(rng: random.Random, template: str, person: str, place: str) -> dict[str, str]:
    """Return the words of every slot of the template."""
    end = rng.choice(END_WORDS[template])
    return lexicon.draw_words(rng, FRAMES[template], person=person, context=place, end=end)


def sample(rng: random.Random) -> Example:
    """Return one prompt pair over a held-out (name, place); the corrupted name has the other gender."""
    template, gender = rng.choice(tuple(FRAMES)), rng.choice(GENDERS)
    other_gender = GENDERS[1 - GENDERS.index(gender)]
    person, place = draw_person(rng, gender, unseen=True)
    words = draw_words(rng, template, person, place)
    clean, spans = fill(FRAMES[template], **words)
    corrupted, _ = fill(FRAMES[template], **words | {"person": rng.choice(NAMES[other_gender])})
    return Example(
        clean=clean,
        corrupted=corrupted,
        answers=(pronouns(template)[gender],),
        wrong=(pronouns(template)[other_gender],),
        template=template,
        cluster=person,
        positions={"name": spans["person"], "context": spans["context"], "end": spans["end"]},
        factors={"gender": gender},
    )


TASK = Task(
    name="gendered_pronoun",
    title="Gendered pronoun after a name",
    sample=sample,
    roles=("name", "context", "end"),
    companions=("ioi", "greater_than", "subject_verb_agreement", "induction"),
)
