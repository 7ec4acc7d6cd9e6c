"""Ctrl-C at any moment is one sentence and exit code 130: during imports, during a run, twice, and at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

import interruption
import run
from tests.commandline import ROOT, SMALL, command

PROGRAM = """
import sys, interruption
interruption.take_over()
print("ready", flush=True)
import runpy
sys.argv[0] = "run.py"
runpy.run_path("run.py", run_name="__main__")
"""
SAID = f"{interruption.STOPPED}\n"


def program(*arguments: str) -> subprocess.Popen[str]:
    """`python run.py`, which has said that its first line was run."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def stopped(process: subprocess.Popen[str], *after: float) -> tuple[int, str]:
    """(exit code, what was said) of a process that is sent Ctrl-C after so many seconds each."""
    for seconds in after:
        time.sleep(seconds)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize("after", [(0.0,), (0.3,), (0.1, 0.0)])
def test_during_imports(after, tmp_path) -> None:
    assert stopped(program(*SMALL, f"results={tmp_path}"), *after) == (interruption.CODE, SAID)


@pytest.mark.slow
def test_at_any_moment_once_or_twice_and_the_run_goes_on(tmp_path) -> None:
    rng = random.Random(0)
    for _ in range(30):
        moments = [rng.uniform(0, 25.0), *([rng.choice([0.0, 0.01, 0.2])] if rng.random() < 0.5 else [])]
        found = stopped(program(*SMALL, "model=planted/sound", "calibration=[c11]", f"results={tmp_path}"), *moments)
        assert found in ((interruption.CODE, SAID), (0, "")), found
        assert not list(tmp_path.rglob("*.partial")) or len(moments) == 2
    assert command(*SMALL, "model=planted/sound", "calibration=[c11]", f"results={tmp_path}").code == 0


def test_an_interruption_inside_a_run_is_the_sentence_once(capsys) -> None:
    with (
        mock.patch.object(interruption, "_told", False),
        mock.patch.dict(run.COMMANDS, {"run": mock.Mock(side_effect=KeyboardInterrupt)}),
    ):
        outcome = command("task=ioi")
        assert (outcome.code, outcome.errors) == (130, SAID)
        assert interruption.say() == 130 and capsys.readouterr().err == ""


def test_the_second_one_ends_the_process_where_it_stands() -> None:
    script = (
        "import interruption, os, signal, time\n"
        "interruption.take_over()\n"
        "def pressed():\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
        "with interruption.caught():\n"
        "    try:\n        pressed()\n"
        "    except KeyboardInterrupt:\n        print('cleaning', flush=True); pressed(); print('never')\n"
    )
    line = [sys.executable, "-c", script]
    finished = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "cleaning\n", SAID)


def test_importing_run_py_leaves_signals_to_whoever_imports_it() -> None:
    assert signal.getsignal(signal.SIGINT) is not interruption._handle  # this test did
    assert Path(sys.argv[0]).stem != "meridian"
