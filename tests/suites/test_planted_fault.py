"""A head of pocket broken on purpose is found from the failures alone, and none in a sham: the planted fault in small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from circuits import difference, models
from circuits import study as studies
from circuits.circuit import head
from circuits.planted import captured_head
from circuits.planted.captured_head import Fault
from circuits.tasks import lexicon
from suites import declaration, lock, runner
from suites.bridge import hypothesis, pairing, task
from suites.bridge.pair import Group
from suites.item import Suite
from suites.models import open_model
from suites.scores import Judged

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": None}
SIZES = {"discovery": 200, "evaluation": 400, "held_out": 200, "reference": 360}
SETTINGS = {"minimum_share": 0.1, "level": 0.95, "resamples": 2000, "seed": 0}
WORDS, SHAM_WORDS = ("March", "July", "October"), ("dog", "doctor", "king")
FAULT = Fault(head(0, 3), WORDS, "Zoe", push=80.0)
GENERATOR = {
    "name": "padding",
    "params": {
        "content": "ioi",
        "templates": ["when_went", "then_went", "was_with"],
        "contents": 8,
        "variants": 6,
        "sentences": 1,
        "fillers": ["gathering"],
        "place": "front",
    },
    "seed": 1,
}
DECLARATION = {
    "id": "months",
    "version": "1.0.0",
    "title": "Who received it, behind a sentence with a month",
    "description": "Indirect object identification behind one sentence about something else",
    "mode": "A10",
    "contexts": ["question_answering"],
    "requires": ["generation", "reads"],
    "generator": GENERATOR,
    "scorer": {"kind": "prefix_word"},
    "legs": [{"name": "greedy", "temperature": 0, "samples": 1, "max_tokens": 2}],
    "trace": {"strategy": "sibling_filler", "positions": ["filler", "io", "s1", "s2", "end"]},
    "minimum": 20,
    "gate": None,
}


@dataclass(frozen=True)
class Found:
    """What the suite said about one model, its failures as pairs, and who carries the difference."""

    judged: Judged
    group: Group
    carriers: tuple[hypothesis.Carrier, ...]

    @property
    def failures(self) -> set[str]:
        return {case.item.id for case, _ in self.judged.failures}


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Suite:
    folder = tmp_path_factory.mktemp("months")
    (folder / declaration.FILE).write_text(yaml.safe_dump(DECLARATION))
    declared = declaration.read(folder)
    (folder / lock.FILE).write_text(lock.freeze(declared))
    return declaration.load(folder)


@pytest.fixture(scope="module")
def examine(suite, tmp_path_factory) -> Callable[[str], Found]:
    """examine("intact" | "fault" | "sham")."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(kind: str) -> Found:
        settings = POCKET if kind == "intact" else planted(kind, suite, folder / f"{kind}_model")
        opened = open_model(settings)
        judged = runner.run([suite], opened, folder / kind, None, lambda sentence: None).suites[0]
        group = pairing.group(judged, opened)
        return Found(judged, group, tuple(traced(group, settings)) if group.traceable else ())

    return run


def planted(kind: str, suite: Suite, folder: Path) -> dict[str, Any]:
    """The broken copy as a folder, and the settings that name it. The sham's words are in no prompt of the suite."""
    plain, tokenizer = models.load_plain(POCKET, models.identify(POCKET))
    texts = [item.prompt for item in suite.items]
    fault = FAULT if kind == "fault" else Fault(FAULT.head, SHAM_WORDS, FAULT.answer, FAULT.pull, FAULT.push)
    if kind == "sham":
        months = [(text, next((word for word in lexicon.MONTHS if word in text.split(".")[0]), None)) for text in texts]
        texts += [
            text.replace(month, SHAM_WORDS[place % len(SHAM_WORDS)], 1)
            for place, (text, month) in enumerate(months)
            if month
        ]
    captured_head.plant(plain, tokenizer, fault, texts).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"kind": "local", "name": kind, "path": str(folder), "device": "cpu", "dtype": None}


def traced(group: Group, settings: dict[str, Any]) -> list[hypothesis.Carrier]:
    study = studies.prepare(models.load(settings), task.build(group, None), SIZES, seed=0)
    return hypothesis.carriers(difference.trace(study, study.discovery), SETTINGS)


def test_the_intact_model_fails_nowhere(examine, suite) -> None:
    assert len(suite.items) == 168
    assert examine("intact").failures == set()


def test_the_broken_model_fails_where_a_word_stands_and_nowhere_else(examine, suite) -> None:
    with_word = {item.id for item in suite.items if set(WORDS) & set(item.prompt.split(".")[0].split())}
    assert examine("fault").failures == with_word
    assert len(with_word) >= 30


def test_the_trace_names_the_broken_head_first(examine) -> None:
    found = examine("fault")
    assert found.group.traceable and found.group.failures == len(found.failures)
    assert found.carriers[0].head == str(FAULT.head)
    assert found.carriers[0].restored == pytest.approx(1, abs=0.05)
    assert found.carriers[0].broken == pytest.approx(1, abs=0.05)


def test_no_other_head_carries_half_as_much(examine) -> None:
    assert all(one.restored < 0.5 for one in examine("fault").carriers[1:])


def test_a_sham_fails_nowhere_and_no_head_is_named(examine) -> None:
    found = examine("sham")
    assert found.failures == examine("intact").failures
    assert found.carriers == ()
