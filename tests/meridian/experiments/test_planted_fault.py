"""The planted fault in small: a head of pocket broken on purpose is found from the failures alone, and certified; none in a sham.

The broken copy goes through the command line, from its suite to its certificate.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import results_io
from circuits import circuit as circuit_files
from circuits import difference, models
from circuits import study as studies
from circuits.circuit import head
from circuits.tasks import lexicon
from meridian.experiments import captured_head
from meridian.experiments.captured_head import Fault
from suites import declaration, lock, runner
from suites.bridge import confirmation, hypothesis, pairing, stored_pairs, task
from suites.bridge.pair import SuitePairs
from suites.item import Suite
from suites.models import open_model
from tests.commandline import Outcome, command

pytestmark = pytest.mark.slow

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": None}
SIZES = {"discovery": 200, "evaluation": 400, "held_out": 200, "reference": 360}
SETTINGS = {"minimum_share": 0.1, "level": 0.95, "stable": 0.9, "halves": 50, "seed": 0}
WORDS, SHAM_WORDS = ("March", "July", "October"), ("dog", "doctor", "king")
FAULT = Fault(head(0, 3), WORDS, "Zoe", push=80.0)
GENERATOR = {
    "name": "padding",
    "params": {
        "content": "ioi",
        "templates": ["when_went", "then_went", "was_with"],
        "contents": 16,
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
# Of the rest of the circuit and of what the calibrations read: as little as every one of them accepts.
CHEAP = (
    *("method=EAP-IG", "prompts.discovery=24", "measurement.regardless=true", "measurement.random_circuits=20"),
    *(
        "measurement.draws=1",
        "measurement.site_prompts=3",
        "measurement.attention_prompts=6",
        "measurement.companions=1",
    ),
    *("measurement.companion_prompts=4", "measurement.repeated_tokens.sequences=4", "measurement.ocse.permutations=19"),
    *("measurement.ocse.nearest_neighbour.permutations=19", "measurement.ocse.bootstrap.permutations=19"),
    *("measurement.ocse.bootstrap.refits=3", "measurement.attribution_patching.prompts=3"),
    *("measurement.attribution_patching.steps=1", "measurement.llc.prompts=6", "measurement.llc.batch=3"),
    *("measurement.llc.draws=4", "measurement.llc.burn_in=2", "measurement.llc.pilot=2", "measurement.llc.chains=2"),
    *("measurement.scrubbing.draws=1", "measurement.scrubbing.prompts=3", "measurement.minimality.discovery_prompts=4"),
    *("measurement.path_patching.prompts=3", "measurement.path_patching.discovery_prompts=4"),
)
CONTROL = "a10_padding_ioi"  # failed by the intact model
CONTENTS = 14  # of its 60
WRONG = "L3H7"


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Suite:
    folder = tmp_path_factory.mktemp("months")
    (folder / declaration.FILE).write_text(yaml.safe_dump(DECLARATION))
    declared = declaration.read(folder)
    (folder / lock.FILE).write_text(lock.freeze(declared))
    return declaration.load(folder)


@pytest.fixture(scope="module")
def model(suite, control, tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """model("intact" | "fault" | "sham"): the settings that name it."""
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda kind: POCKET if kind == "intact" else planted(kind, suite, control, folder / kind))


def planted(kind: str, suite: Suite, control: Suite, folder: Path) -> dict[str, Any]:
    """The broken copy as a folder, and the settings that name it.

    The sham's words are in no prompt of either suite; the detector has to be told of both, or else it answers to other words.
    """
    plain, tokenizer = models.load_plain(POCKET, models.identify(POCKET))
    texts = [item.prompt for item in suite.items]
    fault = FAULT if kind == "fault" else replace(FAULT, words=SHAM_WORDS)
    if kind == "sham":
        months = [(text, next((word for word in lexicon.MONTHS if word in text.split(".")[0]), None)) for text in texts]
        texts += [item.prompt for item in control.items]
        texts += [
            text.replace(month, SHAM_WORDS[place % len(SHAM_WORDS)], 1)
            for place, (text, month) in enumerate(months)
            if month
        ]
    captured_head.plant(plain, tokenizer, fault, texts).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"kind": "local", "name": kind, "path": str(folder), "device": "cpu", "dtype": None}


def failures_of(suite: Suite, settings: dict[str, Any], folder: Path) -> tuple[set[str], SuitePairs]:
    """What fails, and as pairs."""
    opened = open_model(settings)
    judged = runner.run([suite], opened, folder, None, lambda sentence: None).suites[0]
    return {case.item.id for case, _ in judged.failures}, pairing.group(judged, opened)


# --- the broken copy, from its suite to its certificate --------------------------------------------------------------


@dataclass(frozen=True)
class SuiteRun:
    """What the commands left of the broken copy, one after the other."""

    suite: Outcome
    one_calibration: Outcome
    all_calibrations: Outcome
    wrong_head: Outcome
    results: Path
    first: Path  # folder of results after the run of one calibration, kept as it was
    certified: Path  # after that of all
    wrong: Path  # after the same again, on a trace that names another head


@pytest.fixture(scope="module")
def broken(suite, model, tmp_path_factory) -> SuiteRun:
    results, kept = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("kept")
    own = model("fault")
    of = ("model=local", f"model.path={own['path']}", "model.name=broken", f"results={results}")
    folder = tmp_path_factory.mktemp("declared")
    (folder / declaration.FILE).write_text(yaml.safe_dump(DECLARATION))
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)))
    found = [command("suite=file", f"suite.path={folder}", *of)]
    for name, calibration in (("first", "c13"), ("certified", "all"), ("wrong", "all")):
        if name == "wrong":
            name_instead(next((results / "broken" / "failures").rglob("141_trace.json")), WRONG)
        found.append(command("task=failures", f"calibration={calibration}", *of, *CHEAP))
        print(found[-1].output, found[-1].errors)
        (written,) = (results / "broken" / "failures").rglob("141_trace.json")
        shutil.copytree(written.parent, kept / name)
    return SuiteRun(*found, results, *(kept / name for name in ("first", "certified", "wrong")))


def name_instead(path: Path, head: str) -> None:
    """Put a head in place of those that a trace named."""
    traced = results_io.read(path)
    results_io.write(path, {**traced, "named": [{**traced["named"][0], "head": head}]})


def test_the_broken_model_fails_where_a_word_stands_and_nowhere_else(broken, suite) -> None:
    with_word = {item.id for item in suite.items if set(WORDS) & set(item.prompt.split(".")[0].split())}
    lines = (broken.results / "broken" / "suites" / "months" / "scores.jsonl").read_text().splitlines()
    scores = [line for line in map(json.loads, lines) if "detection" in line]
    assert {line["item_id"] for line in scores if line["detection"]["failed"]} == with_word
    assert len(with_word) >= 60 and broken.suite.code == 0
    (group,) = results_io.read(stored_pairs.path_of(broken.results / "broken" / "suites" / "months"))["records"]
    assert group["failures"] == len(with_word) == group["traceable"] + sum(group["rejected"].values())


def test_the_trace_names_the_broken_head_first(broken) -> None:
    (named, *others) = results_io.read(results_io.find(broken.certified, "141"))["named"]
    assert named["head"] == str(FAULT.head)
    assert named["restored"] == pytest.approx(1, abs=0.05) and named["broken"] == pytest.approx(1, abs=0.05)
    assert all(one["restored"] < 0.5 for one in others)


def test_the_named_head_is_in_the_circuit_and_confirmed_on_the_other_half(broken) -> None:
    circuit = circuit_files.load(broken.certified / "circuit.yaml")
    assert FAULT.head in circuit.heads
    assert circuit.provenance["kind"] == "traced" and circuit.provenance["named"][0].startswith(
        f"{FAULT.head} restores"
    )
    document = results_io.read(results_io.find(broken.certified, "142"))
    one = document["records"][0]
    assert (one["head"], one["verdict"]) == (str(FAULT.head), "confirmed")
    assert one["restored"] == pytest.approx(1, abs=0.05) and one["interval"][0] > 0.9
    assert document["inputs_sha256"]["02"] == results_io.file_digest(results_io.find(broken.certified, "02"))


def test_the_certificate_says_so(broken) -> None:
    assert (broken.all_calibrations.code, broken.all_calibrations.errors) == (0, "")
    folded = results_io.read(broken.certified / "certificate.json")
    assert folded["tier"] >= 0 and folded["behaviour"]["suite"] == "months"
    assert folded["behaviour"]["carriers"] == results_io.read(results_io.find(broken.certified, "142"))["records"]
    gate = carriers_gate(folded)
    assert gate["verdict"] == "pass" and gate["p"] < 1e-6
    assert confirmation.GATE not in {one["metric"] for one in folded["blocking"].get("1", ())}
    assert f"{FAULT.head} restores 1.0" in broken.all_calibrations.output.replace("0.99", "1.0")
    assert "on the confirmation half: confirmed" in broken.all_calibrations.output


def carriers_gate(folded: dict[str, Any]) -> dict[str, Any]:
    (gate,) = [one for one in folded["preconditions"] if one["metric"] == confirmation.GATE]
    return gate


def test_a_trace_that_names_a_wrong_head_stays_at_tier_0(broken) -> None:
    """Everything else as it was: the same circuit, the same measurements, the same calibrations."""
    assert broken.wrong_head.code == 0 and "nothing measured anew" in broken.wrong_head.output
    (one,) = results_io.read(results_io.find(broken.wrong, "142"))["records"]
    assert (one["head"], one["verdict"]) == (WRONG, "refuted") and one["interval"][1] < 0.1
    folded, before = (results_io.read(folder / "certificate.json") for folder in (broken.wrong, broken.certified))
    gate = carriers_gate(folded)
    assert folded["tier"] == 0 and gate["verdict"] == "fail" and WRONG in gate["reasons"][0]
    new = {one["metric"] for one in folded["blocking"]["1"]} - {
        one["metric"] for one in before["blocking"].get("1", ())
    }
    assert new == {confirmation.GATE}
    assert folded["rows"] == before["rows"]


def test_one_calibration_confirms_the_heads_and_makes_no_certificate(broken) -> None:
    assert (broken.one_calibration.code, broken.one_calibration.errors) == (0, "")
    measured = {path.name[:2] for path in broken.first.glob("*.json")}
    assert {"01", "02", "13"} <= measured and "03" not in measured
    assert not (broken.first / "certificate.json").exists()
    (one, *_) = results_io.read(results_io.find(broken.first, "142"))["records"]
    assert (one["head"], one["verdict"]) == (str(FAULT.head), "confirmed")
    assert "carriers" in broken.one_calibration.output


# --- the intact model and the sham -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["intact", "sham"])
def test_neither_the_intact_model_nor_a_sham_fails_anywhere(kind, suite, model, tmp_path) -> None:
    failed, group = failures_of(suite, model(kind), tmp_path)
    assert (failed, group.pairs) == (set(), ())


@pytest.fixture(scope="module")
def control(tmp_path_factory) -> Suite:
    """A cut of the catalogue's suite: the intact model's failures on it are enough to trace."""
    folder = tmp_path_factory.mktemp("control")
    declared = yaml.safe_load((declaration.CATALOGUE / CONTROL / declaration.FILE).read_text())
    declared["id"] = "cut"
    declared["generator"]["params"] |= {"contents": CONTENTS}
    (folder / declaration.FILE).write_text(yaml.safe_dump(declared))
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)))
    return declaration.load(folder)


@pytest.fixture(scope="module")
def on_control(control, model, tmp_path_factory) -> Callable[[str], tuple[SuitePairs, dict[str, hypothesis.Carrier]]]:
    """on_control(kind): the failures of a model on the control suite, and the heads named from them."""

    @cache
    def examine(kind: str) -> tuple[SuitePairs, dict[str, hypothesis.Carrier]]:
        settings = model(kind)
        _, group = failures_of(control, settings, tmp_path_factory.mktemp(kind))
        study = studies.prepare(models.load(settings), task.build(group, None), {**SIZES, "discovery": 24}, seed=0)
        found = hypothesis.carriers(difference.trace(study, study.discovery), SETTINGS)
        return group, {carrier.head: carrier for carrier in found}

    return examine
