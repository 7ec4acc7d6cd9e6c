"""The command line: what it selects, where results go, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import results_io
import run as program
from calibrations import calibrate, certificate, registry
from circuits import circuit as circuit_files
from circuits import models, tasks
from circuits.circuit import Circuit, Role, head
from circuits.tasks import published
from meridian import commandline, overrides, stages
from meridian import context as contexts
from meridian.reporter import Reporter
from results_io import UserError
from tests.commandline import ROOT, Outcome, command, started
from tests.result_samples import completed

POCKET = ROOT / "circuits" / "embedded" / "pocket"
ALL = list(registry.CALIBRATIONS)
ANOTHER_CHOICE = "is a setting of another circuit than the one chosen; choose circuit=file, or leave it out"
TASKS_OF_POCKET = f"use one of {', '.join(tasks.TASKS)}, or another model"
DRAWN = {*tasks.TASKS, *published.BUILDERS}
MIB = {f"mib/{path.stem}" for path in (overrides.CONFIGS / "task" / "mib").glob("*.yaml")}


def folder(*arguments: str) -> str:
    """Where that run's results for IOI go."""
    return str(started(*arguments).folder("ioi"))


def refused(results: Path, *arguments: str) -> str:
    """The sentence that a run ends with; checks that it is one line, exit code 2, and nothing was written."""
    with mock.patch.object(models, "load", side_effect=AssertionError("the model was loaded")):
        outcome = command(*arguments, f"results={results}")
    assert outcome.code == 2
    assert outcome.errors.count("\n") == 1 and outcome.errors.endswith("\n")
    assert "Traceback" not in outcome.errors and "overrides" not in outcome.errors
    assert not results.exists()
    return outcome.errors.strip()


# --- selecting calibrations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("calibration=all", "select=all"),
        ("calibration=c11", "select=c11"),
        ("calibration=[c11,m98]", "select=[c11,m98]"),
        ("calibration=c11,m98", "select=[c11,m98]"),
        ("calibration=", "select="),
        ("calibration.c11.max_sigma=0.2", "calibration.c11.max_sigma=0.2"),
        ("task=ioi", "task=ioi"),
        ("doctor", "command=doctor"),
        ("--cfg", "--cfg"),
    ],
)
def test_calibration_selects_and_everything_else_is_left_alone(given, passed) -> None:
    assert commandline.arguments(["task=ioi", given]) == ["task=ioi", passed]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("circuit.path=results/a=1,b=2/circuit.yaml", 'circuit.path="results/a=1,b=2/circuit.yaml"'),
        ("results=my results", 'results="my results"'),
        ("results='a,b'", "results='a,b'"),
        ("model.path=/plain/folder", "model.path=/plain/folder"),
        ("select=[a,b]", "select=[a,b]"),
    ],
)
def test_a_path_may_hold_what_folders_of_results_are_named_by(given, passed) -> None:
    assert commandline.arguments([given]) == [passed]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name",
    [
        "a b.csv", "a;b.csv", "it's.csv", 'say "x".csv', "a=1,b=(2)[3]{4}.csv", "größe/日本.csv", "back\\slash\\", "#~!&<>^`.csv",
        '\\".csv', "two\nlines.csv", " spaces ", "😀.csv", 'open".csv', "half'.csv", "$x%y.csv",
    ],
)  # fmt: skip
def test_a_path_may_hold_any_character(name) -> None:
    paths = {"task.path": name, "task.companions": [name.strip() or "x", "induction"], "results": f"r/{name}"}
    items = f"[{commandline.path(paths['task.companions'][0])}, induction]"
    found = started("task=file", f"task.path={name}", f"task.companions={items}", f"results=r/{name}").settings
    assert found["task"]["path"] == name and found["results"] == f"r/{name}"
    assert found["task"]["companions"] == paths["task.companions"]


def test_files_among_companions_may_hold_spaces_and_brackets() -> None:
    found = started("task=file", "task.companions=[my rows (2).csv, größe;x.csv,'a,b.csv',induction]").settings
    assert found["task"]["companions"] == ["my rows (2).csv", "größe;x.csv", "a,b.csv", "induction"]
    assert started("task=file", "task.companions=[]").settings["task"]["companions"] == []


