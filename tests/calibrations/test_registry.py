"""Every calibration is found under one name in code, configuration, result numbers and tests."""

import re
from pathlib import Path

import pytest
import yaml

import registries
import results_io
from calibrations import registry

ROOT = Path(__file__).parents[2]
IN_ORDER = [
    "C11",
    "C12",
    "C13",
    "C14",
    "C16",
    "C17",
    "C23",
    "C30",
    "C36",
    "F59",
    "S1",
    "S3",
    "M93",
    "M98",
    "E1b",
    "M3b",
]


def test_sixteen_published_calibrations_in_the_order_of_their_numbers():
    assert [identifier for identifier in registry.CALIBRATIONS if identifier in IN_ORDER] == IN_ORDER


@pytest.mark.parametrize("identifier", IN_ORDER)
def test_one_name_in_four_places(identifier):
    module = registry.CALIBRATIONS[identifier]
    name = f"{identifier.lower()}_{module.NAME}"
    assert registries.name_of(module) == name
    assert (ROOT / "calibrations" / f"{name}.py").is_file()
    assert (ROOT / "tests" / "calibrations" / f"test_{name}.py").is_file()
    config = yaml.safe_load((ROOT / "configs" / "calibration" / f"{name}.yaml").read_text())
    assert list(config) == [identifier.lower()]
    row = rf"^\| {module.NUMBER} \| {identifier} {module.NAME} \|"
    assert re.search(row, (ROOT / "results" / "README.md").read_text(), re.MULTILINE), row


@pytest.mark.parametrize("identifier", IN_ORDER)
def test_modules_have_the_common_shape(identifier):
    module = registry.CALIBRATIONS[identifier]
    assert callable(module.calibrate) and module.TITLE.strip() == module.TITLE and module.__doc__
    assert all(re.fullmatch(r"\d\d", number) for number in module.INPUTS)


@pytest.mark.parametrize("name", ["C13", "c13", " c13 ", "c13_measurement_invariance", "C13_Measurement_Invariance"])
def test_get_accepts_ids_in_any_case_and_file_names(name):
    assert registry.get(name) is registry.CALIBRATIONS["C13"]


@pytest.mark.parametrize("name", ["C99", "", "all", "13"])
def test_unknown_names_are_one_sentence_with_the_known_ones(name):
    with pytest.raises(results_io.UserError, match=r"C11, C12, .*, M3b") as error:
        registry.get(name)
    assert "\n" not in str(error.value) and repr(name) in str(error.value)


def test_no_torch_is_imported():
    import subprocess
    import sys

    code = "import sys, calibrations.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
