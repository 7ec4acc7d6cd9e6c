"""Distractors (A13): one fact answers the question, the other facts answer other questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import perturbations, schema
from suites.generators import contents, fillers
from suites.generators.needle import swapped
from suites.item import Item

PARAMETERS = schema.object_of(
    ["facts", "contents"],
    facts=schema.whole("how many facts, from 2 to 8", least=2, most=8),
    contents=schema.whole("how many questions, a whole number"),
    sentences=schema.whole("how many filler sentences in front, a whole number", least=0),
    fillers=fillers.NAMES_SCHEMA,
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question, one item per place of the fact that answers it.

    The fact is first in the original. In each twin it is swapped with a distractor, so words and length are the same.
    """
    rng = contents.random_stream("distractor", seed)
    items: list[Item] = []
    count = params.get("sentences", 0)
    for number in range(params["contents"]):
        place, facts = contents.sample_facts(rng, params["facts"])
        avoid = {word for fact in facts for word in fact} | {place}
        filler = fillers.sentences(rng, count, params.get("fillers", sorted(fillers.FRAMES)), avoid)
        for at in range(params["facts"]):
            content = contents.color_question(place, swapped(facts, 0, at), at)
            source = perturbations.pad(content.source, filler) if filler else content.source
            name, parent, factors = f"{number:03d}-{at + 1}", f"{number:03d}-1", {"position": str(at + 1)}
            items.append(content.variant(name, source, parent, "facts_swapped", seed, place=at + 1, factors=factors))
    return items
