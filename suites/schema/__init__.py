"""The published JSON Schemas, and error sentences for documents that violate them."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import referencing

import results_io

FOLDER = Path(__file__).parent
TYPE_NAMES = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "null",
}
SHOWN = 60  # characters of a bad value that an error repeats


def object_of(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    """The schema of an object with these keys and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": properties}


def list_of(items: Mapping[str, Any], description: str, least: int = 1, distinct: bool = False) -> dict[str, Any]:
    """The schema of a list of at least so many items."""
    limits = {"minItems": least} if least else {}
    return {
        "type": "array",
        **limits,
        **({"uniqueItems": True} if distinct else {}),
        "items": items,
        "description": description,
    }


def one_of(options: Sequence[str], description: str) -> dict[str, Any]:
    """The schema of a closed list of values."""
    return {"enum": list(options), "description": description}


def whole(description: str, least: int = 1, most: int | None = None) -> dict[str, Any]:
    """The schema of a whole number from `least` on, up to `most` if that is given."""
    above = {} if most is None else {"maximum": most}
    return {"type": "integer", "minimum": least, **above, "description": description}


def text(description: str) -> dict[str, Any]:
    """The schema of a text."""
    return {"type": "string", "description": description}


def texts(description: str) -> dict[str, Any]:
    """The schema of a list of texts, which may be empty."""
    return list_of(text("a text"), description, least=0)


def flag(description: str) -> dict[str, Any]:
    """The schema of true or false."""
    return {"type": "boolean", "description": description}


@cache
def published(name: str) -> dict[str, Any]:
    """The schema `name` ("suite", "item") as plain data."""
    return json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))


def check(document: Any, schema: str | Mapping[str, Any], where: str, prefix: str = "") -> None:
    """UserError for the first place where `document` violates `schema`, with the file `where` and the key path.

    `schema` is the name of a published schema or a schema itself (Draft 2020-12); `prefix` precedes the key path. Errors are
    sorted by path, so the same document always gives the same sentence.
    """
    validator = _published_validator(schema) if isinstance(schema, str) else _validator(dict(schema))
    errors = sorted(
        validator.iter_errors(document), key=lambda error: (_sortable(error.absolute_path), error.validator)
    )
    if errors:
        raise results_io.UserError(f"{where}: {sentence(errors[0], prefix)}")


def check_plain(value: Any, where: str, path: Sequence[Any] = ()) -> None:
    """UserError for anything but JSON data: dates, sets, bytes, keys that are no text, NaN, infinity, half a surrogate pair."""
    at = key_path(path) or "the document"
    if isinstance(value, dict):
        for key, below in value.items():
            if not isinstance(key, str):
                raise results_io.UserError(
                    f"{where}: {at} has the key {key!r}; expected a text as key; put it in quotes"
                )
            check_plain(below, where, [*path, key])
    elif isinstance(value, list):
        for place, below in enumerate(value):
            check_plain(below, where, [*path, place])
    elif isinstance(value, float) and not math.isfinite(value):
        raise results_io.UserError(f"{where}: {at} is {value}; expected a finite number")
    elif isinstance(value, str) and not encodable(value):
        raise results_io.UserError(f"{where}: {at} holds half of a surrogate pair; expected Unicode text; write it out")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise results_io.UserError(f"{where}: {at} is {shown(value)}; expected a text or a number; put it in quotes")


def sentence(error: jsonschema.ValidationError, prefix: str = "") -> str:
    """A sentence: what is wrong at which key, what was expected, and, for an unknown key, the nearest known one."""
    path = key_path(error.absolute_path, prefix)
    broken: Any = error.schema
    value: Any = error.validator_value
    given: Any = error.instance
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        known = sorted(broken.get("properties", {}))
        unknown = sorted(set(given) - set(known), key=str)[0]
        return f"the key {key_path([*error.absolute_path, unknown], prefix)} is not known; {suggestion(str(unknown), known)}"
    if error.validator == "required":
        absent = next(key for key in value if key not in error.instance)
        full = key_path([*error.absolute_path, absent], prefix)
        return f"the key {full} is missing; expected {expected(broken.get('properties', {}).get(absent, {}))}; add it"
    if error.validator == "uniqueItems":
        return f"{path or 'the document'} names something twice; expected every entry once; take the second one out"
    wanted = expected(broken, str(error.validator), value)
    hint = nearest(error.instance, broken.get("enum", ()))
    return f"{path or 'the document'} is {shown(error.instance)}; expected {wanted}{hint}"


def expected(schema: Mapping[str, Any], keyword: str = "type", value: Any = None) -> str:
    """What a schema expects, in words: its description with the values of a closed list, or a phrase for its keyword."""
    if "enum" in schema:
        options = ", ".join(str(option) for option in schema["enum"])
        return f"{schema['description']}: one of {options}" if "description" in schema else f"one of {options}"
    if "description" in schema:
        return schema["description"]
    if "type" in schema and keyword == "type":
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        return " or ".join(TYPE_NAMES[name] for name in types)
    return f"{keyword} {value}" if value is not None else "a value"


def suggestion(word: str, known: Iterable[str]) -> str:
    """The nearest known word, then all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(known) if known else 'none'}"


def nearest(value: Any, options: Iterable[Any]) -> str:
    """ "; did you mean X?" if an option resembles the value, else the empty text."""
    near = difflib.get_close_matches(str(value), [str(option) for option in options], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def first_repeated(values: Sequence[Any]) -> int | None:
    """Index of the first value that repeats an earlier one; None if all are different."""
    known, without_hash = set(), []
    for place, value in enumerate(values):
        try:
            before, note = value in known, known.add
        except TypeError:  # a list or a mapping
            before, note = value in without_hash, without_hash.append
        if before:
            return place
        note(value)
    return None


def key_path(path: Iterable[Any], prefix: str = "") -> str:
    """legs[0].temperature of ("legs", 0, "temperature")."""
    text = prefix
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def shown(value: Any) -> str:
    """A value as an error repeats it: short, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def shown_path(path: Path) -> str:
    """A path as errors show it: relative to the working directory if it lies below it, else to the project's folder."""
    path = Path(os.path.realpath(path))  # unlike `resolve`, also of a link to itself
    for root in (Path.cwd(), FOLDER.parent.parent):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


def encodable(text: str) -> bool:
    """False for a text with half of a surrogate pair, which no UTF-8 file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _sortable(path: Iterable[Any]) -> list[tuple[int, int, str]]:
    return [(0, step, "") if isinstance(step, int) else (1, 0, str(step)) for step in path]


def _validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema, registry=_registry())


@cache
def _published_validator(name: str) -> jsonschema.Draft202012Validator:
    return _validator(published(name))  # thousands of items are checked against one schema


@cache
def _registry() -> referencing.Registry:
    resources = [referencing.Resource.from_contents(published(name)) for name in ("suite", "item")]
    return referencing.Registry().with_resources([(resource.id() or "", resource) for resource in resources])
