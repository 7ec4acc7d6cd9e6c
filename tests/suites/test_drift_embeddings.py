"""Embeddings of outputs: each text once for each embedder, in batches that change no digit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from suites.drift import embeddings


class Counting:
    """An embedder that counts the texts it is asked for."""

    def __init__(self):
        self.asked: list[str] = []

    def __call__(self, texts):
        self.asked += texts
        return np.array([[len(text), 1 + 1e-9 * len(self.asked)] for text in texts])


def hashed(*texts):
    return {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}


def test_a_text_is_embedded_once_for_each_embedder(tmp_path) -> None:
    embed, path = Counting(), tmp_path / "below" / embeddings.NAME
    with embeddings.Store(path, "first") as store:
        assert store.add(hashed("red", "blue", "größer"), embed) == 3
        assert store.add(hashed("red", "green"), embed) == 1
    with embeddings.Store(path, "first") as store:
        assert store.add(hashed("red", "blue", "green", "größer"), embed) == 0
        found = store.get(hashed("red", "größer", "unknown"))
    assert sorted(embed.asked) == ["blue", "green", "größer", "red"]
    assert {key: vector.tolist() for key, vector in found.items()} == {
        **{key: [3.0, 1.0] for key in hashed("red")},
        **{key: [6.0, 1.0] for key in hashed("größer")},
    }
    with embeddings.Store(path, "another") as store:  # another embedder knows none of them
        assert store.get(hashed("red")) == {} and store.add(hashed("red"), embed) == 1


def test_failed_and_empty_outputs_are_not_embedded(tmp_path, monkeypatch) -> None:
    embed, path = Counting(), tmp_path / embeddings.NAME
    monkeypatch.setattr(embeddings, "identity", lambda: {"weights_sha256": "first"})
    rows = [
        {"text": text, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "error": error}
        for text, error in (("red", None), ("red", None), ("", None), (" \n", None), ("lost", "timeout"))
    ]
    assert embeddings.fill(path, rows, lambda: embed) == 1 and embed.asked == ["red"]
    assert embeddings.fill(path, [*rows, {**rows[0], "text": "green", "text_sha256": "0"}], lambda: None) == 0

    def loaded():
        raise AssertionError("every text is known: no embedder is needed")

    assert embeddings.fill(path, rows, loaded) == 0


@pytest.mark.parametrize(("words", "cut"), [(254, False), (255, True)])
def test_texts_that_are_longer_than_the_embedder_reads_are_counted(words, cut) -> None:
    assert embeddings.truncated("word " * words) is cut


@pytest.mark.skipif(embeddings.identity() is None, reason="the embedder is an optional package")
def test_pieces_are_counted_and_not_words(monkeypatch) -> None:
    """250 words of four pieces each are a thousand pieces; without the tokenizer only words can be counted."""
    long = "uncharacteristically " * 250
    assert embeddings.truncated(long) and not embeddings.truncated("word " * 250)
    assert embeddings.truncated("word \ud83d" * 300)  # half a character
    monkeypatch.setattr(embeddings, "tokenizer", lambda: None)
    assert not embeddings.truncated(long)
