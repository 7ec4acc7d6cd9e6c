"""The numbered result files, the only interface between measuring and judging.

A result is one JSON file `results/<model>/<task>/NN_name.json`. Files are canonical (sorted keys, no NaN, no
timestamps), so the same run gives the same bytes, and atomic (temporary file, fsync, rename), so a killed run never
leaves half of one.

Each file has a digest of its own content, the SHA-256 of the file without the line of the digest, and every read checks it. This
finds edits, but not a forger, who would write a new digest too. Every read also checks that a result has the form of its number
(`result_schemas`) and that its name has this number. A file with any other content raises an error with the remedy.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import result_schemas

VERSION = "0.1.0"  # a result made by another version is stale
SCHEMA_VERSION = 1
SIGNIFICANT_DIGITS = 9  # enough to round-trip float32
DIGEST = "content_sha256"
DIGEST_LINE = re.compile(rf'^  "{DIGEST}": "([0-9a-f]{{64}})",\n', re.MULTILINE)
REMEDY = "delete it and run again to measure it anew"
MOST_BYTES = 1 << 29  # of a result, 20 times the largest of GPT-2 small with 6,400 prompts
SHOWN_NAME = 80  # characters of a name that its temporary file repeats, and of a path in a message
MOST_DIGITS = 20  # digits of an integer
NOT_THE_DISK = (
    errno.ENOENT,
    errno.EEXIST,
)  # missing or existing files are disk errors only while a folder of results is made; programs expect them elsewhere
DATABASE = (
    *("database or disk is full", "disk I/O error", "attempt to write a readonly database"),
    "unable to open database file",
)
NUMBER = re.compile(r"(V?\d+|P|E1b|M3b)_")  # prefix of the name of a numbered result
_sound: set[str] = set()  # digests of contents that were read and have the right form
DISK = {  # {system error that no program can avoid: the remedy}
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give a folder of yours"),
    **dict.fromkeys((errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO), "give a folder on another disk"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOENT), "give another folder"),
    errno.ENAMETOOLONG: "give a folder with a shorter name",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files (ulimit -n)"),
}


class UserError(ValueError):
    """Bad input: one sentence that names the value, what was expected and the remedy. Ends a run with exit code 2."""


class DiskError(UserError, OSError):
    """A file that the system does not allow to be written or read: path, reason and remedy. An existing file is unchanged."""

    def __init__(self, path: str | Path, error: OSError) -> None:
        remedy = DISK.get(error.errno or 0, "give another folder")
        name, reason = _shown(str(path)), error.strerror or error
        if other := _in_the_place(Path(path), error):
            place, reason = other
            name, remedy = f"{place.name} in {_shown(str(place.parent))}", "delete it or move it away"
        super().__init__(f"{name} cannot be written ({reason}); {remedy}, and run again: what was finished is kept")
        self.errno, self.strerror = error.errno, error.strerror

    def __str__(self) -> str:
        return str(self.args[0])  # not the text of OSError


def _in_the_place(path: Path, error: OSError) -> tuple[Path, str] | None:
    """(what stands in the place of a file, or of a folder below `path`; what it is instead), or None if it is not that."""
    try:
        if error.errno == errno.EISDIR and path.is_dir():
            return path, "it is a folder"
        if error.errno in (errno.ENOTDIR, errno.EEXIST) and isinstance(error.filename, str):
            wanted = Path(error.filename)
            below = (one for one in (wanted, *wanted.parents) if one != path and one.is_relative_to(path))
            place = next((one for one in below if one.is_symlink() or one.exists()), None)
            if place is not None and not place.is_dir():
                return place, "it is a file" if place.exists() else "it is a link that leads nowhere"
    except OSError:  # neither is known
        pass
    return None


def disk_problem(error: BaseException) -> str | None:
    """The message about a disk error, wherever it occurred; None for any other error, such as a missing file."""
    if isinstance(error, DiskError):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK and error.errno not in NOT_THE_DISK:
        return str(DiskError(error.filename2 or error.filename or "a file", error))
    if (
        type(error).__name__ == "OperationalError" and (text := str(error)) in DATABASE
    ):  # an error of sqlite3, which has no number
        return (
            f"a database below the results cannot be written ({text}); make room or give another folder, and run again"
        )
    return None


class ResultError(UserError):
    """A result file that is not as Meridian wrote it; `reason`: it is unreadable, has another schema, or was edited."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}; {REMEDY}")
        self.path, self.reason = path, reason


class NoDigestError(ResultError):
    """A result file without a digest of its content, written by an older version or by other means."""

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
    """Canonical JSON: top level indented, lower levels compact, keys sorted, newline at the end."""
    return _joined(_lines(canonical(document)))


def _lines(document: Mapping[str, Any]) -> dict[str, str]:
    """{top-level key of plain data: its line}, with floats to the last digit."""
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


