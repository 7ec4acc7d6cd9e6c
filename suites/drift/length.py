"""163 length: tokens of an output, with median and quartiles, and a Kolmogorov-Smirnov test in addition."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from suites.estimate import Estimate, missing

NUMBER, NAME, TITLE = "163", "length", "Output length"
UNIT = "tokens"
MINIMUM = 5  # outputs a side, from which a median of lengths has two values around it
EXACT = 10_000  # most pairs of outputs for the exact distribution, which fails on many ties
CENSORED = 0.2  # share of outputs cut at max_tokens above which lengths are not known well enough to compare


def values(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Tokens of each output whose length is reported."""
    return [float(row["tokens"]) for row in rows if row["tokens"] is not None]


def cut(rows: Sequence[Mapping[str, Any]]) -> float:
    """Share of outputs that ended at max_tokens; 0 without outputs."""
    return sum(row["finish"] == "length" for row in rows) / len(rows) if rows else 0.0


def quartiles(tokens: ArrayLike) -> Estimate:
    """The median, with the lower and the upper quartile (linear) in `detail`. Insufficient under 5 outputs."""
    x = np.asarray(tokens, dtype=np.float64)
    if x.size < MINIMUM:
        return missing("insufficient_data", f"{x.size} outputs; at least {MINIMUM} needed", UNIT, x.size)
    low, middle, high = np.quantile(x, (0.25, 0.5, 0.75)).tolist()
    return Estimate(middle, UNIT, x.size, detail={"q25": low, "q75": high})


def kolmogorov_smirnov(a: ArrayLike, b: ArrayLike) -> Estimate:
    """The largest distance between the two distributions of lengths, with its p. Insufficient under 5 outputs a side."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(x.size, y.size) < MINIMUM:
        reason = f"{x.size} and {y.size} outputs; at least {MINIMUM} a side"
        return missing("insufficient_data", reason, "share", x.size + y.size)
    method = "exact" if x.size * y.size <= EXACT else "asymp"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # with many ties scipy falls back to the asymptotic distribution
        found: Any = stats.ks_2samp(x, y, method=method)  # scipy's own types leave its fields out
    p = float(found.pvalue)
    return Estimate(float(found.statistic), "share", x.size + y.size, p_value=p, test="Kolmogorov-Smirnov")
