"""The examples of docs/extending.md, as they stand there, in a copy of the repository: a task, a calibration, a measurement, a
command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import results_io

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^`(?P<path>[\w/.]+)`\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGED = re.compile(r"^In `(?P<path>[\w/.]+)`, [^\n]*:\n\n```diff\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ADDED = re.compile(r"(?P<lines>(?:^\+.*\n)+) (?P<before>.*)$", re.MULTILINE)
COPIED = ("calibrations", "circuits", "configs", "kernels", "meridian", "scripts", "suites", "tests")
FILES = (*(path.name for path in ROOT.glob("*.py") if path.name != "setup.py"), "pyproject.toml", "results/README.md")
RUN = (
    "task=color", "circuit=discovered", "circuit.method=AtP", "calibration=[x1]", "calibration.x1.margin=0.1",
    "prompts.evaluation=60", "prompts.held_out=30", "prompts.discovery=30", "prompts.reference=120",
    "measurement.random_circuits=40",
)  # fmt: skip
CERTIFY = """
import json, sys
from pathlib import Path
import yaml
from calibrations import calibrate, certificate
from calibrations.registry import CALIBRATIONS
from tests.calibrations.test_calibrate import configuration, documents, stored
folder = stored(Path(sys.argv[1]), documents())
judged = calibrate.calibrate(folder, CALIBRATIONS, configuration(permutations=199, bootstrap_resamples_p=499))
rules = yaml.safe_load(Path("configs/certificate/tiers.yaml").read_text())
without = {name: document for name, document in judged.items() if name != "X1"}
without["M93"] = calibrate.calibrate(folder, [name for name in CALIBRATIONS if name != "X1"],
                                     configuration(permutations=199, bootstrap_resamples_p=499))["M93"]
both = [certificate.certify(documents, rules) for documents in (judged, without)]
print(json.dumps(both))
"""


def blocks() -> dict[str, str]:
    """{path: text} of the files on the page."""
    return {match["path"]: match["text"] for match in BLOCK.finditer(PAGE.read_text())}


def changed(path: str, text: str) -> str:
    """The text of a file with what the page adds to it: lines with a + go before the first line that begins as the next one."""
    for match in CHANGED.finditer(PAGE.read_text()):
        for added in ADDED.finditer(match["text"]) if match["path"] == path else ():
            assert f"\n{added['before']}" in text, (path, added["before"])
            lines = re.sub(r"^\+", "", added["lines"], flags=re.MULTILINE)
            text = text.replace(f"\n{added['before']}", f"\n{lines}{added['before']}", 1)
    return text


def call(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The repository's packages without any extension."""
    tree = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "results").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def tree(copy) -> Path:
    """The copy with the files of the page added, none of which replaces one that is there, and its lines added to others."""
    for path, text in blocks().items():
        assert not (copy / path).exists(), path
        (copy / path).write_text(text)
    for path in ("run.py", "configs/config.yaml", "configs/ranges.yaml"):
        (copy / path).write_text(changed(path, (copy / path).read_text()))
    return copy


def test_each_example_is_one_code_file_one_test_and_at_most_one_configuration_file():
    assert list(blocks()) == [
        "circuits/tasks/color.py",
        "configs/task/color.yaml",
        "tests/circuits/test_color.py",
        "calibrations/x1_leave_one_template_out.py",
        "configs/calibration/x1_leave_one_template_out.yaml",
        "tests/calibrations/test_x1_leave_one_template_out.py",
        "circuits/measurements/paired_knockouts.py",
        "tests/circuits/measurements/test_paired_knockouts.py",
        "meridian/commands/tiers.py",
        "tests/meridian/test_tiers.py",
    ]
    assert [match["path"] for match in CHANGED.finditer(PAGE.read_text())] == [
        "run.py",
        "configs/config.yaml",
        "configs/ranges.yaml",
    ]


