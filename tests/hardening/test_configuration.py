"""Whatever is typed: every setting is known and in its range, or one sentence without a parser's class name and exit code 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
import yaml

import run
from meridian import commandline, overrides, ranges
from meridian.commandline import USER_ERROR
from meridian.context import RunContext
from results_io import UserError
from tests.commandline import ROOT, Outcome, command, started
from tests.hardening.overrides import drawn

FEW, MANY = 6, 600
PARSER = re.compile(
    r"Error\b|Exception|Traceback|omegaconf|hydra\.|full_key|object_type|expecting \{|mismatched|extraneous"
)
CHECKED_WHERE_USED = re.compile(  # texts without a range
    r"(experiment|suite|geometry|judge|preset|tracker|gate|shadow|figures)\..*|"  # refused by their commands
    r"(model|task)\..*|results|select|drift\.(corpus|demo\.snapshots\[\]\.(kind|name))|measurement\.left_out\[\]|"
    r"calibration\..*\.(number|source|field|family|name|notes\[\])|"  # of a measurement, which may be one's own
    r"calibration\.c13\.length_groups\[\]|certificate\.(names|data_reasons)\[\]"  # what groups and tiers are called; reasons
)
LONGEST = 700  # characters of a refusal
NOT_OURS = {"hydra", "preset", "ranges.yaml"}  # launchers' own settings; other settings' values; the ranges themselves


@pytest.fixture
def only_started() -> Iterator[list[RunContext]]:
    """Commands that end once their settings are accepted: the contexts of those that were."""
    accepted: list[RunContext] = []

    def end(context: RunContext) -> int:
        accepted.append(context)
        return 0

    with mock.patch.dict(run.COMMANDS, dict.fromkeys(run.COMMANDS, end)):
        yield accepted


def leaves(section: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all that is no section: a list under its own name, and each of its items as `name[]`."""
    if isinstance(section, dict):
        for key, value in section.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(section, list):
        yield name, section
        for value in section:
            yield from leaves(value, f"{name}[]")
    else:
        yield name, section


def shipped() -> Iterator[tuple[str, Any]]:
    """Every value in configs/."""
    for path in sorted(overrides.CONFIGS.rglob("*.yaml")):
        group = path.relative_to(overrides.CONFIGS).parts
        if group[0] not in NOT_OURS:
            loaded = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
            settings = {key: value for key, value in loaded.items() if key not in ("defaults", "hydra")}
            yield from leaves(settings, group[0] if len(group) > 1 else "")


def test_every_number_in_configs_has_a_range_and_lies_in_it() -> None:
    numbers = [(name, value) for name, value in shipped() if type(value) in (int, float)]
    assert len(numbers) > 500
    assert [name for name, _ in numbers if ranges.of(name) is None] == []
    assert [(name, value) for name, value in numbers if value not in ranges.of(name)] == []
    words = [(name, value) for name, value in shipped() if isinstance(value, str) and ranges.of(name)]
    outside = [
        (name, value) for name, value in words if ranges.of(name).kind == "one of" and value not in ranges.of(name)
    ]
    assert outside == []


def test_every_text_in_configs_has_a_range_or_is_checked_where_it_is_used() -> None:
    """A new setting of a few words is declared in ranges.yaml, or one of these says why it is not."""
    names = {name for name, value in shipped() if isinstance(value, str) and ranges.of(name) is None}
    assert sorted(name for name in names if not CHECKED_WHERE_USED.fullmatch(name)) == []


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("figures.only", ("circuit", ["circuit", "heads_*"], [], None), (5, True, [1, 2], [["a"]], {"a": "b"})),
        ("experiment.only", (["sound", "backup"], None), ("sound", 5, [5], [["sound"]])),
        ("experiment.methods", (["EAP-IG"], None), ("EAP-IG", [5])),
        ("experiment.facts", ("facts.yaml", None), (5, ["facts.yaml"])),
    ],
)
def test_names_are_texts_or_lists_of_texts(name, allowed, refused) -> None:
    for value in allowed:
        ranges.check(name, value, None)
    for value in refused:
        with pytest.raises(UserError, match=f"^{name}=.*; use "):
            ranges.check(name, value, None)