def test_a_circuit_is_read_from_where_a_run_puts_it(tmp_path) -> None:
    path = tmp_path / "circuit.method=AtP,circuit=discovered" / "circuit.yaml"
    assert started("circuit=file", f"circuit.path={path}").settings["circuit"]["path"] == str(path)


def test_a_revision_is_none_of_a_folder(tmp_path) -> None:
    assert refused(tmp_path / "r", "model=gpt2", f"model.path={tmp_path}", "model.revision=abc") == (
        "model.revision names a commit of the hub and model.path a folder to read in its place; leave one of them out"
    )


def test_results_of_other_weights_are_not_replaced_without_a_word(tmp_path, monkeypatch) -> None:
    said = []
    one = started(f"results={tmp_path}")
    monkeypatch.setattr(one.reporter, "say", said.append)
    plan = one.plan("ioi")
    place = tmp_path / "here"
    stages.announce_replacement(one, plan, place)
    for sha in (plan.identity.sha256, "f" * 64):
        results_io.write(place / "01_baseline.json", completed("01", subject={"model_sha256": sha}))
        stages.announce_replacement(one, plan, place)
    assert said == [
        f"{place} holds results of other weights (ffffffff, now {plan.identity.sha256[:8]}), which are replaced; "
        "results=<another folder> keeps both"
    ]


def test_a_method_is_that_of_a_search_and_implies_one() -> None:
    assert commandline.arguments(["method=AtP"]) == ["circuit.method=AtP", "circuit=discovered"]
    assert commandline.arguments(["circuit=discovered", "method=AtP"]) == ["circuit=discovered", "circuit.method=AtP"]
    assert started("method=AtP").settings["circuit"]["kind"] == "discovered"


@pytest.mark.parametrize(
    ("given", "identifiers"),
    [
        ("all", ALL),
        ("c11", ["C11"]),
        (["M3B", "e1b", "C13"], ["M3b", "E1b", "C13"]),
        (["c13_measurement_invariance", "s1"], ["C13", "S1"]),
        (["m93", "c11"], ALL),  # it reads all the others
    ],
)
def test_identifiers_in_any_case(given, identifiers) -> None:
    assert contexts.selected(given) == identifiers


def test_only_the_measurements_that_are_read_are_made() -> None:
    everything = started()
    assert everything.identifiers == tuple(ALL)
    assert stages.numbers_read(everything) == [
        "01",
        "02",
        "03",
        "04",
        "05",
        "06",
        "07",
        "08",
        "09",
        "10",
        "19",
        "20",
        "21",
        "22",
        "24",
        "25",
        "26",
        "27",
        "28",
    ]
    some = started("calibration=m3b,c17")
    assert some.identifiers == ("M3b", "C17")
    assert stages.numbers_read(some) == ["01", "02", "20", "21", "22", "27"]


def test_an_option_may_be_switched_off_and_a_share_may_be_nothing() -> None:
    options = ("measurement.attribution_patching.gradient_dropping=false", "measurement.path_patching.edge_share=0")
    settings = started(*options).settings["measurement"]
    assert settings["attribution_patching"]["gradient_dropping"] is False
    assert settings["path_patching"]["edge_share"] == 0


@pytest.mark.slow
def test_task_all_is_every_task() -> None:
    with mock.patch.object(stages, "summarise"), mock.patch.object(stages, "measure") as measure:
        measure.side_effect = KeyboardInterrupt
        assert command("task=all").code == 130
    assert started("task=all").tasks() == list(tasks.EMBEDDED)
    assert started("task=all", "circuit=discovered").tasks() == list(tasks.TASKS)
    assert started("task=ioi").tasks() == ["ioi"]


