"""Unanswerable questions (A8): a text, a question that it answers, and a question that it does not answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from circuits.tasks import lexicon
from suites import schema
from suites.generators import contents
from suites.item import Item, ItemVariant

PARAMETERS = schema.object_of(["contents"], contents=schema.whole("how many texts of each frame, a whole number"))
INSTRUCTION = 'Answer from the text alone. If the text does not say it, answer "I don\'t know".'
# frame -> (text, question that it answers, slot of the answer, question that it does not answer)
FRAMES: Mapping[str, tuple[str, str, str, str]] = {
    "bought": (
        "{name} bought a {color} {thing} at the {place}. On the way home {name} met {other}.",
        "What did {name} buy?",
        "thing",
        "How much did {name} pay?",
    ),
    "meeting": (
        "The {gathering} at the {place} began in {month} and was very {length}. {name} spoke first.",
        "Who spoke first?",
        "name",
        "Who spoke last?",
    ),
    "left": (
        "{name} left a {thing} in the {place} on {day}. {other} found it the next morning.",
        "Where did {name} leave the {thing}?",
        "place",
        "What color was the {thing}?",
    ),
    "work": (
        "{name} works at the {place} and {other} works at the {second_place}. Both of them begin at eight.",
        "Where does {other} work?",
        "second_place",
        "How old is {other}?",
    ),
    "gift": (
        "For her birthday {name} was given a {thing} by {other} and a {second_thing} by her parents.",
        "Who gave {name} the {thing}?",
        "other",
        "On which day of the week was the birthday?",
    ),
    "capital": (
        "{name} comes from {country} and has lived in the capital for years. Now {name} wants to see the sea.",
        "Which country does {name} come from?",
        "country",
        "What is the name of the brother of {name}?",
    ),
}


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every text the question that it answers, then the twin that it does not answer; see `expect.answerable`."""
    rng = contents.random_stream("unanswerable", seed)
    items: list[Item] = []
    for frame in FRAMES:
        for number in range(params["contents"]):
            items += _twins(rng, frame, f"{frame}-{number:03d}")
    return items


def _twins(rng: random.Random, frame: str, name: str) -> list[Item]:
    text, answered, slot, open_question = FRAMES[frame]
    words = _words(rng)
    parent = f"{name}-answerable"
    prompts = [
        f"{INSTRUCTION}\n\nText: {text.format(**words)}\n\nQuestion: {question.format(**words)}"
        for question in (answered, open_question)
    ]
    return [
        Item(parent, prompts[0], answers=(words[slot],), template=frame, cluster=name, expect={"answerable": True}),
        Item(
            f"{name}-unanswerable",
            prompts[1],
            kind="directional",
            template=frame,
            cluster=name,
            expect={"answerable": False},
            variant=ItemVariant("unanswerable", parent),
        ),
    ]


def _words(rng: random.Random) -> dict[str, str]:
    (name, other), (thing, second_thing) = rng.sample(lexicon.FEMALE_NAMES, 2), rng.sample(lexicon.OBJECTS, 2)
    place, second_place = rng.sample(lexicon.PLACES, 2)
    return {
        "name": name,
        "other": other,
        "thing": thing,
        "second_thing": second_thing,
        "place": place,
        "second_place": second_place,
        "color": rng.choice(lexicon.COLORS),
        "day": rng.choice(lexicon.DAYS),
        "month": rng.choice(lexicon.MONTHS),
        "country": rng.choice(tuple(lexicon.CAPITALS)),
        "length": rng.choice(("long", "short")),
        "gathering": rng.choice(lexicon.SLOT_WORDS["gathering"]),
    }
