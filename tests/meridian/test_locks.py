"""Locks between processes, with real processes: who waits, what a killed one leaves, and that no update is ever lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import filelock
import pytest

from meridian import locks
from results_io import UserError
from tests.commandline import ROOT

HOLDER = """
import functools, sys
from pathlib import Path
from meridian import locks
say = functools.partial(print, flush=True)
results = Path(sys.argv[1])
with locks.held(results, results / sys.argv[2], say):
    say("held")
    sys.stdin.readline()
say("released")
"""
# Reads a number, waits a moment, writes one more: without a lock, updates of several processes get lost.
COUNTING = """
import sys, time
from pathlib import Path
from meridian import locks
results, counter = Path(sys.argv[1]), Path(sys.argv[2])
locks.SECONDS_BETWEEN_TRIES = 0.001
for _ in range(int(sys.argv[3])):
    with locks.held(results, results / "m" / "t", lambda sentence: None):
        number = int(counter.read_text())
        time.sleep(0.0005)
        counter.write_text(str(number + 1))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs `script`."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, text=True, **pipes)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def holder(results):
    """A process that holds results/m/t."""
    process = start(HOLDER, results, "m/t")
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_process_says_that_it_waits_and_goes_on_when_the_first_is_through(results, holder):
    second = start(HOLDER, results, "m/t")
    said = second.stdout.readline()
    assert said.startswith(f"another process ({holder.pid}: ")
    assert said.endswith(f" is at work on {results / 'm/t'}; waiting for it\n")
    assert second.poll() is None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert second.stdout.readline() == "held\n"
    assert second.communicate("\n") == ("released\n", "")


def test_a_killed_process_holds_nobody_up(results, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert locks.file_of(results, results / "m/t").is_file()
    said: list[str] = []
    begun = time.monotonic()
    with locks.held(results, results / "m/t", said.append):
        pass
    assert time.monotonic() - begun < 0.5
    assert said == []


@pytest.mark.parametrize("path", ["m/u", "m/t/seed=1", "m", "n/t", "summary.json"])
def test_other_folders_are_free_while_one_is_held(results, holder, path):
    said: list[str] = []
    with locks.held(results, results / path, said.append):
        assert said == []


def test_a_part_of_a_folder_is_another_lock_than_the_folder(results, holder):
    said: list[str] = []
    with locks.held(results, results / "m/t", said.append, "prompts-1"):
        assert said == []
    assert locks.file_of(results, results / "m/t", "prompts-1") == results / ".locks/m/t/prompts-1.lock"
    assert locks.file_of(results, results / "m/t") == results / ".locks/m/t.lock"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("made", [True, False], ids=["folder made", "lock file removed every time"])
def test_no_update_is_lost_between_four_processes(results, tmp_path, made):
    """With the folder absent, every holder removes the lock file, and the folders above it, under the others' eyes."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    if made:
        (results / "m" / "t").mkdir(parents=True)
    processes = [start(COUNTING, results, counter, 50) for _ in range(4)]
    ended = [process.communicate(timeout=60) for process in processes]
    assert ended == [("", "")] * 4
    assert counter.read_text() == "200"
    assert results.exists() is made


def test_where_nothing_was_made_nothing_is_left(results):
    with locks.held(results, results / "m/t", print), locks.held(results, results / "m/t", print, "prompts-1"):
        assert len(list(results.rglob("*.lock"))) == 2
    assert not results.exists()


def test_where_something_was_made_only_the_lock_file_stays_beside_it(results):
    with locks.held(results, results / "m/t", print):
        (results / "m" / "t").mkdir(parents=True)
        (results / "m" / "t" / "01_baseline.json").write_text("{}")
    files = {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()}
    assert files == {"m/t/01_baseline.json", ".locks/m/t.lock"}
    assert (results / ".locks/m/t.lock").read_bytes() == b""


def test_an_error_inside_releases(results):
    with pytest.raises(ZeroDivisionError), locks.held(results, results / "m/t", print):
        1 / 0  # noqa: B018
    other = start(HOLDER, results, "m/t")
    assert other.communicate("\n", timeout=30) == ("held\nreleased\n", "")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_on_the_file_system_it_says_so_and_goes_on(results, number):
    said: list[str] = []
    with (
        mock.patch("fcntl.flock", side_effect=OSError(number, os.strerror(number))),
        locks.held(results, results / "m/t", said.append),
    ):
        pass
    assert said == [f"{results} is on a file system without locks; let only one process at a time write there"]


def test_another_error_of_the_file_system_is_not_swallowed(results):
    with (
        mock.patch("fcntl.flock", side_effect=OSError(errno.EIO, "broken")),
        pytest.raises(OSError, match="broken"),
        locks.held(results, results / "m/t", print),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_one_sentence(results):
    with (
        mock.patch.object(filelock.FileLock, "acquire", side_effect=PermissionError(errno.EACCES, "Permission denied")),
        pytest.raises(UserError, match=f"{results} cannot be written .*Permission denied.*; give a folder of yours"),
        locks.held(results, results / "m/t", print),
    ):
        pass
