"""Disks that are full, read-only or of another shape than thought: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path
from unittest import mock

import filelock
import pytest
import torch

import results_io
import run
from meridian import locks, stages
from results_io import DiskError, UserError
from suites.log import chain
from tests.commandline import SMALL, command
from tests.hardening.faults import REASONS, STEPS, full, refusing

OLD, NEW = {"data": "old"}, {"data": "new" * 1000}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".locks" not in path.parts
    }


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_every_step_of_a_write_is_refused_in_one_sentence_and_the_old_file_stays(reason, tmp_path) -> None:
    path = tmp_path / "model" / "baseline.json"
    results_io.write(path, OLD)
    before = files(tmp_path)
    for step in STEPS:
        refused = refusing(step, str(tmp_path) if step != "fsync" else "", reason)
        with pytest.raises(DiskError) as raised, refused as calls:
            results_io.write(tmp_path / "new" / "01.json" if step == "mkdir" else path, NEW)
        assert calls.calls >= 1 and files(tmp_path) == before, step
        assert str(raised.value).startswith(f"{tmp_path}"[:80]) and os.strerror(reason) in str(raised.value)
        assert str(raised.value).endswith("and run again: what was finished is kept") and raised.value.errno == reason
    for after in (0, 1, 1500):
        with pytest.raises(DiskError), full(reason, after):
            results_io.write(path, NEW)
        assert files(tmp_path) == before
    results_io.write(path, NEW)
    assert results_io.read(path)["data"] == NEW["data"]


def test_a_folder_that_may_not_be_opened_or_synced_keeps_no_result_away(tmp_path, monkeypatch) -> None:
    opened = os.open

    def of_files_alone(path, *arguments, **named):
        if Path(path).is_dir():
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", of_files_alone)
    results_io.write(tmp_path / "x.json", NEW)
    assert results_io.read(tmp_path / "x.json")["data"] == NEW["data"]


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_a_lock_that_cannot_be_made_is_refused_and_never_tried_for_ever(reason, tmp_path) -> None:
    results = tmp_path / "results"
    for step in ("mkdir", "open"):
        with pytest.raises(UserError) as raised, refusing(step, str(results), reason, None) as calls:
            calls.nth = 0
            with locks.held(results, results / "m/t", print):
                pytest.fail("held")
        assert os.strerror(reason) in str(raised.value) and not list(tmp_path.rglob("*.lock"))


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_folders_that_vanish_again_and_again_are_no_race(error, tmp_path, monkeypatch) -> None:
    """An endless silent loop before: /proc/x and a dangling link."""
    monkeypatch.setattr(locks, "SECONDS_AFTER_A_RACE", 0.0)
    number = errno.ENOENT if error is FileNotFoundError else errno.EEXIST
    results, raised = tmp_path / "results", error(number, os.strerror(number))
    acquire = mock.patch.object(filelock.FileLock, "acquire", side_effect=raised)
    with acquire as tried, pytest.raises(DiskError), locks.held(results, results / "m/t", print):
        pytest.fail("held")
    assert tried.call_count == locks.MOST_TRIES
    sometimes = [raised] * (locks.MOST_TRIES - 1) + [None]
    with mock.patch.object(filelock.FileLock, "acquire", side_effect=sometimes), locks.held(results, results, print):
        pass


def placed(kind: str, folder: Path) -> Path:
    """A path that no folder of results can have."""
    folder.mkdir()
    if kind == "dangling link":
        (folder / "x").symlink_to("/nowhere/at/all")
    elif kind == "loop":
        (folder / "x").symlink_to("x")
    elif kind != "long":
        (folder / "x").write_text("a file")
    return {"long": folder / ("n" * 300), "below a file": folder / "x" / "y", "proc": Path("/proc/x")}.get(
        kind, folder / "x"
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["proc", "dangling link", "loop", "long", "below a file", "file"])
def test_a_folder_of_results_that_cannot_be_is_refused_within_seconds(kind, tmp_path) -> None:
    results, began = placed(kind, tmp_path / "d"), time.process_time()
    with mock.patch.object(stages, "measure", side_effect=AssertionError):
        outcome = command("task=ioi", f"results={results}")
    assert (outcome.code, outcome.output, outcome.errors.count("\n")) == (2, "", 1)
    assert " cannot be written (" in outcome.errors and time.process_time() - began < 20


@pytest.mark.sampled(8)
@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_whatever_the_disk_refuses_in_a_stage_is_one_sentence(reason, tmp_path) -> None:
    error = OSError(reason, os.strerror(reason), str(tmp_path / "x"))
    with mock.patch.dict(run.COMMANDS, {"run": mock.Mock(side_effect=error)}):
        outcome = command("task=ioi", f"results={tmp_path}")
    assert outcome.code == 2 and outcome.errors.startswith(f"{tmp_path / 'x'}"[:80]) and outcome.errors.count("\n") == 1


def test_a_file_that_the_program_itself_lacks_is_a_bug_and_keeps_its_traceback(tmp_path) -> None:
    error = FileNotFoundError(errno.ENOENT, "gone")
    with mock.patch.dict(run.COMMANDS, {"run": mock.Mock(side_effect=error)}), pytest.raises(FileNotFoundError):
        command("task=ioi", f"results={tmp_path}")


def test_a_full_disk_under_a_database_is_one_sentence() -> None:
    for said in results_io.DATABASE:
        assert said in str(results_io.disk_problem(sqlite3.OperationalError(said)))
    assert results_io.disk_problem(sqlite3.OperationalError("no such table: generations")) is None


def test_a_record_of_generations_survives_a_full_disk(tmp_path) -> None:
    path = tmp_path / "generations.jsonl"
    with chain.Writer(path) as writer:
        writer.append([{"kind": "a"}])
        write, left = os.write, [20]

        def some(descriptor: int, content: memoryview) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            done = write(descriptor, content[: left[0]])
            left[0] -= done
            return done

        with mock.patch.object(os, "write", some), pytest.raises(OSError, match="No space"):
            writer.append([{"kind": "b" * 100}])
    with chain.Writer(path) as writer:
        writer.append([{"kind": "c"}])
    assert chain.verify(path).lines == 3  # a, the recovery, c


def test_a_clock_that_jumps_moves_nothing(tmp_path, monkeypatch) -> None:
    """No result holds a time, and no wait is measured by the clock on the wall."""
    rng = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: rng.uniform(0, 4e9))
    results, begun = tmp_path / "results", time.monotonic()
    for number in range(20):
        with locks.held(results, results / "m/t", print):
            results_io.write(results / "m/t/01_x.json", {"data": number})
    assert time.monotonic() - begun < 5
    monkeypatch.undo()
    again = tmp_path / "again.json"
    results_io.write(again, {"data": 19})
    assert again.read_bytes() == (results / "m/t/01_x.json").read_bytes()


@pytest.mark.slow
def test_every_write_and_rename_of_a_run_may_be_refused(results, tmp_path) -> None:
    """Calibrations, certificate, report and summary are made again, with a disk that refuses once, at each place in turn."""
    place = tmp_path / "results"
    shutil.copytree(results, place)
    whole = files(place)
    (folder,) = (path.parent for path in place.rglob("certificate.json"))
    line = (*SMALL, "calibration=all", f"results={place}")

    def remove() -> None:
        for name in ("11_*.json", "93_*.json", "certificate.json", "report.html"):
            for path in folder.glob(name):
                path.unlink()
        for name in ("summary.json", "summary.csv"):
            (place / name).unlink(missing_ok=True)

    remove()
    with refusing("replace", str(place), errno.ENOSPC, None) as counted:
        assert command(*line).code == 0
    assert files(place) == whole and counted.calls >= 6
    for nth in range(counted.calls):
        for step in ("replace", "open"):
            remove()
            before = files(place)
            reason = list(REASONS.values())[nth % len(REASONS)]
            with refusing(step, str(place), reason, nth) as calls:
                outcome = command(*line)
            assert calls.calls > nth and (outcome.code, outcome.errors.count("\n")) == (2, 1), (step, nth, outcome)
            after = files(place)
            assert all(whole[name] == content for name, content in after.items()) and before.items() <= after.items()
    assert command(*line).code == 0 and files(place) == whole


KILLS, LONGEST = 100, 8.0  # seconds from one kill to the next, at most


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a run is forked, as the imports take longer than what is killed")
def test_a_hundred_kills_at_random_moments_leave_equal_bytes(results, tmp_path) -> None:
    place, said, rng, killed = tmp_path / "results", tmp_path / "said", random.Random("kills"), 0
    line = (*SMALL, "calibration=all", f"results={place}")
    for attempt in range(20 * KILLS):
        child = os.fork()
        if child == 0:
            # torch makes a fork's thread pool anew at its first use, and two threads at once fail there ("Invalid thread pool!").
            torch.set_num_threads(torch.get_num_threads())
            outcome = command(*line)
            said.write_text(outcome.errors)
            os._exit(outcome.code)
        time.sleep(rng.uniform(0, LONGEST if rng.random() < 0.3 else 2.0))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert os.WEXITSTATUS(status) == 0, said.read_text()
            for name in rng.sample(sorted(files(place)), 4):  # go on with a part of it gone
                (place / name).unlink()
        if killed >= KILLS and attempt:
            break
    assert killed >= KILLS
    assert command(*line).code == 0
    assert files(place) == files(results)