@pytest.mark.slow
def test_what_cannot_be_done_for_one_task_of_several_does_not_stop_the_others(tmp_path) -> None:
    def measure(context, task: str) -> Path:
        if task in refuse:
            raise UserError(f"no words for {task}")
        done.append(task)
        return tmp_path

    others = dict.fromkeys(("calibrate", "certify", "report", "show"), mock.DEFAULT)
    refuse, done = {"greater_than"}, []
    with mock.patch.object(stages, "measure", measure), mock.patch.multiple(stages, **others):
        found = command("task=all", f"results={tmp_path / 'r'}")
        assert found.code == 2
        assert found.errors == "1 of 5 tasks left out, for the reasons above: greater_than\n"
        assert "greater_than left out: no words for greater_than" in found.said
        assert done == [task for task in tasks.EMBEDDED if task != "greater_than"]
        refuse = set(tasks.EMBEDDED)
        assert command("task=all", f"results={tmp_path / 's'}").errors.startswith("5 of 5 tasks left out")
        assert not (tmp_path / "s").exists()
        assert command("task=ioi", f"results={tmp_path / 's'}").errors == "no words for ioi\n"


def test_task_all_is_every_task_with_a_stored_circuit_if_there_are_any(tmp_path) -> None:
    place = shutil.copytree(POCKET, tmp_path / "mine")
    for name in ("ioi", "induction"):
        (place / "circuits" / f"{name}.yaml").unlink()
    assert started("task=all", "model=local", f"model.path={place}").tasks() == [
        "greater_than",
        "subject_verb_agreement",
        "gendered_pronoun",
    ]


# --- where results go ----------------------------------------------------------------------------------------------

SAYING_THE_DEFAULT = (
    "task=ioi",
    "model=pocket",
    "circuit=stored",
    "engine=auto",
    "select=all",
    "model.device=null",
    "model.dtype=float32",
    "prompts.evaluation=400",
    "++prompts.held_out=200",
    "seed=0",
    "measurement.attribution_tolerance=1e-4",
    "measurement.corruption.strategy=entity_swap",
    "measurement.repeated_tokens={seed: 0, length: 20, sequences: 50}",
    "calibration.c11.max_sigma=0.10",
    "calibration.common.alpha=5e-2",
    "calibration.c30.seeds=[42,123,456,789,1337]",
)
DIFFERING = (
    "++prompts.discovery=30",
    "calibration.c16.alpha_above=0.8",
    "calibration.common.permutations=99",
    "certificate.always_shown=[]",
    "measurement.corruption.draws=2",
    "measurement.draws=5",
    "prompts.reference=120",
)


def test_overrides_are_what_differs_from_the_default_in_order() -> None:
    run = started(*SAYING_THE_DEFAULT, *reversed(DIFFERING))
    assert list(run.overrides) == sorted(text.lstrip("+") for text in DIFFERING)
    sizes = {"discovery": 30, "groups": 40, "evaluation": 400, "held_out": 200, "reference": 120}
    assert run.settings["prompts"] == {**sizes, "templates": "default"}


def test_defaults_are_those_of_the_groups_chosen() -> None:
    given = ("circuit=random", "circuit.seed=0", "model=planted/sound", "model.seed=1", "model.dtype=float32")
    assert started(*given).overrides == ("circuit=random", "model.seed=1", "model=planted/sound")


def test_a_run_that_says_the_default_makes_no_folder() -> None:
    assert folder(*SAYING_THE_DEFAULT) == "results/pocket/ioi"
    assert folder("calibration=[c11,m98]", "model.device=cpu", "engine.rows_per_forward=64") == "results/pocket/ioi"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["prompts.evaluation=40"], "/prompts.evaluation=40"),
        (["prompts.evaluation=40", "seed=1"], "/prompts.evaluation=40,seed=1"),
        (["circuit.path=mine/a.yaml", "circuit=file"], "/circuit.path=mine_a.yaml,circuit=file"),
        (["calibration.c11.max_sigma=0.2"], "/calibration.c11.max_sigma=0.2"),
        (["engine.rows_per_forward=8", "model.device=cpu", "model=x", "results=y", "select=[c11]", "task=ioi"], ""),
    ],
)
def test_what_differs_names_the_folder(overrides, name) -> None:
    settings = {"results": "results", "model": {"kind": "embedded", "name": "pocket", "path": "pocket"}}
    run = contexts.RunContext(settings, (), tuple(overrides), (), Reporter(), False)
    assert str(run.folder("ioi")) == f"results/pocket/ioi{name}"
    assert str(run.folder("ioi", default=True)) == "results/pocket/ioi"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("model=planted/sound", "seed=1"), "results/planted/sound/ioi/seed=1"),
        (("model=local", "model.path=/data/mine", "results=elsewhere"), "elsewhere/mine/ioi"),
        (("model=local", "model.path=/data/mine", "model.name=other"), "results/other/ioi"),
    ],
)
def test_the_model_names_the_first_folder(arguments, expected) -> None:
    assert folder(*arguments) == expected


