"""Intervals that hold for several quantities at once, needed if the largest of them is reported."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from calibrations.statistics.arrays import Interval


def simultaneous_intervals(
    estimates: Float[np.ndarray, " quantity"], draws: Float[np.ndarray, "resample quantity"], level: float
) -> list[Interval]:
    """Intervals that cover all quantities together with probability `level`.

    estimate +- c sd, with sd over the bootstrap draws and c the `level` quantile over draws of the largest |draw - estimate| /
    sd of all quantities (studentised maximum). If a quantity is the same in all draws, its interval is its estimate. A
    pointwise interval of the largest quantity covers too little: with three equal ones, about 80 % instead of 95 %.
    """
    sd = np.nanstd(draws, axis=0, ddof=1)
    away = np.divide(np.abs(draws - estimates), sd, out=np.zeros(draws.shape), where=sd > 0)
    half = np.nanquantile(away.max(axis=1), level) * sd
    return [(float(low), float(high)) for low, high in zip(estimates - half, estimates + half, strict=True)]
