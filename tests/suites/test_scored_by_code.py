"""Suites whose scorer runs code: from outputs to result 185, what is recorded, what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
import yaml

import results_io
from meridian.commands import suites as suites_command
from results_io import UserError
from suites import declaration, gate, judgement, lock, repeats, runner
from suites.execution import execution_record, problems, scoring
from suites.execution.execution_record import ExecutionRecord
from suites.execution.sandbox import CannotStart
from suites.log import generations
from suites.statistics import passing
from tests.commandline import command
from tests.suites import containers, solutions
from tests.suites.scripted import ScriptedModel

SUITE = declaration.load("x01_small_functions")


IDENTITY = {"kind": "process", "isolation": "none", "network": "open"}


class Here:
    """A sandbox for programs of ours: they run in the test itself."""

    def __init__(self, starts=True):
        self.identity = IDENTITY
        self.starts, self.loaded, self.waited = starts, [], []

    @contextlib.contextmanager
    def session(self, seconds):
        if not self.starts:
            raise CannotStart("no daemon")
        names = {}

        class Session:
            def ask(inner, request, seconds):
                self.waited.append((request["do"], seconds))
                try:
                    if request["do"] == "load":
                        self.loaded.append(request["program"])
                        exec(request["program"], names)
                        return {"value": True}
                    if request["do"] == "call":
                        return {"value": json.loads(json.dumps(names["solution"](*request["args"])))}
                    return {"value": "3"}
                except Exception as error:
                    return {"raised": type(error).__name__, "why": str(error)}

        yield Session()


class Bar:
    def expect(self, pairs):
        pass

    def advance(self, pairs):
        pass


def right(item, sample):
    """Whether the scripted model solves an item: three of four at temperature 0; of samples as many as its place modulo 11."""
    place = list(SUITE.by_id).index(item.id)
    return place % 4 != 0 if sample is None else sample < place % 11


class Writer(ScriptedModel):
    def _answer(self, request):
        item = next(one for one in SUITE.items if one.prompt == request.prompt)
        solved = right(item, request.sample if request.temperature else None)
        self.script[request.prompt] = solutions.RIGHT[item.id] if solved else solutions.WRONG
        return super()._answer(request)


def run(folder, box):
    said = []

    def executor(suite, recorded):
        with ExecutionRecord(folder / execution_record.NAME) as known:
            return scoring.execute(suite, recorded, box, known, Bar(), 9.0)

    made = runner.run([SUITE], Writer({}), folder, say=said.append, executor=executor)
    return made.suites[0], said


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, box = tmp_path_factory.mktemp("code"), Here()
    return folder, box, *run(folder, box)


def test_programs_that_pass_every_test_are_right(finished):
    folder, _, judged, said = finished
    assert judged.counts == {"failed": 6, "passed": 18, "unknown": 0, "error": 0} and said == []
    document = results_io.read(folder / "185_code.json")
    records = {one["metric_id"].removeprefix("X.code.x01_small_functions."): one for one in document["records"]}
    assert records["failure_rate"]["value"] == 0.25 and records["failure_rate"]["family"] == "X"
    assert records["rate_failed"]["value"] + records.get("rate_error", {"value": 0})["value"] == 0.25
    scored = gate.read(folder).suites[SUITE.id]
    assert sum(item.outcomes["accuracy"] for item in scored.values()) == 18
    lines = [json.loads(line) for line in (folder / judgement.NAME).read_text().splitlines()]
    assert all(line["sandbox"] == IDENTITY and len(line["outcomes"]) == 11 for line in lines)
    assert set(lines[1]["outcomes"][0]["tests"].values()) == {"passed"}


@pytest.mark.slow
def test_real_containers_give_the_verdicts_of_the_programs_themselves(finished, tmp_path):
    """The programs of a scripted model, each in a container of its own."""
    box = containers.found({"memory_mib": 512, "processes": 64})
    judged, said = run(tmp_path, box)
    _, _, here, _ = finished
    assert (judged.counts, said) == ({"failed": 6, "passed": 18, "unknown": 0, "error": 0}, [])
    value = {name: (one.value, one.n) for name, one in judged.estimates.items()}
    assert value == {name: (one.value, one.n) for name, one in here.estimates.items()}
    ran = execution_record.read(tmp_path / execution_record.NAME)
    assert {one["sandbox"]["image"] for one in ran} == {box.identity["image"]} and len(ran) > 24


def test_samples_give_pass_at_k_of_1_5_and_10(finished):
    _, _, judged, _ = finished
    found = repeats.estimates(judged)
    attempts = [(10, min(10, place % 11)) for place in range(24)]
    for k in (1, 5, 10):
        own = found[f"pass_at_k[leg=sampled,k={k}]"]
        assert own.value == pytest.approx(passing.pass_at_k(attempts, k).value) and own.detail["temperature"] == 0.8
        assert own.ci is not None and own.n == 24
    assert found["pass_hat_k[leg=sampled,k=10]"].value == pytest.approx(sum(c == 10 for _, c in attempts) / 24)


def test_what_was_run_is_recorded_and_not_run_again(finished):
    folder, box, judged, _ = finished
    before, ran = (folder / judgement.NAME).read_bytes(), len(box.loaded)
    assert len(set(box.loaded)) == ran  # equal programs ran once
    again, _ = run(folder, box)
    assert len(box.loaded) == ran and (folder / judgement.NAME).read_bytes() == before
    (derived,) = judgement.derive(folder / generations.NAME, [SUITE])
    assert derived.counts == again.counts == judged.counts


def test_a_sandbox_that_does_not_start_says_nothing_of_the_model_and_is_tried_again(tmp_path):
    judged, said = run(tmp_path, Here(starts=False))
    assert judged.counts == {"failed": 0, "passed": 0, "unknown": 0, "error": 24}
    assert "programs were not run and are tried again next time: the sandbox did not start: no daemon" in said[0]
    assert judged.estimates["failure_rate"].status == "error"
    again, _ = run(tmp_path, Here())
    assert again.counts["passed"] == 18


@pytest.mark.parametrize(("scorer", "seconds"), [({}, 5.0), ({"timeout": 2.5}, 2.5)])
def test_a_test_has_5_seconds_unless_the_suite_says_otherwise(scorer, seconds, tmp_path):
    folder, box = (
        declared(tmp_path / "s", scorer={"kind": "code", "tests": "tests.jsonl", "entry": "f", **scorer}),
        Here(),
    )
    tests = [{"args": [], "returns": 1}, {"args": [], "returns": 2}]
    (folder / "tests.jsonl").write_text(json.dumps({"item": "one", "tests": tests}) + "\n")
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)))

    def executor(suite, recorded):
        with ExecutionRecord(tmp_path / execution_record.NAME) as known:
            return scoring.execute(suite, recorded, box, known, Bar(), 9.0)

    model = ScriptedModel({"def f():\n": "    return 1\n"})
    runner.run([declaration.load(folder)], model, tmp_path / "run", executor=executor)
    assert box.waited == [("hello", 9.0), ("load", seconds), ("call", seconds), ("call", seconds)]


@pytest.mark.parametrize(
    ("starts", "answers", "code"), [(True, True, 0), (False, True, 3), (True, False, 3), (False, False, 3)]
)
def test_a_run_without_any_verdict_ends_with_the_code_3_and_keeps_what_was_generated(
    starts, answers, code, tmp_path, monkeypatch
):
    model, box = Writer({}) if answers else ScriptedModel({}), Here(starts)
    monkeypatch.setattr("suites.models.open_model", lambda settings: model)
    monkeypatch.setattr("suites.execution.sandbox.open_sandbox", lambda kind, settings: box)
    found = command("suite=x01_small_functions", "code.allow=true", f"results={tmp_path}")
    sentence = (
        "No case has a verdict, because every call failed or no program could be run; what was generated is kept, and"
    )
    assert (found.code, found.errors, sentence in found.said) == (code, "", code == 3)
    (path,) = tmp_path.rglob(generations.NAME)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = [line for line in lines if line["kind"] == "generation" and line["error"] is None]
    assert len(said) == (264 if answers else 0) and path.with_name("185_code.json").is_file()


def test_one_case_with_a_verdict_and_suites_that_do_not_apply_are_no_run_without_any(finished, tmp_path):
    _, _, judged, _ = finished
    unjudged, _ = run(tmp_path, Here(starts=False))
    not_applicable = dataclasses.replace(judged, applies=False, cases=())
    assert suites_command.nothing_judged([unjudged, not_applicable])
    assert not suites_command.nothing_judged([unjudged, judged])
    assert not suites_command.nothing_judged([not_applicable])


def test_without_an_executor_nothing_is_right_or_wrong_and_it_is_said(tmp_path):
    said = []
    judged = runner.run([SUITE], Writer({}), tmp_path, say=said.append).suites[0]
    assert judged.counts["error"] == 24 and "is scored by running code, which nothing does here" in said[0]


# --- pass@k and pass^k: the specification's oracles -------------------------------------------------------------------


def test_pass_at_k_and_pass_hat_k_of_the_specification():
    assert passing.pass_at_k([(10, 3)], 2).value == pytest.approx(0.533333, abs=5e-7)  # and not 1 - (1 - .3)^2 = .51
    assert passing.pass_hat_k([(10, 3)], 2).value == pytest.approx(0.066667, abs=5e-7)
    assert passing.pass_at_k([(20, 5)], 10).value == pytest.approx(0.983746, abs=5e-7)
    assert passing.pass_hat_k([(20, 5)], 10).value == 0
    items = [(5, 2), (5, 5), (5, 0)]
    assert passing.pass_at_k(items, 3).value == pytest.approx(0.633333, abs=5e-7)
    assert passing.pass_hat_k(items, 3).value == pytest.approx(0.333333, abs=5e-7)


# --- declarations and the command line --------------------------------------------------------------------------------


def declared(folder, **changes):
    folder.mkdir(exist_ok=True)
    suite = {
        "id": "mine", "version": "1.0.0", "title": "t", "description": "d", "mode": "X1", "contexts": ["code"],
        "requires": ["generation"], "legs": [{"name": "greedy"}], "trace": {"strategy": "none"}, "minimum": 1, "gate": None,
        "scorer": {"kind": "code", "tests": "tests.jsonl", "entry": "f"},
        "items": [{"id": "one", "prompt": "def f():\n"}], **changes,
    }  # fmt: skip
    (folder / declaration.FILE).write_text(yaml.safe_dump(suite))
    return folder


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ('{"item": "one", "tests": []}', "line 1"),
        ('{"item": "one", "tests": [{"args": []}]}', "line 1: test 1 needs either returns or raises"),
        ('{"item": "two", "tests": [{"args": [], "returns": 1}]}', "has no tests for the item one"),
        (
            '{"item": "one", "tests": [{"args": [], "returns": 1, "name": "a"}, {"args": [], "returns": 2, "name": "a"}]}',
            "two",
        ),
        ("nothing", "line 1 is not JSON"),
        (None, "does not exist; expected the tests that scorer.tests names"),
    ],
)
def test_tests_of_another_form_are_refused(tmp_path, tests, said):
    folder = declared(tmp_path / "s")
    if tests is not None:
        (folder / "tests.jsonl").write_text(tests)
    with pytest.raises(UserError, match=said):
        lock.freeze(declaration.read(folder))


def test_tests_are_frozen_with_the_items_and_an_edit_is_found(tmp_path):
    folder = declared(tmp_path / "s")
    (folder / "tests.jsonl").write_text('{"item": "one", "tests": [{"args": [1], "returns": 2}]}\n')
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)))
    assert problems.of_item(declaration.load(folder).items[0])[0].returns == 2
    (folder / "tests.jsonl").write_text('{"item": "one", "tests": [{"args": [1], "returns": 3}]}\n')
    with pytest.raises(UserError, match="an item was edited without a new version"):
        declaration.load(folder)
    with pytest.raises(UserError, match="expected 'code'"):
        changed = declared(tmp_path / "t", scorer={"kind": "exact"}, items=[{"id": "one", "prompt": "x", "expect": {
            "tests": [{"name": "a", "args": [], "returns": 1}]}}])  # fmt: skip
        read = declaration.read(changed)
        declaration.build(read, lock.parse(lock.freeze(read), read))


def test_code_is_refused_unless_it_is_allowed_and_never_by_root_without_a_container(tmp_path, monkeypatch):
    import os

    results = tmp_path / "results"
    asked = ("suite=x01_small_functions", f"results={results}")
    refused = command(*asked)
    assert refused.code == 2 and "code.allow is false; code.allow=true runs it" in refused.errors
    assert refused.errors.count("\n") == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    root = command(*asked, "code.allow=true", "code.sandbox=process")
    assert root.code == 2 and "code.sandbox=process is refused to root" in root.errors
    image = command(*asked, "code.allow=true")
    assert image.code == 2 and "code.image=None is no image by digest" in image.errors
    other = command(*asked, "code.allow=true", "code.sandbox=none")
    assert other.code == 2 and "code.sandbox=none is unknown; use docker, process" in other.errors
    assert not results.exists()
