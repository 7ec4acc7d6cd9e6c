"""Checks numbered results against the forms in `result_types`, and gives these forms as JSON Schema.

A result is checked when it is read, so that no reader meets a list of the wrong length or a word in place of a number. Every
result is also checked for what none may hold: numbers that are not finite, too large integers, and too deep nesting.
"""

from __future__ import annotations

import math
import types
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import result_types
from result_types import Over, ResultForm

DEEPEST = 32  # levels of nested lists and objects; a result has up to ten
LARGEST_INTEGER = 2**63  # limit of integer arrays
SHOWN = 40  # characters of a value quoted in a message
PLAIN: Mapping[Any, tuple[type, ...]] = {
    float: (float, int),
    int: (int,),
    str: (str,),
    bool: (bool,),
    type(None): (type(None),),
}
WORDS: Mapping[Any, str] = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
WORDS = {**WORDS, type(None): "null"}
NAMES: Mapping[Any, str] = {float: "number", int: "integer", str: "string", bool: "boolean", type(None): "null"}
PROMPTS, HEADS = "P", "H"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


# --- a document against its form -------------------------------------------------------------------------------------


def fault(document: Mapping[str, Any]) -> str | None:
    """What is wrong with the form of a parsed result, in words that follow its name ("has not the form of a result 02: data
    lacks noising"). None if nothing is wrong, or if neither its number nor its kind has a type in `result_types`.
    """
    form = form_of(document)
    if form is None:
        return None
    found, number = _misfit(document, form), document.get("number")
    what = f"result {_shown(number)[1:-1]}" if isinstance(number, str) else form.kind.replace("_", " ")
    return None if found is None else f"has not the form of a {what}: {found}"


def form_of(document: Mapping[str, Any]) -> ResultForm | None:
    """The form that a result has to have, by its number, or by its kind if it has no number; None if there is no such type."""
    number, kind = document.get("number"), document.get("kind")
    if isinstance(number, str) and number in result_types.NUMBERED:
        return result_types.NUMBERED[number]
    return result_types.NAMED.get(kind) if isinstance(kind, str) else None


def _misfit(document: Mapping[str, Any], form: ResultForm) -> str | None:
    """The first place at which a document violates the form; None if there is none."""
    if document.get("kind") != form.kind:
        return f"its kind is {_shown(document.get('kind'))}, not {form.kind}"
    sizes = _sizes(document)
    found = next(mismatches(document, form.whole, "", sizes), None)
    if found is None and form.data is not None:
        return next(mismatches(document["data"], form.data, "data", sizes), None)
    return found


def _sizes(document: Mapping[str, Any]) -> dict[str, int]:
    """The lengths of P and H according to a measurement's `n`."""
    n = document.get("n")
    if document.get("kind") != "measurement" or not isinstance(n, dict):
        return {}
    evaluation, held_out, heads = (n.get(name) for name in ("evaluation", "held_out", "heads"))
    if type(evaluation) is not int or type(held_out) is not int or type(heads) is not int:  # True does not count
        return {}
    return {PROMPTS: evaluation + held_out, HEADS: heads}


def mismatches(value: Any, expected: Any, where: str, sizes: dict[str, int] | None = None) -> Iterator[str]:
    """Every place at which `value` violates the annotation `expected`; `sizes` are the lengths of P and H."""
    sizes = {} if sizes is None else sizes
    yield from _mismatches(value, expected, where, sizes, {})


def _mismatches(value: Any, expected: Any, where: str, whole: dict[str, int], own: dict[str, int]) -> Iterator[str]:
    """`mismatches` with `whole`, the lengths of P and H, and `own`, the lengths of other axes within one object."""
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return
    if is_typeddict(expected):
        yield from _fields(value, expected, where, whole)
    elif origin is NotRequired:
        yield from _mismatches(value, arguments[0], where, whole, own)
    elif origin is Annotated:
        found = list(_mismatches(value, arguments[0], where, whole, own))
        yield from found or _lengths(value, arguments[1], where, whole, own)
    elif origin is Literal:
        if not any(value == one and type(value) is type(one) for one in arguments):
            yield f"{where} is {_shown(value)}, not one of {', '.join(map(str, arguments))}"
    elif origin in (Union, types.UnionType):
        yield from _of_none(value, arguments, where, whole, own)
    elif origin is list and isinstance(value, list):
        if not _are_all(value, arguments[0]):
            for place, entry in enumerate(value):
                yield from _mismatches(entry, arguments[0], f"{where}[{place}]", whole, own)
    elif origin in (dict, Mapping) and isinstance(value, dict):
        for key, entry in value.items():
            yield from _mismatches(entry, arguments[1], f"{where}.{key}", whole, own)
    elif type(value) not in PLAIN.get(expected, ()):
        yield f"{where} is {_shown(value)}, not {_in_words(expected)}"


def _of_none(
    value: Any, types_: tuple[Any, ...], where: str, whole: dict[str, int], own: dict[str, int]
) -> Iterator[str]:
    """What is wrong with a value that has none of these types, compared with the type it is closest to."""
    tried: list[list[str]] = []
    for one in types_:
        tried.append(list(_mismatches(value, one, where, whole, own)))
        if not tried[-1]:
            return
    yield min(tried, key=len)[0]


def _are_all(values: list[Any], expected: Any) -> bool:
    """True if all values have the expected plain type; a fast check for long lists of numbers."""
    allowed = PLAIN.get(expected)
    if allowed is None and set(get_args(expected)) <= PLAIN.keys() and get_origin(expected) is types.UnionType:
        allowed = tuple(kind for one in get_args(expected) for kind in PLAIN[one])
    return allowed is not None and set(map(type, values)) <= set(allowed)


