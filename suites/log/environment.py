"""The code, libraries and machine settings with which outputs were made and judged."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import code_digest
import results_io

ROOT = Path(__file__).parents[2]
JUDGING = ("numpy", "scipy", "statsmodels", "scikit-learn", "jsonschema", "regex")
ASKING = ("torch", "transformers", "tokenizers")
THREADS = "OMP_NUM_THREADS"


@cache
def code_version() -> str:
    """Version and digest of the code that asks and judges, so that results of changed code are recognised."""
    return code_digest.version_of("suites")


@cache
def of_judging() -> dict[str, Any]:
    """What a derived result depends on besides the record: the code and its libraries."""
    return {"code_version": code_version(), "python": platform.python_version(), **_versions(JUDGING)}


def of_asking(identity: Mapping[str, Any], execution: Mapping[str, Any]) -> dict[str, Any]:
    """The environment in which a model of this `identity` generates here; `unknown` lists what could not be determined.

    `execution` (LocalModel.execution) has what may change the last digits of outputs and nothing else: the rows and memory of a
    batch, threads. `reproducible` is False if anything is unknown or the code differs from its commit; such outputs cannot be
    reproduced from the record alone.
    """
    found = {
        **_of_code(),
        "model_hash": identity.get("weights"),
        "device": identity.get("device"),
        "dtype": identity.get("dtype"),
        "batch": execution.get("batch"),
        "threads": execution.get("threads") or os.environ.get(THREADS) or os.cpu_count(),
    }
    unknown = sorted(name for name, value in found.items() if value is None)
    revision = execution.get("revision")  # of the hub; a folder has none, and its hash suffices
    return {**found, "revision": revision, "unknown": unknown, "reproducible": not unknown and not found["git_changed"]}


def of_results(asking: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The environments of results: the code that judged, and every distinct environment in which their outputs were generated.

    `reproducible` is True if it is True of all of these, and there is at least one.
    """
    different = {results_io.sha256(one): dict(one) for one in asking}.values()
    judging = of_judging()
    unknown = {name for one in different for name in one["unknown"]}
    unknown |= {name for name, value in judging.items() if value is None}
    reproducible = bool(different) and not unknown and all(one["reproducible"] for one in different)
    return {**judging, "asking": list(different), "unknown": sorted(unknown), "reproducible": reproducible}


def why_not_reproducible(found: Mapping[str, Any]) -> str | None:
    """What `of_results` found missing, in words; None for reproducible results."""
    if found["reproducible"]:
        return None
    reasons = [f"{', '.join(found['unknown'])} unknown"] if found["unknown"] else []
    if any(one["git_changed"] for one in found["asking"]):
        reasons.append("the code had changes that are not committed")
    return "; ".join(reasons) or "nothing was asked"


@cache
def _of_code() -> Mapping[str, Any]:
    """The code that asks and its libraries. Files that git does not track do not count as a change."""
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "code_version": code_version(),
        "python": platform.python_version(),
        **_versions(ASKING),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_changed": None if changes is None else bool(changes),
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """The output of git in the code's own folder; None if it is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
