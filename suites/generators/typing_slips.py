"""Typing slips (A9): a question, and the same question with slips outside of the words that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import perturbations
from suites.generators import contents
from suites.item import Item

PARAMETERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["content", "templates", "contents", "unit", "slips", "rate", "repeats"],
    "properties": {
        "content": contents.KIND_SCHEMA,
        "templates": contents.TEMPLATES_SCHEMA,
        "contents": {**contents.COUNT_SCHEMA, "description": "how many questions of each template, a whole number"},
        "unit": {"enum": ["char", "word"], "description": "what slips"},
        "slips": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"enum": ["swap", "drop", "double", "neighbour"], "description": "a kind of slip"},
            "description": "a list of kinds of slips",
        },
        "rate": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "share of the words that slip"},
        "repeats": {**contents.COUNT_SCHEMA, "description": "how many variants of each kind, a whole number"},
    },
}
ATTEMPTS = 100  # draws for another variant than those there are, before a question is given up as too short for it


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question the original and, for each kind of slip, `repeats` different variants (fewer if there are no more)."""
    rng = contents.draws("typing_slips", seed)
    items: list[Item] = []
    for template in params["templates"]:
        for number in range(params["contents"]):
            content = contents.draw(params["content"], rng, template)
            parent = f"{template}-{number:03d}"
            items.append(content.item(parent))
            for slip in params["slips"]:
                items += _variants(content, parent, slip, params, seed)
    return items


def _variants(
    content: contents.Content, parent: str, slip: perturbations.Slip, params: Mapping[str, Any], seed: int
) -> list[Item]:
    unit, rate = params["unit"], params["rate"]
    changed: dict[str, tuple[perturbations.SpannedText, int]] = {}
    for attempt in range(ATTEMPTS):
        if len(changed) == params["repeats"]:
            break
        slipped = perturbations.typo(content.source, slip, unit, rate, f"{seed}/{parent}/{attempt}")
        changed.setdefault(slipped.text, (slipped, attempt))
    return [
        content.variant(
            f"{parent}-{slip}{number}", slipped, parent, f"{unit}_{slip}", seed, unit=unit, rate=rate, attempt=attempt
        )
        for number, (slipped, attempt) in enumerate(changed.values())
    ]
