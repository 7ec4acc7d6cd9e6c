"""McNemar's test: two conditions on the same prompts, each right or wrong."""

from __future__ import annotations

from dataclasses import dataclass

import scipy

from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class McNemar:
    """Exact two-sided binomial p, and the chi-square statistics with and without continuity correction."""

    p_exact: float
    chi2_corrected: float
    chi2_uncorrected: float


def mcnemar(b: int, c: int) -> McNemar:
    """McNemar's test from the discordant counts b and c.

    p_exact: two-sided binomial(b + c, 1/2). chi2 = (|b-c| - 1)^2/(b+c) as published (at b = c this raw form is
    1/(b+c), not 0) and (b-c)^2/(b+c). Raises Insufficient("zero_variance") without discordant pairs.
    """
    discordant = b + c
    if discordant < 1:
        raise Insufficient("zero_variance", "no discordant prompts: b + c = 0")
    p = scipy.stats.binomtest(min(b, c), discordant, 0.5).pvalue
    return McNemar(float(p), (abs(b - c) - 1) ** 2 / discordant, (b - c) ** 2 / discordant)
