"""What a model already said, kept by the content of everything that its answer depends on.

key = sha256 of the canonical JSON of {model: its identity (hashes of weights, tokenizer and intervention, or an endpoint and what
it is asked for; backend, dtype, versions), prompt, system, sampling: {max_tokens, temperature, stop, seed}, sample}, with the key
`earlier` where turns come before the prompt. No path, time or name that somebody gave a model is part of it: another model under
the same name has other keys, the same weights in another folder the same ones. (An endpoint's model name is what the endpoint is
asked for, and so part of its identity.)
A sampled output is kept under its own sample index; an error is never kept.
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
WAIT = 30.0  # seconds for another run that writes at the same moment


def key(identity: Mapping[str, Any], request: Request) -> str:
    """The content hash that a generation is kept under, hex."""
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
    """Generations by key in one SQLite file, which several runs may share. Use as a context manager.

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
        """What the model of this identity answered to exactly this request, or None."""
        row = self._database.execute(
            "SELECT generation FROM generations WHERE key = ?", (key(identity, request),)
        ).fetchone()
        if row is None:
            return None
        stored = json.loads(row[0])
        tokens = stored.pop("tokens")
        return Generation(**stored, tokens=None if tokens is None else tuple(tokens))

    def put(self, identity: Mapping[str, Any], answered: Iterable[tuple[Request, Generation]]) -> None:
        """Keep these, all or none on the disk; errors are left out."""
        rows = [
            (key(identity, request), json.dumps(asdict(generation)))
            for request, generation in answered
            if generation.finish != "error" and generation.error is None
        ]
        with self._database:
            self._database.executemany("INSERT OR IGNORE INTO generations VALUES (?, ?)", rows)
