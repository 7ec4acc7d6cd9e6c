"""Dose and response: whether outcomes rise with the dose, if every unit was observed at every dose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from results_io import UserError
from suites.estimate import Estimate, missing
from suites.statistics import bootstrap

TEST = "exact permutation of the outcomes of every unit over its doses"
UNIT = "share per step of the dose"


def dose_trend(outcomes: Sequence[Sequence[bool]], *, seed: int) -> Estimate:
    """Slope of the share of true `outcomes` [unit][dose] per step of the dose; doses ascend in equal steps.

    slope = mean over units of sum_d x_d y_d / sum_d x_d^2, x_d = d - (D - 1)/2, with a percentile interval over units (none under
    20). p, two-sided: if the dose has no effect, the outcomes of a unit are exchangeable over its doses. The distribution of
    T = sum over units and doses of 2 x_d y_d is then known exactly, and p = P(|T| >= |t|). Insufficient without a unit; UserError
    for units with different numbers of doses, or fewer than two. Source: Mantel 1963 (stratified Cochran-Armitage trend).
    """
    sizes = {len(own) for own in outcomes}
    if not outcomes:
        return missing("insufficient_data", "no unit was given every dose", UNIT)
    if len(sizes) > 1 or min(sizes) < 2:
        raise UserError(
            f"units have {sorted(sizes)} doses; expected the same number from 2 in all: leave out the others"
        )
    doses = sizes.pop()
    scores = [2 * dose - (doses - 1) for dose in range(doses)]
    sums = [sum(score for score, hit in zip(scores, own, strict=True) if hit) for own in outcomes]
    slopes = [2 * total / sum(score**2 for score in scores) for total in sums]
    found = bootstrap.mean(slopes, seed=seed, unit=UNIT)
    if found.value is None:
        found = Estimate(float(np.mean(slopes)), UNIT, len(slopes), detail={"note": found.reason})
    shares = [sum(map(bool, column)) / len(outcomes) for column in zip(*outcomes, strict=True)]
    p = _exact_p([sum(map(bool, own)) for own in outcomes], scores, sum(sums))
    return replace(found, p_value=p, test=TEST, detail={**found.detail, "shares": shares})


def _exact_p(hits: Sequence[int], scores: Sequence[int], seen: int) -> float:
    """P(|sum of the scores of true outcomes| >= |seen|) if every unit's true outcomes fall on its doses at random."""
    chances = {0: 1.0}
    for count in hits:
        alone = Counter(map(sum, combinations(scores, count)))
        ways = alone.total()
        together: dict[int, float] = {}
        for total, chance in chances.items():
            for score, number in alone.items():
                together[total + score] = together.get(total + score, 0.0) + chance * number / ways
        chances = together
    return min(1.0, sum(chance for total, chance in chances.items() if abs(total) >= abs(seen)))
