"""Sampling: which requests are taken. A keyed hash of the request's id decides, so that a rerun takes the same ones.

HMAC-SHA256(key, id), as a number from 0 to 1, is below the rate. Without the key nobody can tell, or choose, which ones.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from results_io import UserError

KEY_FILE = "sampling.key"
KEY_BYTES, DIGITS = 32, 16  # of the key; hex digits by which a request is named in the record
LARGEST = 2**64


def digest(key: bytes, identifier: str) -> str:
    """HMAC-SHA256(key, id) in hex digits."""
    return hmac.new(key, identifier.encode(), hashlib.sha256).hexdigest()


def name(key: bytes, identifier: str) -> str:
    """By what the record calls a request: nobody finds its id from it without the key."""
    return digest(key, identifier)[:DIGITS]


def taken(key: bytes, identifier: str, rate: float) -> bool:
    """Whether a request is in the sample. With a larger rate every request that was in it still is."""
    return int(digest(key, identifier)[-16:], 16) < rate * LARGEST


def part(key: bytes, identifier: str, parts: int) -> int:
    """Which of `parts` random parts of the traffic a request is in."""
    return int(digest(key, identifier)[DIGITS : 2 * DIGITS], 16) % parts


def key_of(folder: Path, variable: str | None) -> bytes:
    """The key: what an environment variable holds, or else a random one, made once and kept beside the record.

    UserError for a variable that is not set.
    """
    if variable is not None:
        if not (given := os.environ.get(variable)):
            raise UserError(
                f"shadow.key_env={variable} is not set; put the sampling key there, or leave shadow.key_env out"
            )
        return given.encode()
    path = Path(folder) / KEY_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES))
    return path.read_bytes()
