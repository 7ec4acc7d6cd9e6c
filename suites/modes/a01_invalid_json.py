"""A1: the output is not the JSON that was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import regex

from suites import patterns, schema
from suites.item import Suite
from suites.modes import json_schema, rates
from suites.outcome import Case, Detection

ID = "A1"
NAME = "invalid_json"
TITLE = "Invalid JSON"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = (
    "A sibling prompt whose output parses stands against the failing prompt with its valid prefix, at the token of "
    "the error."
)
SCHEMA = {"type": ["object", "boolean"]}
PARAMETERS = schema.object_of(
    strip_fence=schema.flag("take one code fence around the whole output away first"),
    schema={**SCHEMA, "description": "JSON Schema of every output; an item's expect.schema wins"},
)
EXPECT = schema.object_of(schema={**SCHEMA, "description": "a JSON Schema"})
summarise = rates.by_subtype
FENCE = regex.compile(r"```[\w-]*[ \t]*\n(?P<body>.*?)\n?```", regex.DOTALL)
TOKEN = regex.compile(r'(?P<string>"(?:\\.|[^"\\])*")|(?P<open>[{\[])|(?P<close>[}\]])|(?P<literal>-?Infinity|NaN)')


class NotStrict(ValueError):
    """JSON that Python's parser accepts, but RFC 8259 does not (or calls unpredictable)."""


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the stripped output is no strict JSON document, or one against the schema (Draft 2020-12).

    Subtypes: "unparsable", "trailing_text", "fenced", "schema". `span` starts at the first error. NaN, Infinity and a key that
    occurs twice are unparsable.
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    text = case.first.text
    start = len(text) - len(text.lstrip())
    body = text.strip()
    fence = FENCE.fullmatch(body)
    if fence and parameters.get("strip_fence", False):
        start, body = start + fence.start("body"), fence.group("body")
    elif body.startswith("```"):
        return _failed("fenced", start, text, "the output is in a code fence")
    try:
        value, end = _strict(body)
    except (ValueError, RecursionError) as error:
        known = error.pos if isinstance(error, json.JSONDecodeError) else 0
        offset = _first_not_strict(body) if isinstance(error, NotStrict) else known
        return _failed("unparsable", start + offset, text, str(error) or "nested too deeply")
    if body[end:].strip():
        return _failed("trailing_text", start + end, text, "text after the document")
    wanted = case.item.expect.get("schema", parameters.get("schema"))
    try:
        problem = None if wanted is None else json_schema.problem(wanted, value)
    except TimeoutError:
        return rates.unjudged("error", f"a pattern of the schema took longer than {patterns.TIMEOUT:g} s", "verified")
    except RecursionError:
        return rates.unjudged("error", "the schema or the document is nested too deeply", "verified")
    if problem is not None:
        return _failed("schema", start, text, f"{problem.json_path}: {problem.message}")
    return Detection(False, "verified")


def check(suite: Suite) -> None:
    """UserError if a schema is invalid, or cannot be used without a network."""
    for name, wanted in [
        ("parameters.schema", suite.parameters.get("schema")),
        *((f"{item.id}: expect.schema", item.expect.get("schema")) for item in suite.items),
    ]:
        if wanted is not None:
            json_schema.check(wanted, name)


def _failed(subtype: str, offset: int, text: str, evidence: str) -> Detection:
    # a caller can unwrap a complete document, but cannot repair a broken one
    severity = "low" if subtype in ("fenced", "trailing_text") else "high"
    return Detection(True, "verified", subtype=subtype, span=(offset, len(text)), evidence=evidence, severity=severity)


def _strict(body: str) -> tuple[Any, int]:
    """(the first JSON document, the offset of its end). ValueError, NotStrict or RecursionError if there is none."""
    # parse_int first: Python refuses integers of more than 4300 digits, JSON does not
    json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique, parse_int=str).raw_decode(body)
    return json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= 4000 else float(digits)).raw_decode(
        body
    )


def _no_constant(literal: str) -> Any:
    raise NotStrict(f"{literal} is not a JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    again = schema.first_repeated([key for key, _ in pairs])
    if again is not None:
        raise NotStrict(f"the key {pairs[again][0]!r} occurs twice in one object")
    return dict(pairs)


def _first_not_strict(body: str) -> int:
    """Offset of the first NaN or Infinity, or of the first duplicate key, which the parser does not report."""
    keys: list[set[str]] = []
    for token in TOKEN.finditer(body):
        if token["open"]:
            keys.append(set())
        elif token["close"] and keys:
            keys.pop()
        elif token["literal"]:
            return token.start()
        elif token["string"] and keys and body[token.end() :].lstrip()[:1] == ":":
            key = json.loads(token["string"], strict=False)
            if key in keys[-1]:
                return token.start()
            keys[-1].add(key)
    return 0
