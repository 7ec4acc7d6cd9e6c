"""PIS (172): how far wording moves the output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from suites.estimate import Estimate, Interval, missing
from suites.geometry import relabelling, spread
from suites.geometry.metric import LEVEL, SQUARED, Metric, PublishedScore, residuals
from suites.statistics import bootstrap
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME, UNIT = "172", "G.pis", "paraphrase", SQUARED
FORMULA = "mean_v |m_v - o|"
ON_POINTS = "mean_v |x_v - o|, one draw a wording"
FEWEST, FOR_INTERVAL = 5, 8  # wordings for a number, and for an interval
METHOD = "MOVER of log jackknives over wordings, t, sides of S_b calibrated for heavy tails"
PERMUTED = "draws permuted over wordings, statistic S_b"
DETERMINISTIC = "deterministic"


def published(draws: Sequence[ArrayLike]) -> float:
    """The paper's PIS, mean_v |m_v - o|, with m_v the mean of the draws [draw, axis] of a wording and o the mean of m_v."""
    return float(np.linalg.norm(residuals(spread.of(draws).means), axis=1).mean())


def pis(
    draws: Sequence[ArrayLike],
    *,
    deterministic: bool = False,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """tau^2 = S_b - S_w mean(1/n_v) of the `draws` [draw, axis] of V wordings, unclipped; tau = sqrt(max(0, tau^2)) in `detail`.

    S_b, S_w: variance between and within wordings (`spread.Spread`). `deterministic`: outputs cannot vary (temperature 0,
    likelihoods), so S_w = 0 and tau^2 = S_b. Under 8 wordings there is no interval, under 5 no estimate. One sampled draw per
    wording does not identify tau. p: draws permuted over wordings. UserError for coordinates that are not finite.
    """
    count = len(draws)
    if count == 0:
        return Metric(
            PublishedScore(None, FORMULA, "no wordings"), missing("insufficient_data", "no wordings", SQUARED)
        )
    found = spread.of(draws)
    single = found.within is None
    value = published(draws)
    formula = PublishedScore(
        value, ON_POINTS if single and not deterministic else FORMULA, "0 at one wording" * (count == 1)
    )
    if count < FEWEST:
        reason = f"{count} wordings; at least {FEWEST} are needed, {FOR_INTERVAL} for an interval"
        return Metric(formula, missing("insufficient_data", reason, SQUARED, count))
    if single and not deterministic:
        reason = "one draw: noise of draws and variance of wordings cannot be told apart; draw at least twice"
        return Metric(formula, missing("insufficient_data", reason, SQUARED, count))
    limits = spread.variance_interval(found, level) if count >= FOR_INTERVAL else None
    notes = ["wordings are a sample of those that mean the same"]
    if count < FOR_INTERVAL:
        notes.append(f"no interval: {count} wordings, fewer than {FOR_INTERVAL}")
    elif limits is None:
        notes.append("no interval: all wordings, or all but one, give the same output")
    return Metric(
        formula,
        Estimate(
            found.variance,
            SQUARED,
            count,
            ci=None if limits is None else Interval(*limits, level, METHOD),
            assumptions=tuple(notes),
            p_value=None if deterministic else relabelling.groups(_tables(draws), seed, resamples),
            test=None if deterministic else PERMUTED,
            detail={
                "tau": float(np.sqrt(max(found.variance, 0.0))),
                "between": found.between,
                "within": found.within,
                "draws": [int(n) + 1 for n in found.freedom],
                "label": DETERMINISTIC if deterministic else "sampled",
            },
        ),
    )


def over_constructs(variances: Sequence[float], topics: Sequence[str] | None, seed: int) -> Estimate:
    """Mean tau^2 over constructs, bootstrapped over `topics` (default: each construct its own); insufficient under 20 topics."""
    if not len(variances):
        return missing("insufficient_data", "no construct has a tau^2", SQUARED)
    return bootstrap.mean(variances, topics, seed=seed, unit=SQUARED)


def _tables(draws: Sequence[ArrayLike]) -> list[np.ndarray]:
    return [spread.points(one) for one in draws]
