"""JSON Schemas from suites: checked when loaded, and applied without a network and with one second per pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import referencing
import referencing.exceptions
import referencing.jsonschema

import results_io
from suites import patterns

REFERENCES = ("$ref", "$dynamicRef")
Errors = Iterator[jsonschema.ValidationError]


def problem(schema: Any, value: Any) -> jsonschema.ValidationError | None:
    """The most informative error of `value` against `schema` (Draft 2020-12), or None.

    TimeoutError if a pattern takes longer than a second, RecursionError for a schema with an endless reference to itself.
    """
    # a registry that retrieves nothing, since the default one would fetch addresses
    validator = Guarded(schema, registry=referencing.Registry())
    return jsonschema.exceptions.best_match(validator.iter_errors(value))


def check(schema: Any, name: str) -> None:
    """UserError, beginning with `name`, for an invalid JSON Schema, an unresolvable reference, or a bad pattern."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise results_io.UserError(
            f"{name}: the schema is no JSON Schema (Draft 2020-12) at {error.json_path} ({error.message}); correct it"
        ) from None
    resource = referencing.jsonschema.DRAFT202012.create_resource(schema)
    keywords = _check_below(resource, referencing.Registry().resolver_with_root(resource), name)
    if {"patternProperties", "unevaluatedProperties"} <= keywords:
        raise results_io.UserError(
            f"{name}: the schema has patternProperties and unevaluatedProperties, whose patterns have no time limit; "
            "use additionalProperties"
        )


def _check_below(resource: referencing.Resource, resolver: Any, name: str) -> set[str]:
    """The keywords of a schema and of all its subschemas; UserError for a bad reference or pattern in one of them."""
    contents = resource.contents
    if not isinstance(contents, Mapping):
        return set()
    for keyword in REFERENCES:
        if keyword in contents:
            _check_reference(contents[keyword], keyword, resolver, name)
    for pattern in (*contents.get("patternProperties", ()), *([contents["pattern"]] if "pattern" in contents else ())):
        try:
            patterns.compiled(pattern)
        except results_io.UserError as error:
            raise results_io.UserError(f"{name}: the schema: {error}") from None
    keywords = set(contents)
    for below in resource.subresources():
        keywords |= _check_below(below, resolver.in_subresource(below), name)
    return keywords


def _check_reference(reference: str, keyword: str, resolver: Any, name: str) -> None:
    try:
        found = resolver.lookup(reference).contents
    except referencing.exceptions.Unresolvable:
        found = None
    if not isinstance(found, (Mapping, bool)):
        raise results_io.UserError(
            f"{name}: the schema's {keyword} {reference!r} is no schema in it; expected a place in the same schema, "
            "since nothing is fetched from a network; put it under $defs"
        )


def _pattern(validator: Any, pattern: str, value: Any, schema: Mapping[str, Any]) -> Errors:
    if validator.is_type(value, "string") and patterns.search(pattern, value) is None:
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, by_pattern: Mapping[str, Any], value: Any, schema: Mapping[str, Any]) -> Errors:
    if not validator.is_type(value, "object"):
        return
    for pattern, below in by_pattern.items():
        for key, inner in value.items():
            if patterns.search(pattern, key) is not None:
                yield from validator.descend(inner, below, path=key, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if not validator.is_type(value, "object"):
        return
    named, matched = schema.get("properties", {}), schema.get("patternProperties", {})
    rest = [key for key in value if key not in named and not any(patterns.search(one, key) for one in matched)]
    if below is False and rest:
        yield jsonschema.ValidationError(f"the keys {', '.join(map(repr, rest))} are not allowed")
    elif below is not False:
        for key in rest:
            yield from validator.descend(value[key], below, path=key)


Guarded = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties},
)
