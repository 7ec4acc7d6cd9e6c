"""Calibration of confidences: binned errors and the risk-coverage curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import paired
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class CalibrationErrors:
    """Expected, maximum and root-mean-square calibration error."""

    ece: float
    mce: float
    rmsce: float


@dataclass(frozen=True)
class RiskCoverage:
    """Selective risk at each coverage [rank] (most confident first) and the mean of the risks."""

    coverage: Float[np.ndarray, " rank"]
    risk: Float[np.ndarray, " rank"]
    area: float


def calibration_errors(confidence: ArrayLike, correct: ArrayLike, n_bins: int = 10) -> CalibrationErrors:
    """Gap |accuracy - mean confidence| over right-closed bins (lo, hi] of equal width; 0 falls in the first bin.

    `confidence` [item] in [0, 1], `correct` [item] 0/1. ECE weighs gaps by bin size, RMSCE their squares, MCE is the
    largest. Raises Insufficient("n_prompts") without items. Source: Guo et al. 2017.
    """
    p, hit = paired(("confidence", confidence), ("correct", correct))
    if not p.size:
        raise Insufficient("n_prompts", "no items")
    if ((p < 0) | (p > 1)).any():
        raise ValueError("a confidence lies outside [0, 1]")
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, n_bins - 1)
    used = np.unique(bins)
    gaps = np.array([abs(hit[bins == b].mean() - p[bins == b].mean()) for b in used])
    share = np.array([(bins == b).mean() for b in used])
    return CalibrationErrors(float(share @ gaps), float(gaps.max()), float(np.sqrt(share @ gaps**2)))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Error rate among the i most confident items against i/n; equal confidences keep their order.

    Raises Insufficient("n_prompts") without items. Source: Geifman & El-Yaniv 2017 (area = mean of selective risks).
    """
    p, hit = paired(("confidence", confidence), ("correct", correct))
    if not p.size:
        raise Insufficient("n_prompts", "no items")
    rank = np.arange(1, p.size + 1)
    risk = np.cumsum(1 - hit[np.argsort(-p, kind="stable")]) / rank
    return RiskCoverage(rank / p.size, risk, float(risk.mean()))
