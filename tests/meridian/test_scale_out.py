"""Many jobs: launchers against runs one by one, byte for byte; refusals among them; the pooled table; presets."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from rich.console import Console

import results_io
import shown_text
from calibrations.registry import CALIBRATIONS
from calibrations.rules import RuleDifference, Standing
from circuits import circuit as circuit_files
from meridian import aggregate, devices, stages
from tests.circuits import toy
from tests.commandline import ROOT, Outcome, command

TASKS, SEEDS = ("ioi", "greater_than"), (0, 1)
CHEAP = (
    "measurement.random_circuits=20",
    "measurement.site_prompts=4",
    "measurement.companion_prompts=4",
    "measurement.attention_prompts=4",
    "measurement.llc.draws=8",
)
PROMPTS = {"evaluation": 16, "held_out": 8, "discovery": 8, "reference": 150}
needs_submitit = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="pip install -e '.[slurm]'")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install -e '.[ray]'")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[str]:
    """A random model with circuits for two tasks, and few prompts, which the model gets wrong: little is measured."""
    folder = toy.save(toy.build("gpt2"), tmp_path_factory.mktemp("models") / "toy")
    for task in TASKS:
        circuit_files.save(toy.circuit(task), folder / "circuits" / f"{task}.yaml")
    sizes = [f"prompts.{name}={size}" for name, size in PROMPTS.items()]
    return ["model=local", f"model.path={folder}", "model.name=toy", "model.device=cpu", *sizes]


@pytest.fixture(scope="module")
def one_by_one(small, tmp_path_factory) -> Path:
    """The results of the four runs, each by itself."""
    results = tmp_path_factory.mktemp("one_by_one")
    for task in TASKS:
        for seed in SEEDS:
            assert command(*small, f"task={task}", f"seed={seed}", f"results={results}").code == 0
    return results


def files(results: Path) -> dict[str, bytes]:
    """Every file of a folder of results but the locks."""
    found = {str(path.relative_to(results)): path for path in results.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items()) if not name.startswith(".locks/")}


def multirun(*arguments: object, outputs: Path) -> Outcome:
    """`run.py -m` in a process of its own, with one thread in each job."""
    asked = [sys.executable, "run.py", "-m", *map(str, arguments), f"hydra.sweep.dir={outputs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    return Outcome(done.returncode, done.stdout, done.stderr)


# --- launchers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("submitit_local", marks=needs_submitit),
        pytest.param("ray_local", marks=needs_ray),
    ],
)
def test_jobs_side_by_side_leave_the_bytes_of_runs_one_by_one(launcher, small, one_by_one, tmp_path):
    results, outputs = tmp_path / "results", tmp_path / "outputs"
    asked = [f"task={','.join(TASKS)}", f"seed={','.join(map(str, SEEDS))}", f"hydra/launcher={launcher}"]
    ended = multirun(*small, *asked, f"results={results}", outputs=outputs)
    assert ended.code == 0, ended.errors
    expected = files(one_by_one)
    assert {Path(name).name for name in expected} >= {"summary.json", "summary.csv", "certificate.json"}
    assert sum(name.endswith("certificate.json") for name in expected) == len(TASKS) * len(SEEDS)
    assert files(results) == expected
    assert f"4 certificates pooled in {results / 'summary.csv'}" in ended.said


@pytest.mark.slow
@needs_submitit
def test_with_every_measurement_too_and_what_no_circuit_changes_is_measured_once(small, tmp_path):
    """Two circuits on the same prompts, at the same time: one job measures what depends on neither, the other copies it."""
    everything = [*small, *CHEAP, "task=ioi", "measurement.regardless=true"]
    alone, together, outputs = tmp_path / "alone", tmp_path / "together", tmp_path / "outputs"
    for circuit in ("stored", "random"):
        assert command(*everything, f"circuit={circuit}", f"results={alone}").code == 0
    several = ["circuit=stored,random", "hydra/launcher=submitit_local", f"results={together}"]
    ended = multirun(*everything, *several, outputs=outputs)
    assert ended.code == 0, ended.errors
    expected = files(alone)
    kinds = {Path(name).name[:2] for name in expected}
    assert kinds >= {"01", "02", "05", "07", "08", "10", "20", "21", "24", "28"}
    assert files(together) == expected
    said = "".join(path.read_text() for path in outputs.rglob("*_log.out"))
    times = {number: len(re.findall(rf"^{number} ", said, re.MULTILINE)) for number in ("01", "02", "21", "20", "28")}
    assert times == {"01": 1, "02": 1, "21": 1, "20": 2, "28": 2}


@pytest.mark.slow
def test_every_job_says_why_it_failed_and_a_crash_leaves_its_traceback(small, tmp_path, monkeypatch):
    ran = []

    def measure(self, task):
        ran.append(self.seed)
        if self.seed < 2:
            raise results_io.UserError(f"no {self.seed}")
        raise RuntimeError("a crash") if self.seed == 2 else KeyError("another")

    monkeypatch.setattr(stages, "measure", measure)
    swept = ["seed=0,1,2,3", f"results={tmp_path / 'r'}", f"hydra.sweep.dir={tmp_path / 'o'}"]
    ended = command("-m", *small, "task=ioi", *swept)
    assert ran == [0, 1, 2, 3]
    assert ended.code == 2  # that of the first
    lines = ended.errors.splitlines()
    assert lines[:2] == ["no 0", "no 1"] and lines.count("no 0") == 1
    assert "RuntimeError: a crash" in lines and "KeyError: 'another'" in lines


@pytest.mark.slow
def test_jobs_in_one_process_leave_the_same_bytes_and_a_refused_one_is_said_after_the_others(
    small, one_by_one, tmp_path
):
    results = tmp_path / "results"
    order = ["task=greater_than,induction,ioi"]  # the toy has no circuit for induction
    ended = command("-m", *small, *order, f"results={results}", f"hydra.sweep.dir={tmp_path / 'outputs'}")
    assert ended.code == 2
    assert "comes with no circuit for task induction" in ended.errors.splitlines()[-1]
    assert "Traceback" not in ended.errors
    assert "2 certificates pooled" in ended.output.splitlines()[-1]
    alone = {
        name: content
        for name, content in files(one_by_one).items()
        if "seed=1" not in name and not name.startswith("summary")
    }
    assert {name: content for name, content in files(results).items() if not name.startswith("summary")} == alone
    table = ended.output[ended.output.rindex("model") :]
    assert [len(re.findall(rf"^ *toy +{task} ", table, re.MULTILINE)) for task in TASKS] == [1, 1], table


@pytest.mark.slow
def test_two_processes_with_one_command_measure_once(small, one_by_one, tmp_path):
    """The second one waits, or comes when all is done; either way it measures nothing."""
    asked = [sys.executable, "run.py", *small, "task=ioi", "seed=0", f"results={tmp_path / 'results'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(asked, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], ended
    assert sorted("nothing measured anew" in output for output, _ in ended) == [False, True]
    expected = {name: content for name, content in files(one_by_one).items() if name.startswith("toy/ioi/")}
    found = files(tmp_path / "results")
    assert {name: found[name] for name in expected if "seed=1" not in name} == {
        name: content for name, content in expected.items() if "seed=1" not in name
    }


# --- the pooled table ----------------------------------------------------------------------------------------------


def entry(tier, ratio, variant=None, seed=0):
    return {
        "subject": {"model": "m", "task": "t"},
        "variant": variant,
        "seed": seed,
        "tier": tier,
        "tier_name": "supported",
        "of": 4,
        "ceiling": 3,
        "rules": Standing("0.3", "x", (RuleDifference("seed", seed, 0),) if seed else ()).to_dict(),
        "faithfulness": ratio,
        "verdicts": dict.fromkeys(CALIBRATIONS, "pass") | {"C30": "inconclusive", "M98": "fail"},
    }


POOLED = {
    "circuits": {
        "m/t": entry(2, {"estimate": 0.9, "ci95": [0.85, 0.96]}),
        "m/t/seed=1": entry(None, None, "seed=1", 1),
    },
    "claims": [
        {
            "model": "m",
            "model_sha256": "x",
            "task": "t",
            "tried": 2,
            "tiers": [None, 2],
            "under_released_rules": [False, True],
        }
    ],
    "multiplicity": {
        "published_value": 1.0,
        "verdict": "pass",
        "companions": {
            "circuits": {
                "m/t": {"p": 0.01, "bh": 0.02, "by": 0.03, "survives": True},
                "m/t/seed=1": {"p": None, "bh": None, "by": None, "survives": False},
            }
        },
    },
}


def test_the_csv_has_a_row_for_each_certificate_and_a_column_for_each_calibration():
    first, second = csv.DictReader(aggregate.to_csv(aggregate.rows(POOLED)).splitlines())
    assert list(first) == [*aggregate.ABOUT, *aggregate.JUDGED, *CALIBRATIONS]
    assert (first["seed"], first["variant"], first["tier"], first["ceiling"]) == ("0", "", "2", "3")
    assert (first["faithfulness"], first["low"], first["high"]) == ("0.9", "0.85", "0.96")
    assert (first["p"], first["p_corrected"], first["survives"]) == ("0.01", "0.03", "True")
    assert (first["C11"], first["C30"], first["M98"]) == ("pass", "inconclusive", "fail")
    assert (second["seed"], second["variant"], second["tier"]) == ("1", "seed=1", "")
    assert (first["rules"], second["rules"]) == ("released 0.3", "changed")
    assert (second["faithfulness"], second["low"], second["p"], second["survives"]) == ("", "", "", "False")


def test_the_table_has_one_character_for_each_verdict():
    console = Console(width=shown_text.WIDTH, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    aggregate.show(POOLED, console)
    text = console.export_text()
    header, first, second, *_, claims, last = text.splitlines()
    assert max(map(len, text.splitlines())) <= shown_text.WIDTH and header.split()[-1] == "verdicts"
    assert f"Verdicts in the order {' '.join(CALIBRATIONS)}: p pass" in " ".join(text.split())
    letters = "".join("?" if name == "C30" else "F" if name == "M98" else "p" for name in CALIBRATIONS)
    assert first.split() == ["m", "t", "0", "2", "of", "4", "3", "0.90", "[0.85,", "0.96]", "0.03", letters]
    assert second.split() == ["m", "t", "1", "seed=1", "none", "*", "3", "not", "reportable", letters]
    assert claims == "2 claims tried about t on m: tiers none* 2 (* under rules that are not released)"
    assert last == "Multiplicity over all of them: 100% of significant results survive BH, verdict pass"


@pytest.mark.slow
def test_every_verdict_of_the_stored_certificates_has_a_letter(one_by_one):
    pooled = results_io.read(one_by_one / "summary.json")
    verdicts = {verdict for one in pooled["circuits"].values() for verdict in one["verdicts"].values()}
    assert verdicts <= set(aggregate.LETTERS)
    assert len(set(aggregate.LETTERS.values())) == len(aggregate.LETTERS)


# --- presets and GPUs ----------------------------------------------------------------------------------------------


@needs_submitit
@pytest.mark.parametrize(
    ("launcher", "target", "settings"),
    [
        ("slurm", "SlurmLauncher", {"gpus_per_node": 1, "max_num_timeout": 20, "array_parallelism": 16}),
        ("gpus", "LocalLauncher", {"gpus_per_node": 2, "timeout_min": 1440}),
    ],
)
def test_presets_are_settings_that_their_launcher_has(launcher, target, settings):
    import hydra_plugins.hydra_submitit_launcher.config  # noqa: F401 - puts its schema into the store

    known = ConfigStore.instance().load(f"hydra/launcher/submitit_{'slurm' if launcher == 'slurm' else 'local'}.yaml")
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("config", [f"hydra/launcher={launcher}"], return_hydra_config=True).hydra.launcher
    assert config._target_.endswith(target)
    assert set(config) <= set(known.node)
    assert {name: config[name] for name in settings} == settings
    assert config.submitit_folder.startswith("outputs/")


def test_each_job_gets_a_gpu_that_no_other_has(tmp_path):
    with mock.patch("tempfile.gettempdir", return_value=str(tmp_path)):
        first, second = devices.free(["0", "1"]), devices.free(["0", "1"])
        assert (first[1], second[1]) == ("0", "1")
        second[0].release()
        third = devices.free(["0", "1"])
        assert third[1] == "1"
        for lock, _ in (first, third):
            lock.release()


@pytest.mark.parametrize(("shown", "left"), [("0,1", "0"), ("", ""), ("3", "3")])
def test_a_job_sees_one_gpu_of_several_and_is_else_left_alone(shown, left, tmp_path):
    callback = devices.OneGPUEach()
    with (
        mock.patch("tempfile.gettempdir", return_value=str(tmp_path)),
        mock.patch.dict(os.environ, {devices.VISIBLE: shown}),
    ):
        callback.on_job_start(config=None)
        assert os.environ[devices.VISIBLE] == left
        assert (callback.lock is not None) == (shown != left)
        callback.on_job_end(config=None)
        assert callback.lock is None or not callback.lock.is_locked
