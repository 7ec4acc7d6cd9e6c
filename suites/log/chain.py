"""A hash chain of JSON lines: an append-only file that reveals at which line it was changed.

With h_0 = 64 zeros and line k the canonical JSON of record k (with its number `seq` = k), h_{k+1} = sha256(h_k + line k), over
UTF-8 bytes. Each stored line has `prev` = h_k and `hash` = h_{k+1}, so that a change of the last line is detected as well. A
change that also rewrites all later lines is detected only by a head hash kept elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from results_io import UserError
from suites import schema
from suites.log import line_form
from suites.log.line_form import Form

ZEROS = "0" * 64
OWN_KEYS = ("seq", "prev", "hash")
RECOVERY = "recovery"
OWN_FORMS: Mapping[str, Form] = {RECOVERY: {"torn_bytes": int}}


@dataclass(frozen=True)
class ChainEnd:
    """The end of a chain: its number of lines, and the hash that the next line continues."""

    lines: int = 0
    hash: str = ZEROS


def canonical_line(record: Mapping[str, Any]) -> str:
    """The JSON that is hashed and stored: sorted keys, separators `,` `:`, UTF-8 without ASCII escapes. ValueError on NaN."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def link(previous: str, record: Mapping[str, Any]) -> str:
    """sha256(previous hash hex + canonical line of `record`), hex."""
    return hashlib.sha256((previous + canonical_line(record)).encode()).hexdigest()


def verify(path: Path) -> ChainEnd:
    """Recompute the whole chain; returns its head.

    UserError names the first bad line by its number in the file, counted from 1.
    """
    after = [head for _, head in _checked(path)]
    return after[-1] if after else ChainEnd()


def read(path: Path, forms: Mapping[str, Form] | None = None) -> list[dict[str, Any]]:
    """Every record of a valid chain, with `seq` and without the hashes.

    `forms`: {kind: form} of the lines of this log. UserError as `verify`, and for a line of another form: a copy of another
    command's log is a valid chain, too.
    """
    return [record for record, _ in read_with_heads(path, forms)]


def read_with_heads(path: Path, forms: Mapping[str, Form] | None = None) -> list[tuple[dict[str, Any], ChainEnd]]:
    """The records of `read`, each with the chain's end after it, from one reading even if another process appends."""
    found = list(_checked(path))
    if forms is not None:
        known = {**forms, **OWN_FORMS}
        for record, end in found:
            line_form.require(record, known, f"{path}: line {end.lines}")
    return found


def require_log(path: Path) -> None:
    """UserError for a folder, a pipe or a device, which may never end, and for a link to nowhere: the log may be elsewhere."""
    if os.path.lexists(path) and not Path(path).is_file():
        raise UserError(f"{path} is a folder, a pipe, a device or a link to nowhere and not a log; move it away")


def _checked(path: Path) -> Iterator[tuple[dict[str, Any], ChainEnd]]:
    """(record, head after it) of each line, in order; a file that does not exist is an empty chain."""
    path, head = Path(path), ChainEnd()
    require_log(path)
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for raw in lines:
        record = _record(path, raw, head)
        head = ChainEnd(head.lines + 1, link(head.hash, record))
        yield record, head
    if rest:
        raise _broken(
            path, head, "is torn: it has no line end", "run the command that was writing it again, which sets it aside"
        )


def _record(path: Path, raw: bytes, head: ChainEnd) -> dict[str, Any]:
    """The record of line `raw`, which must be the canonical bytes that continue `head`."""
    try:
        stored = json.loads(raw)
        record = {key: value for key, value in stored.items() if key not in OWN_KEYS[1:]}
        expected = _stored_line(record, head)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _broken(path, head, f"is not a record ({error})") from error
    if stored.get("seq") != head.lines:
        raise _broken(
            path,
            head,
            f"has the number {schema.shown(stored.get('seq'))}, expected {head.lines}: lines are missing or moved",
        )
    if expected != raw:
        raise _broken(path, head, "does not match its hash: it was changed after it was written")
    return record


def _broken(
    path: Path, head: ChainEnd, what: str, remedy: str = "restore it from a copy, or move it away"
) -> UserError:
    return UserError(f"{path}: line {head.lines + 1} {what}; {remedy}")


def _stored_line(record: Mapping[str, Any], head: ChainEnd) -> bytes:
    return canonical_line({**record, "prev": head.hash, "hash": link(head.hash, record)}).encode()


class Writer:
    """The only writer of a chain: it appends batches, each on disk before `append` returns.

    Opening checks the whole chain and takes an exclusive lock on the file. A torn last line (the writer was killed, or the disk
    was full) is moved to `<name>.torn`, and the chain continues with a record of kind `recovery`. UserError if another writer
    holds the lock or a line is bad. Use as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        require_log(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            torn = self._set_torn_line_aside()
            self.head = verify(self.path)
            if torn:
                self.append(
                    [{"kind": RECOVERY, "torn_bytes": len(torn), "torn_sha256": hashlib.sha256(torn).hexdigest()}]
                )
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._descriptor)  # this also releases the lock

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Write `records` as the next lines and fsync once; returns them with their `seq`.

        ValueError for a record with a key that the chain reserves, or a number that is not finite.
        """
        lines, numbered, head = [], [], self.head
        for given in records:
            if taken := sorted(set(given) & set(OWN_KEYS)):
                raise ValueError(f"a record cannot have the key {taken[0]}, which is the chain's own")
            record = {"seq": head.lines, **given}
            lines.append(_stored_line(record, head) + b"\n")
            numbered.append(record)
            head = ChainEnd(head.lines + 1, link(head.hash, record))
        rest = memoryview(b"".join(lines))
        while rest:  # os.write may write only a part
            rest = rest[os.write(self._descriptor, rest) :]
        os.fsync(self._descriptor)
        self.head = head
        return numbered

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise UserError(
                f"{self.path} is being written by another run; wait for it to end, or use another results folder"
            ) from error

    def _set_torn_line_aside(self) -> bytes:
        """Move the bytes after the last line end to the side file; they are on disk there before they leave the chain."""
        content = self.path.read_bytes()
        torn = content[content.rfind(b"\n") + 1 :]
        if torn:
            with self.path.with_name(f"{self.path.name}.torn").open("ab") as side:
                side.write(torn + b"\n")
                side.flush()
                os.fsync(side.fileno())
            os.ftruncate(self._descriptor, len(content) - len(torn))
            os.fsync(self._descriptor)
        return torn
