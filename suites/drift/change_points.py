"""167 change points: where a series of axis means breaks, by PELT with the known sampling error. An annotation, no alarm.

The usual recipe estimates the noise from the series' own differences; it finds a break in .31 of white-noise series of 8 points.
Here the standard error of every axis mean is known, so y_t / se has variance 1, and the penalty is 3 ln T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibrations.statistics import change_points as pelt
from suites.estimate import Estimate, missing

NUMBER, NAME, TITLE = "167", "change_points", "Change points"
UNIT = "change points"
LEAST = 4  # snapshots in a row: two segments of two
LOW_POWER = 8  # snapshots below which the power is low, and says so
NULL_SNAPSHOTS = 8  # from which a variance beyond sampling can be estimated
PENALTY = 3.0  # times ln T: white noise of 8 points breaks in .040 of series


def ends(values: ArrayLike, errors: ArrayLike, excess: float = 0.0) -> list[int]:
    """Ends of segments, the last of which is the length T: PELT, l2, jump 1, min_size 2, on y/se, penalty 3 ln T.

    y: `values` [time]; se = sqrt(mean square of `errors` [time] + `excess` variance). ValueError if se is not above 0;
    Insufficient under 4 points.
    """
    y, se = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    known = math.sqrt(float((se**2).mean()) + excess)
    if not known > 0:
        raise ValueError(f"a sampling error of {known}; a series without error has no scale to break on")
    return pelt(y / known, PENALTY * math.log(len(y)))


def excess_variance(values: ArrayLike, errors: ArrayLike, levels: ArrayLike | None = None) -> float:
    """Variance between null snapshots beyond sampling, by the method of moments, at least 0; 0 under 8 snapshots.

    = sum over levels of |y - mean of the level|^2 / (snapshots - levels) - mean se^2. `levels` has one label per snapshot
    (default: all the same); deviations are taken within levels, so that a change does not count as noise.
    """
    y, se = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    level = np.zeros(y.size, dtype=int) if levels is None else np.asarray(levels)
    apart = len(np.unique(level))
    if y.size < NULL_SNAPSHOTS or apart >= y.size:
        return 0.0
    squares = sum(float(((y[level == one] - y[level == one].mean()) ** 2).sum()) for one in np.unique(level))
    return max(0.0, squares / (y.size - apart) - float((se**2).mean()))


def of_series(points: Sequence[tuple[str, float | None, float | None]], excess: float = 0.0) -> Estimate:
    """Number of breaks in a series of (snapshot, value, standard error); `detail` has the snapshots that begin a segment.

    A point without a value or error is a gap and splits the series. Insufficient if no part has 4 points; under 8 the power is
    low. Undefined if a part varies, all its sampling errors are 0 and there is no `excess` variance: it has no scale.
    """
    parts: list[list[tuple[str, float, float]]] = [[]]
    for name, value, error in points:
        if value is None or error is None:
            parts.append([])
        else:
            parts[-1].append((name, value, error))
    longest = max(map(len, parts))
    if longest < LEAST:
        need: dict[str, Any] = {"have": longest, "need": LEAST}
        return missing("insufficient_data", f"{longest} snapshots in a row; {LEAST} needed", UNIT, longest, detail=need)
    found = []
    for part in parts:
        if len(part) < LEAST or len({value for _, value, _ in part}) == 1:
            continue
        _, values, errors = zip(*part, strict=True)
        if not any(errors) and not excess:
            reason = f"{part[0][0]} to {part[-1][0]} vary without a sampling error, so there is no scale to break on"
            return missing("undefined", reason, UNIT, longest)
        found += [part[end][0] for end in ends(values, errors, excess)[:-1]]
    detail = {"at": found, "low_power": longest < LOW_POWER, "excess_variance": excess}
    return Estimate(float(len(found)), UNIT, longest, detail=detail)
