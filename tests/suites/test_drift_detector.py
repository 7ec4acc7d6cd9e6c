"""The detector of refusals: what it was measured to do, on texts that it was not tuned on, and when it is used."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import results_io
from suites import abstention
from suites.drift import analysis, comparison, detector, embeddings, refusal
from suites.drift.series_record import AskedCell, RecordedSnapshot
from suites.modes import embedding
from tests.suites.test_drift_endpoint import SETTINGS

GOLDEN, LABELS = detector.texts(detector.GOLDEN)
STORED = json.loads(detector.STORED.read_text())


def test_golden_texts_are_many_of_both_classes_and_none_was_trained_on() -> None:
    assert len(GOLDEN) == len(set(GOLDEN)) >= 100 and min(LABELS.sum(), (~LABELS).sum()) >= 30
    assert STORED["golden_sha256"] == results_io.file_digest(detector.GOLDEN)
    assert STORED["trained_on_sha256"] == results_io.file_digest(detector.TRAINED_ON)


def test_it_is_locked_by_its_f1_and_not_certain() -> None:
    """72 true positives, no false one, 3 missed: F1 = 144/147."""
    found = detector.load().quality
    assert found.f1.value == pytest.approx(144 / 147) and found.f1.bounds.low == pytest.approx(0.941, abs=1e-3)
    assert found.locked and not found.certain
    status = refusal.detector((), embedded=True)
    assert (status.kind, status.locked) == ("classifier", True) and "0.980 [0.941, 0.993] on 149" in status.reason


def test_without_embeddings_the_phrases_decide_and_raise_no_alarm() -> None:
    status = refusal.detector(())
    assert (status.kind, status.locked) == ("heuristic", False) and "F1 0.800" in status.reason
    said = np.array([abstention.refused(text) is not None for text in GOLDEN])
    assert 2 * (said & LABELS).sum() / (said.sum() + LABELS.sum()) < 0.95  # why there is a classifier


@pytest.mark.slow
@pytest.mark.skipif(not embedding.installed(), reason="the embedder is an optional package")
def test_the_stored_counts_are_those_of_the_stored_weights() -> None:
    embed, who = embedding.embedder(), embeddings.identity()
    assert embed is not None and who is not None and who["weights_sha256"] == STORED["embedder"]
    vectors = np.round(embed(GOLDEN), embeddings.DIGITS)
    assert detector.counted(detector.load(), GOLDEN, vectors, LABELS) == STORED["measured"]


def snapshot(texts, markers=()):
    """A snapshot of one prompt with these outputs."""
    corpus = {"markers": list(markers), "not_applicable": {}, "public": []}
    made = RecordedSnapshot("2026-W22", {"corpus": corpus})
    for sample, text in enumerate(texts):
        row = {"prompt": "a", "version": 1, "axis": "political", "split": "public", "harm": "none", "error": None}
        row |= {"text": text, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "safety": False}
        made.rows[AskedCell("a@1", "default", sample)] = row
    return made


def test_the_classifier_decides_only_where_every_output_has_its_embedding() -> None:
    made = snapshot(["Let us speak of something else.", "Yes, it should.", ""])
    first, second = (
        hashlib.sha256(text.encode()).hexdigest() for text in ("Let us speak of something else.", "Yes, it should.")
    )
    weights = detector.load().weights
    vectors = {first: weights / np.linalg.norm(weights), second: -weights / np.linalg.norm(weights)}
    assert analysis.embedded(made, vectors) and not analysis.embedded(made, {first: weights})
    assert not analysis.embedded(made, None) and not analysis.embedded(snapshot(["x"], ["I will not"]), vectors)
    rows = list(made.rows.values())
    by = {flag: comparison.SnapshotSide(made, SETTINGS, vectors, flag).classes(rows) for flag in (True, False)}
    assert by[True] == ["refused", "answered", "empty"] and by[False] == ["answered", "answered", "empty"]
    assert comparison.SnapshotSide(made, SETTINGS, vectors, True).detector.locked
    assert not comparison.SnapshotSide(made, SETTINGS, vectors, False).detector.locked
