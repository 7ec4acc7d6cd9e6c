"""A small whole run of the main job, killed, resumed and finished: made once for all workers of a test run."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from circuits.measurements import MEASUREMENTS
from tests.commandline import ROOT, SMALL, Outcome, command

MEASURED = [f"{number}_{module.ID}.json" for number, module in MEASUREMENTS.items()]
STATES = "states.pickle"


@dataclass(frozen=True)
class Run:
    """The state of a folder of results after a run, and what the run printed."""

    results: Path
    outcome: Outcome
    files: dict[str, bytes]
    times: dict[str, int]

    @property
    def folder(self) -> Path:
        return next(self.results.glob("pocket/ioi/*"))


def make(place: Path) -> None:
    """Into `place`: the run's folder `results`, a `copy` of it for readers, and its two states (killed, finished)."""
    killed = kill(place / "results")
    states = killed, finish(killed.results)
    shutil.copytree(killed.results, place / "copy")
    (place / STATES).write_bytes(pickle.dumps(states))


def states(place: Path) -> tuple[Run, Run]:
    """The run when it was killed, and when the next one had finished it."""
    return pickle.loads((place / STATES).read_bytes())


def kill(results: Path) -> Run:
    """A run that is killed (SIGKILL) when its third measurement has appeared."""
    line = [sys.executable, "run.py", *SMALL, f"results={results}"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until = time.monotonic() + 240
    while len(list(results.rglob("*.json"))) < 3:
        assert process.poll() is None and time.monotonic() < until, process.stderr.read().decode()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    folder = next(results.glob("pocket/ioi/*"))
    (folder / f".{MEASURED[4]}.abc.partial").write_text('{"as if killed while writing')
    return state(results, Outcome(process.returncode, "", ""))


def finish(results: Path) -> Run:
    """The same command again."""
    return state(results, command(*SMALL, "calibration=all", f"results={results}"))


def state(results: Path, outcome: Outcome) -> Run:
    paths = [path for path in sorted(results.rglob("*")) if path.is_file() and ".locks" not in path.parts]
    return Run(
        results,
        outcome,
        {str(path.relative_to(results)): path.read_bytes() for path in paths},
        {path.name: path.stat().st_mtime_ns for path in paths},
    )
