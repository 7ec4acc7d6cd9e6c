"""OW (177): how wide the outputs to many prompts lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from suites.estimate import Estimate, Interval, missing
from suites.geometry import relabelling
from suites.geometry.metric import LEVEL, ROUNDING, UNIT, Metric, PublishedScore, points, settled

NUMBER, ID, NAME = "177", "G.ow", "width"
FORMULA = "diameter of the floor(.9 n) points nearest to the coordinate-wise median"
FEWEST = 20  # prompts
KEPT, QUANTILE = 0.9, 0.9
DIGITS = 12  # decimal places, relative to the largest distance: distances equal to so many are ties
ROWS = 128  # points whose differences from all others are held at once
RESAMPLES = 999  # permutations: each has all distances anew, and p needs no step below .001 to be read at .05
PERMUTED = "draws permuted over prompts, statistic the width"
METHOD = "quantiles of distances at the jackknifed share of pairs (Woodruff)"


def kept(values: ArrayLike) -> Float[np.ndarray, "point axis"]:
    """The floor(.9 n) points nearest to the coordinate-wise median, ties by order."""
    table = points(values)
    away = np.linalg.norm(settled(table - np.median(table, axis=0), table), axis=1)
    away = np.round(away / max(float(away.max()), 1e-300), DIGITS)  # equal distances are ties
    return table[np.sort(np.argsort(away, kind="stable")[: int(KEPT * len(table) + 1e-9)])]


def diameter(values: ArrayLike) -> float:
    """The largest distance between two points, which is the diameter of their convex hull. 0 for fewer than two points."""
    table = points(values)
    return float(_distances(table).max()) if len(table) > 1 else 0.0


def ow(
    values: ArrayLike,
    *,
    topics: Sequence[str] | None = None,
    draws: Sequence[ArrayLike] = (),
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    fewest: int = FEWEST,
) -> Metric:
    """The .9 quantile of pairwise distances between `values` [prompt, axis], one point per prompt, in a few declared axes.

    Unlike the diameter, it is stable in the number of prompts n; still, models should be compared at equal n. `detail` has the
    raw diameter. Insufficient under 20 prompts. The interval is Woodruff's over prompts, or over `topics` (one label a prompt)
    if prompts share them; none if all outputs agree, and none under 20 topics. p, if `draws` [draw, axis] of every prompt are
    given and one has several: that all prompts have one law of outputs (draws permuted over prompts); `noise_width` is then
    the width that draws alone give. Source: Woodruff 1952.
    """
    table = points(values) if np.size(values) else np.zeros((0, 1))
    count = len(table)
    if count < 2:
        note = f"{count} prompts"
        return Metric(
            PublishedScore(None, FORMULA, note), missing("insufficient_data", f"{note}; at least {fewest}", UNIT, count)
        )
    formula = PublishedScore(diameter(kept(table)), FORMULA, f"grows with n, here {count}")
    detail = {"diameter": diameter(table), "kept": int(KEPT * count + 1e-9)}
    if count < fewest:
        reason = f"{count} prompts; at least {fewest} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, count, detail=detail))
    distances = _distances(table)
    value = float(np.quantile(distances[np.triu_indices(count, 1)], QUANTILE))
    interval, notes = _interval(distances, value, list(topics) if topics is not None else list(range(count)), level)
    p, noise = _of_draws(draws, seed, resamples)
    detail |= {} if noise is None else {"noise_width": noise}
    test = None if p is None else PERMUTED
    return Metric(
        formula,
        Estimate(value, UNIT, count, ci=interval, p_value=p, test=test, assumptions=notes, detail=detail),
    )


def _interval(
    distances: Float[np.ndarray, "point point"], value: float, groups: Sequence[Hashable], level: float
) -> tuple[Interval | None, tuple[str, ...]]:
    """(the interval or None, what it assumes or why there is none)."""
    units = "prompts" if len(set(groups)) == len(groups) else "topics"
    if len(set(groups)) < FEWEST:
        return None, (f"no interval: {len(set(groups))} {units}, fewer than {FEWEST}",)
    if not distances.max() > 0:
        return None, (f"{units} are independent", "no interval: all outputs agree")
    return Interval(*_woodruff(distances, value, groups, level), level, METHOD), (f"{units} are independent",)


def _of_draws(draws: Sequence[ArrayLike], seed: int, resamples: int) -> tuple[float | None, float | None]:
    """(p of equal laws of all prompts, the mean width under it); None where no prompt has two draws."""
    tables = [points(one, "draws") for one in draws]
    if max(map(len, tables), default=0) < 2:
        return None, None
    upper = np.triu_indices(len(tables), 1)

    def widths(means: Float[np.ndarray, "relabelling prompt axis"]) -> Float[np.ndarray, " relabelling"]:
        away = np.linalg.norm(means[:, upper[0]] - means[:, upper[1]], axis=-1)
        return np.quantile(away, QUANTILE, axis=1)

    return relabelling.means_of_draws(tables, widths, seed, resamples)


def _distances(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point point"]:
    """All pairwise distances. The differences are held for ROWS points at a time, so that the distances alone take memory."""
    found = np.empty((len(table), len(table)))
    for start in range(0, len(table), ROWS):
        part = slice(start, start + ROWS)
        found[part] = np.linalg.norm(settled(table[part, None] - table[None], table), axis=-1)
    return found


def _woodruff(
    distances: Float[np.ndarray, "point point"], value: float, groups: Sequence[Hashable], level: float
) -> tuple[float, float]:
    """The quantiles of the distances at .9 -+ t se; se: jackknife standard error, over groups, of the share of pairs <= `value`.

    The share of pairs is a U-statistic. If .9 + t se exceeds 1, the upper end is the largest distance. The percentile bootstrap
    over points covers .80 at 20 points and is not offered. Source: Woodruff 1952.
    """
    count = len(distances)
    within = (distances <= value * (1 + ROUNDING)) & ~np.eye(count, dtype=bool)
    pairs, names = within.sum(), list(dict.fromkeys(groups))
    member = np.array([[one == name for name in names] for one in groups], dtype=float)
    inner, left = within.astype(float) @ member, count - member.sum(0)
    without = (pairs - 2 * inner.sum(0) + (inner * member).sum(0)) / (left * (left - 1))
    size = len(names)
    error = np.sqrt((size - 1) / size * ((without - pairs / (count * (count - 1))) ** 2).sum())
    half = float(stats.t.ppf(0.5 + level / 2, size - 1)) * error
    low, high = np.quantile(
        distances[np.triu_indices(count, 1)], [max(QUANTILE - half, 0.0), min(QUANTILE + half, 1.0)]
    )
    return float(low), float(high)
