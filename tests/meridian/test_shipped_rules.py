"""Every change of rules releases them: the rules that ship are those in calibrations/released_rules.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrations import rules
from calibrations.rules import Release
from meridian import overrides, shipped_rules
from scripts import release_rules
from tests.commandline import started


@pytest.fixture(scope="module")
def shipped() -> Release:
    return shipped_rules.shipped("9.9")


def test_the_rules_that_ship_are_released() -> None:
    differences = shipped_rules.unreleased()
    assert not differences, (
        "the rules of the certificate changed and were not released; run `python -m scripts.release_rules` and commit "
        f"calibrations/released_rules.json. What changed: {'; '.join(differences)}"
    )


def test_a_run_of_the_defaults_is_under_the_rules_that_ship(shipped) -> None:
    for task in ("ioi", "induction"):
        assert rules.rules_of(started(f"task={task}").settings).differences(shipped.of(task)) == ()
    eased = rules.rules_of(started("certificate.data_reasons=[]", "seed=2").settings).differences(shipped.of("ioi"))
    assert [one.key for one in eased] == ["certificate.data_reasons", "seed"]


@pytest.mark.slow
def test_every_engine_and_circuit_that_ships_leaves_the_rules_alone(shipped) -> None:
    for choice in ("engine=lens", "engine=fused", "circuit=discovered", "circuit=random", "model=planted/sound"):
        assert rules.rules_of(started(choice).settings).differences(shipped.rules) == ()


def test_what_a_task_file_sets_otherwise_is_released_with_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "task").mkdir()
    for name in ("ioi", "mine"):
        (tmp_path / "task" / f"{name}.yaml").write_text("name: x\n")
    composed = overrides.composed
    monkeypatch.setattr(shipped_rules, "TASKS", tmp_path / "task")
    own = {"task=mine": ["task.bos=true", "prompts.evaluation=100"]}
    monkeypatch.setattr(overrides, "composed", lambda given=(): composed(own.get("".join(given), ())))
    found = shipped_rules.shipped("0.4")
    assert found.tasks == {"mine": {"prompts.evaluation": 100, "task.bos": True}}
    monkeypatch.undo()
    run = rules.rules_of(started("task.bos=true", "prompts.evaluation=100").settings)
    assert run.differences(found.of("mine")) == ()
    assert [one.key for one in run.differences(found.of("ioi"))] == ["prompts.evaluation", "task.bos"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch, shipped) -> Path:
    """The released file in a folder of the test."""
    path = tmp_path / rules.RELEASED.name
    monkeypatch.setattr(rules, "RELEASED", path)
    monkeypatch.setattr(shipped_rules, "shipped", lambda version: Release(version, shipped.rules, shipped.tasks))
    return path


def test_the_script_raises_the_version_once_for_each_change(elsewhere, shipped, capsys) -> None:
    assert release_rules.main(["--version", "0.3"]) == 0 and Release.read().version == "0.3"
    before = elsewhere.read_bytes()
    assert release_rules.main([]) == 0 and elsewhere.read_bytes() == before  # nothing changed
    assert release_rules.main(["--check"]) == 0
    capsys.readouterr()

    older = shipped.rules.settings | {"prompts.evaluation": 40}
    elsewhere.write_text(Release("0.3", rules.Rules(older, shipped.rules.code), {"ioi": {"seed": 1}}).text)
    assert release_rules.main(["--check"]) == 1 and Release.read().version == "0.3"
    assert release_rules.main([]) == 0
    found = Release.read()
    assert found == Release("0.4", shipped.rules, shipped.tasks)
    said = capsys.readouterr().out
    assert (
        "prompts.evaluation: 400 (released: 40)\nsettings that task=file makes of them\nsettings that task=ioi makes of them\n"
        in said
    )
    assert said.endswith("Released as 0.4 in released_rules.json.\n")


def test_the_script_heals_a_file_with_both_sides_of_a_merge(elsewhere, shipped) -> None:
    sides = [Release(version, shipped.rules, shipped.tasks).text for version in ("0.5", "0.4")]
    elsewhere.write_text(f"<<<<<<< HEAD\n{sides[0]}=======\n{sides[1]}>>>>>>> other\n")
    assert release_rules.main([]) == 0 and Release.read().version == "0.6"


def test_the_script_refuses_a_version_that_was_given_already(elsewhere, capsys) -> None:
    elsewhere.write_text('{\n  "version": "0.3",\n')
    assert release_rules.main(["--version", "0.3"]) == 2
    assert "version 0.3 of the rules does not follow 0.3" in capsys.readouterr().err
