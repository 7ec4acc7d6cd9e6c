"""Restated facts (A5): sentences "The color of the A is X.", then the beginning of one of them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites.generators import contents
from suites.generators.needle import swapped
from suites.item import Item
from suites.perturbations import SpannedText, template_change

PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["facts", "contents"],
    "properties": {
        "facts": {"type": "integer", "minimum": 1, "maximum": 8, "description": "how many facts, from 1 to 8"},
        "contents": {**contents.COUNT_SCHEMA, "description": "how many questions, a whole number"},
    },
}


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question, the fact that is begun again at every place; it stands first in the original."""
    rng = contents.draws("restated", seed)
    items: list[Item] = []
    for number in range(params["contents"]):
        _, facts = contents.draw_facts(rng, params["facts"])
        for at in range(params["facts"]):
            content = _content(swapped(facts, 0, at), at)
            name, factors = f"{number:03d}-{at + 1}", {"position": str(at + 1)}
            if at == 0:
                items.append(content.item(name, factors=factors))
            else:
                items.append(
                    content.variant(
                        name, content.source, f"{number:03d}-1", "facts_swapped", seed, place=at + 1, factors=factors
                    )
                )
    return items


def _content(facts: list[tuple[str, str]], asked: int) -> contents.Content:
    frame = " ".join(f"The color of the {{thing_{index}}} is {{color_{index}}}." for index in range(len(facts)))
    words = {"asked": facts[asked][0], "end": "is"}
    for index, (thing, color) in enumerate(facts):
        words |= {f"thing_{index}": thing, f"color_{index}": color}
    roles = {"subject": f"thing_{asked}", "object": f"color_{asked}", "asked": "asked", "end": "end"}
    source: SpannedText = template_change(f"{frame} The color of the {{asked}} {{end}}", words, roles)
    colors = [color for _, color in facts]
    wrong = tuple(color for index, color in enumerate(colors) if index != asked)
    cluster = " ".join(sorted(thing for thing, _ in facts))
    return contents.Content(source, (colors[asked],), wrong, tuple(sorted(colors)), "restated", cluster)
