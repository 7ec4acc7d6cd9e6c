"""With what code, libraries and machine settings outputs were made and judged (spec C7)."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import results_io

ROOT = Path(__file__).parents[2]
JUDGING = ("numpy", "scipy", "statsmodels", "scikit-learn", "jsonschema", "regex")
ASKING = ("torch", "transformers", "tokenizers")
THREADS = "OMP_NUM_THREADS"


@cache
def code_version() -> str:
    """Version and a digest of the code that asks and judges, so that changed rules never pass for the old ones."""
    sources = [*sorted((ROOT / "suites").rglob("*.py")), ROOT / "results_io.py"]
    return f"{results_io.VERSION}+{results_io.sha256([path.read_text() for path in sources])[:12]}"


@cache
def of_judging() -> dict[str, Any]:
    """What a derived result depends on besides the record: the code and the libraries that it calls."""
    return {"code_version": code_version(), "python": platform.python_version(), **_versions(JUDGING)}


@cache
def of_asking() -> dict[str, Any]:
    """What generations were made with, besides the model's own identity; `unknown` lists what could not be found out.

    A run with something unknown is not reproducible from its record alone.
    """
    found = {
        "code_version": code_version(),
        "python": platform.python_version(),
        **_versions(ASKING),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_changed": None if (changes := _git("status", "--porcelain")) is None else bool(changes),
        "threads": os.environ.get(THREADS) or os.cpu_count(),
    }
    return {**found, "unknown": sorted(name for name, value in found.items() if value is None)}


def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of the code's own folder; None where it is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
