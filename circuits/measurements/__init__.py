"""One file per numbered measurement: every module of this folder is one and is found automatically.

Each defines

    NUMBER, ID           "21", "knockouts": the result is 21_knockouts.json
    SETTINGS             the settings (of configs/measurement) that it reads; others do not make its result stale
    DEPENDS_ON_CIRCUIT   True if its result is about the circuit and not the model alone
    measure(study)       -> the data of the result

and may define

    check(settings)          refuses settings with UserError before anything is measured
    stored_circuits(task)    names of the tasks whose stored circuits it reads
    pairs(study)             {kind of work: (variant, prompt) pairs} for the doctor's estimate, with the kinds of
                             meridian.doctor.work; without it nothing is counted
"""

from __future__ import annotations

from types import ModuleType

import registries

REQUIRED = {
    "NUMBER": 'the number of its result, for example NUMBER = "29"',
    "ID": 'the name of its result, for example ID = "knockouts"',
    "SETTINGS": 'the names of the settings that it reads, for example SETTINGS = ("draws",), or () for none',
    "DEPENDS_ON_CIRCUIT": "True or False: whether its result changes with the circuit",
    "measure": "measure(study), which returns the data of its result",
}


def _find() -> dict[str, ModuleType]:
    """All measurements by number, in the order of their numbers."""
    modules = registries.modules_of(
        __name__, __path__, REQUIRED, lambda name: not name.startswith("_"), unique=("ID", "NUMBER")
    )
    return {module.NUMBER: module for module in sorted(modules, key=lambda module: module.NUMBER)}


MEASUREMENTS = _find()
DEPEND_ON_CIRCUIT = frozenset(number for number, module in MEASUREMENTS.items() if module.DEPENDS_ON_CIRCUIT)
