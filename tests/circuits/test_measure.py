"""What is measured, what is reused and what a killed run leaves: on a random model, with every measurement run once."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import code_digest
import results_io
from circuits import circuit as circuit_files
from circuits import measure as stage
from circuits import models, tasks
from circuits.circuit import Role, head
from circuits.measure import Plan
from circuits.measurements import DEPEND_ON_CIRCUIT, MEASUREMENTS, ablation_battery
from shown_progress import NoProgress
from tests.circuits import toy

SIZES = {"evaluation": 8, "held_out": 4, "discovery": 6, "reference": 150}
ALL = list(MEASUREMENTS)
SHIPPED = [
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


class Progress:
    """A progress bar for tests: titles and (variant, prompt) pairs."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.expected = self.done = 0

    @contextlib.contextmanager
    def __call__(self, title: str):
        self.titles.append(title)
        yield self

    def expect(self, pairs: int) -> None:
        self.expected += pairs

    def advance(self, pairs: int) -> None:
        self.done += pairs


@contextlib.contextmanager
def silent(title: str):
    yield NoProgress()


@pytest.fixture(scope="module")
def network(folder) -> Path:
    return folder("gpt2")


@pytest.fixture
def plan(network) -> Plan:
    return make_plan(network)


def make_plan(network: Path, **changed) -> Plan:
    settings = {"name": "toy", "kind": "local", "path": str(network), "device": "cpu", "dtype": "float32"}
    parts = {
        "model_settings": settings,
        "task": tasks.get("ioi"),
        "sizes": SIZES,
        "seed": 0,
        "settings": toy.SETTINGS,
        "engine": toy.ENGINE,
        "circuit": toy.circuit("ioi"),
    }
    return Plan(**{**parts, **changed})


@pytest.fixture(scope="module")
def template(network, tmp_path_factory):
    """A folder with every measurement, what `measure` said, and its progress."""
    folder, progress = tmp_path_factory.mktemp("measured"), Progress()
    return folder, stage.measure(make_plan(network), folder, ALL, progress), progress


@pytest.fixture
def measured(template, tmp_path) -> Path:
    return Path(shutil.copytree(template[0], tmp_path / "measured"))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name[:2]: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def no_model(monkeypatch) -> None:
    def load(settings, *say):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(models, "load", load)


# --- one run -------------------------------------------------------------------------------------------------------


def test_every_measurement_writes_its_numbered_file(template) -> None:
    folder, done, progress = template
    assert done == ALL and [number for number in ALL if number in SHIPPED] == SHIPPED
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}_{MEASUREMENTS[n].ID}.json" for n in ALL]
    assert progress.titles[:2] == ["01 baseline", "02 activation patching"]
    assert progress.expected == progress.done > 0
    for number in ALL:
        path = stage.path_of(folder, number)
        document = results_io.read(path)
        assert path.read_text() == results_io.dumps(document)
        assert (document["number"], document["id"], document["kind"]) == (
            number,
            MEASUREMENTS[number].ID,
            "measurement",
        )
        assert document["n"] == {"evaluation": 8, "held_out": 4, "heads": 12, "templates": document["n"]["templates"]}
        assert document["environment"]["seeds"] == {"prompts": 0, "interventions": 0}
        assert (document["environment"]["device"], document["environment"]["dtype"]) == ("cpu", "float32")
        assert (document["records"], document["inputs_sha256"]) == ([], {})


def test_the_subject_says_which_model_prompts_circuit_and_settings(template, plan) -> None:
    folder, *_ = template
    for number in ALL:
        subject = results_io.read(stage.path_of(folder, number))["subject"]
        assert subject["model_sha256"] == models.identify(plan.model_settings).sha256
        assert (subject["model"], subject["task"], subject["dtype"]) == ("toy", "ioi", "float32")
        named = plan.circuit if number in DEPEND_ON_CIRCUIT else None
        assert subject["circuit_sha256"] == (named.sha256 if named else None)
    assert plan.subject("20")["settings"] == {
        "seed": 0, "draws": 2, "noise_scale": 1.0, "random_circuits": 6, "random_circuit_prompt_share": 4,
        "battery": toy.SETTINGS["battery"], "fewest_matched": 0,
    }  # fmt: skip
    greater_than = toy.circuit("greater_than").sha256  # the only companion that the model has a circuit for
    assert plan.subject("27")["stored_circuits"] == {"greater_than": greater_than}


