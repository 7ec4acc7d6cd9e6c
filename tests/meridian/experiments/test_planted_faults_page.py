"""The page says of planted faults what was measured, and the rates are those of the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import results_io
from meridian.experiments import planted_faults

ROOT = Path(__file__).parents[3]
STORED = results_io.read(ROOT / "docs" / "validation" / "V3_planted_faults.json")
PAGE = (ROOT / "docs" / "behaviour.md").read_text(encoding="utf-8")


def test_the_rates_are_those_of_the_rows():
    again = planted_faults.rates(STORED["rows"], STORED["settings"], STORED["intact"])
    assert {name: (rate["k"], rate["n"]) for name, rate in again.items()} == {
        name: (rate["k"], rate["n"]) for name, rate in STORED["rates"].items()
    }


def test_there_are_twenty_shams_and_each_is_as_large_as_a_fault():
    sizes = {kind: [row["size"] for row in STORED["rows"] if row["sham"] is kind] for kind in (False, True)}
    assert len(sizes[True]) >= 20
    assert min(sizes[False]) / 2 < min(sizes[True]) and max(sizes[True]) < 2 * max(sizes[False])


@pytest.mark.parametrize("name", STORED["rates"])
def test_the_page_has_the_rate(name):
    rate = STORED["rates"][name]
    low, high = rate["ci95"]
    cells = f"| {name} | {rate['k']} of {rate['n']} | {rate['value']:.2f} [{low:.2f}, {high:.2f}] |"
    assert cells in re.search(r"<!-- planted -->(.*?)<!-- /planted -->", PAGE, re.DOTALL).group(1)
