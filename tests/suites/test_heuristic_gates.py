"""What a heuristic below its target decides passes and fails no gate, however clear the rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suites import results
from suites.item import Item
from suites.judgement import JudgedSuite
from suites.modes import MODES
from suites.outcome import Case, Outcome
from suites.statistics import proportions
from tests.suites.judging import suite

GATE = {"failure_rate": 0.1, "reason": "a test"}
SUBJECT = results.TestedModel("m", {}, 0)


def asked(text, parameters):
    """40 unanswerable and 20 answerable items, all of which get one output."""
    items = [Item(f"i{k}", "", expect={"answerable": k >= 40}) for k in range(60)]
    cases = [Case(item, (Outcome("greedy", 0, text),)) for item in items]
    judged = tuple((case, MODES["A8"].detect(case, parameters)) for case in cases)
    gated = replace(suite("A8", items, **parameters), gate=GATE)
    estimates = MODES["A8"].summarise(judged, parameters)
    rate = proportions.below(estimates["failure_rate"], GATE["failure_rate"])
    return JudgedSuite(gated, True, cases=judged, estimates={**estimates, "failure_rate": rate})


@pytest.mark.parametrize(("text", "passed"), [("I don't know.", True), ("It was blue.", False)])
def test_the_same_rate_decides_by_markers_and_not_by_phrases(text, passed):
    by_phrases, by_markers = asked(text, {}), asked(text, {"markers": ["I don't know"]})
    assert by_phrases.estimates["failure_rate"].value == by_markers.estimates["failure_rate"].value == 1 - passed
    assert results.gate(by_markers) is passed and results.distrust(by_markers) is None
    assert results.gate(by_phrases) is None and "below its target" in results.distrust(by_phrases)


def test_the_record_of_a_distrusted_rate_is_exploratory():
    by_phrases, by_markers = asked("I don't know.", {}), asked("No.", {"markers": ["No"]})
    for judged, role, passed in ((by_phrases, "exploratory", None), (by_markers, "confirmatory", True)):
        document = results.mode_document(MODES["A8"], [judged], SUBJECT)
        rate = next(record for record in document["records"] if record["metric_id"].endswith(".failure_rate"))
        assert (rate["role"], rate["passed"], rate["threshold"]) == (role, passed, 0.1)
        told = document["data"]["suites"]["s"]["gate"]
        assert told["passed"] is passed and (told["distrust"] is None) is (role == "confirmatory")
        names = [record["metric_id"].rpartition(".")[2] for record in document["records"]]
        assert "failure_rate_corrected" in names
