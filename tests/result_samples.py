"""Results of the right form from the few fields that a test is about: the rest is empty, 0 or null, as their types allow."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import result_types
from result_schemas import mismatches
from result_types import Over

EMPTY = {float: 0.0, int: 0, str: "", bool: False, type(None): None, Any: {}}
MISSING: Any = object()
Lengths = dict[str, int]


def completed(form: str, **parts: Any) -> dict[str, Any]:
    """The result of a number (or of a kind without one) with these parts, as deep as they go. Lists have the lengths of `n`."""
    known = {**result_types.NUMBERED, **result_types.NAMED}[form]
    number = {} if form in result_types.NAMED else {"number": form}
    n = parts.get("n") or {}
    lengths = {"H": n.get("heads", 0), "P": n.get("evaluation", 0) + n.get("held_out", 0)}
    found = _filled(known.whole, {**number, "kind": known.kind, **parts}, lengths)
    if known.data is not None:
        found["data"] = _filled(known.data, parts.get("data", {}), lengths)
    return {name: value for name, value in found.items() if name not in ("schema_version", "content_sha256")}


def _filled(expected: Any, part: Any, lengths: Lengths) -> Any:
    origin, arguments = get_origin(expected), get_args(expected)
    if is_typeddict(expected):
        return _object(expected, {} if part is MISSING else part, lengths)
    if origin is NotRequired or (origin is Annotated and part is not MISSING):
        return _filled(arguments[0], part, lengths)
    if origin is Annotated:
        return _lists(arguments[0], arguments[1], lengths)
    if origin is Literal:
        return arguments[0] if part is MISSING else part
    if origin in (Union, types.UnionType):
        return _nearest(arguments, part, lengths)
    if origin is list:
        return [] if part is MISSING else [_filled(arguments[0], one, lengths) for one in part]
    if origin in (dict, Mapping):
        return {} if part is MISSING else {key: _filled(arguments[1], one, lengths) for key, one in part.items()}
    return EMPTY[expected] if part is MISSING else part


def _object(expected: Any, part: Any, lengths: Lengths) -> Any:
    if not isinstance(part, Mapping):
        return part
    fields = get_type_hints(expected, include_extras=True)
    lengths = {key: length for key, length in lengths.items() if key in "PH"}
    for name in fields.keys() & part.keys():
        _measure(fields[name], part[name], lengths)
    wanted = [name for name, kind in fields.items() if name in part or get_origin(kind) is not NotRequired]
    if not expected.__total__:
        wanted = [name for name in wanted if name in part]
    return {**part, **{name: _filled(fields[name], part.get(name, MISSING), lengths) for name in wanted}}


def _measure(expected: Any, part: Any, lengths: Lengths) -> None:
    """Take over the lengths of the lists that were given."""
    if get_origin(expected) is NotRequired:
        return _measure(get_args(expected)[0], part, lengths)
    if get_origin(expected) is Annotated:
        for axis in get_args(expected)[1].names:
            if not isinstance(part, list):
                break
            if not axis.isdigit():
                lengths[axis] = len(part)
            part = part[0] if part else None
    return None


def _lists(kind: Any, over: Over, lengths: Lengths) -> Any:
    """Empty entries in lists of these lengths."""
    if not over.names or get_origin(kind) is not list:
        return _filled(kind, MISSING, lengths)
    axis, inner = over.names[0], Over(" ".join(over.names[1:]))
    count = int(axis) if axis.isdigit() else lengths.get(axis, 0)
    return [_lists(get_args(kind)[0], inner, lengths) for _ in range(count)]


def _nearest(arguments: tuple[Any, ...], part: Any, lengths: Lengths) -> Any:
    """Of several types null, if it may be and nothing was given; else the one that what was given fits best."""
    if part is None or (part is MISSING and type(None) in arguments):
        return None
    made = [(_filled(one, part, lengths), one) for one in arguments if one is not type(None)]
    return min(made, key=lambda one: sum(1 for _ in mismatches(one[0], one[1], "")))[0]
