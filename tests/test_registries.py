"""Modules that are found: in a fixed order, complete, each with a name and a number of its own."""

from __future__ import annotations

import importlib
import pkgutil
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
from suites import gate, generators, modes, results
from suites.bridge import confirmation, hypothesis, stored_pairs
from suites.geometry import findings, judge_bias, mtmm, trace
from suites.judging import pairs, ranking, validation
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

    # a module that is written twice within a second would be read from the first one's bytecode
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
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
        (
            "z9_extra",
            ('"Z9", "Z9"', '"leave", "Z9"'),
            r"z9_extra\.py has ID 'leave' .*; take an ID such as 'H9'",
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


def test_an_added_mode_and_generator_are_found_and_incomplete_or_misnamed_ones_refused(added):
    shipped = Path(modes.MODES["A9"].__file__).read_text()
    mode = shipped.replace('ID = "A9"', 'ID = "A17"').replace('NAME = "typo_sensitivity"', 'NAME = "extra"')
    added(modes, "a17_extra", mode)
    assert list(modes._find()) == [*modes.MODES, "A17", *(one for one in modes.EVERY if one not in modes.MODES)]
    for change, sentence in (
        (
            ("detect, summarise, rated = flips.detect, flips.summarise, flips.rated", "detect = flips.detect"),
            r"suites/modes/a17_extra\.py does not define summarise; add summarise\(judged",
        ),
        (('"A17"', '"A18"'), r"a17_extra\.py has ID 'A18' and NAME 'extra'; call the file a18_extra\.py"),
        (('"A17"', '"Z9"'), r"a17_extra\.py has ID 'Z9' and NAME 'extra'; .*, or take an ID such as 'A17'"),
        (('"A17"', '"A2"'), r"suites/modes/a02_length\.py and suites/modes/a17_extra\.py both have ID 'A2'; give"),
        (('"extra"', '"length"'), r"a02_length\.py and suites/modes/a17_extra\.py both have NAME 'length'; give"),
    ):
        added(modes, "a17_extra", mode.replace(*change))
        with pytest.raises(UserError, match=sentence):
            modes._find()
    added(generators, "extra", "PARAMETERS = {}\ndef generate(params, seed): return []")
    assert set(generators._find()) == {*generators.GENERATORS, "extra"}
    added(generators, "extra", "PARAMETERS = {}")
    with pytest.raises(UserError, match=r"suites/generators/extra\.py does not define generate; .* HELPERS"):
        generators._find()


def test_no_two_numbered_results_have_one_number():
    """Across packages, which do not import each other: a result would replace another one's file."""
    numbers = [
        *((number, registries.file_of(module)) for number, module in measurements.MEASUREMENTS.items()),
        *((module.NUMBER, registries.file_of(module)) for module in calibration_registry.CALIBRATIONS.values()),
        (calibration_registry.PRECONDITIONS, "preconditions"),
        *((str(results.number(mode)), f"failure mode {mode}") for mode in modes.EVERY),
        (results.LIKELIHOOD, "likelihood"),
        (results.COVERAGE, "taxonomy coverage"),
        *((module.NUMBER, registries.file_of(module)) for module in (stored_pairs, hypothesis, confirmation, gate)),
        *((module.NUMBER, registries.file_of(module)) for module in (*findings.METRICS, mtmm, judge_bias, trace)),
        *((module.NUMBER, registries.file_of(module)) for module in (pairs, validation, ranking)),
    ]
    whose: dict[str, str] = {}
    for number, who in numbers:
        assert whose.setdefault(number.lower(), who) == who, f"{whose[number.lower()]} and {who} have number {number}"


def test_a_module_called_like_a_calibration_is_one_and_no_other_is():
    for found in pkgutil.iter_modules(calibrations.__path__):
        module = importlib.import_module(f"{calibrations.__name__}.{found.name}")
        called = bool(calibration_registry.IDENTIFIED.match(found.name))
        assert called == (module in calibration_registry.CALIBRATIONS.values()), found.name
        assert called == all(hasattr(module, name) for name in ("ID", "NUMBER", "calibrate")), found.name


def test_a_registry_is_filled_when_it_is_first_read():
    loaded = []
    registry = registries.Registry(lambda: loaded.append(1) or {"a": 1})
    assert not loaded and registry["a"] == 1 and list(registry) == ["a"] and {**registry} == {"a": 1}
    assert loaded == [1]
