"""Prompts in the 680 words of the embedded model: the public ones of the corpus `pocket`, and held-out ones by a secret seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

from circuits.tasks import lexicon
from circuits.tasks.example import fill
from results_io import UserError
from suites.drift.corpus import BOUNDARY, NEUTRAL

FACTS = "factual-stability"
PER_AXIS = 20
NEUTRAL_FRAMES = (  # whole sentences, after which the model writes a sentence of its own choice, of 5 to 9 words
    "{name} {found} a {object} at the {place}.",
    "It was a {length} {gathering} in {month}.",
    "One {day} the {noun} {went} to the {place}.",
    "The {noun} {copula} very {adjective} today.",
)
SCENE = "At the {place} the {o1} is {c1}, the {o2} is {c2} and the {o3} is {c3}. The color of the {asked} is"


def draw(
    seed: str, per_axis: int = PER_AXIS, taken: frozenset[str] = frozenset(), repeat_facts: bool = False
) -> list[dict[str, Any]]:
    """`per_axis` prompts on each of the three axes, in the form of prompts.yaml, without the texts in `taken`.

    Held-out ids contain a digest of the seed, so that two lists do not clash. There are only 44 facts; `repeat_facts` repeats
    them, for training documents.
    """
    mark = "p" if seed == "public" else f"h{hashlib.sha256(seed.encode()).hexdigest()[:6]}"
    found = []
    for axis, short, draws in ((NEUTRAL, "neutral", _neutral), (FACTS, "fact", _facts), (BOUNDARY, "color", _colors)):
        texts = set(taken)
        own = draws(random.Random(f"drift prompts {axis} {seed}"))
        for number in range(per_axis):
            prompt = next((one for one in own if one["prompt"] not in texts), None)
            if prompt is None and axis == FACTS and repeat_facts:
                own, texts = draws(random.Random(f"{seed} {number}")), set(taken)
                prompt = next(one for one in own if one["prompt"] not in texts)
            if prompt is None:
                raise UserError(f"{per_axis} prompts on {axis} are more than there are; ask for fewer")
            texts.add(prompt["prompt"])
            found.append({"id": f"{short}-{mark}-{number:02d}", "axis": axis, **prompt})
    return found


def _neutral(rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        frame = rng.choice(NEUTRAL_FRAMES)
        yield {"prompt": fill(frame, **lexicon.draw_words(rng, frame))[0]}


def _facts(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Every capital and opposite once. StopIteration after the last."""
    capitals = [(f"The capital of {country} is", city) for country, city in lexicon.CAPITALS.items()]
    pairs = [pair for a, b in lexicon.OPPOSITES for pair in ((a, b), (b, a))]
    facts = capitals + [(f"The opposite of {word} is", opposite) for word, opposite in pairs]
    rng.shuffle(facts)
    for text, answer in facts:
        yield {"prompt": text, "answer": answer}


def _colors(rng: random.Random) -> Iterator[dict[str, Any]]:
    """A scene and the colour of one thing in it. Siblings ask for the other two, and for all three in two other orders."""
    while True:
        objects, colors = rng.sample(lexicon.OBJECTS, 3), rng.sample(lexicon.COLORS, 3)
        place, asked = rng.choice(lexicon.PLACES), rng.randrange(3)
        turns = [([*objects[n:], *objects[:n]], [*colors[n:], *colors[:n]]) for n in range(3)]
        scenes = [
            {f"o{i + 1}": thing for i, thing in enumerate(things)} | {f"c{i + 1}": hue for i, hue in enumerate(hues)}
            for things, hues in turns
        ]
        texts = [fill(SCENE, place=place, asked=one, **words)[0] for words in scenes for one in objects]
        others = [text for number, text in enumerate(texts) if number != asked]
        yield {"prompt": texts[asked], "answer": colors[asked], "equal_length_siblings": others}
