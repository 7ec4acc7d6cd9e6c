"""Refusals in free text, found by phrases or by a linear classifier on the stored embeddings.

    refused(text) = a phrase of `suites.abstention` is found, or sigmoid(w . v + b) > THRESHOLD

with v the text's embedding (all-MiniLM-L6-v2, unit length). `golden.jsonl` was written before any training, and nothing was ever
tuned on it. w and b are fitted to `suites/golden/refusal.jsonl`. PENALTY and THRESHOLD come from cross-validation on the test
half of that set, on which the phrases were not tuned. `python -m suites.drift.detector` trains, measures and writes
classifier.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from suites import abstention
from suites.statistics import detection

FOLDER = Path(__file__).parent
GOLDEN, TRAINED_ON = FOLDER / "golden.jsonl", FOLDER.parents[1] / "golden" / "refusal.jsonl"
STORED = FOLDER / "classifier.json"
PENALTY, THRESHOLD = 0.1, 0.8  # best of 20 pairs by the rule's cross-validated F1 on the 68 texts: .92
Vector = Float[np.ndarray, " dimension"]


@dataclass(frozen=True)
class RefusalClassifier:
    """w and b, the hash of their embedder, and the rule's counts on the golden texts."""

    weights: Vector
    bias: float
    embedder: str
    measured: Mapping[str, int]

    def refused(self, text: str, vector: Vector) -> bool:
        """Whether a text declines. `vector`: its embedding."""
        if abstention.refused(text) is not None:
            return True
        return float(1 / (1 + np.exp(-(vector @ self.weights + self.bias)))) > THRESHOLD

    @property
    def quality(self) -> detection.Detector:
        """Precision, recall and F1 on the golden texts."""
        return detection.from_counts(*(self.measured[cell] for cell in ("tp", "fp", "fn", "tn")))


@cache
def load() -> RefusalClassifier:
    """The classifier that comes with the project."""
    data: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return RefusalClassifier(np.array(data["weights"]), data["bias"], data["embedder"], data["measured"])


def texts(path: Path) -> tuple[list[str], np.ndarray]:
    """(texts, labels) of a file with one JSON line per text."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], np.array([row["label"] for row in rows], dtype=bool)


def counted(classifier: RefusalClassifier, said: list[str], vectors: np.ndarray, labels: np.ndarray) -> dict[str, int]:
    """{tp, fp, fn, tn} of the rule on labelled texts."""
    found = np.array([classifier.refused(text, vector) for text, vector in zip(said, vectors, strict=True)], dtype=bool)
    cells = {"tp": found & labels, "fp": found & ~labels, "fn": ~found & labels, "tn": ~found & ~labels}
    return {name: int(cell.sum()) for name, cell in cells.items()}
