"""Every calibration by its published identifier; modules are found automatically, in the order of their numbers.

A module of this folder is a calibration if its name begins with an identifier: `c13_measurement_invariance`, `e1b_...`. Each
defines

    ID, NUMBER, NAME       "C13", "13", "measurement_invariance": the file is c13_measurement_invariance.py and the result
                           13_measurement_invariance.json
    TITLE                  its name in tables
    INPUTS                 numbers of the measurements that it reads
    calibrate(evidence, config) -> its records

and optionally NODES: how it treats MLPs and positions of a claim, in a sentence for its page and its first record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType

import calibrations
import registries
import results_io

IDENTIFIED = re.compile(r"[a-z]+\d+[a-z]?_", re.IGNORECASE)  # how the name of a calibration's module begins
PRECONDITIONS = "P"  # number of the result with which every certificate begins
REQUIRED = {
    "ID": 'its identifier, for example ID = "C13"',
    "NUMBER": 'the number of its result, for example NUMBER = "13"',
    "NAME": 'the name of its result, for example NAME = "measurement_invariance"',
    "TITLE": 'its name in tables, for example TITLE = "measurement invariance"',
    "INPUTS": 'the numbers of the measurements that it reads, for example INPUTS = ("01", "20")',
    "calibrate": "calibrate(evidence, config), which returns its records",
}


def _find() -> dict[str, ModuleType]:
    """All calibrations by ID, in the order of their numbers. Raises UserError for a module not named after its ID."""
    modules = registries.modules_of(
        calibrations.__name__, calibrations.__path__, REQUIRED, IDENTIFIED.match, unique=("ID", "NUMBER")
    )
    for module in modules:
        expected = f"{module.ID.lower()}_{module.NAME}"
        if registries.name_of(module) != expected:
            remedy = f"call the file {expected}.py" if IDENTIFIED.match(expected) else "take an ID such as 'H9'"
            raise results_io.UserError(
                f"{registries.file_of(module)} has ID {module.ID!r} and NAME {module.NAME!r}; {remedy}, as its "
                "configuration and its test are found by that name"
            )
    return {module.ID: module for module in sorted(modules, key=lambda module: module.NUMBER)}


CALIBRATIONS: Mapping[str, ModuleType] = registries.Registry(_find)


def get(name: str) -> ModuleType:
    """The calibration called `name`: its ID in any case ("c13", "C13") or its file name.

    Raises results_io.UserError naming the known IDs if there is none.
    """
    wanted = name.strip().lower()
    for identifier, module in CALIBRATIONS.items():
        if wanted in (identifier.lower(), registries.name_of(module)):
            return module
    raise results_io.UserError(
        f"calibration {name!r} is unknown; expected one of {', '.join(CALIBRATIONS)} or a file name such as "
        f"{registries.name_of(next(iter(CALIBRATIONS.values())))}"
    )