def test_every_range_is_that_of_some_setting() -> None:
    used = {ranges.of(name) for name, _ in shipped()}
    optional = {"model.intervention.heads[]", "model.intervention.kind", "model.intervention.reference[]"}
    optional |= {"gate.margins.*", "gate.floors.*"}  # by suite: none has one of its own
    idle = [name for name, one in ranges.declared().items() if one not in used and name not in optional]
    assert idle == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("calibration.common.alpha=-1", "=-1 is out of range; use a number above 0 and at most 0.5 (level of a test)"),
        ("calibration.common.faithfulness_low=5", "=5 is out of range; use a number of at least 0 and at most 1 (faithfulness)"),
        ("calibration.c11.max_sigma=1e400", "=inf is not a finite number; use a number of at least 0 and at most 10 "
         "(faithfulness)"),
        ("calibration.c11.max_sigma=nan", "=nan is not a finite number; use a number of at least 0 and at most 10 "
         "(faithfulness)"),
        ("seed=-1", "=-1 is out of range; use a whole number of at least 0 and at most 4294967295 (seed; the generators take 32 "
         "bits)"),
        ("seed=99999999999", "=99999999999 is out of range; use a whole number of at least 0 and at most 4294967295 (seed; the "
         "generators take 32 bits)"),
        ("calibration.c30.seeds=[42,-1]", " holds -1, which is out of range; use a whole number of at least 0 and at most "
         "4294967295 (seed)"),
        ("calibration.c30.seeds=[42,x]", " holds x, which is not possible; use a whole number of at least 0 and at most "
         "4294967295 (seed)"),
        ("calibration.c30.seeds=[]", "=[] is an empty list; write at least one number, for example calibration.c30.seeds=[42, "
         "123, 456, 789, 1337]"),
        ("measurement.llc.chains=1", "=1 is out of range; use a whole number of at least 2 and at most 1000 (chains)"),
        ("measurement.corruption.strategy=swap", "=swap is unknown; use noise, entity_swap, span_deletion"),
        ("measurement.battery.circuit=[mean,zerro]", " holds zerro, which is unknown; use zero, zero_raw, mean, "
         "mean_pooled, resample, noise"),
        ("calibration.f59.convention=nonsense", "=nonsense is unknown; use absolute, signed"),
        ("certificate.labels=nonsense", "=nonsense is not possible; use a metric such as C11.bootstrap_faithfulness (gate)"),
        ("certificate.always_shown=[nonsense]", " holds nonsense, which is not possible; use a metric such as "
         "C11.bootstrap_faithfulness (gate)"),
        ("engine.rows_per_forward=1e9", "=1000000000.0 is not a whole number; write one, for example "
         "engine.rows_per_forward=512"),
        ("engine.memory_mib=1e9", "=1000000000.0 is out of range; use a whole number of at least 1 and at most 100000000 (MiB)"),
        ("results=", "= names no folder; give one, for example results=results"),
        ("circuit.kind=5", "=5 is not a text; write one, for example in quotes, 'circuit.kind=\"5\"'"),
        ("task.metric=[x]", "=['x'] is a list; use one value (metric)"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_named_with_the_range_and_its_unit(setting, sentence, only_started) -> None:
    assert command(setting) == Outcome(USER_ERROR, "", f"{setting.partition('=')[0]}{sentence}\n")


@pytest.mark.parametrize(
    ("asked", "fewest"),
    [
        (("drift", "series=x", "drift.resamples=999"), 1000),
        (("judge", "do=rank", "judge=demo", "judge.resamples=999"), 1000),
        (("geometry=pocket", "geometry.trace=true", "geometry.trace_resamples=998"), 999),
    ],
)
def test_too_few_resamples_are_refused_before_anything_is_asked(asked, fewest, tmp_path) -> None:
    outcome = command(*asked, f"results={tmp_path / 'r'}")
    said = f"{asked[-1]} is out of range; use a whole number of at least {fewest} and"
    assert outcome.code == USER_ERROR and outcome.errors.startswith(said) and not (tmp_path / "r").exists()


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("+new=1", "new is not a setting; use one of those in configs/"),
        ("+prompts.evalution=1", "prompts.evalution is not a setting; did you mean prompts.evaluation?"),
        ("++calibration.c11.new=1", "calibration.c11.new is not a setting"),
        ("~seed", "~seed takes a setting away that a run reads; write seed=value, or leave it out"),
        ("~task", "~task takes a setting away that a run reads; write task=value, or leave it out"),
        ("seed=${nothing}", "${nothing} stands for the value of a setting, and nothing is not one; write the value"),
        ("seed=???", "seed=None is not a whole number; write one, for example seed=0"),
        (
            "measurement.battery.circuit={x: 1}",
            "measurement.battery.circuit={x: 1} is of another kind than the setting",
        ),
        *(
            (
                f"measurement.battery.top_k_norm=[{one}]",
                f"measurement.battery.top_k_norm holds {shown}, which is not a single ",
            )
            for one, shown in (("{}", "{}"), ("{a: b}", "{'a': 'b'}"), ("[mean]", "['mean']"), ("mean,{}", "{}"))
        ),
        (f"drift.k={'x' * 4000}", "drift"),
        (f"+calibration.m3b=0.{'0' * 400}1", "Could not append to config"),
        ("certificate=[nan]", "certificate=[nan] is a list, and certificate takes one name"),
        (f"seed={'9' * 5000}", "seed=99999999"),
        (f"calibration.c30.seeds={'[' * 300}{']' * 300}", "calibration.c30.seeds=[[[["),
        ("seed=(", "seed=( is not understood; write key=value, a list as [a,b]"),
    ],
)
def test_what_is_no_setting_is_one_sentence(setting, sentence, only_started) -> None:
    outcome = command(setting)
    assert (outcome.code, outcome.output, outcome.errors.count("\n")) == (USER_ERROR, "", 1)
    assert outcome.errors.startswith(sentence) and not PARSER.search(outcome.errors) and len(outcome.errors) < LONGEST