def test_a_long_name_is_cut_and_stays_distinct() -> None:
    many = [f"measurement.{name}=7" for name in ("draws", "site_prompts", "companion_prompts", "attention_prompts")]
    many += [f"prompts.{name}=77" for name in ("discovery", "evaluation", "held_out", "reference")]
    first, other = (Path(folder(*many, f"seed={seed}")) for seed in (1, 2))
    assert first != other
    for path in (first, other):
        assert len(path.name.encode()) == overrides.FOLDER_NAME == 160
        assert path.name.startswith("measurement.attention_prompts=7,measurement.companion_prompts=7,")
        assert path.parent == Path("results/pocket/ioi")
    assert overrides.folder_name("ä" * 200).encode()[:100].decode() == "ä" * 50
    assert overrides.folder_name("a" * 160) == "a" * 160


@pytest.mark.slow
def test_every_changed_rule_is_handed_to_the_certificate(tmp_path, monkeypatch) -> None:
    given = []
    monkeypatch.setattr(certificate, "certify", lambda documents, rules, standing: given.append(standing) or {})
    monkeypatch.setattr(stages, "headline", lambda *about: {})
    documents = {calibrate.PRECONDITIONS: {"subject": {"task": "ioi"}}}
    for settings in ((), SAYING_THE_DEFAULT, (*SAYING_THE_DEFAULT, *DIFFERING, "seed=1")):
        stages.certify(started(*settings), tmp_path, documents)
    found = [[one for one in standing.differences if not one.key.startswith("code ")] for standing in given]
    assert found[:2] == [[], []]
    assert {one.key: (one.value, one.released) for one in found[2]} == {
        "calibration.c16.alpha_above": (0.8, 0.7),
        "calibration.common.permutations": (99, 9999),
        "certificate.always_shown": ([], list(started().settings["certificate"]["always_shown"])),
        "measurement.corruption.draws": (2, 4),
        "measurement.draws": (5, 4),
        "prompts.discovery": (30, 200),
        "prompts.reference": (120, 360),
        "seed": (1, 0),
    }


# --- what is refused -----------------------------------------------------------------------------------------------


def not_in_the_table(files: set[str], table: set[str]) -> list[str]:
    """A sentence for each file that became a word by itself and that run.py could not run."""
    return [
        f"meridian/commands/{name}.py has no line in COMMANDS of run.py, so `run.py {name}` ends in a KeyError; add one"
        for name in sorted(files - table)
    ]


def test_the_commands_of_run_py_are_the_files_of_their_folder() -> None:
    files = {path.stem for path in Path(commandline.__file__).with_name("commands").glob("*.py")} - {"__init__"}
    assert not_in_the_table(files, set(program.COMMANDS)) == []
    assert set(program.COMMANDS) == files
    assert set(commandline.WORDS) | {commandline.RUN, *commandline.BY_SETTING.values()} == files
    assert [word for word in commandline.WORDS if f"python run.py {word} " not in (program.__doc__ or "")] == []


def test_a_word_that_is_no_command_is_told_all_of_them(tmp_path) -> None:
    assert refused(tmp_path / "results", "docter") == (
        "docter is not a command; use check, compare, contamination, doctor, drift, figures, gate, judge, serve, shadow, "
        "verify, or settings as key=value"
    )