def test_the_examples_are_in_the_house_style(tree):
    for arguments in (("check",), ("format", "--check")):
        done = call(tree, "-m", "ruff", *arguments, *(path for path in blocks() if path.endswith(".py")))
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_run_of_the_new_task_is_judged_by_the_new_calibration(tree, tmp_path):
    done = call(tree, "run.py", *RUN, f"results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^X1 +leave one template out +- .*\*", done.stdout, re.MULTILINE), done.stdout
    (path,) = tmp_path.rglob("X1_leave_one_template_out.json")
    document, baseline = results_io.read(path), results_io.read(next(tmp_path.rglob("01_baseline.json")))["data"]
    assert document["subject"]["settings"]["margin"] == 0.1 and document["subject"]["settings"]["minimum_prompts"] == 30
    assert document["subject"]["task"] == "color" and baseline["accuracy"] == {"evaluation": 1.0, "held_out": 1.0}
    (record,), (again,) = document["records"], document["data"]["held_out"]
    battery = results_io.read(next(tmp_path.rglob("20_*.json")))["data"]
    assert record["companions"]["influence"] == pytest.approx(by_hand(baseline, battery), abs=1e-6)
    assert record["ci90"][0] <= record["estimate"] <= record["ci90"][1]
    assert again["n"]["prompts"] == 30 and record["n"]["templates"] == 3


def by_hand(baseline: dict, battery: dict) -> dict[str, float]:
    """Faithfulness without each template minus faithfulness, from the files alone."""
    named = {
        condition["name"]: row for condition, row in zip(battery["conditions"], battery["logit_diff"], strict=True)
    }
    rows = [row for row, split in enumerate(baseline["split"]) if split == "evaluation"]
    intact, clean = named["circuit/mean/0"], baseline["clean_logit_diff"]

    def theta(kept: list[int]) -> float:
        return sum(intact[row] for row in kept) / sum(clean[row] for row in kept)

    templates = {baseline["template"][row] for row in rows}
    return {t: theta([row for row in rows if baseline["template"][row] != t]) - theta(rows) for t in templates}


@pytest.mark.slow
def test_the_tests_on_the_page_pass(tree):
    done = call(tree, "-m", "pytest", *(path for path in blocks() if path.startswith("tests/")))
    assert done.returncode == 0, done.stdout
    assert re.search(r"^10 passed in", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_tests_of_what_lists_all_of_them_pass_with_the_extensions(tree):
    """An extension changes no shipped test: sentences and tables that name every task or calibration are made from them."""
    listing = (
        "tests/test_registries.py",
        "tests/calibrations/test_registry.py",
        "tests/calibrations/test_certificate.py",
        "tests/meridian/test_command_line.py::test_a_wrong_value_is_one_sentence",
        "tests/meridian/test_command_line.py::test_the_commands_of_run_py_are_the_files_of_their_folder",
    )
    done = call(tree, "-m", "pytest", *listing)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_new_calibration_has_a_row_and_changes_no_tier(tree, tmp_path):
    done = call(tree, "-c", CERTIFY, str(tmp_path))
    assert done.returncode == 0, done.stderr
    extended, shipped = json.loads(done.stdout)
    (row,) = [row for row in extended["rows"] if row["id"] == "X1"]
    assert row["verdict"] == "pass" and not row["gating"] and row["decisive"] == "X1.leave_one_template_out"
    assert [r for r in extended["rows"] if r["id"] not in ("X1", "M93")] == [
        r for r in shipped["rows"] if r["id"] not in ("X1", "M93")
    ]
    verdicts = [{r["id"]: r["verdict"] for r in folded["rows"]}["M93"] for folded in (extended, shipped)]
    assert verdicts[0] == verdicts[1]
    for name in ("tier", "ceiling", "blocking", "p_certificate"):
        assert extended[name] == shipped[name]


@pytest.mark.slow
def test_an_incomplete_calibration_ends_a_run_with_one_sentence(tree, tmp_path):
    broken = shutil.copytree(tree, tmp_path / "broken", ignore=shutil.ignore_patterns("tests", "embedded"))
    path = broken / "calibrations" / "x1_leave_one_template_out.py"
    path.write_text(path.read_text().replace('INPUTS = ("01", "20")\n', ""))
    done = call(broken, "run.py", "task=color")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "calibrations/x1_leave_one_template_out.py does not define INPUTS; add the numbers of"
    )
    assert done.stderr.count("\n") == 1
