"""Cache of generations, by a hash of everything that an output depends on.

key = sha256 of the canonical JSON of {model: its identity (hashes of weights, tokenizer and intervention, or an endpoint and what
it is asked for; backend, dtype, versions), prompt, system, sampling: {max_tokens, temperature, stop, seed}, sample}, with the key
`earlier` if turns precede the prompt. The key contains no path, no time and no name that a user gave a model. Another model under
the same name thus has other keys, and the same weights in another folder have the same keys. (An endpoint's model name is what
the endpoint is asked for, so it is part of the identity.) A sampled output is stored under its sample index; an error is never
stored.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import results_io
from results_io import UserError
from suites.models.base import Generation, Request

TABLE = "CREATE TABLE IF NOT EXISTS generations (key TEXT PRIMARY KEY, generation TEXT NOT NULL) WITHOUT ROWID"
WAIT = 30.0  # seconds to wait for another run's write


def key(identity: Mapping[str, Any], request: Request) -> str:
    """The hash under which a generation is stored, in hex digits."""
    return results_io.sha256(
        {
            "model": identity,
            "prompt": request.prompt,
            "system": request.system,
            "sampling": request.sampling,
            "sample": request.sample,
            **({"earlier": [list(turn) for turn in request.earlier]} if request.earlier else {}),
        }
    )


class Cache:
    """Generations by key in an SQLite file, which several runs may share. Use as a context manager.

    UserError if the file is no such database.
    """

    def __init__(self, path: Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(path, timeout=WAIT)
            self._database.execute(TABLE)
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{path} is not a cache of generations ({error}); delete it or name another file"
            ) from error

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()

    def get(self, identity: Mapping[str, Any], request: Request) -> Generation | None:
        """The stored answer of the model with this identity to exactly this request, or None."""
        row = self._database.execute(
            "SELECT generation FROM generations WHERE key = ?", (key(identity, request),)
        ).fetchone()
        if row is None:
            return None
        stored = json.loads(row[0])
        tokens = stored.pop("tokens")
        return Generation(**stored, tokens=None if tokens is None else tuple(tokens))

    def put(self, identity: Mapping[str, Any], answered: Iterable[tuple[Request, Generation]]) -> None:
        """Store these in one transaction, without errors."""
        rows = [
            (key(identity, request), json.dumps(asdict(generation)))
            for request, generation in answered
            if generation.finish != "error" and generation.error is None
        ]
        with self._database:
            self._database.executemany("INSERT OR IGNORE INTO generations VALUES (?, ?)", rows)