def test_a_command_without_a_line_in_the_table_is_named() -> None:
    assert not_in_the_table({"run", "tiers"}, {"run"}) == [
        "meridian/commands/tiers.py has no line in COMMANDS of run.py, so `run.py tiers` ends in a KeyError; add one"
    ]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (
            "hydra/launcher=nothing",
            "hydra/launcher=nothing is unknown here; submitit's launchers come with pip install -e '.[slurm]', "
            "Ray's with -e '.[ray]'",
        ),
        (
            "task=nothing",
            f"task=nothing is unknown; use one of {', '.join(sorted({*DRAWN, 'all', 'failures', 'file', *MIB}))}",
        ),
        (
            "model=planted/x",
            "model=planted/x is unknown; did you mean planted/loud or planted/sound or planted/gated? use one of the 29 in "
            "configs/model/",
        ),
        ("tsk=ioi", "tsk is not a setting; did you mean task?"),
        ("task.metrik@x=[[1]]", "task.metrik@x is not a setting; did you mean task.metric?"),
        ("task.metrik=x", "task.metrik is not a setting; did you mean task.metric?"),
        (
            "circuit.path=x.yaml",
            "circuit.path is a setting of another circuit than the one chosen; choose circuit=file, or leave it out",
        ),
        (
            "model.name=../x",
            "model.name=../x leads out of the results folder; write a name, and a folder as model.path",
        ),
        (
            "task.bos=maybe",
            "task.bos=maybe is neither true nor false; write one of them, or null for the task's own choice",
        ),
        (
            "prompts.reference=20",
            "prompts.reference=20 gives template 'friends_found/ABBA' 1 reference prompts and mean or resample ablation needs "
            "5; use about 180",
        ),
        ("prompts.templates=mroe", "prompts.templates=mroe is unknown; use default or more"),
        (
            "prompts.templates=more",
            "prompts.reference=360 gives template 'adverb_found_decided_it/BABA' 4 reference prompts and mean or resample "
            "ablation needs 5; use about 420",
        ),
        ("task=docstring", f"task docstring has no prompts in the embedded models' words; {TASKS_OF_POCKET}"),
        (
            "task.corruption=name_swap",
            "task.corruption=name_swap is for models that read natural language; task ioi on an embedded model has one way "
            "to corrupt its prompts, so leave it out",
        ),
        (
            "model=hub",
            "model=hub needs model.name; give the hub's name, for example model.name=EleutherAI/pythia-70m",
        ),
        ("circuit=guessed", "circuit=guessed is unknown; use one of discovered, file, random, stored, traced"),
        (
            "calibration=[c11,c99]",
            f"calibration 'c99' is unknown; expected one of {', '.join(ALL)} or a file name such as c11_bootstrap_stability",
        ),
        ("prompts.evaluation=0", "prompts.evaluation=0 is too small; use a whole number of at least 1"),
        (
            "prompts.evaluation=x",
            "prompts.evaluation=x is not a whole number; write one, for example prompts.evaluation=400",
        ),
        (
            "promts.evaluation=40",
            "promts.evaluation is not a setting; did you mean prompts.evaluation?",
        ),
        (
            "prompts.evaluation=[",
            "prompts.evaluation=[ is not understood: no viable alternative at input '['; write key=value, a list as [a,b]; a "
            "text with other characters in double quotes inside the shell's single ones, 'key=\"a; b\"'",
        ),
        ("circuit=file", "circuit=file needs circuit.path; give the path of a circuit file"),
        ("model=local", "model=local needs model.path; give the folder that holds config.json and model.safetensors"),
    ],
)
@pytest.mark.sampled(6)
def test_a_wrong_value_is_one_sentence(argument, sentence, tmp_path) -> None:
    assert refused(tmp_path / "results", argument) == sentence


@pytest.mark.parametrize(
    ("name", "value", "default", "expected"),
    [
        ("prompts.evaluation", 40.5, 400, "a whole number"),
        ("prompts.evaluation", True, 400, "a whole number"),
        ("prompts.evaluation", None, 400, "a whole number"),
        ("measurement.noise_scale", "loud", 1.0, "a number"),
        ("measurement.noise_scale", True, 1.0, "a number"),
        ("calibration.c30.seeds", 42, [1, 2], "a list"),
        ("measurement.corruption", 3, {"draws": 4}, "a section"),
        ("x.flag", 1, True, "true or false"),
    ],
)
def test_a_value_of_another_kind_than_the_default(name, value, default, expected) -> None:
    with pytest.raises(UserError) as raised:
        overrides.check_kind(name, value, default)
    example = f"{name}.draws=4" if expected == "a section" else f"{name}={default}"
    assert str(raised.value) == f"{name}={value} is not {expected}; write one, for example {example}"


