"""Templates (A11): one question in several frames with the same words and the same answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from circuits.tasks import ioi, lexicon
from suites import schema
from suites.generators import contents
from suites.item import Item

PARAMETERS = schema.object_of(
    ["content", "templates", "contents"],
    content=schema.one_of(["ioi", "color"], "the kind of question"),
    templates={**contents.TEMPLATES_SCHEMA, "minItems": 4},
    contents=schema.whole("how many questions, a whole number"),
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """Every question in every template; the one in the first template is the original."""
    rng = contents.random_stream("templates", seed)
    items: list[Item] = []
    for number in range(params["contents"]):
        asked = {"ioi": _ioi, "color": _color}[params["content"]](rng, params["templates"])
        names = [f"{number:03d}-{one.template}" for one in asked]
        items += [
            one.variant(name, one.source, names[0], "template", seed, template=one.template)
            for name, one in zip(names, asked, strict=True)
        ]
    return items


def _color(rng: random.Random, templates: list[str]) -> list[contents.Content]:
    place, facts = contents.sample_facts(rng, 3)
    asked = rng.randrange(3)
    return [contents.color_question(place, facts, asked, template) for template in templates]


def _ioi(rng: random.Random, templates: list[str]) -> list[contents.Content]:
    """The same two names, giver, place and object in every template; other words are drawn once for all frames with them."""
    first, second = ioi.draw_pair(rng, unseen=True)
    words = {"first": first, "second": second, "giver": rng.choice((first, second)), "end": "to"}
    for template in templates:
        words |= {
            slot: word
            for slot, word in lexicon.draw_words(rng, ioi.FRAMES[template], **words).items()
            if slot not in words
        }
    return [contents.ioi_question(words, template) for template in templates]
