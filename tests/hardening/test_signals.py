"""A signal at any moment is one sentence and its exit code: during imports, during a run, twice, and at the end."""

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
from results_io import UserError
from tests.commandline import ROOT, SMALL, command


@pytest.fixture(autouse=True)
def hanging_up_is_heard():
    """Tests that run under nohup pass the ignored signal on to the processes that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


def stopped(process: subprocess.Popen[str], *after: float, by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """(exit code, what was said) of a process that is sent a signal after so many seconds each."""
    for seconds in after:
        time.sleep(seconds)
        if process.poll() is None:
            os.kill(process.pid, by)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize("after", [(0.0,), (0.3,), (0.1, 0.0)])
def test_during_imports(after, tmp_path) -> None:
    assert stopped(program(*SMALL, f"results={tmp_path}"), *after) == (interruption.CODE, SAID)


@pytest.mark.parametrize(("by", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("after", [(0.0,), (0.1, 0.0)])
def test_a_scheduler_and_a_closed_terminal_stop_it_alike(by, code, after, tmp_path) -> None:
    assert stopped(program(*SMALL, f"results={tmp_path}"), *after, by=by) == (code, SAID)


def test_the_code_is_that_of_the_first_signal_and_the_second_ends_the_process() -> None:
    script = (
        "def sent(number):\n    os.kill(os.getpid(), number); time.sleep(5)\n"
        "with interruption.caught():\n"
        "    try:\n        sent(signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n        print('cleaning', flush=True); sent(signal.SIGINT); print('never')\n"
    )
    assert ended(script) == (143, "cleaning\n", SAID)


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_its_code_after_the_sentence_after_a_finalizer_and_while_python_ends(sent, code) -> None:
    signalled = f"os.kill(os.getpid(), signal.{sent}); time.sleep(0.001)"
    rest = "    except KeyboardInterrupt:\n        sys.exit(interruption.say())\n"
    within = f"with interruption.caught():\n    try:\n        {signalled}; time.sleep(60)\n{rest}"
    assert ended(within) == (code, "", SAID)
    freed = f"class Freed:\n    def __del__(self):\n        {signalled}\n"
    dropped = f"with interruption.caught():\n    try:\n        Freed(); time.sleep(60)\n{rest}"
    assert ended(f"{freed}{dropped}") == (code, "", SAID)
    kept = f"class Kept:\n    def __del__(self, os=os, signal=signal, time=time):\n        {signalled}\n"
    assert ended(f"import threading\n{kept}threading.kept = Kept()\nsys.exit(3)\n") == (3, "", "")


def test_a_worker_leaves_the_signals_to_its_parent() -> None:
    script = "interruption.let_go()\nprint(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)\n"
    assert ended(f"{script}os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n") == (-signal.SIGTERM, "True\n", "")


@pytest.mark.parametrize("presses", [1, 2])
def test_a_terminal_that_is_gone_changes_no_exit_code(presses) -> None:
    """Nothing can be written to either stream any more."""
    again = "os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)" if presses == 2 else "sys.exit(interruption.say())"
    script = (
        "import interruption, os, signal, sys, time\ninterruption.take_over()\n"
        "with interruption.caught():\n"
        "    try:\n        sys.stdin.read(); os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)\n"
        f"    except KeyboardInterrupt:\n        {again}\n"
    )
    ours, theirs = os.openpty()
    line = [sys.executable, "-c", script]
    process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.close(ours)
    process.communicate(timeout=60)
    assert process.returncode == 129


def test_a_signal_that_is_ignored_still_is() -> None:
    """As nohup has it."""
    ignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    script = (
        f"{ignored}import os, interruption\ninterruption.take_over()\nos.kill(os.getpid(), signal.SIGHUP)\nprint('on')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


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


def ended(script: str) -> tuple[int, str, str]:
    """(exit code, output, errors) of a script that takes Ctrl-C over first, and ends before a sleep of a minute."""
    script = f"import atexit, interruption, os, signal, sys, time\ninterruption.take_over()\n{script}"
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True, timeout=30
    )
    return finished.returncode, finished.stdout, finished.stderr


PRESSED = "os.kill(os.getpid(), signal.SIGINT); time.sleep(0.001)"


def test_while_hydra_composes_it_ends_the_process_although_hydra_goes_on_after_errors() -> None:
    script = (
        "import run\nfrom hydra._internal.hydra import Hydra\ncompose, pressed = Hydra.compose_config, []\n"
        "def composed(*given, **more):\n"
        "    if pressed:\n        return compose(*given, **more)\n"
        "    pressed.append(True)\n"
        f"    try:\n        {PRESSED}; time.sleep(5)\n    finally:\n        raise ValueError('half set')\n"
        "Hydra.compose_config = composed\nsys.argv = ['run.py', 'task=none']\nsys.exit(run.console())\n"
    )
    assert ended(script) == (interruption.CODE, "", SAID)


@pytest.mark.parametrize("presses", [1, 2])
def test_inside_an_import_it_is_raised_once_that_is_over_and_the_second_ends_the_process(presses, tmp_path) -> None:
    module = f"import os, signal, time\nfor _ in range({presses}):\n    {PRESSED}\nprint('imported', flush=True)\n"
    (tmp_path / "slow_to_import.py").write_text(module)
    script = (
        f"sys.path.insert(0, {str(tmp_path)!r})\nwith interruption.caught():\n"
        "    try:\n        import slow_to_import; time.sleep(60); print('never')\n"
        "    except KeyboardInterrupt:\n        sys.exit(interruption.say())\n"
    )
    assert ended(script) == (interruption.CODE, "imported\n" if presses == 1 else "", SAID)


def test_one_that_python_drops_inside_a_finalizer_is_raised_again() -> None:
    script = (
        f"class Freed:\n    def __del__(self):\n        {PRESSED}\n"
        "with interruption.caught():\n"
        "    try:\n        Freed(); time.sleep(60); print('never')\n"
        "    except KeyboardInterrupt:\n        sys.exit(interruption.say())\n"
    )
    assert ended(script) == (interruption.CODE, "", SAID)


def test_another_dropped_error_is_printed_as_ever() -> None:
    code, _, errors = ended("class Freed:\n    def __del__(self):\n        1 / 0\nFreed()\n")
    assert code == 0 and errors.startswith("Exception ignored in") and "ZeroDivisionError" in errors


def test_one_while_the_interpreter_is_taken_down_leaves_the_exit_code() -> None:
    script = (
        f"import threading\nclass Kept:\n    def __del__(self, os=os, signal=signal, time=time):\n        {PRESSED}\n"
    )
    assert ended(f"{script}threading.kept = Kept()\nsys.exit(3)\n") == (3, "", "")


def test_one_while_the_sentence_is_said_does_not_cut_it() -> None:
    class_ = f"class Pressing:\n    def write(self, text):\n        {PRESSED}; os.write(2, text.encode())\n"
    script = f"{class_}    def flush(self):\n        pass\nsys.stderr = Pressing()\nsys.exit(interruption.say())\n"
    assert ended(script) == (interruption.CODE, "", SAID)


@pytest.mark.slow
def test_an_error_that_was_made_of_one_is_no_traceback_and_no_refusal() -> None:
    for error in (ImportError("numpy.core.multiarray failed to import"), UserError("torch cannot be imported")):
        with (
            mock.patch.object(interruption, "_raised", True),
            mock.patch.dict(run.COMMANDS, {"run": mock.Mock(side_effect=error)}),
        ):
            assert (outcome := command("task=ioi")).code == interruption.CODE and outcome.errors == SAID


def test_importing_run_py_leaves_signals_to_whoever_imports_it() -> None:
    assert signal.getsignal(signal.SIGINT) is not interruption._handle  # this test did
    assert Path(sys.argv[0]).stem != "meridian"


FIRST_IMPORT = """
import builtins, os, runpy, signal, sys
imported = builtins.__import__
def pressed(name, *others):
    if name == "console_streams":
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *others)
builtins.__import__ = pressed
sys.argv = ["run.py", "doctor"]
runpy.run_path("run.py", run_name="__main__")
"""


def test_ctrl_c_during_the_first_import_of_the_program_is_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_IMPORT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (interruption.CODE, "", f"{interruption.STOPPED}\n")
