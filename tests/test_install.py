"""What is installed and what is loaded: the lock covers pyproject.toml, and a command imports no more than it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import results_io
from scripts import pin_versions
from tests.commandline import SMALL

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = {"matplotlib", "pandas", "plotly", "pyarrow", "sklearn", "statsmodels", "torch", "transformers", "wandb"}
LOADED = f"""
import atexit, runpy, sys
atexit.register(lambda: print("loaded", *sorted({HEAVY} & set(sys.modules))))
runpy.run_path("run.py", run_name="__main__")
"""
FREE = re.compile(r"triton$|nvidia-|cuda-")  # a CUDA build of torch pins its own


PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; .*?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)


def lock() -> dict[str, Version]:
    """The version that constraints.txt pins for each package, and constraints-torch.txt for torch."""
    text = "".join((ROOT / name).read_text() for name in ("constraints.txt", "constraints-torch.txt"))
    return {canonicalize_name(name): Version(version) for name, version, _ in PIN.findall(text)}


def test_every_line_of_the_lock_is_a_pin_with_hashes_or_a_section() -> None:
    text = (ROOT / "constraints.txt").read_text()
    hashes = {name: found.count("sha256:") for name, _, found in PIN.findall(text)}
    assert re.sub(r"^#.*", "", PIN.sub("", text), flags=re.MULTILINE).split() == []
    assert min(hashes.values()) >= 1 and hashes["numpy"] > 30  # wheels for each system and Python
    assert not any(FREE.match(name) or name == "torch" for name in hashes)
    titles = re.findall(r"^# ---.*", text, re.MULTILINE)
    assert titles == list(pin_versions.SECTIONS)
    makefile = (ROOT / "Makefile").read_text().replace("\\", "")
    asked = re.findall(r"call LOCKED,(.*?)\)", makefile)
    assert len(asked) == 3 and all(
        title.startswith(f"# --- what {word}") for title, word in zip(titles, asked, strict=True)
    )


def test_the_lock_has_every_package_once_and_with_its_widest_marker() -> None:
    text = "pip==1 \\\n    --hash=sha256:a\nb==2 \\\n    --hash=sha256:c\nc==3\ntorch==9\nnvidia-x==1\ntriton==1\n"
    everything = pin_versions.parsed(text)
    assert list(everything) == ["pip", "b", "c"] and everything["b"].endswith("sha256:c")
    run = pin_versions.parsed("b==2 ; sys_platform == 'win32' \\\n    --hash=sha256:c\n")
    everything |= {"setuptools": "setuptools==4"}
    parts = pin_versions.sections(everything, list(run))
    assert [list(part) for part in parts] == [["pip", "setuptools"], ["b"], ["c"]]
    assert "win32" not in pin_versions.written(parts) and pin_versions.written(parts).count("==") == 4


def applying(requirements: list[str], extras: set[str]) -> list[Requirement]:
    """The requirements that hold on this machine with these extras, but for what a build of torch brings."""
    found = [Requirement(text) for text in requirements]
    return [
        one
        for one in found
        if not FREE.match(one.name)
        and (one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}))
    ]


def declared(extra: str) -> list[Requirement]:
    """What an extra of pyproject.toml asks for, and what the extras that it names ask for."""
    found = []
    for one in applying(PROJECT["optional-dependencies"][extra], set()):
        found += [need for name in one.extras for need in declared(name)] if one.name == PROJECT["name"] else [one]
    return found


def brought_by(package: str) -> list[str]:
    """The requirements of an installed package; none for one that is not installed here."""
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def test_the_lock_pins_each_declared_dependency_inside_its_range():
    pins = lock()
    needs = applying(PROJECT["dependencies"], set()) + declared("dev")
    outside = [str(one) for one in needs if pins[canonicalize_name(one.name)] not in one.specifier]
    assert len(needs) > 40
    assert outside == []


def test_the_lock_pins_whatever_an_installed_package_brings():
    pins, seen = lock(), set()
    todo = applying(PROJECT["dependencies"], set()) + declared("dev")
    while todo:
        one = todo.pop()
        name, key = canonicalize_name(one.name), (canonicalize_name(one.name), *sorted(one.extras))
        if key in seen:
            continue
        seen.add(key)
        assert name in pins, f"constraints.txt does not pin {name}; write it anew with `make lock`"
        todo += applying(brought_by(name), one.extras)
    assert len(seen) > 100


def loaded(*arguments: str) -> set[str]:
    """The heavy packages that `python run.py *arguments` has loaded when it ends."""
    line = [sys.executable, "-c", LOADED, *arguments]
    finished = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True)
    *_, last = finished.stdout.splitlines()
    first, *names = last.split()
    assert first == "loaded", finished.stderr
    return set(names)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("argument", ["--help", "task=nosuch", "suite=nosuch"])
def test_help_and_a_refusal_load_no_heavy_package(argument):
    assert loaded(argument) == set()


@pytest.mark.slow
def test_a_run_without_a_tracker_does_not_load_wandb(tmp_path):
    names = loaded(*SMALL, "model=planted/sound", "calibration=[c11]", f"results={tmp_path}")
    assert "torch" in names and "wandb" not in names
    assert list(tmp_path.rglob("11_bootstrap_stability.json"))


def refused_wheel(root: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "setup.py", "-q", "bdist_wheel"]
    return subprocess.run(line, cwd=root, check=False, capture_output=True, text=True)


def test_a_wheel_is_refused_in_one_sentence_and_nothing_is_written():
    pytest.importorskip("setuptools.command.bdist_wheel")
    before = sorted(path.name for path in ROOT.iterdir())
    finished = refused_wheel(ROOT)
    assert finished.returncode == 1
    said = [line for line in finished.stderr.splitlines() if "wheel" in line]
    assert len(said) == 1 and "`pip install -e .`" in said[0] and "`meridian`" in said[0]
    assert sorted(path.name for path in ROOT.iterdir()) == before


def test_the_version_stands_once():
    """In results_io; pyproject.toml reads it from there, and no other file of the root repeats it as its own."""
    assert "version" not in PROJECT and PROJECT["dynamic"] == ["version"]
    assert re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) is None
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == results_io.VERSION


@pytest.mark.slow
def test_the_command_meridian_is_run_py_from_any_folder(tmp_path):
    """The same refusal with the same exit code, and nothing written where it was typed."""
    module, function = PROJECT["scripts"]["meridian"].split(":")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {module} import {function}; sys.exit({function}())"
    answers = [
        subprocess.run(line, cwd=tmp_path, check=False, capture_output=True, text=True)
        for line in (
            [sys.executable, "-c", program, "task=nosuch"],
            [sys.executable, str(ROOT / "run.py"), "task=nosuch"],
        )
    ]
    assert [answer.returncode for answer in answers] == [2, 2]
    assert answers[0].stderr == answers[1].stderr and "task=nosuch is unknown" in answers[0].stderr
    assert list(tmp_path.iterdir()) == []