@pytest.mark.parametrize("group", sorted(overrides.GROUPS - {"calibration"}))
def test_a_group_that_gets_a_list_or_a_section_says_that_it_takes_one_name(group, only_started) -> None:
    assert command(f"{group}=[a,b]") == Outcome(
        USER_ERROR,
        "",
        f"{group}=[a,b] is a list, and {group} takes one name; write {group}=NAME, or -m {group}=A,B for a run of each\n",
    )
    assert command(f"+{group}={{name: a}}") == Outcome(
        USER_ERROR,
        "",
        f"{group}={{name: a}} is a section, and {group} takes a name; write {group}=NAME, and settings as {group}.key=value\n",
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "line",
    [
        ("experiment=validate_calibrations", "experiment.only=[sound]"),
        ("experiment=discovery_truth", "experiment.methods=[AtP,EAP-IG]"),
        ("figures", "from=x", "figures.only=[heads_02*,certificate]"),
        ("task=file", "task.columns={clean: prompt}"),
        ("task=file", "task.companions=[other.csv,induction]"),
        ("measurement.left_out=['10','28']",),
        ("drift", "series=x", "drift.order=-1.5", "drift.version=v2"),
    ],
)
def test_names_and_lists_whose_default_says_nothing_are_accepted(line, only_started) -> None:
    assert command(*line) == Outcome(0, "", "")


@pytest.mark.slow
def test_heads_may_be_silenced_as_the_pages_say() -> None:
    for plus in ("", "+"):
        made = started(
            "suite=a01_json_extraction",
            f"{plus}model.intervention.heads=[L2H1,L3H2]",
            f"{plus}model.intervention.kind=zero",
        )
        assert made.settings["model"]["intervention"] == {"heads": ["L2H1", "L3H2"], "kind": "zero"}
    with pytest.raises(UserError, match=r"model\.intervention\.kind=noise is unknown; use zero, mean"):
        started("suite=a01_json_extraction", "model.intervention.kind=noise")


