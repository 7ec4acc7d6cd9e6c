"""Filler sentences: ordinary English about something else, in few frames of equal length."""

from __future__ import annotations

import random

from circuits.tasks import lexicon
from circuits.tasks.example import fill

# all seven words and a full stop: fillers of one item differ in content, never in the position of what follows
FRAMES = {
    "found": "{name} {found} a {object} at the {place}.",
    "gathering": "It was a {length} {gathering} in {month}.",
}
NAMES_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "uniqueItems": True,
    "items": {"enum": sorted(FRAMES), "description": "a filler's frame"},
    "description": "a list of filler frames",
}


def sentences(rng: random.Random, count: int, names: list[str], avoid: set[str]) -> str:
    """`count` filler sentences in frames of these names, without any word of `avoid` (the question's own names and things)."""
    return " ".join(sentence(rng, names[rng.randrange(len(names))], avoid) for _ in range(count))


def sentence(rng: random.Random, name: str, avoid: set[str]) -> str:
    """One filler sentence. The words of `avoid` never occur in a slot, so that a filler says nothing about the question."""
    frame = FRAMES[name]
    while True:
        words = lexicon.draw_words(rng, frame)
        if not avoid & set(words.values()):
            return fill(frame, **words)[0]
