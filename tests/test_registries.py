"""Modules that are found: in a fixed order, complete, each with a name and a number of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

import calibrations
import registries
from calibrations import calibrate
from calibrations import registry as calibration_registry
from circuits import measurements, tasks
from circuits.tasks import published
from results_io import UserError
from tests.calibrations.synthetic import COMMON, evidence

CALIBRATION = """
ID, NUMBER, NAME, TITLE, INPUTS = "Z9", "Z9", "extra", "extra", ("01", "20")
def calibrate(evidence, config): return []
"""
MEASUREMENT = """
NUMBER, ID, SETTINGS, DEPENDS_ON_CIRCUIT = "97", "extra", ("draws",), True
def measure(study): return {}
"""


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A function that adds a module to a package for the length of a test."""

    def add(package, name: str, text: str) -> None:
        folder = tmp_path / package.__name__
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(f"{package.__name__}.{name}", None)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    with mock.patch.dict(sys.modules):  # what a test imports is forgotten
        yield add


def test_shipped_modules_are_found_in_the_order_of_their_numbers():
    assert list(measurements._find()) == list(measurements.MEASUREMENTS)
    assert sorted(measurements.MEASUREMENTS) == list(measurements.MEASUREMENTS)
    numbers = [module.NUMBER for module in calibration_registry.CALIBRATIONS.values()]
    assert sorted(numbers) == numbers
    assert set(tasks.HELPERS) <= {path.stem for path in Path(tasks.__file__).parent.iterdir()}


def test_an_added_calibration_has_its_place_by_number_and_helpers_are_none(added):
    added(calibrations, "z9_extra", CALIBRATION)
    added(calibrations, "extra_helper", "raise AssertionError('imported')")
    assert list(calibration_registry._find()) == [*calibration_registry.CALIBRATIONS, "Z9"]
    added(calibrations, "c15_extra", CALIBRATION.replace('"Z9"', '"C15"').replace('"C15", "C15"', '"C15", "15"'))
    assert list(calibration_registry._find())[3:6] == ["C14", "C15", "C16"]


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("z9_extra", ("INPUTS", "READS"), r"calibrations/z9_extra\.py does not define INPUTS; add the numbers of the"),
        (
            "z9_extra",
            ("def calibrate", "def judge"),
            r"z9_extra\.py does not define calibrate; add calibrate\(evidence",
        ),
        ("z9_other", ("", ""), r"z9_other\.py has ID 'Z9' and NAME 'extra'; call the file z9_extra\.py"),
        (
            "z9_extra",
            ('"Z9", "Z9"', '"Z9", "30"'),
            r"calibrations/c30_\w+\.py and calibrations/z9_extra\.py both have NUMBER '30'; give the new one another",
        ),
        *(  # a measurement's number, whether a calibration reads it or none does
            (
                "z9_extra",
                ('"Z9", "Z9"', f'"Z9", "{number}"'),
                rf"circuits/measurements/{file}\.py and calibrations/z9_extra\.py both have NUMBER '{number}'; give the new",
            )
            for number, file in (("21", "knockouts"), ("04", "logit_lens"), ("25", "attention"))
        ),
        ("z9_extra", ('"Z9", "Z9"', '"Z9", "P"'), r"z9_extra\.py has NUMBER 'P', which is the preconditions'; give it"),
        (
            "z9_extra",
            ('"Z9", "Z9"', '"Z9", 97'),
            r"z9_extra\.py has NUMBER 97, which is no text; write it in quotation",
        ),
        (
            "z9_extra",
            ('"Z9", "Z9"', '"C11", "Z9"'),
            r"c11_\w+\.py and calibrations/z9_extra\.py both have ID 'C11'; give",
        ),
        (
            "z9_extra",
            ('"Z9", "Z9"', '"c11", "Z9"'),
            r"c11_\w+\.py and calibrations/z9_extra\.py both have ID 'c11'; give",
        ),
        ("Z9_extra", ("", ""), r"calibrations/Z9_extra\.py has ID 'Z9' and NAME 'extra'; call the file z9_extra\.py"),
        ("leave_one_out", ("", ""), r"calibrations/leave_one_out\.py has ID 'Z9' and .*; call the file z9_extra\.py"),
        (
            "leave_one_out",
            ('"Z9", "Z9"', '"leave", "Z9"'),
            r"leave_one_out\.py has ID 'leave' .*; take an ID such as \"H9\"",
        ),
    ],
)
def test_a_calibration_that_is_not_whole_is_refused(added, name, change, sentence):
    added(calibrations, name, CALIBRATION.replace(*change))
    with pytest.raises(UserError, match=sentence) as error:
        calibration_registry._find()
    assert "\n" not in str(error.value)


