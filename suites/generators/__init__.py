"""Generators: name -> (parameters, seed) -> items, one file a family. Only freezing calls them; runs read locks.

A module has PARAMETERS (JSON Schema of `params`) and `generate(params, seed) -> list[Item]`. The same parameters and seed give
the same items on every machine: draws come from `random.Random` of a text, and nothing depends on the order of a set.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import results_io
from suites import schema
from suites.item import Item

HELPERS = ("contents", "fillers")


@cache
def registry() -> Mapping[str, ModuleType]:
    """The generators by name."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in HELPERS)
    return {name: importlib.import_module(f"{__name__}.{name}") for name in found}


def generate(generator: Mapping[str, Any], where: str) -> list[Item]:
    """The items of {name, params, seed}; UserError (with the file `where`) for an unknown name or parameters that do not fit."""
    module = registry().get(generator["name"])
    if module is None:
        known = schema.suggestion(generator["name"], registry())
        raise results_io.UserError(f"{where}: generator.name is {generator['name']!r}; expected a generator; {known}")
    schema.check(generator["params"], module.PARAMETERS, where, "generator.params")
    items = module.generate(generator["params"], generator["seed"])
    _check_distinct(items, where)
    return items


def _check_distinct(items: list[Item], where: str) -> None:
    """UserError if a prompt was drawn twice: it would count twice in every rate and interval."""
    seen: dict[tuple[str | None, str], str] = {}
    for item in items:
        first = seen.setdefault((item.system, item.prompt), item.id)
        if first != item.id:
            raise results_io.UserError(
                f"{where}: {first} and {item.id} are the same prompt; expected different ones; "
                "ask for fewer of them or take another generator.seed"
            )
