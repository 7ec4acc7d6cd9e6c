"""ODS (171; the paper's IDS): how far the outputs' centre lies from a reference."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.geometry import displacement, relabelling, spread
from suites.geometry.metric import LEVEL, UNIT, Metric, PublishedScore, centre, points, settled
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME = "171", "G.ods", "position"
FORMULA = "|o - r|"
FEWEST = 5  # wordings
METHOD = "inverted law of |D|^2, t"
FLIPPED = "signs of the wordings' differences from the reference flipped"
NEAR = "not distinguishable from the reference"
SYMMETRIC = (
    "p: wordings are symmetric around their mean"  # as skewed as an exponential, they reject .09 of the time at .05
)
ESTIMATED = "no p: the reference is an estimate"


def ods(
    means: ArrayLike,
    reference: ArrayLike,
    *,
    reference_variance: float = 0.0,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """sqrt(max(0, d^2)) with d^2 = |o - r|^2 - S_b/V, of the `means` [wording, axis] of V wordings and the `reference` r [axis].

    o: mean over wordings, S_b: variance between them. `reference_variance`: S/n of a reference that is itself an estimate (a
    survey); it is subtracted from d^2 too. An interval that includes 0 means "not distinguishable from the reference", up to
    its upper end; a value of 0 is never agreement. p: signs of the wordings' differences from the reference flipped, which
    takes them as symmetric around their mean (as skewed as an exponential, eight reject .09 of the time at .05); none under
    seven wordings, and none for a reference that is an estimate. Insufficient under 5 wordings. UserError if the reference does
    not fit the axes or has a negative variance.
    """
    table, target = points(means, "means of wordings"), np.asarray(reference, dtype=np.float64).ravel()
    if target.shape != (table.shape[1],) or not np.isfinite(target).all():
        raise UserError(
            f"a reference of {target.size} numbers for {table.shape[1]} axes; give one finite number an axis"
        )
    if not 0 <= reference_variance < np.inf:
        raise UserError(f"the variance of a reference is {reference_variance}; expected a number from 0")
    difference = settled(centre(table) - target, table, target)
    formula = PublishedScore(float(np.linalg.norm(difference)), FORMULA)
    if len(table) < 2:
        reason = f"{len(table)} wordings; at least {FEWEST} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, len(table)))
    found = displacement.between(difference, [table], level, reference_variance)
    if len(table) < FEWEST:
        reason = f"{len(table)} wordings; at least {FEWEST} are needed"
        detail = {"squared": found.squared}
        return Metric(formula, missing("insufficient_data", reason, UNIT, len(table), detail=detail))
    near = found.low == 0.0 or found.raw == 0.0
    p = relabelling.signs(settled(table - target, table, target), seed, resamples) if reference_variance == 0 else None
    why = SYMMETRIC if p is not None else ESTIMATED if reference_variance else relabelling.NO_P
    return Metric(
        formula,
        Estimate(
            found.distance,
            UNIT,
            len(table),
            ci=None if found.high is None or found.low is None else Interval(found.low, found.high, level, METHOD),
            p_value=p,
            test=None if p is None else FLIPPED,
            assumptions=("wordings are a sample of those that mean the same", why),
            detail={
                "squared": found.squared,
                "noise": found.noise,
                "between": spread.total_variance(table),
                "centroid": centre(table).tolist(),
                "difference": difference.tolist(),
                "reading": NEAR if near else "away from the reference",
            },
        ),
    )
