"""The schema of every numbered result as tables of fields, from the JSON Schema of the reader's checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import result_schemas
import result_types
import results_io
from scripts.docs import markdown

PAGE = "schemas.md"
REFERENCE = "#/$defs/"


def pages() -> dict[str, str]:
    """The page: one section for each number, then the shared types."""
    schemas = {number: result_schemas.schema(number) for number in result_schemas.numbers()}
    shared = {name: form for schema in schemas.values() for name, form in schema["$defs"].items()}
    parts = [
        "# Schemas of the results\n",
        "Every read checks a result against the schema of its number; what does not fit is measured again, or refused in one "
        "sentence. The types stand in `result_types.py`, and this page is made from them. `[P][H]` is what a list runs over: P "
        "prompts, H heads as the result's `n` counts them, any other letter the length of one axis inside one object. "
        "`result_schemas.schema(number)` gives the JSON Schema (draft 2020-12).\n",
        f"Whatever its number, no result has more than {results_io.MOST_BYTES >> 20} MiB, lists and objects more than "
        f"{result_schemas.DEEPEST} deep, an integer of more than 64 bits, a number that is not finite, or a key twice; and none "
        "stands under another number than its own.\n",
        *(
            _section(number if number in result_types.NAMED else f"Result {number}", _data(schema))
            for number, schema in schemas.items()
        ),
        "## Shared types\n",
        *(_section(name, form, "###") for name, form in sorted(shared.items())),
    ]
    return {PAGE: "\n".join(parts)}


def _data(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a result's data, or of the whole result if its data has no type of its own."""
    data = schema["properties"].get("data", {})
    return schema["$defs"].get(data.get("$ref", "").removeprefix(REFERENCE), schema)


def _section(title: str, form: Mapping[str, Any], level: str = "##") -> str:
    required = form["required"]
    rows = [
        (
            markdown.literal(name),
            _words(one) + ("" if name in required else ", may be left out"),
            one.get("description", ""),
        )
        for name, one in form["properties"].items()
    ]
    return f"{level} {title}\n\n" + markdown.table(("field", "type", "runs over"), rows)


def _words(form: Mapping[str, Any]) -> str:
    """A type in words: "array of array of number"."""
    if "$ref" in form:
        return str(form["$ref"]).removeprefix(REFERENCE)
    if "anyOf" in form:
        return " or ".join(map(_words, form["anyOf"]))
    if "enum" in form:
        return " or ".join(map(str, form["enum"]))
    if "const" in form:
        return f'"{form["const"]}"'
    if form.get("type") == "array":
        return f"array of {_words(form['items'])}"
    return str(form.get("type", "anything"))
