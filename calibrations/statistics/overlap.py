"""Overlap of head sets: top-k selection, Jaccard, Dice, and the kappa and hypergeometric p that follow from k."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics.arrays import finite
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class TopKOverlap:
    """Agreement of two selections of k out of n heads."""

    overlap: int
    kappa: float
    jaccard: float
    dice: float
    p: float


@dataclass(frozen=True)
class SetOverlap:
    """Two sets of heads: the published size ratio (an upper bound of Jaccard), Jaccard and Dice."""

    size_ratio: float
    jaccard: float
    dice: float


def top_k_mask(scores: ArrayLike, k: int) -> Bool[np.ndarray, "... head"]:
    """The k largest scores along the last axis; ties go to the lower index, that is the lower (layer, head)."""
    values = finite("scores", scores)
    if not 1 <= k <= values.shape[-1]:
        raise Insufficient("n_heads", f"k = {k} of {values.shape[-1]} heads")
    order = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    mask = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask


def top_k_kappa(overlap: ArrayLike, k: int, n_heads: int) -> Float[np.ndarray, ...]:
    """Cohen's kappa of two top-k selections sharing `overlap` heads (any shape): (a/k - k/n)/(1 - k/n).

    Raises Insufficient("all_selected") for k = n (0/0). Source: spec F59.
    """
    if k >= n_heads:
        raise Insufficient("all_selected", f"k = {k} selects all {n_heads} heads; kappa is 0/0")
    return (np.asarray(overlap, dtype=np.float64) / k - k / n_heads) / (1 - k / n_heads)


def overlap_p(overlap: int, n_heads: int, k_first: int, k_second: int) -> float:
    """Hypergeometric P(shared >= overlap) when k_second heads are drawn at random."""
    return float(stats.hypergeom.sf(overlap - 1, n_heads, k_first, k_second))


def top_k_agreement(overlap: int, k: int, n_heads: int) -> TopKOverlap:
    """Kappa, Jaccard a/(2k-a), Dice a/k and hypergeometric p of two top-k sets sharing `overlap` of `n_heads` heads.

    Raises Insufficient("all_selected") for k = n. Spec F59: report for k >= 3 only.
    """
    kappa = float(top_k_kappa(overlap, k, n_heads))
    return TopKOverlap(overlap, kappa, overlap / (2 * k - overlap), overlap / k, overlap_p(overlap, n_heads, k, k))


def top_k_overlap(first: ArrayLike, second: ArrayLike, k: int) -> TopKOverlap:
    """`top_k_agreement` of the top k heads of two score vectors [head], ties to the lower index."""
    a, b = top_k_mask(first, k), top_k_mask(second, k)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"scores of shapes {a.shape} and {b.shape}; expected two vectors of one length")
    return top_k_agreement(int((a & b).sum()), k, a.size)


def set_overlap(first: Collection[Hashable], second: Collection[Hashable]) -> SetOverlap:
    """Size ratio min/max, Jaccard and Dice of two sets of head ids. Raises Insufficient("n_heads") if one is empty."""
    a, b = set(first), set(second)
    if not a or not b:
        raise Insufficient("n_heads", f"sets of {len(a)} and {len(b)} heads; both must be non-empty")
    shared = len(a & b)
    return SetOverlap(min(len(a), len(b)) / max(len(a), len(b)), shared / len(a | b), 2 * shared / (len(a) + len(b)))
