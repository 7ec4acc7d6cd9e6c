"""A finished run, small and shared by all workers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def results(small_run: Path) -> Path:
    """A results folder with one finished run (`task=ioi calibration=all` on pocket). To be read; copy it to change it."""
    return small_run / "copy"


@pytest.fixture(scope="session")
def finished(results: Path) -> Path:
    """The folder of that run, the one below results/pocket/ioi."""
    (certificate,) = results.rglob("certificate.json")
    return certificate.parent
