"""PSS (173): how far a framing, such as a persona, moves the output."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.geometry import displacement, relabelling, spread
from suites.geometry.displacement import Displacement
from suites.geometry.metric import (
    LEVEL,
    NO_INTERVAL,
    RATIO,
    Metric,
    PublishedScore,
    centre,
    points,
    residuals,
    same_axes,
    settled,
)
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME, UNIT = "173", "G.pss", "framing", RATIO
FORMULA = "|o_c - o_base| / sigma, sigma the population RMS distance of baseline points"
FEWEST = 5  # outputs on each side
UNPAIRED, PAIRED = "points relabelled", "signs of the wordings' differences flipped"


def pss(
    base: ArrayLike,
    framed: ArrayLike,
    *,
    paired: bool = False,
    outputs: ArrayLike | None = None,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
    fewest: int = FEWEST,
) -> Metric:
    """sqrt(max(0, delta^2) / S_b), delta^2 = |o_c - o_b|^2 - S_c/n_c - S_b/n_b, of outputs [point, axis].

    b: baseline, c: with the framing; o: mean, S: total variance, n: number of points. `paired`: row v of both has the same
    wording; then delta^2 = |mean d|^2 - S_d/V with the differences d of V wordings, and the test flips their signs. `outputs`
    [output, axis]: the baseline's outputs where rows of `base` are means of several; the paper's sigma is theirs. `detail` has
    delta^2, |delta| with its interval, the direction, and an interval of the shift along the direction of the other half; the
    ratio itself has no interval (NO_INTERVAL). If all baseline points agree, the ratio is undefined unless nothing moved.
    Insufficient under 5 points a side. UserError for points of different spaces, and for pairs of unequal number.
    """
    first, second = points(base, "baseline outputs"), points(framed, "framed outputs")
    same_axes(first, second)
    if paired and len(first) != len(second):
        raise UserError(
            f"{len(first)} wordings without and {len(second)} with the framing; expected pairs: leave out both"
        )
    count = min(len(first), len(second))
    if count == 0:
        return Metric(PublishedScore(None, FORMULA, "no outputs"), missing("insufficient_data", "no outputs", RATIO))
    shift = settled(centre(second) - centre(first), first, second)
    formula = _published(first if outputs is None else points(outputs, "baseline outputs"), shift)
    if count < max(fewest, 2):
        reason = f"{len(first)} outputs without and {len(second)} with the framing; at least {fewest} each are needed"
        return Metric(formula, missing("insufficient_data", reason, RATIO, count))
    samples = [settled(second - first, first, second)] if paired else [first, second]
    found = displacement.between(shift, samples, level)
    variance = spread.total_variance(first)
    detail = _detail(found, shift, samples, level) | {"baseline_variance": variance}
    if variance == 0 and shift.any():
        return Metric(formula, missing("undefined", "baseline outputs all agree", RATIO, count, detail=detail))
    p = relabelling.of_samples(samples, seed, resamples)
    untested = () if p is not None else (relabelling.NO_P,)
    return Metric(
        formula,
        Estimate(
            0.0 if variance == 0 else found.distance / variance**0.5,
            RATIO,
            count,
            p_value=p,
            test=None if p is None else PAIRED if paired else UNPAIRED,
            assumptions=("wordings are independent" if paired else "outputs are independent", NO_INTERVAL, *untested),
            detail=detail,
        ),
    )


def _published(base: Float[np.ndarray, "point axis"], shift: Float[np.ndarray, " axis"]) -> PublishedScore:
    """The paper's ratio; the note gives it with the n - 1 variance. If sigma is 0, it is 0 if nothing moved, else None."""
    sigma = float(np.sqrt((residuals(base) ** 2).sum(1).mean()))
    length = float(np.linalg.norm(shift))
    if sigma == 0:
        return (
            PublishedScore(0.0, FORMULA, "sigma is 0") if length == 0 else PublishedScore(None, FORMULA, "sigma is 0")
        )
    corrected = length / spread.total_variance(base) ** 0.5
    return PublishedScore(length / sigma, FORMULA, f"{corrected:.6f} with sigma of n - 1")


def _detail(found: Displacement, shift: np.ndarray, samples: list[np.ndarray], level: float) -> dict[str, object]:
    """delta^2, the direction that all outputs give, and the interval of the shift along directions that it was not taken from."""
    length = float(np.linalg.norm(shift))
    return {
        "shift": length,
        "squared": found.squared,
        "distance": found.distance,
        "distance_interval": None if found.low is None else [found.low, found.high],
        "direction": (shift / length if length else shift).tolist(),
        "projection_interval": _cross_fitted(samples, level),
    }


def _cross_fitted(samples: list[np.ndarray], level: float) -> list[float] | None:
    """Interval of delta along the direction of one half of the outputs, estimated on the other half; the mean of both ways.

    Along its own direction a shift is above 0 by construction: in 384 axes an interval around |D| holds no 0 where nothing moves.
    Every second output is of either half. Each way is a t interval (Welch) of delta'u with u known; both have one sign, and the
    mean of their ends holds .95 to 1. It is no interval of |delta|, which lies farther: distance_interval is. None under four
    outputs a side, and where a half does not move.
    """
    halves = [[table[start::2] for table in samples] for start in (0, 1)]
    moves = [centre(half[-1]) - (centre(half[0]) if len(half) > 1 else 0.0) for half in halves]
    lengths = [float(np.linalg.norm(settled(move, *samples))) for move in moves]
    if min(map(len, (*halves[0], *halves[1]))) < 2 or not all(lengths):
        return None
    ends = []
    for held, move, other, length in zip(halves, moves, moves[::-1], lengths[::-1], strict=True):
        direction = other / length
        half = _half_width([table @ direction for table in held], level)
        ends.append((move @ direction - half, move @ direction + half))
    return [float(end) for end in np.mean(ends, axis=0)]


def _half_width(projected: list[np.ndarray], level: float) -> float:
    """Of Welch's t interval of a difference of means, or of one mean."""
    parts = [float(spread.total_variance(one[:, None])) / len(one) for one in projected]
    if not (total := sum(parts)):
        return 0.0
    freedom = 1 / sum((part / total) ** 2 / (len(one) - 1) for part, one in zip(parts, projected, strict=True))
    return float(stats.t.ppf(0.5 + level / 2, freedom)) * total**0.5
