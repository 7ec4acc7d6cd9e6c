"""Every calibration, under the identifier by which it was published; found by itself, in the order of the numbers.

A module of this folder is a calibration if its name begins with an identifier: `c13_measurement_invariance`, `e1b_...`. Each
defines

    ID, NUMBER, NAME       "C13", "13", "measurement_invariance": the file is c13_measurement_invariance.py and the result
                           13_measurement_invariance.json
    TITLE                  its name in tables
    INPUTS                 numbers of the measurements that it reads
    calibrate(evidence, config) -> its records
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import calibrations
import registries
import results_io

IDENTIFIED = re.compile(r"[a-z]+\d+[a-z]?_")  # how the name of a calibration's module begins
MEASUREMENTS = Path(__file__).resolve().parents[1] / "circuits" / "measurements"
PRECONDITIONS = "P"  # number of the result that every certificate begins with
REQUIRED = {
    "ID": 'its identifier, for example ID = "C13"',
    "NUMBER": 'the number of its result, for example NUMBER = "13"',
    "NAME": 'the name of its result, for example NAME = "measurement_invariance"',
    "TITLE": 'its name in tables, for example TITLE = "measurement invariance"',
    "INPUTS": 'the numbers of the measurements that it reads, for example INPUTS = ("01", "20")',
    "calibrate": "calibrate(evidence, config), which returns its records",
}


def _find() -> dict[str, ModuleType]:
    """All calibrations by ID. UserError for one that is not named after its ID or has the number of another result."""
    for path in _others():
        _refuse_calibration(path)
    modules = registries.modules_of(calibrations.__name__, calibrations.__path__, IDENTIFIED.match, REQUIRED)
    found = registries.by(lambda module: module.ID, "ID", modules)
    numbered = registries.by(lambda module: module.NUMBER, "NUMBER", modules)
    for module in modules:
        expected = f"{module.ID.lower()}_{module.NAME}"
        if file_name(module) != expected:
            raise _misnamed(registries.file_of(module), module.ID, module.NAME)
    files = {number: registries.file_of(module) for number, module in numbered.items()}
    for number, file in [*files.items(), *_measured()]:
        if number.lower() == PRECONDITIONS.lower():
            raise results_io.UserError(f"{file} has NUMBER {number!r}, which is the preconditions'; give it another")
    for number, file in _measured():
        if number in files:
            raise registries.taken("NUMBER", number, file, files[number])
    return dict(sorted(found.items(), key=lambda item: item[1].NUMBER))


def _others() -> Iterator[Path]:
    """Files of this folder that are not called as a calibration is."""
    for found in pkgutil.iter_modules(calibrations.__path__):
        path = Path(found.module_finder.path) / f"{found.name}.py"
        if not IDENTIFIED.match(found.name) and path.is_file():
            yield path


def _refuse_calibration(path: Path) -> None:
    """UserError if a file that is not called as a calibration is one by what it defines, so none is left out silently."""
    own = registries.declared(path)
    if {"ID", "NUMBER", "calibrate"} <= own.keys():
        raise _misnamed(f"{calibrations.__name__}/{path.name}", own["ID"], own.get("NAME"))


def _misnamed(file: str, identifier: Any, name: Any) -> results_io.UserError:
    expected = f"{str(identifier).lower()}_{name}"
    remedy = (
        f"call the file {expected}.py" if IDENTIFIED.match(expected) else 'take an ID such as "H9", the file h9_name.py'
    )
    return results_io.UserError(
        f"{file} has ID {identifier!r} and NAME {name!r}; {remedy}, as its configuration and its test are found by that name"
    )


def _measured() -> list[tuple[str, str]]:
    """(number, file) of every measurement, read without importing it, as that needs torch."""
    numbers = [(registries.declared(path).get("NUMBER"), path.name) for path in sorted(MEASUREMENTS.glob("*.py"))]
    return [(number, f"circuits/measurements/{name}") for number, name in numbers if isinstance(number, str)]


CALIBRATIONS: Mapping[str, ModuleType] = registries.Registry(_find)


def file_name(module: ModuleType) -> str:
    """The name that a calibration's code, configuration and test share, e.g. "c13_measurement_invariance"."""
    return module.__name__.rpartition(".")[2]


def get(name: str) -> ModuleType:
    """The calibration called `name`: its ID in any case ("c13", "C13") or its file name.

    Raises results_io.UserError naming the known IDs if there is none.
    """
    wanted = name.strip().lower()
    for identifier, module in CALIBRATIONS.items():
        if wanted in (identifier.lower(), file_name(module)):
            return module
    raise results_io.UserError(
        f"calibration {name!r} is unknown; expected one of {', '.join(CALIBRATIONS)} or a file name such as "
        f"{file_name(next(iter(CALIBRATIONS.values())))}"
    )
