"""Embeddings of outputs: every text is embedded once and stored under its hash and the embedder's hash.

The embedder's identity is part of every key and of the manifest: a series with another embedder is another series.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import regex
import tokenizers
from jaxtyping import Float

from suites.modes import embedding

NAME = "embeddings.sqlite"
WORD_PIECES = 256  # read by all-MiniLM-L6-v2; longer texts are truncated and counted
PIECES = regex.compile(r"\w+|[^\w\s]")
DIGITS = 6  # decimal places kept of each coordinate: batches differ in the seventh


@cache
def identity() -> Mapping[str, Any] | None:
    """Name and weights' hash of the installed embedder; None without one."""
    if (folder := _folder()) is None:
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")) or sorted(folder.rglob("*.bin")):
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    version = importlib.metadata.version(embedding.PACKAGE.replace("_", "-"))
    return {"name": "all-MiniLM-L6-v2", "package": version, "weights_sha256": digest.hexdigest()}


def truncated(text: str) -> bool:
    """Whether a text is longer than the embedder reads.

    By its own tokenizer, with a mark at each end. Without it by words and marks, which are never more than the pieces, so that
    a text of long words may be missed.
    """
    if (own := tokenizer()) is None:
        return len(PIECES.findall(text)) > WORD_PIECES - 2
    return len(own.encode(text.encode(errors="replace").decode()).ids) > WORD_PIECES


@cache
def tokenizer() -> tokenizers.Tokenizer | None:
    """That of the installed embedder, cutting nothing; None without one."""
    path = next(iter(sorted(folder.rglob("tokenizer.json"))), None) if (folder := _folder()) else None
    if path is None:
        return None
    found = tokenizers.Tokenizer.from_file(str(path))
    found.no_truncation()
    found.no_padding()
    return found


def _folder() -> Path | None:
    spec = importlib.util.find_spec(embedding.PACKAGE)
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) if places else None


class Store:
    """Vectors on disk. `who`: the embedder's hash. Use as a context manager."""

    def __init__(self, path: Path, who: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.who = who
        self._base = sqlite3.connect(path)
        self._base.execute(
            "create table if not exists vectors (text text, who text, vector blob, primary key (text, who))"
        )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._base.close()

    def get(self, hashes: Iterable[str]) -> dict[str, Float[np.ndarray, " dimension"]]:
        """The known vectors, by the hash of the text."""
        found = {}
        for one in set(hashes):
            row = self._base.execute(
                "select vector from vectors where text = ? and who = ?", (one, self.who)
            ).fetchone()
            if row is not None:
                found[one] = np.frombuffer(row[0], dtype=np.float32).astype(np.float64)
        return found

    def add(self, texts: Mapping[str, str], embed: embedding.Embedder) -> int:
        """Embed those of `texts` {hash: text} that are not stored yet, in one transaction; returns their number."""
        known = self.get(texts)
        new = sorted(set(texts) - set(known))
        if not new:
            return 0
        vectors = np.round(np.asarray(embed([texts[one] for one in new]), dtype=np.float64), DIGITS).astype(np.float32)
        with self._base:
            rows = [(one, self.who, vector.tobytes()) for one, vector in zip(new, vectors, strict=True)]
            self._base.executemany("insert or replace into vectors values (?, ?, ?)", rows)
        return len(new)


def fill(path: Path, rows: Sequence[Mapping[str, Any]], load: Callable[[], embedding.Embedder | None]) -> int:
    """Embed the texts of `rows` that the store lacks, if there is an embedder; returns their number.

    `load` loads the embedder and is called only if a text is missing.
    """
    texts = {row["text_sha256"]: row["text"] for row in rows if row["error"] is None and row["text"].strip()}
    if (who := identity()) is None or not texts:
        return 0
    with Store(path, who["weights_sha256"]) as store:
        if not texts.keys() - store.get(texts).keys() or (embed := load()) is None:
            return 0
        return store.add(texts, embed)