@pytest.mark.parametrize(
    ("value", "default"),
    [(40, 400), (2, 1.0), (0.5, 1.0), ([], [1]), (False, True), ("x", None), (3, None), ("a", "b")],
)
def test_a_value_of_the_same_kind(value, default) -> None:
    overrides.check_kind("name", value, default)


@pytest.mark.parametrize(
    ("section", "values", "name"),
    [
        ("prompts", {"discovery": 1, "evaluation": -3}, "prompts.evaluation=-3"),
        ("prompts", {"held_out": 0}, "prompts.held_out=0"),
        ("measurement", {"seed": 0, "corruption": {"seed": -1, "draws": 0}}, "measurement.corruption.draws=0"),
        ("engine", {"name": "lens", "rows_per_forward": 0}, "engine.rows_per_forward=0"),
    ],
)
def test_a_number_of_things_below_one(section, values, name) -> None:
    with pytest.raises(UserError) as raised:
        overrides.check_counts(section, values, values)
    assert str(raised.value) == f"{name} is too small; use a whole number of at least 1"


@pytest.mark.parametrize("given", ["", None, 11, "c99", ["all", "c11"]])
def test_no_calibration_of_that_name(given) -> None:
    with pytest.raises(UserError, match=r"calibration '.*' is unknown; expected one of C11, "):
        contexts.selected(given)


def test_an_empty_selection() -> None:
    with pytest.raises(
        UserError, match=r"calibration=\[\] selects nothing; use calibration=all or a list such as \[c11,m98\]"
    ):
        contexts.selected([])


def test_more_wordings_are_refused_where_a_suite_has_the_prompts(tmp_path) -> None:
    assert refused(tmp_path / "results", "task=failures", "prompts.templates=more") == (
        "prompts.templates=more is for tasks that draw their prompts; those of task=failures are a suite's, so leave it out"
    )


@pytest.mark.slow
def test_more_prompts_than_the_task_has(tmp_path, monkeypatch) -> None:
    ioi = tasks.get("ioi")

    def sample(rng):
        return ioi.sample(random.Random(rng.randrange(500)))

    monkeypatch.setitem(tasks.TASKS, "ioi", replace(ioi, sample=sample))
    few = ("prompts.discovery=1", "prompts.held_out=1", "prompts.reference=1")
    sentence = refused(tmp_path / "results", "prompts.evaluation=100000", *few)
    known = int(sentence.split()[4])
    assert 120 < known < 230  # .35 of 500
    assert sentence == (
        f"task ioi yields only {known} distinct evaluation prompts of the 100000 asked for; ask for fewer prompts"
    )


def claim(path: Path, task: str = "ioi", layer: int = 0) -> str:
    provenance = {"kind": "user", "source": "tests", "split": "none"}
    circuit = Circuit("mine", task, "pocket", {"one": Role((head(layer, 1),))}, provenance)
    circuit_files.save(circuit, path)
    return f"circuit.path={path}"


@pytest.mark.slow
def test_a_circuit_file_that_does_not_fit(tmp_path) -> None:
    results, path = tmp_path / "results", tmp_path / "mine.yaml"
    missing = refused(results, "circuit=file", f"circuit.path={path}")
    assert missing.startswith(f"no circuit file at {path}; run with circuit=discovered")
    outside = refused(results, "circuit=file", claim(path, layer=9))
    assert outside == (
        "circuit 'mine' names head L9H1, but model 'pocket' has layers 0-3 with heads 0-7; correct the head"
    )
    other = refused(results, "circuit=file", claim(path, task="induction"))
    assert other == (
        f"circuit file {path} is about task 'induction', but the run is about 'ioi'; run with task=induction"
    )
    path.write_text("name: mine\nroles: [L0H1")
    assert refused(results, "circuit=file", f"circuit.path={path}").startswith(
        f"{path} is not a circuit file (no YAML: "
    )