def test_silenced_heads_are_refused_where_a_circuit_is_certified(tmp_path) -> None:
    outcome = command("task=ioi", "model.intervention.heads=[L2H1]", f"results={tmp_path / 'r'}")
    assert (outcome.code, outcome.output, (tmp_path / "r").exists()) == (USER_ERROR, "", False)
    assert outcome.errors == (
        "model.intervention silences heads for suites, and a circuit is certified on the model as it is; leave it out, or run "
        "suite=all\n"
    )


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "name", ["é", "日本", "a b", 'a"b', "a'b", "2024", "true", "1e5", "${seed}", "a,b", "[x]", "ß\\", "~x", "🙂"]
)
def test_a_folder_may_have_any_name(name, only_started) -> None:
    assert str(started(f"results={name}").results) == name
    assert command(f"results={name}").code == 0


@pytest.mark.parametrize("text", ["results=a\nb", "results=\x00", "task=\udcff", "--colour", "-x"])
def test_what_no_terminal_shows_is_refused_before_anything_is_read(text) -> None:
    with mock.patch.object(run, "main", side_effect=AssertionError), mock.patch("sys.argv", ["run.py"]):
        assert commandline.guarded(run.main, [text]) == USER_ERROR


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (("--run", "-m"), "--run is not an option; write settings as key=value, and -m for a multirun"),
        (("-m=1",), "-m=1 is not an option"),
        (("-cn", "ranges"), "-cn is not an option"),
        (("-cd", "x"), "-cd is not an option"),
        (("--cfg",), "--cfg is not possible; write --cfg job or hydra or all"),
        (("--cfg", "foo"), "--cfg foo is not possible; write --cfg job or hydra or all"),
        (("--info=foo",), "--info foo is not possible; write --info all or config or"),
        (("+hydra.foo=1",), "+hydra.foo=1 is a setting of Hydra itself; of those use hydra/launcher="),
        (("hydra.verbose=x",), "hydra.verbose=x is a setting of Hydra itself"),
        (("hydra=x",), "hydra=x is a setting of Hydra itself; of those use hydra/launcher="),
        *(
            (
                (f"seed={one}",),
                f"seed={one} is computed by {one.partition('(')[0]}(), and a setting is a plain value; write",
            )
            for one in ("int(3.5)", "int(3)", "float(3)", "str(3)", "bool(0)", "json_str({a: 1})")
        ),
        (("-m", "seed=int(3.5),2"), "seed=int(3.5),2 is computed by int(), and a setting is a plain value; write"),
        (
            ("calibration.c30.seeds=[int(3.5),2]",),
            "calibration.c30.seeds=[int(3.5),2] is computed by int(), and a setting",
        ),
        *(
            ((f"seed={one}",), f"seed={one} stands for several values; write one value, or -m for a run of each")
            for one in (
                "choice(1,2)",
                "sort(3,1)",
                "shuffle(1,2)",
                "range(1,3)",
                "interval(1,2)",
                "glob(*)",
                "tag(a,1)",
            )
        ),
        *(
            ((text,), f"{text} is a file's name or a path, and model takes a name; write model={name}")
            for text, name in (
                ("model=pocket.yaml", "pocket"),
                ("model=planted/../pocket", "pocket"),
                ("model=./pocket", "pocket"),
                ("model=/pocket", "pocket"),
                ("model='planted//sound.yml'", "planted/sound"),
            )
        ),
        (("model=../config",), "model=../config is a file's name or a path, and model takes a name; use one of the "),
        (
            ("+circuit=../x.yaml",),
            "circuit=../x.yaml is a file's name or a path, and circuit takes a name; use one of disc",
        ),
        (
            ("-m", "model=pocket,pocket.yaml"),
            "model=pocket.yaml is a file's name or a path, and model takes a name; write",
        ),
        (("hydra/job_logging=default",), "hydra/job_logging=default is a setting of Hydra itself"),
        (("hydra.searchpath=[/nope]",), "hydra.searchpath=[/nope] is a setting of Hydra itself"),
        (
            ("+hydra.callbacks.x={_target_: builtins.print}",),
            "+hydra.callbacks.x={_target_: builtins.print} is a setting of",
        ),
        (("hydra.launcher._target_=os.system",), "hydra.launcher._target_=os.system is a setting of Hydra itself"),
        (
            ("seed=${oc.env:NOPE}",),
            "seed=${oc.env:NOPE} takes the value of NOPE, which the environment does not have; set it",
        ),
        (
            ("prompts.evaluation=${oc.dict.values:prompts}",),
            "prompts.evaluation=${oc.dict.values:prompts} computes a value by",
        ),
        (
            ("model.name=${oc.deprecated:seed}",),
            "model.name=${oc.deprecated:seed} computes a value by oc.deprecated; write",
        ),
        (
            ("-m", "seed=range(0,1000000000)"),
            "seed is swept over 0,1000000000, which are more than 10000 runs; take fewer",
        ),
        (("-m", "seed=range(1e9)"), "seed is swept over 1e9, which are more than 10000 runs; take fewer"),
        (
            ("-m", "seed=glob(*)"),
            "seed=glob(*) finds nothing among values to take, so there would be no run; write what",
        ),
        (
            ("task=ioi", "-m", "seed=range(5,1)"),
            "seed=range(5,1) finds nothing among values to take, so there would be no",
        ),
        (
            ("--multirun", "task=glob(zz*)"),
            "task=glob(zz*) finds nothing among the choices of task, so there would be no",
        ),
    ],
)
def test_what_only_hydra_would_take_is_one_sentence(line, sentence, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(commandline, "_refuse", lambda text: said.append(text) or USER_ERROR)
    with mock.patch("sys.argv", ["run.py"]):
        assert commandline.guarded(lambda: pytest.fail("accepted"), line) == USER_ERROR
    assert len(said) == 1 and said[0].startswith(sentence) and not PARSER.search(said[0].replace("hydra.", ""))


@pytest.mark.parametrize(
    "text",
    [
        "task.path=/data/curl=me@x/a.csv",
        "from=results/url=v1@2",
        "task.path=choice(1).csv",
        "model.name=see https://a.b/c?d=e",
    ],
)
def test_a_path_or_text_with_a_link_is_no_secret(text) -> None:
    assert commandline.SECRET_IN_ADDRESS.search(text) is None


@pytest.mark.parametrize(
    "typed",
    [
        "model.api_key=(sk abc def",
        "model={api_key: sk-abc",
        "seed={token: sk-abc}",
        "model.api-key=sk-abc=(",
        "api_key:sk-abc",
    ],
)
def test_what_looks_like_a_typed_key_is_masked(typed, only_started) -> None:
    outcome = command(typed)
    assert outcome.code == USER_ERROR and "***" in outcome.errors and not re.search("sk|abc|def", outcome.errors)


@pytest.mark.parametrize(
    "text",
    ["calibration.c16.icc_above=${.x}", "seed=${seed}", "seed=${calibration.c30.seeds.x}", "seed=${model.name.x}"],
)
def test_a_reference_that_leads_nowhere_is_one_sentence_without_a_class(text, only_started) -> None:
    remedy = "write the value, or ${NAME} with a setting's name"
    said = f"a value with ${{...}} stands for another setting, and none is there; {remedy}\n"
    assert command(text) == Outcome(USER_ERROR, "", said)


def test_a_reference_in_place_of_a_choice_is_named(only_started) -> None:
    assert command("circuit=${..x}").errors == "${..x} cannot stand for a choice of configs/; write the choice\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            (f"{key}={value}",),
            f"{name} holds a password or a query, which records would show; name the key in {variable}",
        )
        for key, name, variable in (
            ("model.base_url", "model.base_url", "model.api_key_env"),
            ("+judge.base_url", "judge.base_url", "judge.api_key_env"),
            ("modle.base_url", "modle.base_url", "api_key_env"),
            ("seed", "seed", "api_key_env"),
        )
        for value in ("http://127.0.0.1:1/v1?key=sk-abc", "https://me:sk-abc@host/v1", "'http://h/?key=sk-abc'")
    ]
    + [
        ((text,), f"{name} holds a password or a query, which records would show; name the key in {variable}")
        for text, name, variable in (
            ("model.base_url=127.0.0.1:1/v1?key=sk-abc", "model.base_url", "model.api_key_env"),
            ("model.base_url=me:sk-abc@127.0.0.1", "model.base_url", "model.api_key_env"),
            ("model.base_url=[http://h/?key=sk-abc]", "model.base_url", "model.api_key_env"),
            ("model={base_url: http://h/?key=sk-abc}", "model", "model.api_key_env"),
            ("model.base_url=(http://h/?key=sk-abc", "model.base_url", "model.api_key_env"),
            (f"model.base_url=http://{'h' * 300}/?key=sk-abc", "model.base_url", "model.api_key_env"),
            ("model.baseurl=h/?key=sk-abc", "model.baseurl", "model.api_key_env"),
            ("http://127.0.0.1:1/v1?key=sk-abc", "an address", "api_key_env"),
            ("http://me:sk-abc@127.0.0.1", "an address", "api_key_env"),
            ("-http://me:sk-abc@127.0.0.1", "an address", "api_key_env"),
            ("task=http://h/?key=sk-abc", "task", "api_key_env"),
            ("model.base_url=http:/me:sk-abc@host/v1", "model.base_url", "model.api_key_env"),
            ("results=http://h/?key=sk-abc", "results", "api_key_env"),
        )
    ],
)
@pytest.mark.parametrize("asked", [("task=ioi", "model=endpoint"), ("suite=all", "model=endpoint"), ("-m",)])
def test_a_secret_in_an_address_is_refused_before_anything_shows_it(asked, line, sentence, only_started) -> None:
    assert command(*asked, *line) == Outcome(USER_ERROR, "", f"{sentence}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model.api_key=sk-abc=(", "model.api_key=*** is not understood; write key=value"),
        ("model.api_key_env=(sk-abc", "model.api_key_env=*** is not understood; write key=value"),
        ("judge.token=[sk-abc", "judge.token=*** is not understood; write key=value"),
        ("model.api_key=sk-abc", "model.api_key is not a setting; did you mean"),
    ],
)
def test_what_is_given_for_a_key_is_not_shown(text, said, only_started) -> None:
    outcome = command("task=ioi", "model=endpoint", text)
    assert outcome.code == USER_ERROR and outcome.errors.startswith(said) and "sk-abc" not in outcome.errors


