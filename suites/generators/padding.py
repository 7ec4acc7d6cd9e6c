"""Padding (A10): a question, and the same question with filler sentences or more white space."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from suites import perturbations, schema
from suites.generators import contents, fillers
from suites.item import Item

PLACES = schema.one_of(["front", "between", "end"], "where the padding goes")
TRIES = 200  # draws of a question; a template with few questions may have none left
PARAMETERS = schema.object_of(
    ["content", "templates", "contents"],
    content=contents.KIND_SCHEMA,
    templates=schema.list_of({"type": "string"}, "a list of templates"),
    contents=schema.whole("how many questions of each template, a whole number"),
    sentences=schema.whole("how many filler sentences a variant gets, a whole number"),
    variants=schema.whole("how many fillers of equal length each question gets"),
    fillers=fillers.NAMES_SCHEMA,
    place=PLACES,
    must=contents.MUST_SCHEMA,
    whitespace=schema.list_of(
        schema.one_of(sorted(perturbations.WHITESPACE), "a kind of white space"),
        "a list of kinds of white space, in place of sentences",
        distinct=True,
    ),
    whitespace_places=schema.list_of(PLACES, "a list of places"),
)


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """For every question the original and its variants; the fillers of one question have as many words each."""
    rng = contents.random_stream("padding", seed)
    items: list[Item] = []
    drawn: set[str] = set()
    for template in params["templates"]:
        for number in range(params["contents"]):
            content = _new_question(params, rng, template, drawn)
            parent = f"{template}-{number:03d}"
            items.append(content.item(parent))
            if "whitespace" in params:
                items += _whitespace(content, parent, params)
            else:
                items += _fillers(content, parent, params, rng, seed)
    return items


def _new_question(params: Mapping[str, Any], rng: random.Random, template: str, drawn: set[str]) -> contents.Content:
    """A question that was not drawn before; after TRIES draws a repeated one, which freezing refuses by name."""
    for _ in range(TRIES):
        content = contents.sample_question(params["content"], rng, template).demanding(params.get("must"))
        if content.source.text not in drawn:
            break
    drawn.add(content.source.text)
    return content


def _fillers(
    content: contents.Content, parent: str, params: Mapping[str, Any], rng: random.Random, seed: int
) -> list[Item]:
    """The question with each of `variants` different fillers."""
    texts: list[str] = []
    while len(texts) < params["variants"]:
        text = fillers.sentences(rng, params["sentences"], params["fillers"], content.words)
        if text not in texts:
            texts.append(text)
    place, count = params.get("place", "front"), params["sentences"]
    return [
        content.variant(
            f"{parent}-filler{number}",
            perturbations.pad(content.source, text, place),
            parent,
            "filler_sentences",
            seed,
            place=place,
            sentences=count,
            factors={"sentences": str(count)},
        )
        for number, text in enumerate(texts)
    ]


def _whitespace(content: contents.Content, parent: str, params: Mapping[str, Any]) -> list[Item]:
    return [
        content.variant(
            f"{parent}-{kind}-{place}",
            perturbations.whitespace(content.source, kind, place),
            parent,
            kind,
            place=place,
            factors={"place": place},
        )
        for kind in params["whitespace"]
        for place in params["whitespace_places"]
    ]
