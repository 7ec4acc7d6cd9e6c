"""Rules against a release: what counts, what is free, and that no edit of the released file goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import code_digest
from calibrations import rules
from calibrations.rules import Release, RuleDifference, Rules, Standing
from results_io import UserError

SETTINGS = {
    "calibration": {"c11": {"max_sigma": 0.1, "families": [{"number": "02", "per_prompt": True}]}},
    "certificate": {"names": ["proposed", "certified"]},
    "measurement": {"regardless": False, "seed": 0, "noise_scale": 1.0},
    "prompts": {"evaluation": 400},
    "seed": 0,
    "task": {"name": "ioi", "bos": None, "group": "one"},
    "engine": {"name": "auto", "rows_per_forward": 512, "tolerance": {"float32": 1e-4}},
    "model": {"name": "pocket"},
    "circuit": {"kind": "stored"},
    "select": "all",
    "results": "results",
    "figures": {"width": "single"},
}
KEYS = [
    *("calibration.c11.families", "calibration.c11.max_sigma", "certificate.names", "engine.tolerance.float32"),
    *(
        "measurement.noise_scale",
        "measurement.regardless",
        "measurement.seed",
        "prompts.evaluation",
        "seed",
        "task.bos",
    ),
]


def changed(**values) -> dict:
    """The settings with some changed; `__` stands for a dot."""
    settings = json.loads(json.dumps(SETTINGS))
    for name, value in values.items():
        *path, last = name.split("__")
        section = settings
        for part in path:
            section = section[part]
        section[last] = value
    return settings


@pytest.fixture
def released(tmp_path, monkeypatch) -> Path:
    """A release of SETTINGS and today's code, in a file of its own; task=other has a seed of its own and no task.bos."""
    own = {"other": {"prompts.evaluation": 100, "task.bos": rules.ABSENT}}
    path = tmp_path / "released_rules.json"
    path.write_text(Release("0.3", rules.rules_of(SETTINGS), own).text, encoding="utf-8")
    monkeypatch.setattr(rules, "RELEASED", path)
    return path


def test_rules_are_settings_by_key_without_what_only_chooses_the_claim() -> None:
    found = rules.rules_of(SETTINGS)
    assert list(found.settings) == KEYS
    assert found.settings["calibration.c11.families"] == [{"number": "02", "per_prompt": True}]


def test_the_code_is_that_of_calibrations_recipes_engine_and_measurements() -> None:
    files = set(code_digest.of_each("rules"))
    assert {"calibrations/certificate.py", "calibrations/statistics/ratio.py", "circuits/interventions.py"} <= files
    assert {"circuits/engine/fused.py", "circuits/measurements/minimality.py", "circuits/prompts.py"} <= files
    assert {"circuits/tasks/ioi.py", "kernels/suffix_attention.py", "suites/bridge/confirmation.py"} <= files
    assert not [name for name in files if name.startswith(("meridian", "circuits/discovery", "circuits/planted"))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"task__name": "mine", "task__group": "other", "engine__rows_per_forward": 1, "engine__name": "lens"}, []),
        (
            {"model__name": "gpt2", "circuit__kind": "random", "select": "c11", "results": "x", "figures__width": "x"},
            [],
        ),
        ({"measurement__noise_scale": 1, "calibration__c11__max_sigma": 0.1000000000001}, []),  # the same number
        ({"seed": 1}, [RuleDifference("seed", 1, 0)]),
        ({"prompts__evaluation": 40}, [RuleDifference("prompts.evaluation", 40, 400)]),
        ({"measurement__regardless": True}, [RuleDifference("measurement.regardless", True, False)]),
        ({"measurement__regardless": 0}, [RuleDifference("measurement.regardless", 0, False)]),
        ({"engine__tolerance__float32": 10}, [RuleDifference("engine.tolerance.float32", 10, 1e-4)]),
        ({"task__bos": True}, [RuleDifference("task.bos", True, None)]),
        ({"calibration__mine": {}}, [RuleDifference("calibration.mine", {}, "absent")]),
        (
            {"certificate": {"tiers": [1]}},
            [
                RuleDifference("certificate.names", "absent", ["proposed", "certified"]),
                RuleDifference("certificate.tiers", [1], "absent"),
            ],
        ),
    ],
)
def test_every_difference_is_listed_by_key(values, expected, released) -> None:
    found = rules.standing(changed(**values), "ioi")
    assert list(found.differences) == expected
    assert found.released == (not expected) and found.version == "0.3"
    assert (found.sha256 == rules.rules_of(SETTINGS).sha256) == (not expected)


@pytest.mark.parametrize(
    ("templates", "reference", "keys"),
    [
        ("default", 360, []),
        ("more", 360, []),
        ("more", 840, []),  # as many as it takes
        ("more", 120, ["prompts.reference"]),
        ("more", True, ["prompts.reference"]),
        ("default", 840, ["prompts.reference"]),
        ("few", 360, ["prompts.templates"]),
    ],
)
def test_the_larger_grammar_is_released_beside_the_default_one(templates, reference, keys) -> None:
    def of(templates: str, reference: int) -> rules.Rules:
        return rules.Rules({"prompts.templates": templates, "prompts.reference": reference, "seed": 0}, {})

    found = of(templates, reference).differences(of("default", 360))
    assert [one.key for one in found] == keys