def test_an_address_without_a_secret_is_taken(only_started) -> None:
    assert command("model=endpoint", "model.name=x", "model.base_url=http://localhost:8000/v1").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "hydra.launcher.n_jobs=-1",
            "hydra.launcher.n_jobs is not a setting of the launcher chosen; choose one that has it by hydra/launcher=, as "
            "docs/scale-out.md does, or leave it out\n",
        ),
        (
            "hydra.launcher.gpus_per_node=1",
            "hydra.launcher.gpus_per_node is not a setting of the launcher chosen; choose one that has it by hydra/launcher=, as "
            "docs/scale-out.md does, or leave it out\n",
        ),
        (
            "hydra.sweep.dri=x",
            "hydra.sweep.dri is not a setting of Hydra; docs/scale-out.md has those in use, so leave it out\n",
        ),
        ("hydro.job=1", "hydro.job is not a setting; use one of those in configs/\n"),
    ],
)
def test_a_setting_that_the_launcher_lacks_is_told_how_to_get_it(text, said, only_started) -> None:
    assert command("task=ioi", text) == Outcome(USER_ERROR, "", said)


@pytest.mark.parametrize("text", ["results=int(3)", "model.name='int(3)'", "results=pocket.yaml", "task=ioi"])
def test_what_is_only_like_a_function_or_a_file_is_taken(text, only_started) -> None:
    assert command(text).code == 0


