"""JBS (183): how often an irrelevant change of a case changes a judge's label."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.geometry.metric import LEVEL, ROUNDING, Metric, PublishedScore, residuals
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME = "183", "J.jbs", "judge_bias"
FORMULA = "1 - agreement over cases x perturbations"
UNIT = "share of judgements"
FEWEST = 20  # cases for an interval
METHOD = "t over cases"
EXCHANGED = "perturbations and reruns of a case exchanged"


def jbs(
    flips: ArrayLike,
    reruns: ArrayLike,
    *,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """Rate of label flips [case, perturbation] (0 or 1) minus the rate when the unchanged case is asked again [case, rerun].

    Mean over cases of (share of perturbations that flip - share of reruns that flip), with a t interval over cases. There is
    no interval under 20 cases or if all cases agree. Bootstraps cover less at 20 cases (percentile .88, studentised .90; t
    .93) and are not offered. p: of a judge that a change flips as often as asking again, so that within a case the two kinds
    of judgement can be exchanged; two-sided. Insufficient without cases. UserError for values other than 0 and 1, and unless
    both are of the same cases.
    """
    try:
        changed, again = (np.atleast_2d(np.asarray(side, dtype=np.float64)) for side in (flips, reruns))
    except ValueError:
        raise UserError("cases with different numbers of judgements; expected a full table [case, judgement]") from None
    if len(changed) != len(again):
        raise UserError(
            f"{len(changed)} cases with perturbations and {len(again)} asked again; expected the same cases"
        )
    if not np.isin(changed, (0, 1)).all() or not np.isin(again, (0, 1)).all():
        raise UserError(
            "a flip is neither 0 nor 1; expected whether the label changed: a missing judgement is a label too"
        )
    if not changed.size or not again.size:
        reason = "no case was judged both changed and again"
        return Metric(PublishedScore(None, FORMULA, reason), missing("insufficient_data", reason, UNIT))
    excess = changed.mean(1) - again.mean(1)
    detail = {"flips": float(changed.mean()), "reruns": float(again.mean()), "cases": len(excess)}
    freedom = len(excess) - 1
    error = float((residuals(excess[:, None]) ** 2).sum() / freedom / len(excess)) ** 0.5 if freedom else 0.0
    interval, assumptions = None, ("cases are independent",)
    if len(excess) < FEWEST:
        assumptions = (f"no interval: {len(excess)} cases, fewer than {FEWEST}",)
    elif error == 0:
        assumptions = ("no interval: all cases agree",)
    else:
        half = float(stats.t.ppf(0.5 + level / 2, len(excess) - 1)) * error
        interval = Interval(float(excess.mean()) - half, float(excess.mean()) + half, level, METHOD)
    estimate = Estimate(
        float(excess.mean()),
        UNIT,
        len(excess),
        ci=interval,
        p_value=_exchanged(changed, again, seed, resamples),
        test=EXCHANGED,
        assumptions=assumptions,
        detail=detail,
    )
    return Metric(PublishedScore(float(changed.mean()), FORMULA), estimate)


def _exchanged(
    changed: Float[np.ndarray, "case perturbation"], again: Float[np.ndarray, "case rerun"], seed: int, resamples: int
) -> float:
    """p of |mean excess| if each case's flips fall at random on its perturbations and its reruns."""
    n, m = changed.shape[1], again.shape[1]
    flips = (changed.sum(1) + again.sum(1)).astype(int)
    drawn = np.random.default_rng(seed).hypergeometric(flips, n + m - flips, n, size=(resamples, len(flips)))
    null = np.abs((drawn / n - (flips - drawn) / m).mean(1))
    own = abs(float((changed.mean(1) - again.mean(1)).mean()))
    return float((1 + (null >= own * (1 - ROUNDING) - ROUNDING).sum()) / (1 + resamples))
