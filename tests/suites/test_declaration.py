"""Declarations: what is read, and one sentence with file and key path for everything that is wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

import results_io
from suites import declaration, schema
from suites.item import SamplingLeg

GOOD = """\
id: mine
version: 1.0.0
title: Mine
description: A suite of one's own.
mode: A3
contexts: [code]
requires: [generation]
items:
  - {id: one, prompt: "Say yes", answers: ["yes"]}
scorer: {kind: exact}
parameters: {must: ["^yes"]}
legs:
  - {name: greedy, temperature: 0, max_tokens: 4, stop: ["."]}
trace: {strategy: none}
minimum: 1
gate: null
"""


def problem(tmp_path: Path, text: str) -> str:
    """The one sentence about a declaration, without the folder."""
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "suite.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(results_io.UserError) as caught:
        declaration.read(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert "suite.yaml" in message
    return message


def edited(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_the_schemas_are_schemas():
    for name in ("suite", "item"):
        jsonschema.Draft202012Validator.check_schema(schema.published(name))
        assert schema.published(name)["additionalProperties"] is False


def test_a_good_declaration_is_read(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "suite.yaml").write_text(GOOD)
    read = declaration.read(folder)
    assert read.data["legs"][0]["stop"] == ["."]
    assert read.scorer == {"kind": "exact"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("temperature: 0", "temperature: hot", "legs[0].temperature is 'hot'; expected a number of at least 0"),
        ("temperature: 0", "temperature: -1", "legs[0].temperature is -1; expected a number of at least 0"),
        ("temperature: 0", "temperature: .nan", "legs[0].temperature is nan; expected a finite number"),
        ("temperature: 0", "temprature: 0", "the key legs[0].temprature is not known; did you mean temperature? known: "),
        ("minimum: 1", "minimun: 1", "the key minimun is not known; did you mean minimum? known: "),
        ("minimum: 1\n", "", "the key minimum is missing; expected a whole number of at least 1; add it"),
        ("minimum: 1", "minimum: 1.5", "minimum is 1.5; expected a whole number of at least 1"),
        ("minimum: 1", "minimum: true", "minimum is True; expected a whole number of at least 1"),
        ("version: 1.0.0", "version: 1.0", "version is 1.0; expected a text of three numbers such as \"1.0.0\""),
        ("version: 1.0.0", "version: 2020-01-01", "version is datetime.date(2020, 1, 1); expected a text or a number; put it"),
        ("mode: A3", "mode: A17", "mode is 'A17'; expected the failure mode: one of A1, A2,"),
        ("[code]", "[coding]", "contexts[0] is 'coding'; expected a deployment context: one of "),
        ("[code]", "[code, code]", "contexts names something twice"),
        ("[code]", "[]", "contexts is []; expected a list of the deployment contexts"),
        ("[generation]", "[generations]", "; did you mean generation?"),
        ("kind: exact", "kind: exakt", "scorer.kind is 'exakt'; expected a way of comparing an output with the answers: one of"),
        ("kind: exact", "kind: exact, tolerance: 1", "scorer is not one of kind 'exact'"),
        ("must:", "most:", "the key parameters.most is not known; did you mean must?"),
        ("gate: null", "gate: {failure_rate: 2, reason: no}", "gate.failure_rate is 2; expected a share from 0 to 1"),
        ("gate: null", "gate: {failure_rate: 0.1}", "the key gate.reason is missing"),
        ("strategy: none", "strategy: nothing", "trace.strategy is 'nothing'; expected how a failing prompt"),
        ('prompt: "Say yes"', 'promt: "Say yes"', "the key items[0].promt is not known; did you mean prompt?"),
        ('answers: ["yes"]', "answers: [yes]", "items[0].answers[0] is True; expected a text that is not empty"),
        ("id: one", "id: one two", "items[0].id is 'one two'; expected a name of letters"),
        ("trace:", "generator: {name: padding, params: {}, seed: 0}\ntrace:", "both generator and items; expected one of them"),
        ("stop:", "name:", "is not YAML at line 13, column 51: the key 'name' stands there twice"),
        ("id: mine\n", "id: mine\nid: yours\n", "is not YAML at line 2, column 1: the key 'id' stands there twice"),
        ("contexts: [code]", "contexts: [code", "is not YAML at line 7, column 9: expected"),
        ("id: mine", "1: mine", "the document has the key 1; expected a text as key"),
    ],
)  # fmt: skip
def test_one_sentence_with_the_key_path(tmp_path, old, new, said):
    assert said in problem(tmp_path, edited(old, new))


def test_a_document_that_is_none(tmp_path):
    assert "holds None; expected keys with values" in problem(tmp_path, "")
    assert "holds ['a']; expected keys with values" in problem(tmp_path, "- a")
    assert "is not YAML" in problem(tmp_path, "a: [")
    (tmp_path / "mine" / "suite.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(results_io.UserError, match=r"is not UTF-8 text \(byte 0\)"):
        declaration.read(tmp_path / "mine")


def test_merge_keys_take_over_and_may_be_overridden(tmp_path):
    text = GOOD.replace("  - {name: greedy,", "  - &first {name: greedy,").replace(
        "trace:", "  - {<<: *first, name: sampled, temperature: 1}\ntrace:"
    )
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "suite.yaml").write_text(text)
    legs = declaration.read(folder).data["legs"]
    assert [(leg["name"], leg["temperature"], leg["max_tokens"]) for leg in legs] == [
        ("greedy", 0, 4),
        ("sampled", 1, 4),
    ]


def test_repeated_leg_names(tmp_path):
    again = GOOD.replace("trace:", "  - {name: greedy}\ntrace:")
    assert "legs[1].name is 'greedy' again" in problem(tmp_path, again)


def test_unknown_suites_and_empty_folders(tmp_path):
    with pytest.raises(
        results_io.UserError, match=r"there is no suite 'a10_paddin_ioi'.*did you mean a10_padding_ioi\? known: a01_"
    ):
        declaration.load("a10_paddin_ioi")
    with pytest.raises(results_io.UserError, match=r"has no suite.yaml; expected the folder of a suite"):
        declaration.load(tmp_path)


def test_a_pattern_that_does_not_compile_is_found_before_any_run(tmp_path):
    from scripts import freeze_suites

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "suite.yaml").write_text(edited('"^yes"', '"(yes"'))
    with pytest.raises(results_io.UserError, match=r"suite.yaml: .*'\(yes' is not a regular expression"):
        freeze_suites.freeze(folder)


def test_a_suite_of_ones_own_is_a_folder_anywhere(tmp_path):
    from scripts import freeze_suites

    folder = tmp_path / "deep" / "mine"
    folder.mkdir(parents=True)
    (folder / "suite.yaml").write_text(GOOD)
    assert freeze_suites.main([str(folder)]) == 0
    for name in (folder, str(folder), folder / "suite.yaml"):
        suite = declaration.load(name)
        assert (suite.id, suite.mode, suite.minimum, suite.gate) == ("mine", "A3", 1, None)
        assert suite.legs == (SamplingLeg("greedy", 0, 1, 4, (".",)),)
        assert suite.items[0].answers == ("yes",)


def test_names_are_sorted_by_mode():
    modes = [re.match(r"([asx])(\d\d)_", name).groups() for name in declaration.names()]
    assert modes == sorted(modes)  # failure modes, safety suites, then programs


def test_key_paths():
    assert schema.key_path(["legs", 0, "temperature"]) == "legs[0].temperature"
    assert schema.key_path(["a"], "parameters") == "parameters.a"
    assert schema.shown("x" * 100) == "'" + "x" * 56 + "..."


@pytest.mark.slow
def test_errors_do_not_depend_on_the_hash_seed(tmp_path):
    """Two unknown keys: the same one is named in every process."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "suite.yaml").write_text(GOOD + "zeta: 1\nalpha: 1\nbeta: 1\n")
    code = (
        "import sys\nfrom suites import declaration\n"
        "try: declaration.read(__import__('pathlib').Path(sys.argv[1]))\nexcept ValueError as error: print(error)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "the key alpha is not known" in said.pop()


def test_loading_needs_no_torch():
    code = "import sys; from suites import declaration; declaration.load('a10_padding_ioi'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_configs_name_the_catalogue():
    folder = Path(declaration.__file__).parents[1] / "configs" / "suite"
    found = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")}
    assert set(found) == {*declaration.names(), "all", "file", "common"}
    assert all(content["name"] == name for name, content in found.items() if name != "common")


def test_the_published_schema_accepts_the_catalogue_and_is_what_is_on_disk():
    raw = json.loads((Path(schema.__file__).parent / "suite.schema.json").read_text())
    assert raw == schema.published("suite")
    for name in declaration.names():
        schema.check(declaration.read_yaml(declaration.CATALOGUE / name / "suite.yaml"), "suite", name)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("id: mine", 'id: "mine\\n"', "id is 'mine\\n'"),
        ("version: 1.0.0", 'version: "1.0.0\\n"', "version is '1.0.0\\n'"),
        ("{id: one,", '{id: "one\\n",', "items[0].id is 'one\\n'"),
    ],
)
def test_a_name_does_not_end_in_a_line_break(tmp_path, old, new, key):
    assert f"suite.yaml: {key}; expected" in problem(tmp_path, edited(old, new))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mode: A3": "mode: A2", 'must: ["^yes"]': "unit: word", '["yes"]': '["yes"], expect: {max: "5"}'},
            "expect.max is '5'",
        ),
        ({'["yes"]': '["yes"], expect: {must: "^y"}'}, "expect.must is '^y'; expected a list of regular expressions"),
        ({"kind: exact": "kind: numeric"}, "item one: answers has 'yes'; expected a number"),
        (
            {'["yes"]': '["yes"], choices: ["no", "maybe"]'},
            "item one: answers has 'yes'; expected one of its choices, no, maybe",
        ),
    ],
)
def test_an_item_that_cannot_be_judged_is_refused_with_file_and_key(tmp_path, changes, said):
    from scripts import freeze_suites

    text = GOOD
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(results_io.UserError) as caught:
        freeze_suites.freeze(tmp_path)
    message = str(caught.value)
    assert said in message and "suite.yaml" in message and "one" in message and "\n" not in message
