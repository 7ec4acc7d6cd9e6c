"""The numbered result files: the only thing that the measuring and the judging side share.

A result is one JSON file `results/<model>/<task>/NN_name.json`. Files are canonical (sorted keys, no NaN, no
timestamps), so the same run gives the same bytes, and atomic (temporary file, fsync, rename), so a killed run never
leaves half of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION = "0.1.0"  # a result made by another version is stale
SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 9  # enough to round-trip float32


class UserError(ValueError):
    """Bad input: one sentence that names the value, what was expected and the remedy. Ends a run with exit code 2."""


def canonical(value: Any) -> Any:
    """`value` as plain JSON data: arrays become lists, floats keep 9 significant digits.

    Raises ValueError on NaN or infinity: a missing number is None plus a reason, never a float.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} in a result: store None and say why in a status instead")
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return value


def dumps(document: Mapping[str, Any]) -> str:
    """Canonical JSON: the top level indented, what is below it compact, keys sorted, newline at the end."""
    document = canonical(document)
    lines = [
        f"  {json.dumps(key)}: {json.dumps(document[key], sort_keys=True, separators=(', ', ': '), allow_nan=False)}"
        for key in sorted(document)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def sha256(value: Any) -> str:
    """Hex digest of the canonical JSON of `value` (or of raw bytes)."""
    if not isinstance(value, bytes):
        value = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return hashlib.sha256(value).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step, in UTF-8 with line ends as they are: the same bytes on every system."""
    write_bytes(path, text.encode())


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write one result file atomically."""
    write_text(path, dumps({"schema_version": SCHEMA_VERSION, **document}))


def read(path: Path) -> dict[str, Any]:
    """Read one result file; UserError if it is not one that this version understands."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable JSON ({error}); delete it and run again to measure it anew") from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else None
        raise UserError(
            f"{path} has result schema {version}, expected {SCHEMA_VERSION}; delete it and run again to measure it anew"
        )
    return document


def file_digest(path: Path) -> str:
    """Hex digest of a file's bytes: what `inputs_sha256` of a dependent result records."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def required(folder: Path, number: str) -> Path:
    """The file of result `number` in `folder`. UserError if there is none."""
    path = find(folder, number)
    if path is None:
        raise UserError(f"{folder} lacks result {number}; run the command that made the folder again")
    return path


def find(folder: Path, number: str) -> Path | None:
    """The file of result `number` in `folder`, or None."""
    matches = sorted(Path(folder).glob(f"{number}_*.json"))
    if len(matches) > 1:
        names = ", ".join(match.name for match in matches)
        raise UserError(f"result number {number} stands in {folder} more than once ({names}); keep one of them")
    return matches[0] if matches else None