def test_a_calibration_without_settings_is_refused(added, monkeypatch):
    added(calibrations, "z9_extra", CALIBRATION)
    monkeypatch.setitem(calibration_registry.CALIBRATIONS, "Z9", calibration_registry._find()["Z9"])
    with pytest.raises(UserError, match=r"calibration Z9 has no settings; add configs/calibration/z9_extra\.yaml"):
        calibrate.judge(evidence(), ["Z9"], {"common": COMMON})


def test_an_added_measurement_is_found_and_an_incomplete_or_second_one_refused(added):
    added(measurements, "extra", MEASUREMENT)
    assert list(measurements._find()) == [*measurements.MEASUREMENTS, "97"]
    added(measurements, "extra", MEASUREMENT.replace("SETTINGS, ", "READS, "))
    with pytest.raises(UserError, match=r"circuits/measurements/extra\.py does not define SETTINGS; add the names"):
        measurements._find()
    added(measurements, "another", MEASUREMENT.replace('"97", "extra"', '"21", "another"'))
    added(measurements, "extra", MEASUREMENT)
    both = (
        r"circuits/measurements/another\.py and circuits/measurements/knockouts\.py both have NUMBER '21'; give the new"
    )
    with pytest.raises(UserError, match=both):
        measurements._find()
    added(measurements, "another", MEASUREMENT.replace('"97", "extra"', '"96", "Knockouts"'))
    with pytest.raises(
        UserError, match=r"another\.py and circuits/measurements/knockouts\.py both have ID 'knockouts'"
    ):
        measurements._find()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("13", r"circuits/measurements/extra\.py and calibrations/c13_\w+\.py both have NUMBER '13'; give the new one"),
        ("P", r"circuits/measurements/extra\.py has NUMBER 'P', which is the preconditions'"),
    ],
)
def test_a_measurement_with_the_number_of_a_calibration_is_refused_at_the_start(
    tmp_path, monkeypatch, number, sentence
):
    """By the registry of calibrations, which every run reads first; it reads the measurements' files only."""
    (tmp_path / "extra.py").write_text(MEASUREMENT.replace('"97"', f'"{number}"') + "raise AssertionError('imported')")
    monkeypatch.setattr(calibration_registry, "MEASUREMENTS", tmp_path)
    with pytest.raises(UserError, match=sentence):
        calibration_registry._find()


def test_numbers_are_read_without_importing(tmp_path):
    for module in measurements.MEASUREMENTS.values():
        assert registries.declared(Path(module.__file__))["NUMBER"] == module.NUMBER
    (tmp_path / "a.py").write_text("import nothing\nA, B = '1', f()\nC: str = 'c'\nD: int\nE = F = 2\ndef g(): H = 1\n")
    assert registries.declared(tmp_path / "a.py") == {
        "A": "1",
        "B": None,
        "C": "c",
        "D": None,
        "E": 2,
        "F": 2,
        "g": None,
    }


def test_an_added_task_follows_the_embedded_ones_and_has_its_file_s_name(added):
    text = (
        "from dataclasses import replace\nfrom circuits.tasks.ioi import TASK as IOI\nTASK = replace(IOI, name='abc')"
    )
    added(tasks, "abc", text)
    found = list(tasks._find())
    assert tuple(found[:5]) == tasks.EMBEDDED and sorted(found) == sorted([*tasks.TASKS, "abc"])
    added(tasks, "other", text)
    with pytest.raises(
        UserError, match=r"circuits/tasks/other\.py defines the task 'abc'; .* call the task 'other' or"
    ):
        tasks._find()


def test_a_task_s_module_without_a_task_and_a_builder_without_build_are_refused(added):
    added(tasks, "abc", "FRAME = 1")
    with pytest.raises(UserError, match=r"circuits/tasks/abc\.py does not define TASK; .* HELPERS"):
        tasks._find()
    added(published, "abc", "NAME, CORRUPTIONS = 'abc', {'x': 'y'}")
    with pytest.raises(
        UserError, match=r"circuits/tasks/published/abc\.py does not define build; add build\(vocabulary"
    ):
        published._find()


def test_a_registry_is_filled_when_it_is_first_read():
    loaded = []
    registry = registries.Registry(lambda: loaded.append(1) or {"a": 1})
    assert not loaded and registry["a"] == 1 and list(registry) == ["a"] and {**registry} == {"a": 1}
    assert loaded == [1]
