"""A pool of measured prompts on disk, read without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import results_io


@dataclass(frozen=True)
class Pool:
    """One subject's measurements: (number, file) of each."""

    subject: str
    files: tuple[tuple[str, Path], ...]

    def documents(self) -> dict[str, dict[str, Any]]:
        """The measurements, with large tables as arrays, because every sample reads them again."""
        return {number: _with_arrays(results_io.read(path)) for number, path in self.files}

    @property
    def digests(self) -> dict[str, str]:
        """{folder and name of each file: its digest}."""
        return {f"{path.parent.name}/{path.name}": results_io.file_digest(path) for _, path in self.files}


def _with_arrays(document: dict[str, Any]) -> dict[str, Any]:
    tables = {name: np.asarray(value) for name, value in document["data"].items() if _is_table(value)}
    return {**document, "data": {**document["data"], **tables}}


def _is_table(value: Any) -> bool:
    """True for a list of lists of numbers."""
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    return rows and all(isinstance(item, float) for row in value for item in row)
