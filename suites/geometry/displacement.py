"""Displacement: the distance |delta| that a mean has really moved, corrected for the noise of the means, and its interval.

A difference D of means with covariance M has E|D|^2 = |delta|^2 + tr M. The interval inverts the distribution of |D|^2. This is
approximated by c chi'^2_nu(lambda), matched to the mean |delta|^2 + tr M and the variance 2 tr M^2 + 4 |delta|^2 u'Mu, where u is
the direction of D. Its normal score is compared with t, since M is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from suites.geometry.metric import residuals, settled

LARGE = 1e4  # noncentrality above which |D| itself is treated as normal


@dataclass(frozen=True)
class Displacement:
    """`squared`: |D|^2 - tr M, unbiased for |delta|^2, so it can be negative. `raw`: |D|. `noise`: tr M.

    `low`, `high`: the interval of |delta|; None if M is 0 up to rounding.
    """

    squared: float
    raw: float
    noise: float
    low: float | None
    high: float | None

    @property
    def distance(self) -> float:
        """sqrt(max(0, squared))."""
        return float(np.sqrt(max(self.squared, 0.0)))


@dataclass(frozen=True)
class _Law:
    """The parameters of M in the distribution of |D|^2: tr M, tr M^2, u'Mu, and the degrees of freedom of M."""

    trace: float
    trace2: float
    along: float
    freedom: float


def between(
    difference: Float[np.ndarray, " axis"],
    samples: Sequence[Float[np.ndarray, "point axis"]],
    level: float,
    known: float = 0.0,
) -> Displacement:
    """The displacement from a `difference` of means of independent `samples`, each of at least two points.

    Each sample adds its covariance / its size to M. `known`: a further known contribution to tr M, the same on every axis (for a
    reference that is itself an estimate).
    """
    samples = [settled(table - table[0], table) for table in samples]
    size = float(max(np.abs(difference).max(), *(np.abs(table).max() for table in samples), known**0.5))
    if size == 0:
        return Displacement(0.0, 0.0, 0.0, None, None)
    found = _between(difference / size, [table / size for table in samples], level, known / size**2)
    low, high = (None if end is None else end * size for end in (found.low, found.high))
    return Displacement(found.squared * size**2, found.raw * size, found.noise * size**2, low, high)


def _between(
    difference: Float[np.ndarray, " axis"],
    samples: Sequence[Float[np.ndarray, "point axis"]],
    level: float,
    known: float,
) -> Displacement:
    """`between` in units in which fourth powers neither overflow nor underflow."""
    squared = float(difference @ difference)
    law = _law(difference, samples, known)
    if law.trace <= 1e-12 * squared or law.trace == 0:
        return Displacement(squared - law.trace, squared**0.5, law.trace, None, None)
    tail = (1 - level) / 2
    return Displacement(
        squared - law.trace,
        squared**0.5,
        law.trace,
        _solve(squared, law, 1 - tail),
        _solve(squared, law, tail),
    )


def _law(
    difference: Float[np.ndarray, " axis"], samples: Sequence[Float[np.ndarray, "point axis"]], known: float
) -> _Law:
    axes, length = len(difference), float(np.linalg.norm(difference))
    direction = difference / length if length else np.zeros(axes)
    centred = [residuals(table) / np.sqrt((len(table) - 1) * len(table)) for table in samples]
    parts = np.array([float((one**2).sum()) for one in centred])
    trace, along = float(parts.sum()) + known, float(sum(((one @ direction) ** 2).sum() for one in centred))
    trace2 = known**2 / axes + 2 * known * float(parts.sum()) / axes
    for place, one in enumerate(centred):
        trace2 += float(np.clip(_trace_of_square(one), parts[place] ** 2 / axes, parts[place] ** 2))
        trace2 += 2 * sum(float(((one @ other.T) ** 2).sum()) for other in centred[:place])
    if trace == 0:
        return _Law(0.0, 0.0, 0.0, 1.0)
    trace2 = float(np.clip(trace2, trace**2 / axes, trace**2))
    inverse = sum((part / trace) ** 2 / (len(one) - 1) for part, one in zip(parts, samples, strict=True))
    return _Law(trace, trace2, along + known / axes, float(1 / inverse) if inverse else np.inf)


def _trace_of_square(one: Float[np.ndarray, "point axis"]) -> float:
    """Estimate of tr M^2 for M = X'X, where X are the scaled residuals `one`; from four points on unbiased for any tails.

    (n-1)/(n(n-2)(n-3)) ((n-1)(n-2) tr S^2 + (tr S)^2 - n sum |x_i|^4/(n-1)). The estimate for normal points makes the intervals
    of small distances too wide if tails are heavy (coverage 1.00 in 384 dimensions with t3); only fewer than four points use it.
    Source: Himeno & Yamada 2014.
    """
    n, raw = len(one), float(((one @ one.T) ** 2).sum())
    lengths = (one**2).sum(1)
    if n < 4:
        k = n - 1
        return k**2 / ((k - 1) * (k + 2)) * (raw - float(lengths.sum()) ** 2 / k) if k > 1 else raw
    fourth = (n - 1) * float((lengths**2).sum())
    return (n - 1) / (n * (n - 2) * (n - 3)) * ((n - 1) * (n - 2) * raw + float(lengths.sum()) ** 2 - n * fourth)


def _share_below(squared: float, true: float, law: _Law) -> float:
    """P(|D|^2 <= squared) if |delta|^2 is `true`."""
    variance = 2 * law.trace2 + 4 * true * law.along
    scale = variance / (2 * law.trace + 4 * true)
    directed = 4 * true * law.along / variance
    if true / scale > LARGE:
        score = (np.sqrt(squared) - np.sqrt(true + law.trace - law.along)) / np.sqrt(law.along)
    else:
        degrees = law.trace / scale
        below = special.chndtr(squared / scale, degrees, true / scale)
        score = special.ndtri(np.clip(below, 1e-15, 1 - 1e-15))
    effective = law.trace**2 / law.trace2
    inverse = directed**2 / law.freedom + (1 - directed) ** 2 / (law.freedom * effective)
    return float(special.stdtr(1 / inverse, score) if inverse else special.ndtr(score))


def _solve(squared: float, law: _Law, share: float) -> float:
    """The |delta| at which P(|D|^2 <= the observed `squared`) = `share`; 0 if that probability is lower even at 0."""
    if _share_below(squared, 0.0, law) <= share:
        return 0.0
    high = np.sqrt(squared) + 4 * np.sqrt(law.trace)
    while _share_below(squared, high**2, law) > share:
        high *= 2
    return float(
        optimize.brentq(lambda delta: _share_below(squared, delta**2, law) - share, 0.0, high, xtol=1e-9 * high)  # pyright: ignore[reportArgumentType]
    )
