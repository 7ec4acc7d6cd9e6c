"""Are confidences probabilities? Calibration errors beside what a perfectly calibrated model would score.

Items of one cluster (an original and its variants) tend to be right or wrong together. The null distribution gives them the
dependence that the residuals show ("shared luck"), and intervals come from resampled clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from calibrations.statistics import bootstrap_counts, percentile_interval, plus_one_p
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics.clusters import effective_number
from suites.statistics.proportions import FEW_CLUSTERS, FEW_RARER

BINS, RESAMPLES = 10, 2000
LARGE_BIN = 5  # items from which a bin counts for the MCE
LABELLED = 300  # items from which a band means anything: at 20 a perfect model scores .156
BANDS = ((0.05, "well calibrated"), (0.15, "moderately calibrated"))  # ECE below; else "poorly calibrated"
PROXY_RUNS = 10  # fewer repeated outputs take too few values for a confidence
SIMULATED_AT_ONCE = 4_000_000  # outcomes; 32 MB
LEVEL = 0.95
PERCENTILE = "percentile bootstrap over clusters"
WIDER = "percentile and basic bootstrap over clusters, the wider ends"
Source = Literal["softmax", "verbal", "consistency"]


@dataclass(frozen=True)
class Calibration:
    """Expected, maximum and equal-mass calibration error and the Brier score. The consistency proxy has its own `metric` name."""

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
    clusters: ArrayLike | None = None,
) -> Calibration:
    """Calibration of `confidence` [item] in [0, 1] against `correct` [item] 0/1. NaN or None on either side is excluded.

    `clusters` [item] groups dependent items (default: each its own).

    ECE = sum n_b/N |accuracy - mean confidence| over bins (lo, hi] of equal width. MCE: the largest gap among bins with at least
    5 items. Equal-mass ECE: over bins of equal count, with equal confidences in one bin. Brier: mean (confidence - correct)^2.

    `p_value` of each: how often outcomes of a calibrated model (`calibrated_outcomes`) are as far off; two-sided for Brier.
    `detail` has that null's mean and 95 % point, the shared luck within clusters, and, for the ECE of 300 or more items, a band.
    Intervals come from resampled clusters; under 20 there is none. Brier has the percentile interval. The errors are sums of
    absolute values; they get the wider ends of the percentile and the basic interval (2 estimate - quantile), since neither
    alone covers the truth often enough. `source` "consistency" needs `runs` >= 10, else insufficient. UserError for a confidence
    outside [0, 1] and for inputs of different lengths. Source: Guo et al. 2017; Widmann et al. 2019 (null); Davison & Hinkley
    1997, 5.2.
    """
    p, hit, label, excluded = _judged(confidence, correct, clusters)
    metric = "calibration_of_consistency" if source == "consistency" else "calibration"
    if source == "consistency" and (runs or 0) < PROXY_RUNS:
        return _refused(metric, f"{runs or 0} runs an item; consistency as confidence needs {PROXY_RUNS}", p.size)
    if not p.size:
        return _refused(metric, "no item has both a confidence and a verdict", 0)
    share, note = shared_luck(p, hit, label)
    proxy = ("confidence is the consistency of repeated outputs, not a probability",)
    notes = (*(proxy if source == "consistency" else ()), *((note,) if note else ()))
    said: dict[str, Any] = {"excluded": excluded, "assumptions": notes}
    width, mass = equal_width_bins(p, bins), equal_mass_bins(p, bins)
    luck = {"shared_luck": share, "clusters": int(label.max()) + 1} if note else {}
    null = _null(p, width, mass, calibrated_outcomes(p, seed=seed, resamples=resamples, clusters=label, share=share))
    spread = _spread(p, hit, label, width, mass, seed, resamples)
    found = {
        name: _tested(name, value, p.size, null[name], spread.get(name), said, luck)
        for name, value in _errors(hit[None], p, width, mass).items()
    }
    return Calibration(
        metric, found["ece"], _maximum(found["mce"], p, width, said), found["ece_equal_mass"], found["brier"]
    )


def shared_luck(
    confidence: Float[np.ndarray, " item"], hit: Float[np.ndarray, " item"], clusters: Int[np.ndarray, " item"]
) -> tuple[float, str]:
    """(the share of luck that items of a cluster have in common, in [0, 1], a note on its basis); (0, "") without clusters.

    sum r_i r_j / sum (min(p_i, p_j) - p_i p_j) over pairs within clusters, with r = hit - p minus its mean. It is 1 if one draw
    decides all items of a cluster. It is multiplied by G/(G - 1) (t/z)^2 for G clusters, since few clusters estimate it poorly.
    With an effective number of clusters under 20, or the rarer outcome in fewer than 10 clusters, it is set to 1. Source: Liang
    & Zeger 1986 (moments); Bell & McCaffrey 2002.
    """
    count = int(clusters.max()) + 1
    if count == confidence.size:
        return 0.0, ""
    rarer = float(hit.sum() <= hit.size / 2)
    with_rarer = np.unique(clusters[hit == rarer])
    labels = [str(one) for one in clusters.tolist()]
    if effective_number(labels) < FEW_CLUSTERS or len(with_rarer) < FEW_RARER:
        return 1.0, "items of a cluster share all their luck: too few clusters to estimate how much"
    residual = hit - confidence
    residual = residual - residual.mean()
    sums, squares = np.bincount(clusters, residual), float((residual**2).sum())
    together = float((sums**2).sum()) - squares
    wider = count / (count - 1) * float(stats.t.isf(0.025, count - 1) / stats.norm.isf(0.025)) ** 2
    most = _most_shared(confidence, clusters)
    share = float(np.clip(wider * together / most, 0.0, 1.0)) if most > 0 else 0.0
    return share, "items of a cluster share their luck as far as their residuals do"


def _most_shared(confidence: Float[np.ndarray, " item"], clusters: Int[np.ndarray, " item"]) -> float:
    """Sum over ordered pairs within clusters of min(p_i, p_j) - p_i p_j, the covariance of outcomes decided by one draw."""
    order = np.lexsort((confidence, clusters))
    p, label = confidence[order], clusters[order]
    sizes = np.bincount(label)
    rank = np.arange(p.size) - np.concatenate([[0], np.cumsum(sizes)[:-1]])[label]
    sums, squares = np.bincount(label, p), float((p**2).sum())
    return float(2 * (p * (sizes[label] - 1 - rank)).sum() - (sums**2).sum() + squares)


def calibrated_outcomes(
    confidence: Float[np.ndarray, " item"],
    *,
    seed: int,
    resamples: int,
    clusters: Int[np.ndarray, " item"] | None = None,
    share: float = 0.0,
) -> Iterator[Float[np.ndarray, "draw item"]]:
    """Simulated outcomes of a perfectly calibrated model, in parts of draws: outcome_i = [u_i < confidence_i], u uniform.

    With probability sqrt(share) an item uses the u of its cluster, else its own. Two items of a cluster thus share u with
    probability `share`. Each item is still right with probability confidence_i, for any `share`.
    """
    rng, left = np.random.default_rng(seed), resamples
    while left:
        size = min(left, max(1, SIMULATED_AT_ONCE // confidence.size))
        luck = rng.random((size, confidence.size))
        if share > 0 and clusters is not None:
            common = rng.random((size, int(clusters.max()) + 1))[:, clusters]
            luck = np.where(rng.random(luck.shape) < np.sqrt(share), common, luck)
        yield (luck < confidence).astype(float)
        left -= size


def equal_width_bins(confidence: Float[np.ndarray, " item"], bins: int) -> Int[np.ndarray, " item"]:
    """Number of the bin (lo, hi] of each confidence; 0 falls in the first."""
    return np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), confidence, side="left") - 1, 0, bins - 1)


def equal_mass_bins(confidence: Float[np.ndarray, " item"], bins: int) -> Int[np.ndarray, " item"]:
    """Number of the bin of each confidence, by mean rank: bins of nearly equal count, with equal confidences in one bin."""
    return ((stats.rankdata(confidence) - 0.5) * bins / confidence.size).astype(int)


def errors_of(
    outcomes: Float[np.ndarray, "draw item"], confidence: Float[np.ndarray, " item"], bin_of: Int[np.ndarray, " item"]
) -> Float[np.ndarray, " draw"]:
    """ECE of every draw of outcomes: sum over bins of |sum outcomes - sum confidence| / N."""
    member = (bin_of[:, None] == np.unique(bin_of)[None]).astype(float)
    return np.abs((outcomes - confidence) @ member).sum(axis=1) / confidence.size


def _errors(
    outcomes: Float[np.ndarray, "draw item"], p: Float[np.ndarray, " item"], width: np.ndarray, mass: np.ndarray
) -> dict[str, Float[np.ndarray, " draw"]]:
    """Every error of every draw of outcomes. The MCE is over bins with at least 5 items; 0 if there is none."""
    bins, sizes = np.unique(width, return_counts=True)
    large = bins[sizes >= LARGE_BIN]
    member = (width[:, None] == large[None]).astype(float)
    gaps = np.abs((outcomes - p) @ member) / np.maximum(member.sum(0), 1)
    return {
        "ece": errors_of(outcomes, p, width),
        "mce": gaps.max(axis=1, initial=0.0),
        "ece_equal_mass": errors_of(outcomes, p, mass),
        "brier": ((p - outcomes) ** 2).mean(axis=1),
    }


def _null(
    p: np.ndarray, width: np.ndarray, mass: np.ndarray, parts: Iterator[np.ndarray]
) -> dict[str, Float[np.ndarray, " draw"]]:
    found = [_errors(outcomes, p, width, mass) for outcomes in parts]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _spread(
    p: np.ndarray, hit: np.ndarray, label: np.ndarray, width: np.ndarray, mass: np.ndarray, seed: int, resamples: int
) -> dict[str, Float[np.ndarray, " draw"]]:
    """The errors over resampled clusters; empty under 20 of them."""
    count = int(label.max()) + 1
    if count < FEW_CLUSTERS:
        return {}
    weights = bootstrap_counts(count, resamples, seed=seed)

    def totals(values: np.ndarray, bin_of: np.ndarray) -> Float[np.ndarray, "draw bin"]:
        own = np.zeros((count, int(bin_of.max()) + 1))
        np.add.at(own, (label, bin_of), values)
        return weights @ own

    ones, gap = np.ones_like(p), hit - p
    items = totals(ones, np.zeros_like(width))[:, 0]
    bins, sizes = np.unique(width, return_counts=True)
    large = bins[sizes >= LARGE_BIN]
    of_bins = np.abs(totals(gap, width))
    means = of_bins / np.maximum(totals(ones, width), 1)
    return {
        "ece": of_bins.sum(1) / items,
        "mce": means[:, large].max(axis=1, initial=0.0),
        "ece_equal_mass": np.abs(totals(gap, mass)).sum(1) / items,
        "brier": totals(gap**2, np.zeros_like(width))[:, 0] / items,
    }


def band(ece: float, n: int) -> str | None:
    """Published band of an ECE; None under 300 items, where chance alone decides it."""
    if n < LABELLED:
        return None
    return next((label for below, label in BANDS if ece < below), "poorly calibrated")


def _tested(
    name: str,
    values: Float[np.ndarray, " one"],
    n: int,
    null: Float[np.ndarray, " draw"],
    spread: Float[np.ndarray, " draw"] | None,
    said: Mapping[str, Any],
    luck: Mapping[str, Any],
) -> Estimate:
    """One error with its interval and the p under a calibrated model: one-sided, but twice the smaller tail for Brier."""
    value = float(values[0])
    above = plus_one_p(int((null >= value - 1e-12).sum()), len(null))
    below = plus_one_p(int((null <= value + 1e-12).sum()), len(null))
    p = min(1.0, 2 * min(above, below)) if name == "brier" else above
    detail = {"null_mean": float(null.mean()), "null_95": float(np.quantile(null, 0.95)), "draws": len(null), **luck}
    if name == "ece":
        detail["band"] = band(value, n)
    unit = "squared probability" if name == "brier" else "probability"
    ci = None if spread is None else _interval(value, spread, absolute=name != "brier")
    return Estimate(value, unit, n, ci, p_value=p, test="simulated perfect calibration", detail=detail, **said)


def _interval(value: float, spread: Float[np.ndarray, " draw"], *, absolute: bool) -> Interval:
    """Percentile interval; for sums of absolute values, the wider ends of it and of the basic one (2 value - quantile) in [0, 1].

    Such a sum is biased upwards: a resample's exceeds the sample's, as the sample's exceeds the true value. Percentiles are
    therefore too high. The basic interval corrects this, but varies too little with the truth. Coverage with 60 clusters: .80
    (percentile), .93 (basic), .96 (wider ends).
    """
    low, high = percentile_interval(spread, LEVEL)
    if not absolute:
        return Interval(low, high, LEVEL, PERCENTILE)
    ends = np.clip([min(low, 2 * value - high), max(high, 2 * value - low)], 0.0, 1.0)
    return Interval(float(ends[0]), float(ends[1]), LEVEL, WIDER)


def _maximum(
    found: Estimate, p: Float[np.ndarray, " item"], bin_of: Int[np.ndarray, " item"], said: Mapping
) -> Estimate:
    """The MCE with its bins counted; insufficient if none is large enough."""
    sizes = np.unique(bin_of, return_counts=True)[1]
    large = int((sizes >= LARGE_BIN).sum())
    if not large:
        reason = f"no bin holds {LARGE_BIN} items; the largest gap of smaller ones is noise"
        return missing("insufficient_data", reason, "probability", p.size, **said)
    return replace(found, detail={**found.detail, "bins_counted": large, "bins_too_small": len(sizes) - large})


def _judged(
    confidence: ArrayLike, correct: ArrayLike, clusters: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    p, hit = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    labels = np.arange(p.size) if clusters is None else np.asarray(clusters)
    if p.ndim != 1 or not p.shape == hit.shape == labels.shape:
        raise UserError(
            f"{p.size} confidences, {hit.size} verdicts and {labels.size} cluster labels; expected one each: match them by item"
        )
    known = ~(np.isnan(p) | np.isnan(hit))
    p, hit, labels, dropped = p[known], hit[known], labels[known], int((~known).sum())
    if outside := p[(p < 0) | (p > 1)].tolist():
        raise UserError(
            f"{len(outside)} confidences lie outside [0, 1], for example {outside[0]:g}; expected probabilities:"
            " exponentiate log-probabilities first"
        )
    member = np.unique(labels, return_inverse=True)[1]
    return p, hit, member, {"without confidence or verdict": dropped} if dropped else {}


def _refused(metric: str, reason: str, n: int) -> Calibration:
    none = missing("insufficient_data", reason, "probability", n)
    return Calibration(metric, none, none, none, missing("insufficient_data", reason, "squared probability", n))
