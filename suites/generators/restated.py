"""Restated facts (A5): sentences "The color of the A is X.", then the beginning of one of them repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import schema
from suites.generators import contents
from suites.generators.needle import swapped
from suites.item import Item
from suites.perturbations import template_change

PARAMETERS = schema.object_of(
    ["facts", "contents"],
    facts=schema.whole("how many facts, from 1 to 8", most=8),
    contents=schema.whole("how many questions, a whole number"),
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question, one item per place of the fact whose beginning is repeated; it is first in the original."""
    rng = contents.random_stream("restated", seed)
    items: list[Item] = []
    for number in range(params["contents"]):
        _, facts = contents.sample_facts(rng, params["facts"])
        for at in range(params["facts"]):
            content = _content(swapped(facts, 0, at), at)
            name, parent, factors = f"{number:03d}-{at + 1}", f"{number:03d}-1", {"position": str(at + 1)}
            items.append(
                content.variant(name, content.source, parent, "facts_swapped", seed, place=at + 1, factors=factors)
            )
    return items


def _content(facts: list[tuple[str, str]], asked: int) -> contents.Content:
    frame = " ".join(f"The color of the {{thing_{index}}} is {{color_{index}}}." for index in range(len(facts)))
    roles = {"subject": f"thing_{asked}", "object": f"color_{asked}", "asked": "asked", "end": "end"}
    words = contents.fact_words(facts, asked)
    source = template_change(f"{frame} The color of the {{asked}} {{end}}", words, roles)
    colors = [color for _, color in facts]
    wrong = tuple(color for index, color in enumerate(colors) if index != asked)
    cluster = " ".join(sorted(thing for thing, _ in facts))
    return contents.Content(source, (colors[asked],), wrong, tuple(sorted(colors)), "restated", cluster)
