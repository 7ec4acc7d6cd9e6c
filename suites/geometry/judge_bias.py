"""JBS (183): how often a judge changes its mind over a change that should not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.geometry.metric import LEVEL, Metric, Published
from suites.statistics import bootstrap

NUMBER, ID, NAME = "183", "J.jbs", "judge_bias"
FORMULA = "1 - agreement over cases x perturbations"
UNIT = "share of judgements"
FEWEST = 20  # cases for an interval


def jbs(flips: ArrayLike, reruns: ArrayLike, *, seed: int = 0, level: float = LEVEL) -> Metric:
    """Flips [case, perturbation], 0 or 1, less those of asking the unchanged case again [case, rerun].

    Paired by case: the mean over cases of (share of perturbations that flip - share of reruns that flip), bootstrapped over
    cases from 20 on; fewer have no interval. UserError for other values than 0 and 1, and if the two are not of the same cases.
    """
    changed, again = (np.atleast_2d(np.asarray(side, dtype=np.float64)) for side in (flips, reruns))
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
        return Metric(Published(None, FORMULA, reason), missing("insufficient_data", reason, UNIT))
    excess = changed.mean(1) - again.mean(1)
    detail = {"flips": float(changed.mean()), "reruns": float(again.mean()), "cases": len(excess)}
    if len(excess) < FEWEST:
        note = f"no interval: {len(excess)} cases, fewer than {FEWEST}"
        estimate = Estimate(float(excess.mean()), UNIT, len(excess), assumptions=(note,))
    else:
        estimate = bootstrap.mean(excess, seed=seed, level=level, unit=UNIT)
    return Metric(Published(float(changed.mean()), FORMULA), replace(estimate, detail={**estimate.detail, **detail}))