def test_the_measurements_agree_with_each_other(template) -> None:
    folder, *_ = template
    data = {number: results_io.read(stage.path_of(folder, number))["data"] for number in ALL}
    clean, corrupted = (np.array(data["01"][f"{side}_logit_diff"]) for side in ("clean", "corrupted"))
    parts = data["03"]
    attribution = np.array(parts["attribution"]).sum(1) + np.array(parts["mlp"]).sum(1)
    total = attribution + parts["embedding"] + np.array(parts["bias"])
    assert np.abs(total - clean).max() < 1e-4
    assert np.abs(np.array(data["04"]["logit_diff"])[-1] - clean).max() < 1e-4
    battery = {
        c["name"]: np.array(row) for c, row in zip(data["20"]["conditions"], data["20"]["logit_diff"], strict=True)
    }
    # Knocking out the role that holds one head is knocking out that head.
    assert np.abs(clean - battery["without:middle/mean/0"] - np.array(data["21"]["effect"])[:, 4 + 2]).max() < 1e-5
    assert np.abs(clean - corrupted).mean() > 0.1
    largest = np.argsort(-np.array(data["26"]["discovery_norm"]), kind="stable")[:4]
    assert data["20"]["baselines"]["top_k_norm"] == sorted([int(i) // 4, int(i) % 4] for i in largest)


@pytest.mark.slow
def test_the_recorded_settings_are_exactly_those_that_each_measurement_reads(plan) -> None:
    for number in ALL:
        seen = set()

        class Spy(dict):
            def __getitem__(self, key, seen=seen):
                seen.add(key)
                return super().__getitem__(key)

        circuit = plan.circuit if number in DEPEND_ON_CIRCUIT else None
        MEASUREMENTS[number].measure(replace(plan.study, circuit=circuit, settings=Spy(toy.SETTINGS)))
        assert seen == set(MEASUREMENTS[number].SETTINGS), number


# --- what is fresh -------------------------------------------------------------------------------------------------


def test_a_second_run_loads_no_model_and_touches_no_file(measured, plan, monkeypatch) -> None:
    no_model(monkeypatch)
    before = snapshot(measured)
    assert stage.measure(plan, measured, ALL, silent) == []
    assert snapshot(measured) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", ["03", "20", "27"])
def test_a_deleted_measurement_is_measured_again_alone_with_the_same_bytes(measured, plan, number) -> None:
    before = snapshot(measured)
    stage.path_of(measured, number).unlink()
    assert stage.measure(plan, measured, ALL, silent) == [number]
    after = snapshot(measured)
    assert {n: text for n, (_, text) in after.items()} == {n: text for n, (_, text) in before.items()}
    assert [n for n in ALL if after[n][0] != before[n][0]] == [number]


def stale(folder: Path, plan: Plan) -> list[str]:
    """The shipped numbers that a run would measure, without measuring them."""
    return [n for n in SHIPPED if not stage.is_fresh(stage.path_of(folder, n), plan.subject(n))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("setting", "readers"),
    [
        ({"draws": 3}, ["20", "22"]),
        ({"seed": 1}, ["20", "22"]),
        ({"random_circuits": 7}, ["20"]),
        ({"fresh_prompts": {**toy.SETTINGS["fresh_prompts"], "pool_factor": 2}}, ["19"]),
        ({"battery": {"circuit": ["mean"]}}, ["20"]),
        ({"mediation": {"onward": False}}, ["05"]),
        ({"site_prompts": 5}, ["02", "04", "06"]),
        ({"corruption": {**toy.SETTINGS["corruption"], "strategy": "noise"}}, ["06"]),
        ({"attention_prompts": 9}, ["25"]),
        ({"repeated_tokens": {**toy.SETTINGS["repeated_tokens"], "length": 9}}, ["25"]),
        ({"companions": 1}, ["27"]),
        ({"companion_prompts": 5}, ["27"]),
        ({"attribution_tolerance": 1e-3}, ["03"]),
        ({"discovery": {"prompts": 3}}, []),
        *(
            ({name: {**toy.SETTINGS[name], "seed": 5}}, [number])
            for number, name in {
                "07": "ocse",
                "08": "attribution_patching",
                "09": "weights",
                "10": "llc",
                "22": "minimality",
                "24": "scrubbing",
                "26": "head_statistics",
                "28": "path_patching",
            }.items()
        ),
    ],
)
def test_a_changed_setting_makes_its_readers_stale(template, network, setting, readers) -> None:
    assert stale(template[0], make_plan(network, settings={**toy.SETTINGS, **setting})) == readers


def test_another_circuit_makes_stale_what_depends_on_it(template, network) -> None:
    other = replace(toy.circuit("ioi"), roles={"one": Role((head(0, 0),))})
    assert stale(template[0], make_plan(network, circuit=other)) == ["19", "20", "22", "24", "28"]
    renamed = replace(toy.circuit("ioi"), name="another")
    assert stale(template[0], make_plan(network, circuit=renamed)) == ["19", "20", "22", "24", "28"]


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"sizes": {**SIZES, "reference": 151}},
        {"task": tasks.get("induction")},
        {"task": tasks.get("ioi", bos=False)},
        {"task": tasks.get("ioi", metric="probability_difference")},
    ],
)
def test_other_prompts_make_everything_stale(template, network, changed) -> None:
    assert stale(template[0], make_plan(network, **changed)) == SHIPPED


