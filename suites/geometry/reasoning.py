"""RSS (176): does reasoning before the answer make wording matter less?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.geometry import relabelling
from suites.geometry.metric import LEVEL, RATIO, Metric, PublishedScore, residuals, settled

NUMBER, ID, NAME, UNIT = "176", "G.rss", "reasoning", RATIO
FORMULA = "PIS with reasoning / PIS without"
FEWEST = 8  # constructs with both tau^2 above 0
METHOD = "t over constructs of the log ratio"


def rss(
    with_reasoning: ArrayLike,
    without: ArrayLike,
    *,
    published: tuple[ArrayLike, ArrayLike] | None = None,
    seed: int = 0,
    level: float = LEVEL,
    fewest: int = FEWEST,
) -> Metric:
    """exp(mean over constructs of log(tau_r / tau_d)), of tau^2 [construct] with and without reasoning, where both are above 0.

    `published`: the paper's PIS [construct] with and without reasoning, whose ratio of means is the published number; None: the
    square roots of tau^2 are used. Insufficient under 8 constructs. p: sign flips of the log ratios. `detail` has the ratio of
    means, `excluded` the number of constructs with a tau^2 of 0 or below. UserError if the two are not of the same constructs, or
    not finite.
    """
    first, second = np.asarray(with_reasoning, dtype=np.float64), np.asarray(without, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise UserError(f"tau^2 of {first.size} constructs with reasoning and {second.size} without; expected the same")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise UserError("a tau^2 is not finite; expected numbers: leave out constructs that have none")
    used = (first > 0) & (second > 0)
    left_out = {"tau^2 not above 0": int((~used).sum())} if (~used).any() else {}
    taus = np.sqrt(first[used]), np.sqrt(second[used])
    formula = _published(published if published is not None else taus)
    count = int(used.sum())
    if count < max(fewest, 2):
        reason = f"{count} constructs with both tau^2 above 0; at least {fewest} are needed"
        return Metric(formula, missing("insufficient_data", reason, RATIO, count, excluded=left_out))
    logs = settled(np.log(taus[0] / taus[1]), np.ones(1))
    error = np.sqrt((residuals(logs[:, None]) ** 2).sum() / (count - 1) / count)
    half = float(stats.t.ppf(0.5 + level / 2, count - 1)) * error
    low, high = np.exp(logs.mean() - half), np.exp(logs.mean() + half)
    return Metric(
        formula,
        Estimate(
            float(np.exp(logs.mean())),
            RATIO,
            count,
            ci=Interval(float(low), float(high), level, METHOD),
            p_value=relabelling.signs(logs[:, None], seed),
            test="signs of the log ratios flipped",
            excluded=left_out,
            detail={"ratio_of_means": float(taus[0].mean() / taus[1].mean())},
        ),
    )


def _published(pair: tuple[ArrayLike, ArrayLike]) -> PublishedScore:
    first, second = (np.asarray(side, dtype=np.float64) for side in pair)
    if not first.size or not second.mean():
        return PublishedScore(None, FORMULA, "PIS without reasoning is 0" if first.size else "no constructs")
    return PublishedScore(float(first.mean() / second.mean()), FORMULA, "ratio of the means over constructs")