def test_a_task_has_the_defaults_that_ship_with_it(released) -> None:
    own = changed(prompts__evaluation=100)
    del own["task"]["bos"]
    assert rules.standing(own, "other").released
    assert [one.text for one in rules.standing(SETTINGS, "other").differences] == [
        "prompts.evaluation: 400 (released: 100)",
        "task.bos: null (released: absent)",
    ]
    assert [one.key for one in rules.standing(own, "ioi").differences] == ["prompts.evaluation", "task.bos"]


def test_a_task_of_ones_own_is_no_changed_rule_and_a_changed_one_is(released, monkeypatch) -> None:
    code = dict(code_digest.of_each("rules"))
    monkeypatch.setattr(code_digest, "of_each", lambda stored: {**code, "circuits/tasks/color.py": "1"})
    assert rules.standing(SETTINGS, "color").released
    changed_files = {"circuits/tasks/ioi.py": "1", "calibrations/mine.py": "2"}
    monkeypatch.setattr(code_digest, "of_each", lambda stored: {**code, **changed_files})
    found = rules.standing(SETTINGS, "ioi").differences
    assert [one.key for one in found] == ["code calibrations/mine.py", "code circuits/tasks/ioi.py"]


def test_changed_new_and_missing_code_is_named_by_its_file() -> None:
    own = Rules({}, {"calibrations/a.py": "1", "calibrations/b.py": "2", "circuits/c.py": "3"})
    found = own.differences(
        replace(own, code={"calibrations/a.py": "1", "calibrations/b.py": "9", "kernels/d.py": "4"})
    )
    assert [one.text for one in found] == [
        "code calibrations/b.py: 2 (released: 9)",
        "code circuits/c.py: 3 (released: absent)",
        "code kernels/d.py: absent (released: 4)",
    ]
    lines = Standing("0.3", "x", (RuleDifference("seed", 1, 0), *found)).lines
    assert lines == [
        "rules: changed from released 0.3",
        "seed: 1 (released: 0)",
        "code: calibrations/b.py, circuits/c.py, kernels/d.py",
    ]


def test_a_changed_line_of_code_changes_the_digest_of_its_file_alone(tmp_path, monkeypatch) -> None:
    for name, text in (("calibrations/a.py", "x = 1\n"), ("circuits/b.py", "y = 2\n"), ("meridian/c.py", "z = 3\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code_digest, "ROOT", tmp_path)
    monkeypatch.setattr(code_digest.files, "__defaults__", (tmp_path,))
    before = code_digest.of_each.__wrapped__("rules")
    (tmp_path / "calibrations/a.py").write_text("x = 1  # why\n")
    (tmp_path / "meridian/c.py").write_text("z = 4\n")
    assert code_digest.of_each.__wrapped__("rules") == before
    (tmp_path / "calibrations/a.py").write_text("x = 10\n")
    after = code_digest.of_each.__wrapped__("rules")
    assert list(before) == ["calibrations/a.py", "circuits/b.py"]
    assert [name for name in before if before[name] != after[name]] == ["calibrations/a.py"]


def test_a_release_reads_back_and_has_a_line_for_each_setting(released) -> None:
    found = Release.read()
    assert found.rules == rules.rules_of(SETTINGS) and found.version == "0.3"
    lines = released.read_text().splitlines()
    assert '    "prompts.evaluation": 400,' in lines
    assert len(lines) == len(KEYS) + len(found.rules.code) + 11  # brackets, version, digest, one task


@pytest.mark.parametrize("number", [400, 100])
def test_a_released_file_edited_by_hand_is_refused(number, released) -> None:
    released.write_text(released.read_text().replace(str(number), "41"))
    with pytest.raises(UserError, match=r"edited by hand.*or release rules anew: python -m scripts\.release_rules"):
        rules.standing(SETTINGS, "ioi")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "0.3"}'])
def test_a_file_without_rules_is_refused(text, released) -> None:
    released.write_text(text)
    with pytest.raises(UserError, match="does not hold released rules"):
        Release.read()
    released.unlink()
    with pytest.raises(UserError, match="does not hold released rules"):
        Release.read()


def test_a_standing_reads_back_from_the_certificate() -> None:
    standing = Standing("0.3", "x", (RuleDifference("certificate.names", ["a"], "absent"),))
    assert Standing.read(json.loads(json.dumps({"rules": standing.to_dict()}))) == standing
    assert (Standing.read({}).word, Standing.read({}).released) == ("unknown", False)
    assert [Standing("0.3", "x").word, standing.word] == ["released 0.3", "changed"]


def test_the_next_version_follows_the_highest_in_the_file(released) -> None:
    text = released.read_text()
    assert rules.version_after(text) == "0.4" and rules.version_after("") == "0.1"
    merged = f"<<<<<<< ours\n{text}=======\n{text.replace('0.3', '0.10')}>>>>>>> theirs\n"
    assert rules.version_after(merged) == "0.11"
    assert rules.version_after(text, "1.0") == "1.0"
    for asked in ("0.3", "0.2", "x", "1", "1.0.0", "0.-4"):
        with pytest.raises(
            UserError, match=f"version {asked} of the rules does not follow 0.3; use 0.4 or a higher one"
        ):
            rules.version_after(text, asked)
