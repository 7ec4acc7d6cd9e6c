"""JSON extraction (A1): a short note in plain words, to be returned as JSON of a declared form."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from circuits.tasks import lexicon
from suites import schema
from suites.generators import contents
from suites.item import Item

PARAMETERS = schema.object_of(["contents"], contents=schema.whole("how many notes of each form, a whole number"))
TEXT, WHOLE, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
LIST = {"type": "array", "items": TEXT}
# form -> (note, keys with their types in words and as schema, the key whose value is checked)
FORMS: Mapping[str, tuple[str, dict[str, tuple[str, dict]], str]] = {
    "visit": (
        "{name}, who is {age} years old, went to the {place} on {day}.",
        {"name": ("text", TEXT), "age": ("whole number", WHOLE), "place": ("text", TEXT), "day": ("text", TEXT)},
        "place",
    ),
    "order": (
        'Order {age}: {name} would like a {first} and a {second}. Message on the card: "For {other}, with love".',
        {
            "order": ("whole number", WHOLE),
            "customer": ("text", TEXT),
            "items": ("list of texts", LIST),
            "message": ("text", TEXT),
        },
        "customer",
    ),
    "stock": (
        "In the {place} one {color} {first} costs {age} dollars. The {second} is no longer sold.",
        {
            "product": ("text", TEXT),
            "color": ("text", TEXT),
            "price": ("whole number", WHOLE),
            "discontinued": ("list of texts", LIST),
        },
        "color",
    ),
    "meeting": (
        "The {gathering} at the {place} in {month} was called off, so {name} and {other} stayed at home.",
        {
            "event": ("text", TEXT),
            "month": ("text", TEXT),
            "people": ("list of texts", LIST),
            "held": ("true or false", YES_NO),
        },
        "month",
    ),
}
SLOTS = {"order": {"customer": "name"}}


def generate(params: Mapping[str, Any], seed: int) -> list[Item]:
    """`contents` notes of every form. The output must satisfy `expect.schema`; the value of one key is the answer."""
    rng = contents.random_stream("json_extraction", seed)
    return [_item(rng, form, f"{form}-{number:03d}") for form in FORMS for number in range(params["contents"])]


def _item(rng: random.Random, form: str, name: str) -> Item:
    note, keys, checked = FORMS[form]
    words = _words(rng)
    listed = ", ".join(f"{key} ({kind})" for key, (kind, _) in keys.items())
    prompt = (
        f"Read the note and give it back as one JSON object with the keys {listed}. "
        f"Reply with the JSON object alone, without any other text.\n\nNote: {note.format(**words)}\n\nJSON:"
    )
    wanted = schema.object_of(list(keys), **{key: kind for key, (_, kind) in keys.items()})
    answer = words[SLOTS.get(form, {}).get(checked, checked)]
    factors = {"form": form, "answer_path": f"$.{checked}"}
    return Item(
        name, prompt, answers=(answer,), template=form, cluster=name, factors=factors, expect={"schema": wanted}
    )


def _words(rng: random.Random) -> dict[str, str]:
    (name, other), (first, second) = rng.sample(lexicon.NAMES, 2), rng.sample(lexicon.OBJECTS, 2)
    return {
        "name": name,
        "other": other,
        "first": first,
        "second": second,
        "age": str(rng.randrange(18, 90)),
        "place": rng.choice(lexicon.PLACES),
        "day": rng.choice(lexicon.DAYS),
        "month": rng.choice(lexicon.MONTHS),
        "color": rng.choice(lexicon.COLORS),
        "gathering": rng.choice(lexicon.SLOT_WORDS["gathering"]),
    }
