"""Unchanged questions, after a number of filler sentences or none: for A2 to A4, which judge single outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import perturbations, schema
from suites.generators import contents, fillers
from suites.item import Item

PARAMETERS = schema.object_of(
    ["content", "templates", "contents"],
    content=contents.KIND_SCHEMA,
    templates=contents.TEMPLATES_SCHEMA,
    contents=schema.whole("how many questions of each template, a whole number"),
    sentences=schema.whole("how many filler sentences in front, a whole number", least=0),
    fillers=fillers.NAMES_SCHEMA,
    must=contents.MUST_SCHEMA,
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """Questions of every template, each an original of its own."""
    rng = contents.random_stream("questions", seed)
    items, count = [], params.get("sentences", 0)
    for template in params["templates"]:
        for number in range(params["contents"]):
            content = contents.sample_question(params["content"], rng, template).demanding(params.get("must"))
            source = content.source
            if count:
                text = fillers.sentences(rng, count, params.get("fillers", sorted(fillers.FRAMES)), content.words)
                source = perturbations.pad(source, text)
            items.append(content.item(f"{template}-{number:03d}", source))
    return items
