"""What a run was made with: all of it in the record and the results, and said in the terminal where something is missing."""

from __future__ import annotations

import io
import os
import subprocess

import pytest
from rich.console import Console

import results_io
from suites import runner, summary
from suites.item import Item
from suites.log import chain, environment, generations
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

IDENTITY = {"weights": "aa", "device": "cpu", "dtype": "float32"}
EXECUTION = {"batch": {"rows": 4, "memory_mib": 64}, "threads": 3}
CODE = {"code_version": "1", "python": "3", "torch": "2", "git_sha": "ab", "git_changed": False}
SUITE = scripted.suite([Item(f"i{k}", f"prompt {k}") for k in range(24)])


@pytest.fixture
def code(monkeypatch):
    """What is known of the code, to be changed by a test."""
    known = dict(CODE)
    monkeypatch.setattr(environment, "_of_code", lambda: dict(known))
    return known


def test_everything_known_is_reproducible(code):
    found = environment.of_asking(IDENTITY, EXECUTION)
    assert (found["unknown"], found["reproducible"]) == ([], True)
    assert (found["model_hash"], found["device"], found["dtype"]) == ("aa", "cpu", "float32")
    assert (found["batch"], found["threads"], found["git_sha"]) == ({"rows": 4, "memory_mib": 64}, 3, "ab")


@pytest.mark.parametrize("missing", ["weights", "device", "dtype", "batch", "git_sha", "torch"])
def test_anything_unknown_is_named_and_not_reproducible(missing, code):
    code |= {missing: None} if missing in code else {}
    identity, execution = ({k: v for k, v in one.items() if k != missing} for one in (IDENTITY, EXECUTION))
    found = environment.of_asking(identity, execution)
    assert (found["unknown"], found["reproducible"]) == ([{"weights": "model_hash"}.get(missing, missing)], False)


def test_threads_are_the_models_or_those_of_the_machine(code, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment.of_asking(IDENTITY, EXECUTION)["threads"] == 3
    assert environment.of_asking(IDENTITY, {})["threads"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment.of_asking(IDENTITY, {})["threads"] == os.cpu_count()


def test_code_that_differs_from_its_commit_is_not_reproducible(tmp_path, monkeypatch):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    def found():
        environment._of_code.cache_clear()
        return environment.of_asking(IDENTITY, EXECUTION)

    environment.code_version()  # of the real code, whose digest is kept
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    try:
        assert {"git_sha", "git_changed"} <= set(found()["unknown"])
        git("init")
        (tmp_path / "code.py").write_text("a = 1\n")
        git("add", ".")
        git("commit", "-m", "one")
        (tmp_path / "results.json").write_text("{}")  # no code that git knows
        clean = found()
        assert (clean["git_sha"], clean["git_changed"]) == (git("rev-parse", "HEAD").strip(), False)
        (tmp_path / "code.py").write_text("a = 2\n")
        changed = found()
        assert (changed["git_changed"], changed["reproducible"]) == (True, False)
        assert clean["reproducible"] is (clean["unknown"] == [])
    finally:
        environment._of_code.cache_clear()


def ran(folder, identity=IDENTITY, execution=EXECUTION):
    model = ScriptedModel({item.prompt: "fine" for item in SUITE.items}, identity=identity)
    model.execution = execution
    found = runner.run([SUITE], model, folder, say=lambda line: None)
    stream = io.StringIO()
    summary.show(found, Console(file=stream, width=100))
    said = [line for line in stream.getvalue().splitlines() if "eproducible" in line]
    return results_io.read(folder / "103_constraint.json")["environment"], said


def test_results_and_summary_of_a_reproducible_run(tmp_path, code):
    found, said = ran(tmp_path)
    (asking,) = found["asking"]
    assert (found["reproducible"], found["unknown"], said) == (True, [], [])
    assert (asking["batch"], asking["threads"], asking["git_sha"]) == ({"rows": 4, "memory_mib": 64}, 3, "ab")
    assert found["seeds"] == {"sampling": 0}
    (started,) = [one for one in chain.read(tmp_path / generations.NAME) if one["kind"] == "run_started"]
    assert started["environment"] == asking


def test_results_and_summary_say_what_is_missing(tmp_path, code):
    found, said = ran(tmp_path / "unknown", {"weights": "aa"})
    assert (found["reproducible"], found["unknown"]) == (False, ["device", "dtype"])
    assert said == ["Not reproducible from its record alone: device, dtype unknown"]
    code["git_changed"] = True
    found, said = ran(tmp_path / "changed")
    assert (found["reproducible"], found["unknown"]) == (False, [])
    assert said == ["Not reproducible from its record alone: the code had changes that are not committed"]


def test_the_environment_of_a_run_is_that_of_its_outputs(tmp_path, code):
    """Asked once, written again by later code: what was asked stays as it was, and the file the same."""
    ran(tmp_path)
    before = (tmp_path / "103_constraint.json").read_bytes()
    code["git_sha"] = "cd"
    ran(tmp_path, execution={**EXECUTION, "threads": 9})
    assert (tmp_path / "103_constraint.json").read_bytes() == before


def test_a_run_that_goes_on_elsewhere_has_both_environments(tmp_path, code):
    path = tmp_path / generations.NAME
    for threads in (3, 3, 9):
        with generations.GenerationLog(path, IDENTITY, "scripted", 0, {**EXECUTION, "threads": threads}) as opened:
            (run,) = [opened.begin(SUITE, 24, {})]
    assert [one["threads"] for one in run.environments] == [3, 9]