def test_another_type_of_number_and_another_model_make_everything_stale(template, plan, network, tmp_path) -> None:
    settings = {**plan.model_settings, "dtype": "float64"}
    assert stale(template[0], make_plan(network, model_settings=settings)) == SHIPPED
    copied = Path(shutil.copytree(network, tmp_path / "copied"))
    assert stale(template[0], make_plan(copied)) == []  # where it lies does not matter
    (copied / "config.json").write_text((copied / "config.json").read_text() + " ")
    assert stale(template[0], make_plan(copied)) == SHIPPED


def test_another_stored_circuit_makes_those_that_read_it_stale(template, network, tmp_path) -> None:
    copied = Path(shutil.copytree(network, tmp_path / "copied"))
    other = replace(toy.circuit("greater_than"), roles={"one": Role((head(0, 0),))})
    circuit_files.save(other, copied / "circuits" / "greater_than.yaml")
    assert stale(template[0], make_plan(copied)) == ["09", "27"]


def test_results_of_other_code_are_stale(template, plan, monkeypatch) -> None:
    assert results_io.read(stage.path_of(template[0], "01"))["subject"]["measured_by"].startswith("0.1.0+")
    monkeypatch.setattr(code_digest, "version_of", lambda stored: "0.1.0+other")
    assert stale(template[0], plan) == SHIPPED


@pytest.mark.parametrize(
    "content", [b"", b'{"schema_version": 1, "subject": {', b"[]", b'{"schema_version": 1}', b"\xff"]
)
def test_an_unreadable_result_is_stale_and_not_fatal(measured, plan, content) -> None:
    stage.path_of(measured, "21").write_bytes(content)
    assert stale(measured, plan) == ["21"]


def test_how_many_rows_go_into_a_forward_pass_is_no_part_of_a_result(template, network) -> None:
    assert stale(template[0], make_plan(network, engine={**toy.ENGINE, "rows_per_forward": 64})) == []


# --- interruptions and shared results ------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_finished_before_a_failure_is_kept(plan, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(MEASUREMENTS["03"], "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.measure(plan, tmp_path, ["01", "21", "03", "26"], silent)
    assert sorted(path.name[:2] for path in tmp_path.iterdir()) == ["01", "21"]
    before = snapshot(tmp_path)
    monkeypatch.undo()
    assert stage.measure(plan, tmp_path, ["01", "21", "03", "26"], silent) == ["03", "26"]
    assert {number: state for number, state in snapshot(tmp_path).items() if number in before} == before


def interrupted(study):
    raise KeyboardInterrupt


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_in_a_sentence_and_not_written(
    plan, tmp_path, monkeypatch, value
) -> None:
    monkeypatch.setattr(MEASUREMENTS["03"], "measure", lambda study: {"attribution": np.array([[1.0, value]])})
    with pytest.raises(
        results_io.UserError, match=r"^measurement 03 of .* holds numbers that are not finite: .* model\.dtype=float32"
    ):
        stage.measure(plan, tmp_path, ["03"], silent)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_half_written_is_removed(measured, plan) -> None:
    (measured / ".20_ablation_battery.json.x1.partial").write_text('{"half')
    (measured / "notes.txt").write_text("mine")
    assert stage.measure(plan, measured, ALL, silent) == []
    assert sorted(path.name for path in measured.iterdir() if path.suffix != ".json") == ["notes.txt"]


@pytest.mark.slow
def test_a_run_with_another_circuit_copies_what_does_not_depend_on_it(template, network, tmp_path) -> None:
    shared, *_ = template
    other = make_plan(network, circuit=replace(toy.circuit("ioi"), roles={"one": Role((head(0, 0), head(2, 1)))}))
    assert stage.measure(other, tmp_path, ["01", "22", "21"], silent, shared=shared) == ["22"]
    for number in ("01", "21"):
        assert stage.path_of(tmp_path, number).read_bytes() == stage.path_of(shared, number).read_bytes()
    assert results_io.read(stage.path_of(tmp_path, "22"))["data"]["heads"] == [[0, 0], [2, 1]]


def test_a_stale_shared_result_is_measured_and_not_copied(measured, network, tmp_path) -> None:
    path = stage.path_of(measured, "01")
    document = results_io.read(path)
    results_io.write(path, {**document, "subject": {**document["subject"], "task": "greater_than"}})
    assert stage.measure(make_plan(network), tmp_path / "new", ["01"], silent, shared=measured) == ["01"]


