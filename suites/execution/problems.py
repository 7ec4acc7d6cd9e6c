"""Tests of a suite's problems: a file of JSON lines beside suite.yaml, which freezing copies into the items.

    {"item": "add", "tests": [{"args": [1, 2], "returns": 3}, {"name": "text", "args": ["a", 1], "raises": "TypeError"}]}

Arguments and answers are JSON, so a test is data and never code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results_io import UserError
from suites import bounded_text, schema
from suites.execution.harness import ProgramTest
from suites.item import Item

TEST = schema.object_of(
    ["args"],
    name=schema.text("a name"),
    args={"type": "array", "description": "a list of arguments"},
    returns={},
    raises=schema.text("the name of an error"),
)
TESTS = schema.list_of(TEST, "a list of tests")
LINE = schema.object_of(["item", "tests"], item=schema.text("the id of an item"), tests=TESTS)


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The tests of every item, by id, each with a name. UserError for a line of another form."""
    where = schema.shown_path(path)
    if not path.is_file():
        raise UserError(f"{where} does not exist; expected the tests that scorer.tests names; write them there")
    found: dict[str, list[dict[str, Any]]] = {}
    text = bounded_text.given(path, "write the tests of one item a line, in UTF-8")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        at = f"{where} line {number}"
        try:
            one = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{at} is not JSON ({error}); expected the tests of one item a line") from None
        schema.check_plain(one, at)
        schema.check(one, LINE, at)
        if one["item"] in found:
            raise UserError(f"{at}: the item {one['item']} has tests already; put all of them into one line")
        found[one["item"]] = [_named(test, place, at) for place, test in enumerate(one["tests"], start=1)]
        if (again := schema.first_repeated([test["name"] for test in found[one["item"]]])) is not None:
            raise UserError(f"{at}: two tests are called {found[one['item']][again]['name']!r}; rename one")
    return found


def attach(items: Sequence[Item], path: Path) -> list[Item]:
    """The items with their tests in `expect`. UserError for an item without tests, and for tests of no item."""
    tests, where = read(path), schema.shown_path(path)
    if absent := [item.id for item in items if item.id not in tests]:
        raise UserError(f"{where} has no tests for the item {absent[0]}; write some")
    if more := sorted(set(tests) - {item.id for item in items}):
        raise UserError(f"{where} has tests for {more[0]}, which is no item; rename it or take them out")
    return [replace(item, expect={**item.expect, "tests": tests[item.id]}) for item in items]


def of_item(item: Item) -> list[ProgramTest]:
    """The tests of an item, from the lock."""
    return [
        ProgramTest(one["name"], tuple(one["args"]), one.get("returns"), one.get("raises"))
        for one in item.expect["tests"]
    ]


def _named(test: Mapping[str, Any], place: int, at: str) -> dict[str, Any]:
    if ("returns" in test) == ("raises" in test):
        raise UserError(f"{at}: test {place} needs either returns or raises; write one of them")
    return {"name": f"test {place}", **test}
