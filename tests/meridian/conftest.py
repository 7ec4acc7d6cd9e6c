"""A finished run, small and shared by all workers: measured once, in half a minute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.commandline import SMALL, command


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one finished run (`task=ioi calibration=all` on pocket). To be read; copy it to change it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    with FileLock(f"{shared}.lock"):
        if not (shared / "complete").exists():
            outcome = command(*SMALL, "calibration=all", f"results={shared}")
            assert outcome.code == 0, outcome.errors
            (shared / "complete").touch()
    return shared


@pytest.fixture(scope="session")
def finished(results: Path) -> Path:
    """The folder of that run, the one below results/pocket/ioi."""
    (certificate,) = results.rglob("certificate.json")
    return certificate.parent
