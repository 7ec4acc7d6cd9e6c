"""Power: what a test that found nothing could have found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

POWER = 0.8  # the customary chance of finding the change that is named


def standard_error(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float | None:
    """Of the mean over prompts of (mean B - mean A): sqrt(sum(var_A/n_A + var_B/n_B))/k. None with one output a side."""
    if any(len(side) < 2 for side in (*a, *b)):
        return None
    variances = [np.var(x, ddof=1) / len(x) + np.var(y, ddof=1) / len(y) for x, y in zip(a, b, strict=True)]
    return float(np.sqrt(sum(variances)) / len(variances))


def detectable(error: float | None, alpha: float = 0.05, power: float = POWER) -> float | None:
    """The change of an axis mean that its test finds with chance `power`, normal approximation: (z_{1-a/2} + z_power) se.

    None without an error, and of outputs that are all alike: they do not say how much a change would vary.
    """
    return None if not error else float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) * error


def detectable_share(n: int, alpha: float = 0.05, power: float = POWER) -> float | None:
    """The smallest rise from 0 (or fall from 1) of a share that a test of `n` outputs a side finds with chance `power`.

    With as many outputs on both sides, k that are new all fall to B by chance with at most 2^-k, so p = 2^(1 - k) at most. The
    rise is the r with P(Binomial(n, r) >= k) = power. None if `n` outputs are too few.
    """
    least = int(np.ceil(1 - np.log2(alpha)))
    return float(stats.beta.ppf(power, least, n - least + 1)) if n >= least else None
