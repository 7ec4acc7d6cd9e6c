"""Overlap of head sets: top-k selection, Jaccard, Dice, and the hypergeometric p of an overlap."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class SetOverlap:
    """Overlap of two sets of heads: the published size ratio (an upper bound of Jaccard), Jaccard and Dice."""

    size_ratio: float
    jaccard: float
    dice: float


def top_k_mask(scores: ArrayLike, k: int) -> Bool[np.ndarray, "... head"]:
    """True at the k largest scores along the last axis; ties go to the lower index, that is the lower (layer, head)."""
    values = finite("scores", scores)
    if not 1 <= k <= values.shape[-1]:
        raise Insufficient("n_heads", f"k = {k} of {values.shape[-1]} heads")
    order = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    mask = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask


def overlap_p(overlap: int, n_heads: int, k_first: int, k_second: int) -> float:
    """Hypergeometric P(shared >= overlap) when k_second heads are drawn at random."""
    return float(scipy.stats.hypergeom.sf(overlap - 1, n_heads, k_first, k_second))


def set_overlap(first: Collection[Hashable], second: Collection[Hashable]) -> SetOverlap:
    """Size ratio min/max, Jaccard and Dice of two sets of head ids. Raises Insufficient("n_heads") if one is empty."""
    a, b = set(first), set(second)
    if not a or not b:
        raise Insufficient("n_heads", f"sets of {len(a)} and {len(b)} heads; both must be non-empty")
    shared = len(a & b)
    return SetOverlap(min(len(a), len(b)) / max(len(a), len(b)), shared / len(a | b), 2 * shared / (len(a) + len(b)))
