"""Check of a projection phi of texts: do small changes move a text little, and paraphrases less than unrelated texts?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy import stats

from calibrations.statistics import Insufficient, auroc_interval
from suites.estimate import Estimate, Interval, missing
from suites.geometry.metric import LEVEL

SHINGLE = 5  # characters
TRUSTED = 0.8  # the lower end of an embedder's AUC must exceed this; otherwise all results with it are exploratory
MOST_PAIRS = 20_000


def text_distance(first: str, second: str) -> float:
    """1 - Jaccard of the sets of 5-character shingles; 0 for equal texts."""
    a, b = (_shingles(text) for text in (first, second))
    return 1 - len(a & b) / len(a | b) if a | b else 0.0


def ratios(texts: Sequence[str], coordinates: Float[np.ndarray, "text axis"]) -> dict[str, float | int | None]:
    """|phi(s) - phi(t)| / d_text(s, t) over pairs of different outputs: 95th percentile and maximum. Descriptive, no proof."""
    found = []
    for i in range(len(texts)):
        for j in range(i):
            if len(found) == MOST_PAIRS:
                break
            if (away := text_distance(texts[i], texts[j])) > 0:
                found.append(float(np.linalg.norm(coordinates[i] - coordinates[j])) / away)
    if not found:
        return {"pairs": 0, "p95": None, "maximum": None}
    return {"pairs": len(found), "p95": float(np.quantile(found, 0.95)), "maximum": max(found)}


def discrimination(paraphrases: Sequence[float], unrelated: Sequence[float], level: float = LEVEL) -> Estimate:
    """AUC of distances: how often an unrelated pair lies farther apart than a pair of paraphrases. 0.5 is chance."""
    if len(paraphrases) < 2 or len(unrelated) < 2:
        return missing("insufficient_data", "no pairs to compare", "AUC", min(len(paraphrases), len(unrelated)))
    near, far = np.asarray(paraphrases, dtype=float), np.asarray(unrelated, dtype=float)
    if not (np.isfinite(near).all() and np.isfinite(far).all()):
        return missing("undefined", "the embedder gives coordinates that are not finite", "AUC", near.size + far.size)
    area = float(stats.mannwhitneyu(far, near).statistic) / (len(near) * len(far))
    labels, method = np.arange(near.size + far.size) >= near.size, "DeLong on the logit"
    try:
        low, high = auroc_interval(labels, np.concatenate([near, far]), level)
    except Insufficient:  # complete separation: assume that the next pair of the smaller class is an exception
        edge = float(((1 - level) / 2) ** (1 / min(near.size, far.size)))
        low, high, method = (
            (edge, 1.0, "binomial bound at complete separation") if area == 1 else (0.0, 1 - edge, "bound")
        )
    return Estimate(area, "AUC", near.size + far.size, ci=Interval(low, high, level, method))


@cache
def of_embedder(encode: Callable[[Sequence[str]], Float[np.ndarray, "text axis"]]) -> Estimate:
    """The AUC of an embedder on the 40 paraphrases.

    An unrelated pair is the first sentence of a pair and the second sentence of the pair before it.
    """
    pairs = paraphrases()
    first, second = (np.asarray(encode([pair[k] for pair in pairs]), dtype=float) for k in (0, 1))
    near = np.linalg.norm(first - second, axis=1)
    far = np.linalg.norm(first - np.roll(second, 1, axis=0), axis=1)
    return discrimination(near.tolist(), far.tolist())


def paraphrases() -> list[tuple[str, str]]:
    """The 40 pairs of sentences that mean the same, written for this project."""
    text = (Path(__file__).with_name("paraphrases.jsonl")).read_text(encoding="utf-8")
    return [(first, second) for first, second in map(json.loads, text.splitlines())]


def trusted(found: Estimate) -> bool:
    """Whether the lower end of the AUC is above .8."""
    return found.ci is not None and found.ci.low > TRUSTED


def _shingles(text: str) -> set[str]:
    return {text[i : i + SHINGLE] for i in range(max(len(text) - SHINGLE + 1, 1))} if text else set()
