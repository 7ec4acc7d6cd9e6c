"""Effective rank of a matrix under four different definitions, each with its own name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite
from calibrations.statistics.errors import Insufficient


@dataclass(frozen=True)
class EffectiveRank:
    """entropy: exp of the entropy of s/sum s (Roy & Vetterli 2007). participation_singular: (sum s)^2/sum s^2 (the
    published form). participation_eigen: (sum s^2)^2/sum s^4. stable: sum s^2/max s^2."""

    entropy: float
    participation_singular: float
    participation_eigen: float
    stable: float


def effective_rank_of_spectrum(singular_values: ArrayLike) -> EffectiveRank:
    """The four ranks of singular values s [value]. Raises Insufficient("zero_variance") if all are 0."""
    s = finite("singular_values", singular_values, ndim=1)
    if (s < 0).any():
        raise ValueError("singular values must not be negative")
    if not s.any():
        raise Insufficient("zero_variance", "all singular values are 0")
    s = s / s.max()
    share = s[s > 0] / s.sum()
    return EffectiveRank(
        entropy=float(np.exp(-(share * np.log(share)).sum())),
        participation_singular=float(s.sum() ** 2 / (s**2).sum()),
        participation_eigen=float((s**2).sum() ** 2 / (s**4).sum()),
        stable=float((s**2).sum()),
    )
