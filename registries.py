"""Packages that find their own modules: one more file in the folder is one more task, measurement or calibration.

Each module says by its names what it is (`NUMBER`, `measure`, ...). One that lacks a name, or has a value that another one
has, is refused with its file and the remedy; nothing is left out silently.
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
    package: str, where: Iterable[str], wanted: Callable[[str], bool], required: Mapping[str, str]
) -> list[ModuleType]:
    """The modules of `package` (its `__name__`, and `where` its `__path__`) that are `wanted` by name, in order of name.

    `required`: {name that each has to define: what it is, with an example}. UserError for the first that is missing.
    """
    names = sorted(found.name for found in pkgutil.iter_modules(list(where)) if wanted(found.name))
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    for module in modules:
        for name, meaning in required.items():
            if not hasattr(module, name):
                raise UserError(f"{file_of(module)} does not define {name}; add {meaning}")
    return modules


def by(key: Callable[[ModuleType], Any], name: str, modules: Iterable[ModuleType]) -> dict[Any, ModuleType]:
    """{key(module): module} in the order given. UserError if two modules have the same one, called `name`."""
    found: dict[Any, ModuleType] = {}
    for module in modules:
        first = found.setdefault(key(module), module)
        if first is not module:
            raise UserError(
                f"{file_of(module)} has {name} {key(module)!r}, which {file_of(first)} has already; take another"
            )
    return found


def in_order(found: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """`found` with the keys `first` first, in their order; the others follow as they come."""
    return {name: found[name] for name in (*first, *(name for name in found if name not in first))}


def file_of(module: ModuleType) -> str:
    """The module's file as the repository has it: "calibrations/c30_seed_variance.py"."""
    return module.__name__.replace(".", "/") + ".py"


class Registry(UserDict):
    """A dictionary that is filled when it is first read, so that what is wrong with a module is said where a run can."""

    def __init__(self, load: Callable[[], dict[Any, Any]]) -> None:
        self._load = load

    @cached_property
    def data(self) -> dict[Any, Any]:
        return self._load()
