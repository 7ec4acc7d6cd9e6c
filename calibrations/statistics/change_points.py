"""Change points of a series of repeated measurements by PELT."""

from __future__ import annotations

from numpy.typing import ArrayLike

from calibrations.statistics.arrays import finite
from calibrations.statistics.errors import Insufficient


def change_points(
    signal: ArrayLike, penalty: float, *, model: str = "l2", min_size: int = 2, minimum_points: int = 4
) -> list[int]:
    """Segment ends of `signal` [time] by PELT at full resolution (jump = 1); the last end is the signal's length.

    3 log(n) sigma^2 is a usable penalty for model "l2". Raises Insufficient("not_run") for fewer than
    `minimum_points` measurements and ImportError if ruptures is not installed. Source: Killick et al. 2012.
    """
    x = finite("signal", signal, ndim=1)
    if x.size < minimum_points:
        raise Insufficient("not_run", f"{x.size} points in the series; at least {minimum_points} needed")
    try:
        import ruptures
    except ImportError as error:
        raise ImportError("change points need the package ruptures: pip install ruptures") from error
    # The library's default jump of 5 considers only multiples of 5.
    fit = ruptures.Pelt(model=model, min_size=min_size, jump=1).fit(x)
    return [int(end) for end in fit.predict(pen=penalty)]