def write_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` in one step: readers see the old file or the new one, never a part.

    `mode`: who may read it; 0o600 is the owner alone, also while it is being written. Raises DiskError if the disk is full or
    read-only, or if there is no such place; an existing file is kept.
    """
    try:
        _replace(Path(path), content, mode)
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise DiskError(path, error) from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:SHOWN_NAME]}.", suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a loss of power, if the system can sync a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` by `text` in one step, in UTF-8 with unchanged line ends, so the bytes are the same on every system."""
    write_bytes(path, text.encode(), mode)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write one result file atomically, including the digest of its content."""
    content = {name: value for name, value in document.items() if name != DIGEST}
    lines = _lines(canonical({"schema_version": SCHEMA_VERSION, **content}))
    digest = sha256(_joined(lines).encode())
    write_text(path, _joined(lines | _lines({DIGEST: digest})))


def read(path: Path, form: str | None = None) -> dict[str, Any]:
    """Read one result file. Raises ResultError if it is not as this version wrote it, DiskError if it cannot be read at all.

    Refused are invalid JSON (also NaN, repeated keys, integers of more than 64 bits, excessive nesting or size), another schema,
    edited content, a form other than that of its number, and a number that differs from its name. `form`: the required number if
    the name has none, or the required kind of a result without a number.
    """
    text = _text(path)
    document = _parsed(path, text)
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else None
        raise ResultError(path, f"has result schema {_shown(str(version))}, expected {SCHEMA_VERSION}")
    if DIGEST not in document:
        raise NoDigestError(path)
    line = DIGEST_LINE.search(text)  # exactly as `write` writes it, so that no similar line further down matches
    as_written = (
        line is not None
        and line[1] == document[DIGEST]
        and line[1] == sha256((text[: line.start()] + text[line.end() :]).encode())
    )
    if not as_written or document[DIGEST] not in _sound:
        _require_sound(path, document, as_written)
    _require_name(path, document, form)
    return document


def _require_name(path: Path, document: Mapping[str, Any], form: str | None) -> None:
    """Raises ResultError unless a document has the number or kind that its name, or its reader, requires."""
    stem, own = NUMBER.match(Path(path).name), document.get("number")
    if stem and own != stem[1]:
        said = "has no number" if own is None else f"is result {_shown(str(own))}"
        raise ResultError(path, f"{said} under the name of {stem[1]}")
    if form is not None and form not in (own, document.get("kind")):
        wanted = f"result {form}" if form[0].isdigit() else form.replace("_", " ")
        raise ResultError(path, f"is no {wanted}")


def _require_sound(path: Path, document: Mapping[str, Any], as_written: bool) -> None:
    """Raises ResultError unless digest and form match the content; content that passed before is not checked again."""
    reason = result_schemas.limits(document)
    if reason is None and not as_written:  # a file that was only reformatted has the same content
        content = {name: value for name, value in document.items() if name != DIGEST}
        if document[DIGEST] != sha256(_joined(_lines(content)).encode()):
            reason = "was edited after it was written: its digest is of another content"
    if reason := reason or result_schemas.fault(document):
        raise ResultError(path, reason)
    _sound.add(document[DIGEST])


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused, parse_int=_integer, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ResultError(path, f"is not readable JSON ({error})") from error


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number")


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it holds an integer of {len(digits)} digits")
    return int(digits)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, as `object_pairs_hook` of JSON.

    Raises ValueError for a repeated key, of which readers may take the first or the last value.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _shown(text: str) -> str:
    """A text for a message, shortened if it is long."""
    return text if len(text) <= SHOWN_NAME else f"{text[:SHOWN_NAME]}..."


def fault(path: Path) -> str | None:
    """Why `read` would refuse this result file ("was edited after ..."); None if it is as it was written."""
    try:
        read(path)
    except ResultError as error:
        return error.reason
    return None


def _text(path: Path) -> str:
    _require_file(path)
    try:
        _require_size(path)
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultError(path, f"is not readable JSON ({error})") from error


def _require_file(path: Path) -> None:
    """Raises ResultError for a folder, a broken or circular link, and a pipe or device, which may be endless."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP) or not Path(path).is_symlink():
            raise
        raise ResultError(path, f"is a link that cannot be followed ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise ResultError(path, "is a folder, a pipe or a device and not a file")


def _require_size(path: Path) -> None:
    if (size := Path(path).stat().st_size) > MOST_BYTES:
        raise ResultError(path, f"has {size} bytes, and {MOST_BYTES} are allowed")


def file_digest(path: Path) -> str:
    """Hex digest of a file's bytes, as in `inputs_sha256` of a dependent result. Raises ResultError if it is too large."""
    _require_file(path)
    _require_size(path)
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def required(folder: Path, number: str) -> Path:
    """The file of result `number` in `folder`. Raises UserError if there is none."""
    path = find(folder, number)
    if path is None:
        raise UserError(f"{folder} lacks result {number}; run the command that made the folder again")
    return path


def find(folder: Path, number: str) -> Path | None:
    """The file of result `number` in `folder`; None if there is none, or if `number` is no number."""
    if not NUMBER.fullmatch(f"{number}_"):  # a forged certificate may list "/x" or "**"
        return None
    matches = sorted(Path(folder).glob(f"{number}_*.json"))
    if len(matches) > 1:
        names = ", ".join(match.name for match in matches)
        raise UserError(f"result number {number} stands in {folder} more than once ({names}); keep one of them")
    return matches[0] if matches else None
