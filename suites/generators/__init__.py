"""Generators: name -> (parameters, seed) -> items, one file per family. Only freezing calls them; runs read locks.

A module has PARAMETERS (JSON Schema of `params`) and `generate(params, seed) -> list[Item]`. The same parameters and seed give
the same items on every machine: `random.Random` is seeded with a text, and nothing depends on the order of a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import registries
import results_io
from suites import schema
from suites.item import Item

HELPERS = ("contents", "fillers")
REQUIRED = {
    "PARAMETERS": "the JSON Schema of a suite's generator.params",
    "generate": "generate(params, seed), which returns a list of items, or add the module to HELPERS",
}


def _find() -> dict[str, ModuleType]:
    modules = registries.modules_of(__name__, __path__, REQUIRED, lambda name: name not in HELPERS)
    return {registries.name_of(module): module for module in modules}


GENERATORS: Mapping[str, ModuleType] = registries.Registry(_find)  # by the names of their files


def generate(generator: Mapping[str, Any], where: str) -> list[Item]:
    """The items of {name, params, seed}; UserError (with the file `where`) for an unknown name or parameters that do not fit."""
    module = GENERATORS.get(generator["name"])
    if module is None:
        known = schema.suggestion(generator["name"], GENERATORS)
        raise results_io.UserError(f"{where}: generator.name is {generator['name']!r}; expected a generator; {known}")
    schema.check(generator["params"], module.PARAMETERS, where, "generator.params")
    items = module.generate(generator["params"], generator["seed"])
    _check_distinct(items, where)
    return items


def _check_distinct(items: list[Item], where: str) -> None:
    """UserError if a prompt was drawn twice, since it would count twice in every rate and interval."""
    seen: dict[tuple[object, ...], str] = {}
    for item in items:
        first = seen.setdefault((item.system, item.earlier, item.prompt), item.id)
        if first != item.id:
            raise results_io.UserError(
                f"{where}: {first} and {item.id} are the same prompt; expected different ones; "
                "ask for fewer of them or take another generator.seed"
            )
