"""Gendered pronoun: "Mary went to the store because" -> she; "At the store, John lost" -> his."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

from circuits.tasks import lexicon
from circuits.tasks.base import Grammar, Task
from circuits.tasks.example import Example, fill, held_out, last_word
from circuits.tasks.wordings import crossed, extended

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
# The larger grammar: a statement about the person, and the words before the pronoun. FRAMES already has four of the
# combinations, with the last word drawn at random.
CLAUSES = {
    "went": "{person} {went} to the {context}",
    "was": "{person} was {adjective} at the {context}",
    "was_at": "{person} was at the {context}",
    "was_very": "{person} was very {adjective} at the {context}",
    "had": "{person} had a {length} {gathering} at the {context}",
    "found": "{person} found a {object} at the {context}",
    "took": "{person} took the {object} to the {context}",
    "went_near": "{person} {went} {preposition} the {context}",
    "said": "{person} said that the {context} was {adjective}",
    "decided": "{person} decided that the {context} was {adjective}",
    "place_was": "At the {context}, {person} was {adjective}",
    "month_went": "It was a {length} {gathering} in {month}. {person} {went} to the {context}",
    "and_went": "The {context} was {adjective} and {person} {went} there",
    "adverb_went": "{adverb}, {person} {went} to the {context}",
}
ENDINGS = {"because": " because", "when": " when", "so": ", so"}
POSSESSIVE = {
    "at_was_lost": "At the {context}, {person} was {adjective} and {lost}",
    "at_found_lost": "At the {context}, {person} {found} a {object} and {lost}",
}
_WRITTEN = {FRAMES[frame].replace("{end}", word) for frame, ends in END_WORDS.items() for word in ends}
MORE = extended(
    FRAMES, {name: text for name, text in crossed(CLAUSES, ENDINGS).items() if text not in _WRITTEN}, POSSESSIVE
)
GENDERS = ("male", "female")
NAMES = {"male": lexicon.MALE_NAMES, "female": lexicon.FEMALE_NAMES}
SUBJECT_PRONOUN = {"male": "he", "female": "she"}
POSSESSIVE_PRONOUN = {"male": "his", "female": "her"}


def pronouns(template: str) -> dict[str, str]:
    """Return the pronoun of each gender that continues the template."""
    return POSSESSIVE_PRONOUN if template == "at_lost" or template in POSSESSIVE else SUBJECT_PRONOUN


def draw_person(rng: random.Random, gender: str, unseen: bool) -> tuple[str, str]:
    """Return a name and a place whose combination is held out from training (`unseen`) or is not."""
    while True:
        person, place = rng.choice(NAMES[gender]), rng.choice(lexicon.PLACES)
        if held_out(person, place) == unseen:
            return person, place


def draw_words(rng: random.Random, template: str, person: str, place: str) -> dict[str, str]:
    """Return the words of every slot of the template; only FRAMES have a slot for the last word."""
    end = {"end": rng.choice(END_WORDS[template])} if template in END_WORDS else {}
    return lexicon.draw_words(rng, MORE[template], person=person, context=place, **end)


def sample(rng: random.Random, frames: Mapping[str, str] = FRAMES) -> Example:
    """Return one prompt pair over a held-out (name, place); the corrupted name has the other gender."""
    template, gender = rng.choice(tuple(frames)), rng.choice(GENDERS)
    other_gender = GENDERS[1 - GENDERS.index(gender)]
    person, place = draw_person(rng, gender, unseen=True)
    words = draw_words(rng, template, person, place)
    clean, spans = fill(frames[template], **words)
    corrupted, _ = fill(frames[template], **words | {"person": rng.choice(NAMES[other_gender])})
    return Example(
        clean=clean,
        corrupted=corrupted,
        answers=(pronouns(template)[gender],),
        wrong=(pronouns(template)[other_gender],),
        template=template,
        cluster=person,
        positions={"name": spans["person"], "context": spans["context"], "end": last_word(clean)},
        factors={"gender": gender},
    )


TASK = Task(
    name="gendered_pronoun",
    title="Gendered pronoun after a name",
    sample=sample,
    roles=("name", "context", "end"),
    companions=("ioi", "greater_than", "subject_verb_agreement", "induction"),
    more=Grammar(partial(sample, frames=MORE), tuple(MORE)),
)
