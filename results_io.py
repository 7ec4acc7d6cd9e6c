"""The numbered result files: the only thing that the measuring and the judging side share.

A result is one JSON file `results/<model>/<task>/NN_name.json`. Files are canonical (sorted keys, no NaN, no
timestamps), so the same run gives the same bytes, and atomic (temporary file, fsync, rename), so a killed run never
leaves half of one.

Each file carries a digest of its own content, the SHA-256 of the file without the line of the digest, and every read checks
it. This finds edits; it does not find a forger, who would write a new digest too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION = "0.1.0"  # a result made by another version is stale
SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 9  # enough to round-trip float32
DIGEST = "content_sha256"
DIGEST_LINE = re.compile(rf'^  "{DIGEST}": "([0-9a-f]{{64}})",\n', re.MULTILINE)
HEAD_LINES = re.compile(
    r'^  "(schema_version|subject)": (.*?),?$', re.MULTILINE
)  # each key of the top level has its line
REMEDY = "delete it and run again to measure it anew"


class UserError(ValueError):
    """Bad input: one sentence that names the value, what was expected and the remedy. Ends a run with exit code 2."""


class ResultError(UserError):
    """A result file that is not as Meridian wrote it: `reason` says that it is unreadable, of another schema or edited."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}; {REMEDY}")
        self.path, self.reason = path, reason


class NoDigestError(ResultError):
    """A result file without a digest of its content: an older version wrote it, or somebody else."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "has no digest of its content, so an older version wrote it or somebody else")


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
    return _joined(_lines(canonical(document)))


def _lines(document: Mapping[str, Any]) -> dict[str, str]:
    """The line of each top-level key of plain data, floats to the last digit."""
    return {
        key: f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True, separators=(', ', ': '))}"
        for key, value in document.items()
    }


def _joined(lines: Mapping[str, str]) -> str:
    return "{\n" + ",\n".join(lines[key] for key in sorted(lines)) + "\n}\n"


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
    """Write one result file atomically, with the digest of its content in it."""
    content = {name: value for name, value in document.items() if name != DIGEST}
    lines = _lines(canonical({"schema_version": SCHEMA_VERSION, **content}))
    digest = sha256(_joined(lines).encode())
    write_text(path, _joined(lines | _lines({DIGEST: digest})))


def read(path: Path) -> dict[str, Any]:
    """Read one result file; ResultError if it is not as this version wrote it."""
    text = _text(path)
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ResultError(path, f"is not readable JSON ({error})") from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else None
        raise ResultError(path, f"has result schema {version}, expected {SCHEMA_VERSION}")
    if DIGEST not in document:
        raise NoDigestError(path)
    if not _is_as_written(text):  # a file that was only laid out anew has the same content
        content = {name: value for name, value in document.items() if name != DIGEST}
        if document[DIGEST] != sha256(_joined(_lines(content)).encode()):
            raise ResultError(path, "was edited after it was written: its digest is of another content")
    return document


def subject(path: Path) -> Any:
    """What a result is about, as `read` gives it, errors included, without parsing the rest of a file that is as written."""
    text = _text(path)
    if _is_as_written(text):
        head = dict(HEAD_LINES.findall(text))
        if head.keys() == {"schema_version", "subject"} and head["schema_version"] == str(SCHEMA_VERSION):
            return json.loads(head["subject"])
    return read(path)["subject"]


def fault(path: Path) -> str | None:
    """Why `read` would refuse this result file ("was edited after ..."); None if it is as it was written."""
    try:
        if not _is_as_written(_text(path)):
            read(path)
    except ResultError as error:
        return error.reason
    return None


def _text(path: Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultError(path, f"is not readable JSON ({error})") from error


def _is_as_written(text: str) -> bool:
    """True if the text is to the letter what `write` wrote."""
    line = DIGEST_LINE.search(text)
    return line is not None and line[1] == sha256((text[: line.start()] + text[line.end() :]).encode())


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
