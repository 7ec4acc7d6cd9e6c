"""The types of the numbered results against the results of a run: the same fields, values of the type that they say."""

from __future__ import annotations

from pathlib import Path

import pytest

import result_types
import results_io
from result_schemas import mismatches
from suites import modes


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
        assert list(mismatches(document["data"], result_types.CalibrationData, document["number"])) == []
    numbers = {document["number"] for document in documents if document["kind"] == "measurement"}
    assert numbers == set(result_types.MEASUREMENTS)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.pop("recipe"), "21 lacks recipe"),
        (lambda data: data.update(more=1), "21 has 'more', which its type does not know"),
        (lambda data: data["effect"][0].__setitem__(0, None), "21.effect[0][0] is None, not a number"),
        (lambda data: data.update(recipe=3), "21.recipe is 3, not a text"),
    ],
)
def test_a_result_of_another_form_is_found(change, sentence: str) -> None:
    data = {"effect": [[0.5, 1.0], [0.0, 0.25]], "recipe": "mean"}
    assert list(mismatches(data, result_types.Knockouts, "21")) == []
    change(data)
    assert list(mismatches(data, result_types.Knockouts, "21")) == [sentence]


def test_every_failure_mode_and_safety_suite_has_one_number_of_those_with_a_rate() -> None:
    numbers = [str(modes.number(name)) for name in modes.EVERY]
    assert len(set(numbers)) == len(numbers)
    assert {*numbers, "120"} <= set(result_types.RATES)  # a new mode may be up to A20
    assert "121" not in result_types.RATES  # that of likelihoods
