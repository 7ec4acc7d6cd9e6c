"""Typing slips (A9): a question, and the same question with slips outside of its key words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import perturbations, schema
from suites.generators import contents
from suites.item import Item

PARAMETERS = schema.object_of(
    ["content", "templates", "contents", "unit", "slips", "rate", "repeats"],
    content=contents.KIND_SCHEMA,
    templates=contents.TEMPLATES_SCHEMA,
    contents=schema.whole("how many questions of each template, a whole number"),
    unit=schema.one_of(["char", "word"], "what slips"),
    slips=schema.list_of(
        schema.one_of(["swap", "drop", "double", "neighbour"], "a kind of slip"),
        "a list of kinds of slips",
        distinct=True,
    ),
    rate={"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "share of the words that slip"},
    repeats=schema.whole("how many variants of each kind, a whole number"),
)
ATTEMPTS = 100  # draws for the variants of one question and slip; a short question may have too few different ones


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question the original and, for each kind of slip, `repeats` different variants, or fewer if no more exist."""
    rng = contents.random_stream("typing_slips", seed)
    items: list[Item] = []
    for template in params["templates"]:
        for number in range(params["contents"]):
            content = contents.sample_question(params["content"], rng, template)
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
