"""Templates (A11): one question in several frames with the same words and the same answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from circuits.tasks import ioi, lexicon
from suites.generators import contents
from suites.item import Item

PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["content", "templates", "contents"],
    "properties": {
        "content": {"enum": ["ioi", "color"], "description": "the kind of question"},
        "templates": {**contents.TEMPLATES_SCHEMA, "minItems": 4},
        "contents": {**contents.COUNT_SCHEMA, "description": "how many questions, a whole number"},
    },
}


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """Every question in every template; the one in the first template is the original."""
    rng = contents.draws("templates", seed)
    items: list[Item] = []
    for number in range(params["contents"]):
        asked = {"ioi": _ioi, "color": _color}[params["content"]](rng, params["templates"])
        original, *others = asked
        parent = f"{number:03d}-{original.template}"
        items.append(original.item(parent))
        items += [
            other.variant(
                f"{number:03d}-{other.template}", other.source, parent, "template", seed, template=other.template
            )
            for other in others
        ]
    return items


def _color(rng: random.Random, templates: list[str]) -> list[contents.Content]:
    place, facts = contents.draw_facts(rng, 3)
    asked = rng.randrange(3)
    return [contents.color_question(place, facts, asked, template) for template in templates]


def _ioi(rng: random.Random, templates: list[str]) -> list[contents.Content]:
    """The same two names, giver, place and object; a frame's other words are drawn once for all frames that have them."""
    first, second = ioi.draw_pair(rng, unseen=True)
    words = {"first": first, "second": second, "giver": rng.choice((first, second)), "end": "to"}
    for template in templates:
        words |= {
            slot: word
            for slot, word in lexicon.draw_words(rng, ioi.FRAMES[template], **words).items()
            if slot not in words
        }
    return [contents.ioi_question(words, template) for template in templates]
