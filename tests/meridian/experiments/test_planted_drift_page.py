"""The page of drift says what was measured, and the rates are those of the rows."""

from __future__ import annotations

from pathlib import Path

import results_io
from meridian import generated_parts
from meridian.experiments import planted_drift

DOCS = Path(__file__).parents[3] / "docs"
DATA = results_io.read(DOCS / "validation" / "V6_planted_drift.json")["data"]


def test_the_rates_are_those_of_the_rows() -> None:
    assert results_io.canonical(planted_drift.rates(DATA["rows"], DATA["settings"])) == DATA["rates"]


def test_the_page_has_the_table() -> None:
    assert generated_parts.part(DOCS / "drift.md", "planted drift") == planted_drift.table(DATA)


def test_no_copy_stands_there_twice() -> None:
    names = [row["name"] for row in DATA["rows"]]
    assert len(names) == len(set(names)) > 5
