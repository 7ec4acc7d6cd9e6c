"""Are confidences probabilities? Calibration errors beside what a perfectly calibrated model would score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics import plus_one_p
from results_io import UserError
from suites.estimate import Estimate, missing

BINS, RESAMPLES = 10, 2000
LARGE_BIN = 5  # items from which a bin counts for the MCE
LABELLED = 300  # items from which a band means anything: at 20 a perfect model scores .156
BANDS = ((0.05, "well calibrated"), (0.15, "moderately calibrated"))  # ECE below; else "poorly calibrated"
PROXY_RUNS = 10  # fewer repeated outputs take too few values for a confidence
SIMULATED_AT_ONCE = 4_000_000  # outcomes; 32 MB
Source = Literal["softmax", "verbal", "consistency"]


@dataclass(frozen=True)
class Calibration:
    """Expected, maximum and equal-mass calibration error and the Brier score. `metric` is its own for the consistency proxy."""

    metric: str
    ece: Estimate
    mce: Estimate
    ece_equal_mass: Estimate
    brier: Estimate


def calibration(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    seed: int,
    source: Source = "softmax",
    runs: int | None = None,
    bins: int = BINS,
    resamples: int = RESAMPLES,
) -> Calibration:
    """Calibration of `confidence` [item] in [0, 1] against `correct` [item] 0/1. NaN or None on either side is excluded.

    ECE = sum n_b/N |accuracy - mean confidence| over bins (lo, hi] of equal width, MCE the largest gap of bins with at least
    5 items, the equal-mass ECE over bins of equal count (equal confidences in one bin), Brier mean (confidence - correct)^2.
    `ece.p_value`: how often outcomes drawn from Bernoulli(confidence) reach the ECE; `detail` has that null's mean and 95 %
    point, and from 300 items on a band. `source` "consistency" needs `runs` >= 10. UserError for a confidence outside [0, 1].
    Source: Guo et al. 2017; Widmann et al. 2019 (null).
    """
    p, hit, excluded = _judged(confidence, correct)
    metric = "calibration_of_consistency" if source == "consistency" else "calibration"
    if source == "consistency" and (runs or 0) < PROXY_RUNS:
        return _refused(metric, f"{runs or 0} runs an item; consistency as confidence needs {PROXY_RUNS}", p.size)
    if not p.size:
        return _refused(metric, "no item has both a confidence and a verdict", 0)
    proxy = ("confidence is the consistency of repeated outputs, not a probability",)
    said: dict[str, Any] = {"excluded": excluded, "assumptions": proxy if source == "consistency" else ()}
    width, mass = equal_width_bins(p, bins), equal_mass_bins(p, bins)
    null = null_errors(p, width, seed=seed, resamples=resamples)
    return Calibration(
        metric,
        ece=_tested(float(errors_of(hit[None], p, width)[0]), p.size, null, said),
        mce=_maximum(p, hit, width, said),
        ece_equal_mass=Estimate(float(errors_of(hit[None], p, mass)[0]), "probability", p.size, **said),
        brier=Estimate(float(((p - hit) ** 2).mean()), "squared probability", p.size, **said),
    )


def equal_width_bins(confidence: Float[np.ndarray, " item"], bins: int) -> Int[np.ndarray, " item"]:
    """Number of the bin (lo, hi] of each confidence; 0 falls in the first."""
    return np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), confidence, side="left") - 1, 0, bins - 1)


def equal_mass_bins(confidence: Float[np.ndarray, " item"], bins: int) -> Int[np.ndarray, " item"]:
    """Number of the bin of each confidence, by mean rank: nearly equal counts, equal confidences never apart."""
    return ((stats.rankdata(confidence) - 0.5) * bins / confidence.size).astype(int)


def errors_of(
    outcomes: Float[np.ndarray, "draw item"], confidence: Float[np.ndarray, " item"], bin_of: Int[np.ndarray, " item"]
) -> Float[np.ndarray, " draw"]:
    """ECE of every draw of outcomes: sum over bins of |sum outcomes - sum confidence| / N."""
    member = (bin_of[:, None] == np.unique(bin_of)[None]).astype(float)
    return np.abs((outcomes - confidence) @ member).sum(axis=1) / confidence.size


def null_errors(
    confidence: Float[np.ndarray, " item"], bin_of: Int[np.ndarray, " item"], *, seed: int, resamples: int
) -> Float[np.ndarray, " draw"]:
    """ECE of a model whose confidences are true: outcome_i ~ Bernoulli(confidence_i)."""
    rng, draws, left = np.random.default_rng(seed), [], resamples
    while left:
        size = min(left, max(1, SIMULATED_AT_ONCE // confidence.size))
        outcomes = (rng.random((size, confidence.size)) < confidence).astype(float)
        draws.append(errors_of(outcomes, confidence, bin_of))
        left -= size
    return np.concatenate(draws)


def band(ece: float, n: int) -> str | None:
    """Published band of an ECE; None under 300 items, where chance alone decides it."""
    if n < LABELLED:
        return None
    return next((label for below, label in BANDS if ece < below), "poorly calibrated")


def _tested(ece: float, n: int, null: Float[np.ndarray, " draw"], said: Mapping[str, Any]) -> Estimate:
    p = plus_one_p(int((null >= ece - 1e-12).sum()), len(null))
    detail = {
        "null_mean": float(null.mean()),
        "null_95": float(np.quantile(null, 0.95)),
        "draws": len(null),
        "band": band(ece, n),
    }
    return Estimate(ece, "probability", n, p_value=p, test="simulated perfect calibration", detail=detail, **said)


def _maximum(
    p: Float[np.ndarray, " item"],
    hit: Float[np.ndarray, " item"],
    bin_of: Int[np.ndarray, " item"],
    said: Mapping[str, Any],
) -> Estimate:
    sizes = {int(b): int((bin_of == b).sum()) for b in np.unique(bin_of)}
    large = [b for b, size in sizes.items() if size >= LARGE_BIN]
    if not large:
        reason = f"no bin holds {LARGE_BIN} items; the largest gap of smaller ones is noise"
        return missing("insufficient_data", reason, "probability", p.size, **said)
    gaps = [abs(float(hit[bin_of == b].mean() - p[bin_of == b].mean())) for b in large]
    detail = {"bins_counted": len(large), "bins_too_small": len(sizes) - len(large)}
    return Estimate(max(gaps), "probability", p.size, detail=detail, **said)


def _judged(confidence: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    p, hit = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if p.ndim != 1 or p.shape != hit.shape:
        raise UserError(f"{p.size} confidences for {hit.size} verdicts; expected one each: match them by item")
    known = ~(np.isnan(p) | np.isnan(hit))
    p, hit, dropped = p[known], hit[known], int((~known).sum())
    if outside := p[(p < 0) | (p > 1)].tolist():
        raise UserError(
            f"{len(outside)} confidences lie outside [0, 1], for example {outside[0]:g}; expected probabilities:"
            " exponentiate log-probabilities first"
        )
    return p, hit, {"without confidence or verdict": dropped} if dropped else {}


def _refused(metric: str, reason: str, n: int) -> Calibration:
    none = missing("insufficient_data", reason, "probability", n)
    return Calibration(metric, none, none, none, missing("insufficient_data", reason, "squared probability", n))