@pytest.mark.parametrize(
    ("swept", "sentences"),
    [
        ("seed=-1,-2", ["seed=-1 is out of range", "seed=-2 is out of range"]),
        ("seed=0,-2", ["seed=-2 is out of range"]),
        ("certificate.labels=x,x", ["certificate.labels=x is not possible"]),
    ],
)
def test_every_refused_job_of_a_multirun_is_one_sentence(swept, sentences, only_started, tmp_path) -> None:
    outcome = command("-m", "task=ioi", swept, f"results={tmp_path / 'r'}", f"hydra.sweep.dir={tmp_path / 'o'}")
    lines = outcome.errors.splitlines()
    assert (outcome.code, len(lines)) == (USER_ERROR, len(sentences)), outcome.errors
    assert all(line.startswith(sentence) for line, sentence in zip(lines, sentences, strict=True))


def test_a_job_refused_in_another_process_is_said_here(monkeypatch, capsys) -> None:
    def ended() -> None:
        raise commandline.JobEnded(USER_ERROR, "no 0")

    monkeypatch.setattr("sys.argv", ["run.py"])
    for _ in range(2):
        assert commandline.guarded(ended, ["task=ioi"]) == USER_ERROR
        assert capsys.readouterr().err == "no 0\n"


def test_options_may_stand_anywhere(monkeypatch) -> None:
    typed = ["task=ioi", "-m", "seed=0,1", "--cfg", "job", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"]
    with mock.patch("sys.argv", ["run.py"]):
        commandline.guarded(lambda: None, typed)
        assert sys.argv[1:] == ["-m", "--cfg", "job", "task=ioi", "seed=0,1", *typed[-2:]]
        monkeypatch.setenv("SEED_OF_A_TEST", "3")
        commandline.guarded(lambda: None, ["seed=${oc.env:SEED_OF_A_TEST}", "results=${oc.dict.values:x}"])
        assert sys.argv[1] == "seed=${oc.env:SEED_OF_A_TEST}"


def test_a_working_directory_that_is_gone_is_said(tmp_path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); sys.path.insert(0, {str(ROOT)!r}); import run"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; sys.argv[1:] = ['task=ioi']; sys.exit(run.console())"],
        capture_output=True,
        text=True,
        env={**os.environ, "HYDRA_FULL_ERROR": "0"},
    )
    assert (done.returncode, done.stdout) == (USER_ERROR, "")
    assert done.stderr == (
        "the working directory cannot be used (No such file or directory); change to a folder that is there\n"
    )


