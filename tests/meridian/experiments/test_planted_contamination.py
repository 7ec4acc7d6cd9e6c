"""What is published of the copies that read suites' items: the page has the stored numbers, and they say what the text says."""

from __future__ import annotations

import pytest

import results_io
from meridian import generated_parts
from meridian.experiments import planted_contamination as experiment

DATA = results_io.read(experiment.PAGE.parent / "validation" / experiment.FILE)["data"]
RATES = {int(repetitions): rates for repetitions, rates in DATA["rates"].items()}


def test_the_page_has_the_stored_table_in_the_order_of_the_dose() -> None:
    shown = generated_parts.part(experiment.PAGE, "planted contamination")
    assert shown == experiment.table(DATA).strip()
    doses = [int(line.split("|")[1]) for line in shown.splitlines()[2:]]
    assert doses == sorted(RATES) == [0, 1, 4, 16, 64]


@pytest.mark.parametrize("detector", [name for name in experiment.DETECTORS if name != "reference"])
def test_nothing_read_is_claimed_at_the_level(detector) -> None:
    none = RATES[0][detector]
    assert none["n"] == 300 and none["k"] / none["n"] <= 0.06 and none["ci95"][0] <= 0.05


def test_the_comparison_with_the_untuned_model_alone_has_no_level() -> None:
    none = [row["reference"]["p"] for row in DATA["rows"] if row["repetitions"] == 0]
    assert (len(none), sum(p <= 0.05 for p in none), sum(p >= 0.95 for p in none)) == (300, 30, 230)
    both = [row["both"]["p"] for row in DATA["rows"] if row["repetitions"] == 0]
    assert (sum(p <= 0.05 for p in both), sum(p >= 0.95 for p in both)) == (14, 16)


@pytest.mark.parametrize(
    ("detector", "found"), [("fresh", 6), ("reference", 6), ("both", 4), ("canary", 6), ("accuracy", 6)]
)
def test_sixty_four_readings_are_found(detector, found) -> None:
    assert (RATES[64][detector]["k"], RATES[64][detector]["n"]) == (found, 6)
