"""The types of the numbered results against the results of a run: the same fields, values of the type that they say."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

import result_types
import results_io

PLAIN = {float: (float, int), int: int, str: str, bool: bool, type(None): type(None)}


def mismatches(value: Any, expected: Any, where: str) -> Iterator[str]:
    """Every place at which `value` is not what the annotation `expected` says."""
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return
    if is_typeddict(expected):
        yield from _fields(value, expected, where)
    elif origin is NotRequired:
        yield from mismatches(value, arguments[0], where)
    elif origin is Literal:
        if value not in arguments:
            yield f"{where} is {value!r}, not one of {arguments}"
    elif origin in (Union, types.UnionType):
        tried = [list(mismatches(value, one, where)) for one in arguments]
        if all(tried):
            yield min(tried, key=len)[0]
    elif origin is list and isinstance(value, list):
        for place, entry in enumerate(value):
            yield from mismatches(entry, arguments[0], f"{where}[{place}]")
    elif origin in (dict, Mapping) and isinstance(value, dict):
        for key, entry in value.items():
            yield from mismatches(entry, arguments[1], f"{where}.{key}")
    elif (
        expected not in PLAIN
        or not isinstance(value, PLAIN[expected])
        or (isinstance(value, bool) != (expected is bool))
    ):
        yield f"{where} is {str(value)[:40]!r}, not {expected}"


def _fields(value: Any, expected: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is {str(value)[:40]!r}, not an object"
        return
    fields = get_type_hints(expected, include_extras=True)
    required = {name for name, kind in fields.items() if get_origin(kind) is not NotRequired}
    yield from (f"{where} lacks {name}" for name in sorted(required - value.keys()))
    yield from (f"{where} has {name}, which its type does not know" for name in sorted(value.keys() - fields.keys()))
    for name in fields.keys() & value.keys():
        yield from mismatches(value[name], fields[name], f"{where}.{name}")


def test_every_measurement_of_a_run_has_the_fields_of_its_type(finished: Path) -> None:
    for number, expected in result_types.MEASUREMENTS.items():
        path = results_io.find(finished, number)
        assert path is not None, f"the run has no result {number}"
        document = results_io.read(path)
        assert list(mismatches(document, result_types.Result, number)) == []
        assert list(mismatches(document["data"], expected, number)) == []


def test_every_calibration_of_a_run_has_the_fields_of_its_type(finished: Path) -> None:
    documents = [results_io.read(path) for path in sorted(finished.glob("*_*.json"))]
    calibrations = [document for document in documents if document["kind"] == "calibration"]
    assert len(calibrations) == 17  # sixteen and the preconditions
    for document in calibrations:
        assert list(mismatches(document, result_types.Result, document["number"])) == []
        assert list(mismatches(document["data"], result_types.Judged, document["number"])) == []
    numbers = {document["number"] for document in documents if document["kind"] == "measurement"}
    assert numbers == set(result_types.MEASUREMENTS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.pop("recipe"), "21 lacks recipe"),
        (lambda data: data.update(more=1), "21 has more, which its type does not know"),
        (lambda data: data["effect"][0].__setitem__(0, None), "21.effect[0][0] is 'None', not <class 'float'>"),
        (lambda data: data.update(recipe=3), "21.recipe is '3', not <class 'str'>"),
    ],
)
def test_a_result_of_another_form_is_found(change, sentence: str) -> None:
    data = {"effect": [[0.5, 1.0], [0.0, 0.25]], "recipe": "mean"}
    assert list(mismatches(data, result_types.Knockouts, "21")) == []
    change(data)
    assert list(mismatches(data, result_types.Knockouts, "21")) == [sentence]