def out_of_range(settings: Mapping[str, Any]) -> list[str]:
    """The numbers and words that are not what their range says; `own` ones are refused by their command.

    A text among numbers, such as the title of an experiment, has no interval.
    """
    found = [(name, value, one) for name, value in leaves(settings, "") if (one := ranges.of(name)) and not one.own]
    kinds = {int: ("whole", "number"), float: ("whole", "number"), str: ("one of", "gate")}
    return [name for name, value, one in found if one.kind in kinds.get(type(value), ()) and value not in one]


def refused_cleanly(line: tuple[str, ...], accepted: list[RunContext]) -> str | None:
    """None if a command line is refused in one sentence, or accepted with values in their ranges; else what is wrong with it."""
    accepted.clear()
    try:
        outcome = command(*line)
    except Exception as error:
        return f"{line}: {type(error).__name__}"
    if outcome.code == 0 and not outcome.errors:
        wrong = [name for context in accepted for name in out_of_range(context.settings)]
        return f"{line} is accepted: {wrong}" if wrong or not accepted else None
    one = outcome.code == USER_ERROR and outcome.errors.count("\n") == 1 and len(outcome.errors) < LONGEST
    return None if one and not PARSER.search(outcome.errors) else f"{line}: {outcome}"


@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_drawn_command_lines_are_accepted_or_refused_in_one_sentence(number, only_started) -> None:
    wrong = [said for line in drawn(number, seed=number) if (said := refused_cleanly(line, only_started))]
    assert wrong == []
