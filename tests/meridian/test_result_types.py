"""The types of the numbered results against the results of a run: the same fields, values of the type that they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import result_schemas
import result_types
import results_io
from result_schemas import mismatches
from suites import modes

ROOT = Path(__file__).parents[2]


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


def documented() -> list[tuple[str, str]]:
    """(section, number) of every number in the tables of results/README.md, those in a range and in the words beside them too."""
    found, section = [], ""
    for line in (ROOT / "results" / "README.md").read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if row := re.match(r"\| ([A-Z]?\d+b?)(?: to (\d+))? \| (.*?) \| ", line):
            first, last, name = row.groups()
            numbers = [first] if last is None else [str(one) for one in range(int(first), int(last) + 1)]
            found += [(section, one) for one in dict.fromkeys([*numbers, *re.findall(r"\b\d{3}\b", name)])]
    return found


def test_every_number_in_the_readme_of_the_results_has_a_schema() -> None:
    numbers = documented()
    assert len(numbers) >= 90 and {section for section, _ in numbers} >= {"Calibrations", "Behavioural suites"}
    known = result_schemas.numbers()
    lacking = [one for section, one in numbers if ("calibration" if section == "Calibrations" else one) not in known]
    assert lacking == []
    for number in {one for section, one in numbers if section != "Calibrations"}:
        assert result_schemas.schema(number)["properties"]["number"] == {"const": number}