@pytest.mark.slow
def test_a_model_folder_that_does_not_fit(tmp_path) -> None:
    results, place = tmp_path / "results", tmp_path / "mine"
    expected = (
        f"model folder {place} has no config.json with safetensors weights; point model.path at such a folder (convert "
        "a pickle checkpoint with transformers' save_pretrained first)"
    )
    assert refused(results, "model=local", f"model.path={place}") == (
        f"model folder {place} does not exist; point model.path at one with config.json and safetensors weights"
    )
    place.mkdir()
    shutil.copy(POCKET / "config.json", place)
    (place / "pytorch_model.bin").write_bytes(b"\x80\x04")
    assert refused(results, "model=local", f"model.path={place}") == expected
    shutil.copy(POCKET / "model.safetensors", place)
    assert refused(results, "model=local", f"model.path={place}") == (
        f"model folder {place} has no tokenizer; put its tokenizer.json there"
    )
    shutil.copy(POCKET / "tokenizer.json", place)
    assert refused(results, "model=local", f"model.path={place}") == (
        "model mine comes with no circuit for task ioi (it has: none); run with circuit=discovered"
    )


def test_the_program_itself_ends_with_the_sentence_and_code_two(tmp_path) -> None:
    results, before = tmp_path / "results", hydra_leftovers()
    line = [sys.executable, "run.py", "task=ioi", "calibration=[c11,c99]", f"results={results}"]
    finished = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("calibration 'c99' is unknown; expected one of C11,")
    assert finished.stderr.count("\n") == 1
    assert not results.exists() and hydra_leftovers() == before


def hydra_leftovers() -> list[str]:
    """What Hydra writes beside a program unless it is told not to."""
    return sorted(path.name for pattern in ("outputs", "multirun", "*.log", ".hydra") for path in ROOT.glob(pattern))


# --- interruptions and bugs ----------------------------------------------------------------------------------------


def interrupted_by(error: BaseException) -> Outcome:
    with mock.patch.object(stages, "measure", side_effect=error):
        return command("task=ioi")


def test_control_c_says_that_nothing_is_lost() -> None:
    outcome = interrupted_by(KeyboardInterrupt())
    assert outcome.code == 130
    assert outcome.errors == "Stopped. What was measured is kept; the same command goes on from there.\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        interrupted_by(ZeroDivisionError("a bug"))


def test_a_method_without_a_search_is_refused(tmp_path) -> None:
    assert refused(tmp_path / "r", "circuit=stored", "method=AtP") == (
        "method= is that of a search; run it with circuit=discovered, or leave it out"
    )


def test_a_setting_that_a_late_measurement_refuses_is_refused_before_the_first(tmp_path) -> None:
    assert refused(tmp_path / "r", "measurement.battery.circuit=[zero]") == (
        "measurement.battery.circuit lacks mean, the recipe that every calibration reads; add it"
    )


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands_and_every_choice_of_every_group() -> None:
    assert commandline.asks_for_help(["run.py", "--help"]) and commandline.asks_for_help(["run.py", "task=ioi", "-h"])
    assert not commandline.asks_for_help(["run.py", "task=ioi"])
    text = commandline.usage("python run.py task=ioi calibration=all")
    assert text.startswith("python run.py task=ioi calibration=all\n")
    words = text.split()
    for group in ("model", "task", "circuit", "engine", "suite", "experiment", "tracker"):
        for name in commandline.choices(group):
            assert name in words or f"{group}={name}" in words, (group, name)
    assert commandline.choices("engine") == ["auto", "fused", "lens"]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("measurement.regardless=True", "measurement.regardless=true"),
        ("measurement.regardless=true", "measurement.regardless=true"),
        ("measurement.noise_scale=2.50", "measurement.noise_scale=2.5"),
        ("certificate.always_shown=[M98.x, C13.x]", "certificate.always_shown=[M98.x,C13.x]"),
        ("circuit=random", "circuit=random"),
        ("seed=1", "seed=1"),
    ],
)
def test_a_setting_names_the_same_folder_however_it_is_typed(typed, named) -> None:
    assert started(typed).overrides == (named,)
