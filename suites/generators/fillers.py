"""Filler sentences: ordinary English about other things, in a few frames of equal length."""

from __future__ import annotations

import random

from circuits.tasks import lexicon
from circuits.tasks.example import fill
from suites import schema

# all have seven words and a full stop: fillers of an item differ in content, but not in the position of the text after them
FRAMES = {
    "found": "{name} {found} a {object} at the {place}.",
    "gathering": "It was a {length} {gathering} in {month}.",
}
NAMES_SCHEMA = schema.list_of(
    schema.one_of(sorted(FRAMES), "a filler's frame"), "a list of filler frames", distinct=True
)


def sentences(rng: random.Random, count: int, names: list[str], avoid: set[str]) -> str:
    """`count` filler sentences in frames of these names.

    The words of `avoid` (the question's own names and things) never fill a slot, so a filler says nothing about the question.
    """
    found: list[str] = []
    while len(found) < count:
        frame = FRAMES[names[rng.randrange(len(names))]]
        words = lexicon.draw_words(rng, frame)
        while avoid & set(words.values()):
            words = lexicon.draw_words(rng, frame)
        found.append(fill(frame, **words)[0])
    return " ".join(found)
