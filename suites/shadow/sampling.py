"""Sampling: a keyed hash of a request's id decides whether it is taken, so that a rerun takes the same requests.

A request is taken if HMAC-SHA256(key, id), as a number from 0 to 1, is below the rate. Without the key nobody can predict or
choose which ones are taken.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from pathlib import Path

from results_io import DISK, DiskError, UserError
from suites import bounded_text

KEY_FILE = "sampling.key"
KEY_BYTES, DIGITS = 32, 16  # of the key; hex digits by which a request is named in the record
LARGEST = 2**64
WHOLE = re.compile(rb"[0-9a-f]{%d}" % (2 * KEY_BYTES))
RESTORE = "restore it from a copy, or move the folder away and begin a new record"
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def digest(key: bytes, identifier: str) -> str:
    """HMAC-SHA256(key, id) in hex digits."""
    return hmac.new(key, identifier.encode(), hashlib.sha256).hexdigest()


def name(key: bytes, identifier: str) -> str:
    """The request's name in the record, from which the id cannot be found without the key."""
    return digest(key, identifier)[:DIGITS]


def taken(key: bytes, identifier: str, rate: float) -> bool:
    """Whether a request is in the sample. A sample with a larger rate contains every sample with a smaller one."""
    return int(digest(key, identifier)[-16:], 16) < rate * LARGEST


def part(key: bytes, identifier: str, parts: int) -> int:
    """Number of the request's part, if the traffic is split at random into `parts` parts."""
    return int(digest(key, identifier)[DIGITS : 2 * DIGITS], 16) % parts


def key_of(folder: Path, variable: str | None) -> bytes:
    """The key: from an environment variable, or else a random one that is made once and stored beside the record.

    UserError for a variable that is not set, and for a file without a complete key, since a damaged key would silently select
    other requests.
    """
    if variable is not None:
        if not (given := os.environ.get(variable)):
            raise UserError(
                f"shadow.key_env={variable} is not set; put the sampling key there, or leave shadow.key_env out"
            )
        return given.encode()
    path = Path(folder) / KEY_FILE
    if not os.path.lexists(path):
        _make(path)
    key = bounded_text.given(path, RESTORE).encode()
    if WHOLE.fullmatch(key) is None:
        raise UserError(
            f"{path} has {len(key)} bytes and is not a sampling key of {2 * KEY_BYTES} hex digits; {RESTORE}"
        )
    return key


def _make(path: Path) -> None:
    """Write a random key atomically. If another process was first, its key stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{KEY_FILE}.", suffix=".partial"
        )  # of mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in NO_LINKS and path.parent.is_dir() and os.access(path.parent, os.W_OK):
            raise UserError(
                f"this disk has no hard links, so the key file {path} cannot be made; put the key into an environment variable "
                "and give its name as shadow.key_env"
            ) from error
        if error.errno not in DISK:
            raise
        raise DiskError(path, error) from error