def _fields(value: Any, expected: Any, where: str, whole: dict[str, int]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is {_shown(value)}, not an object"
        return
    fields, before = _fields_of(expected), f"{where}." if where else ""
    required = _required(expected)
    yield from (f"{where or 'it'} lacks {name}" for name in sorted(required - value.keys()))
    unknown = sorted(value.keys() - fields.keys()) if expected not in result_types.OPEN else []
    yield from (f"{where or 'it'} has {_shown(name)}, which its type does not know" for name in unknown)
    own: dict[str, int] = {}
    for name in sorted(fields.keys() & value.keys()):
        yield from _mismatches(value[name], fields[name], f"{before}{name}", whole, own)


@cache
def _required(expected: Any) -> frozenset[str]:
    """The required keys of an object of this type."""
    return frozenset(
        name for name in expected.__required_keys__ if get_origin(_fields_of(expected)[name]) is not NotRequired
    )


@cache
def _fields_of(expected: Any) -> Mapping[str, Any]:
    return get_type_hints(expected, include_extras=True)


def _lengths(value: Any, over: Over, where: str, whole: dict[str, int], own: dict[str, int]) -> Iterator[str]:
    """The first place at which a list of the right type has another length than its axis, or an index out of range."""
    level = [value]
    for axis in over.names:
        for entry in (one for one in level if one is not None):
            known = whole if axis in (PROMPTS, HEADS) else own
            length = int(axis) if axis.isdigit() else known.setdefault(axis, len(entry))
            if len(entry) != length:
                yield f"{where} has a list of {len(entry)} entries over {axis}, of which there are {length}"
                return
        level = [inner for one in level if one is not None for inner in one] if axis != over.names[-1] else []
    if over.below and (end := (whole | own).get(over.below)) is not None:
        wrong = next((index for index in value if not 0 <= index < end), None)
        if wrong is not None:
            yield f"{where} has the index {wrong} of {end} entries"


def limits(document: Any) -> str | None:
    """What is wrong with a document beyond its form: too deep nesting, too large integers, numbers that are not finite.

    None if nothing is wrong.
    """
    level = [document]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for one in level:
            values = one.values() if isinstance(one, dict) else one
            kinds = set(map(type, values))
            if not all(map(math.isfinite, _of_kind(float, values, kinds))):
                return "holds a number that is not finite"
            if any(abs(value) >= LARGEST_INTEGER for value in _of_kind(int, values, kinds)):
                return "holds an integer of more than 64 bits"
            if kinds & {dict, list}:
                below += [value for value in values if type(value) in (dict, list)]
        if not below:
            return None
        level = below
    return f"is nested more than {DEEPEST} deep"


def _of_kind(kind: type, values: Collection[Any], kinds: set[type]) -> Collection[Any]:
    """The `values` of this type; `kinds` are the types of all values, which makes it fast if all or none have the type."""
    if kinds == {kind}:
        return values
    return [value for value in values if type(value) is kind] if kind in kinds else ()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _in_words(expected: Any) -> str:
    return WORDS.get(expected, "a list" if get_origin(expected) is list else "an object")


# --- the form as JSON Schema -----------------------------------------------------------------------------------------


def numbers() -> list[str]:
    """The numbers and kinds that have a schema: the numbers in order, then the kinds of results without a number."""
    return [*result_types.NUMBERED, *result_types.NAMED]


def schema(number: str) -> dict[str, Any]:
    """The JSON Schema of result `number`, or of a kind in `NAMED`. Lengths that depend on the run are only described; the
    reader checks them."""
    form = {**result_types.NUMBERED, **result_types.NAMED}[number]
    definitions: dict[str, Any] = {}
    found = _schema(form.whole, definitions)
    whole = definitions[found["$ref"].rpartition("/")[2]]
    fixed: dict[str, Any] = {} if form.data is None else {"data": _schema(form.data, definitions)}
    if number not in result_types.NAMED:
        fixed |= {"number": {"const": number}}
    fixed |= {"kind": {"const": form.kind}}
    whole = {**whole, "properties": {**whole["properties"], **fixed}}
    return {"$schema": DIALECT, "title": f"result {number}", **whole, "$defs": dict(sorted(definitions.items()))}


def _schema(expected: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(expected), get_args(expected)
    if is_typeddict(expected):
        return _definition(expected, definitions)
    if origin is NotRequired:
        return _schema(arguments[0], definitions)
    if origin is Annotated:
        return {**_schema(arguments[0], definitions), **_described(arguments[1])}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {"type": NAMES[expected]} if expected in NAMES else {}


def _definition(expected: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = expected.__name__
    if name not in definitions:
        definitions[name] = {}
        fields = _fields_of(expected)
        definitions[name] = {
            "description": " ".join((expected.__doc__ or "").split()),
            "type": "object",
            "properties": {key: _schema(kind, definitions) for key, kind in fields.items()},
            "required": sorted(_required(expected)),
            "additionalProperties": expected in result_types.OPEN,
        }
    return {"$ref": f"#/$defs/{name}"}


def _described(over: Over) -> dict[str, Any]:
    if over.axes.isdigit():
        return {"minItems": int(over.axes), "maxItems": int(over.axes)}
    shape = "".join(f"[{axis}]" for axis in over.names)
    below = f"indices of {over.below}" if over.below else ""
    return {"description": " ".join(part for part in (shape, below) if part)}
