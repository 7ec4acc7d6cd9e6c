"""Packages that find their own modules: a new file in the folder is a new task, measurement, calibration or failure mode.

Each module defines the required names (`NUMBER`, `measure`, ...). A module that lacks one, or repeats a value within its
package, raises UserError with its file and the remedy; nothing is left out silently.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from results_io import UserError


def modules_of(
    package: str,
    where: Iterable[str],
    required: Mapping[str, str],
    wanted: Callable[[str], object] = lambda name: True,
    unique: Sequence[str] = (),
) -> list[ModuleType]:
    """Modules of `package` whose name passes `wanted`, sorted; `where` is the package's `__path__`.

    `required`: {name that each module has to define: what it is, with an example}. `unique`: the names whose value no two
    modules may share, ignoring upper and lower case.

    Raises UserError for the first module that lacks a name or repeats another module's value.
    """
    names = sorted(found.name for found in pkgutil.iter_modules(list(where)) if wanted(found.name))
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    for module in modules:
        for name, meaning in required.items():
            if not hasattr(module, name):
                raise UserError(f"{file_of(module)} does not define {name}; add {meaning}")
    for name in unique:
        _require_unique(name, modules)
    return modules


def _require_unique(name: str, modules: Iterable[ModuleType]) -> None:
    first: dict[str, ModuleType] = {}
    for module in modules:
        value = getattr(module, name)
        if not isinstance(value, str):
            raise UserError(f"{file_of(module)} has {name} {value!r}, which is no text; write it in quotation marks")
        other = first.setdefault(value.lower(), module)
        if other is not module:
            raise UserError(
                f"{file_of(other)} and {file_of(module)} both have {name} {value!r}; give the new one another"
            )


def name_of(module: ModuleType) -> str:
    """The module's own name, without its package: "c30_seed_variance"."""
    return module.__name__.rpartition(".")[2]


def file_of(module: ModuleType) -> str:
    """The module's file relative to the repository: "calibrations/c30_seed_variance.py"."""
    return module.__name__.replace(".", "/") + ".py"


def in_order(found: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """`found` with the keys `first` first, in that order; the other keys keep their order."""
    return {name: found[name] for name in (*first, *(name for name in found if name not in first))}


class Registry(UserDict):
    """A dictionary that is filled on first use, so a faulty module raises UserError inside a run, not at import."""

    def __init__(self, load: Callable[[], dict[Any, Any]]) -> None:
        self._load = load

    @cached_property
    def data(self) -> dict[Any, Any]:
        return self._load()
