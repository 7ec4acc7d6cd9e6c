"""Needles (A12): one fact among others of the same form, at several depths of contexts of several lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suites import schema
from suites.generators import contents
from suites.item import Item

PARAMETERS = schema.object_of(
    ["lengths", "depths", "contents"],
    lengths=schema.list_of(
        schema.whole("a number of facts from 2 to 8", least=2, most=8),
        "a list of lengths in facts (there are eight colours)",
        distinct=True,
    ),
    depths=schema.list_of(
        {"type": "number", "minimum": 0, "maximum": 1, "description": "a depth from 0 (first) to 1 (last)"},
        "a list of depths",
        least=2,
        distinct=True,
    ),
    contents=schema.whole("how many questions in each cell, a whole number"),
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every length and question, the needle at every depth.

    The first depth is the original. For another depth, the needle is swapped with the fact at that depth, so all depths have the
    same words and the same length.
    """
    rng = contents.random_stream("needle", seed)
    items: list[Item] = []
    for length in params["lengths"]:
        for number in range(params["contents"]):
            place, facts = contents.sample_facts(rng, length)
            names = [f"length{length}-{number:03d}-depth{depth:g}" for depth in params["depths"]]
            first = _position(params["depths"][0], length)
            for name, depth in zip(names, params["depths"], strict=True):
                at = _position(depth, length)
                content = contents.color_question(place, swapped(facts, first, at), at)
                factors = {"length": str(length), "depth": f"{depth:g}"}
                items.append(
                    content.variant(name, content.source, names[0], "needle_moved", seed, depth=depth, factors=factors)
                )
    return items


def swapped(facts: list[tuple[str, str]], first: int, second: int) -> list[tuple[str, str]]:
    """The facts with the ones at two places exchanged."""
    facts = list(facts)
    facts[first], facts[second] = facts[second], facts[first]
    return facts


def _position(depth: float, length: int) -> int:
    """Index of the fact at a depth: 0 is the first, 1 the last; else the nearest one (of two equally near, the later)."""
    return int(depth * (length - 1) + 0.5)