@pytest.mark.slow
def test_the_default_run_copies_from_a_run_with_another_circuit_that_came_first(template, network, tmp_path) -> None:
    variant, *_ = template
    shared = tmp_path / "ioi"
    shutil.copytree(variant, shared / "circuit=discovered")
    other = make_plan(network, circuit=replace(toy.circuit("ioi"), roles={"one": Role((head(0, 0), head(2, 1)))}))
    assert stage.measure(other, shared, ["01", "21", "22"], silent, shared=shared) == ["22"]
    for number in ("01", "21"):
        assert stage.path_of(shared, number).read_bytes() == stage.path_of(variant, number).read_bytes()


@pytest.mark.slow
def test_a_result_with_other_seeds_in_its_file_is_not_copied(template, network, tmp_path) -> None:
    """The seed of interventions is no part of the subject of 01, but stands in the file."""
    other = make_plan(network, settings={**toy.SETTINGS, "seed": 1})
    assert other.subject("01") == make_plan(network).subject("01")
    assert stage.measure(other, tmp_path, ["01"], silent, shared=template[0]) == ["01"]
    assert results_io.read(stage.path_of(tmp_path, "01"))["environment"]["seeds"]["interventions"] == 1


@pytest.mark.slow
def test_only_what_depends_on_no_circuit_is_measured_exclusively(plan, tmp_path) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def exclusive():
        events.append("begin")
        yield
        events.append("end")

    @contextlib.contextmanager
    def titles(title: str):
        events.append(title[:2])
        yield NoProgress()

    stage.measure(plan, tmp_path, ["01", "22", "21"], titles, exclusive=exclusive)
    assert events == ["begin", "01", "end", "22", "begin", "21", "end"]
    stage.measure(plan, tmp_path, ["01", "22", "21"], titles, exclusive=exclusive)
    assert len(events) == 7  # what is fresh asks nobody


def test_only_what_is_asked_for_is_measured(plan, tmp_path) -> None:
    assert stage.measure(plan, tmp_path, ["21"], silent) == ["21"]
    assert [path.name for path in tmp_path.iterdir()] == ["21_knockouts.json"]


def test_the_battery_measures_the_circuit_it_is_given(template) -> None:
    data = results_io.read(stage.path_of(template[0], "20"))["data"]
    expected = toy.circuit("ioi").to_dict()
    assert data["circuit"] == json.loads(json.dumps(expected))
    subsets = {condition["subset"] for condition in data["conditions"]}
    assert subsets == {"circuit", "complement", "empty", "top_k_norm", "top_k_attribution"} | {
        f"without:{role}" for role in ("early", "middle", "late")
    }
    draws = {"zero": 1, "mean": 1, "mean_pooled": 1, "resample": 2, "noise": 2}
    assert isinstance(expected, Mapping) and set(draws) == set(ablation_battery.METHODS)
    assert len(data["conditions"]) == len(subsets) * sum(draws.values()) == len(data["logit_diff"])


@pytest.mark.slow
def test_what_the_architecture_does_not_allow_is_left_out_and_said(plan, tmp_path, monkeypatch) -> None:
    def refuse(study):
        raise models.UnsupportedArchitectureError("its layers are no layers")

    monkeypatch.setattr(MEASUREMENTS["03"], "measure", refuse)
    stage.path_of(tmp_path, "03").write_text("stale")
    said: list[str] = []
    done = stage.measure(plan, tmp_path, ["01", "03", "04"], Progress(), note=said.append)
    assert (done, said) == (["01", "04"], ["03 left out: its layers are no layers"])
    assert not stage.path_of(tmp_path, "03").exists()


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("attribution_patching", {"base": "x"}, "attribution base 'x' is no run"),
        ("attribution_patching", {"steps": 0}, "0 integration steps are no path"),
        ("llc", {"gammas": []}, "names no localiser"),
        ("minimality", {"greedy_steps": 0}, "greedy_steps is 0"),
        ("scrubbing", {"draws": 0}, "draws is 0"),
        ("head_statistics", {"folds": 1}, "folds=1 leaves nothing out"),
        ("path_patching", {"edge_share": -1}, "edge_share is -1"),
        ("ocse", {"alpha": 2}, "alpha=2 is no level"),
    ],
)
def test_settings_are_refused_before_anything_is_measured(network, tmp_path, section, change, message) -> None:
    settings = {**toy.SETTINGS, section: {**toy.SETTINGS[section], **change}}
    with pytest.raises(results_io.UserError, match=message):
        stage.measure(make_plan(network, settings=settings), tmp_path, ALL, Progress())
    assert not list(tmp_path.iterdir())
