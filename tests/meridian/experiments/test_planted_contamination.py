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


@pytest.mark.parametrize("detector", experiment.DETECTORS)
def test_nothing_read_is_claimed_at_the_level_and_sixty_four_readings_are_always_found(detector) -> None:
    none, most = RATES[0][detector], RATES[64][detector]
    assert none["n"] == 100 and none["ci95"][0] <= 0.05 <= none["ci95"][1] and none["k"] / none["n"] <= 0.1
    assert (most["k"], most["n"]) == (6, 6)
