"""Packages that find their own modules: one more file in the folder is one more task, measurement or calibration.

Each module says by its names what it is (`NUMBER`, `measure`, ...). One that lacks a name, or has a value that another one
has, is refused with its file and the remedy; nothing is left out silently.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
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


def by(key: Callable[[ModuleType], str], name: str, modules: Iterable[ModuleType]) -> dict[str, ModuleType]:
    """{key(module): module} in the order given. UserError if two have the same one, in any case, called `name`."""
    found: dict[str, ModuleType] = {}
    first: dict[str, ModuleType] = {}
    for module in modules:
        value = key(module)
        if not isinstance(value, str):
            raise UserError(f"{file_of(module)} has {name} {value!r}, which is no text; write it in quotation marks")
        other = first.setdefault(value.lower(), module)
        if other is not module:
            raise taken(name, value, file_of(other), file_of(module))
        found[value] = module
    return found


def taken(name: str, value: str, one: str, other: str) -> UserError:
    """What is said of two files that have the same `value` of `name`; which of them is new, only the user knows."""
    return UserError(f"{one} and {other} both have {name} {value!r}; give the new one another")


def declared(path: Path) -> dict[str, Any]:
    """What a source file defines at its top, without running it: {name: its literal value, None for anything else}."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = None
        if isinstance(node, ast.AnnAssign):
            node = ast.Assign([node.target], node.value)
        for target in node.targets if isinstance(node, ast.Assign) else ():
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]
            found |= {t.id: getattr(v, "value", None) for t, v in pairs if isinstance(t, ast.Name)}
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
