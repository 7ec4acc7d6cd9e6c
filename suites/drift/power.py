"""Power: the change that a non-significant test could have detected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

POWER = 0.8  # the chance with which a detectable change is found, as is customary


def standard_error(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean over k prompts of (mean B - mean A): sqrt(sum over prompts of (var_A/n_A + var_B/n_B))/k.

    None if a side of a prompt has a single output.
    """
    if any(len(side) < 2 for side in (*a, *b)):
        return None
    variances = [np.var(x, ddof=1) / len(x) + np.var(y, ddof=1) / len(y) for x, y in zip(a, b, strict=True)]
    return float(np.sqrt(sum(variances)) / len(variances))


def detectable(error: float | None, alpha: float = 0.05, power: float = POWER) -> float | None:
    """The change of an axis mean that its test detects with `power`, by normal approximation: (z_{1-alpha/2} + z_power) se.

    None without a standard error, and if it is 0: outputs that are all equal do not show how much a change would vary.
    """
    return None if not error else float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) * error


def detectable_share(n: int, alpha: float = 0.05, power: float = POWER) -> float | None:
    """The smallest rise from 0 (or fall from 1) of a share that a test of `n` outputs a side detects with `power`.

    With n outputs on both sides, k new outputs all fall into B by chance with probability at most 2^-k, so p <= 2^(1 - k). k is
    the smallest number with 2^(1 - k) <= alpha. The rise is the r with P(Binomial(n, r) >= k) = power. None if n < k.
    """
    least = int(np.ceil(1 - np.log2(alpha)))
    return float(stats.beta.ppf(power, least, n - least + 1)) if n >= least else None
