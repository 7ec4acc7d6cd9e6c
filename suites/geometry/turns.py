"""DS and velocity (174): how far a conversation carries the answer to one question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.geometry import displacement, relabelling
from suites.geometry.metric import LEVEL, UNIT, Metric, PublishedScore, centre, points, residuals, same_axes, settled
from suites.geometry.position import METHOD
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME = "174", "G.ds", "turns"
FORMULA = "|o_T - o_0|; velocity: / T"
FEWEST = 5  # repeats of a turn
FLOORS = 2000  # conversations drawn for the noise floor


def path_length(centres: Float[np.ndarray, "turn axis"]) -> float:
    """sum_t |o_t - o_(t-1)|."""
    return float(np.linalg.norm(np.diff(centres, axis=0), axis=1).sum())


def ds(
    turns: Sequence[ArrayLike],
    *,
    paired: bool = False,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """sqrt(max(0, delta^2)) from turn 0 to the last, of the repeats [repeat, axis] of every turn, in order.

    delta^2 = |o_T - o_0|^2 less the noise of both means; `paired`: repeat v of every turn is the same wording, and the noise is
    that of the differences. `detail`: velocity, path length with its noise floor (what as many turns walk in which nothing but
    noise happens: `noise_floor`, `paired_floor`), straightness DS/path, and the Theil-Sen slope of the distance from turn 0 on
    the turn. One turn: not applicable. Under 5 repeats the published number stands alone. UserError for points of different
    spaces.
    """
    tables = [points(one, "outputs of a turn") for one in turns]
    last = len(tables) - 1
    if last < 1:
        note = "no turn after the first"
        return Metric(PublishedScore(None, FORMULA, note), missing("not_applicable", note, UNIT))
    same_axes(*tables)
    fewest = min(map(len, tables))
    if fewest == 0:
        return Metric(PublishedScore(None, FORMULA), missing("insufficient_data", "a turn without outputs", UNIT))
    if paired and len({len(table) for table in tables}) > 1:
        raise UserError("turns with different wordings; expected the same in each: leave out those that a turn lacks")
    centres = np.array([centre(table) for table in tables])
    centres = settled(centres - centres[0], *tables)  # seen from turn 0
    distance = float(np.linalg.norm(centres[-1] - centres[0]))
    formula = PublishedScore(distance, FORMULA, f"velocity {distance / last:.6f}")
    detail = {"velocity": distance / last, "turns": last} | _walk(centres)
    if fewest < FEWEST:
        reason = f"{fewest} repeats of a turn; at least {FEWEST} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, fewest, detail=detail))
    moved = settled(tables[-1] - tables[0], *tables) if paired else None
    samples = [tables[0], tables[-1]] if moved is None else [moved]
    found = displacement.between(centres[-1] - centres[0], samples, level)
    if moved is None:
        p = relabelling.two_samples(tables[-1], tables[0], seed, resamples)
    else:
        p = relabelling.signs(moved, seed, resamples)
    floor = paired_floor(tables, seed, level) if paired else noise_floor(tables, seed, level)
    return Metric(
        formula,
        Estimate(
            found.distance,
            UNIT,
            fewest,
            ci=None if found.low is None or found.high is None else Interval(found.low, found.high, level, METHOD),
            p_value=p,
            test="signs of the repeats' differences flipped" if paired else "repeats of turn 0 and the last relabelled",
            detail=detail | {"squared": found.squared} | floor,
        ),
    )


def _walk(centres: Float[np.ndarray, "turn axis"]) -> dict[str, object]:
    length = path_length(centres)
    away = np.linalg.norm(centres - centres[0], axis=1)
    slope = stats.theilslopes(away, np.arange(len(away)))[0] if len(away) > 2 else away[-1] - away[0]
    return {
        "path": length,
        "straightness": float(away[-1] / length) if length else None,
        "distances": away.tolist(),
        "slope": float(slope),  # pyright: ignore[reportArgumentType]
    }


def noise_floor(tables: Sequence[Float[np.ndarray, "repeat axis"]], seed: int, level: float) -> dict[str, object]:
    """Path and distances of conversations in which nothing happens: each turn's mean is one of repeats of turn 0, drawn again.

    Drawn with replacement around the mean and widened by sqrt(n/(n-1)), so that the variance of such a mean is S_0/n.
    """
    rng, start = np.random.default_rng(seed), relabelling.reduced(residuals(tables[0]))
    wide = start * np.sqrt(len(start) / (len(start) - 1))
    centres = [wide[rng.integers(len(start), size=(FLOORS, len(table)))].mean(1) for table in tables]
    return _floor(np.stack(centres, axis=1), level)


def paired_floor(tables: Sequence[Float[np.ndarray, "wording axis"]], seed: int, level: float) -> dict[str, object]:
    """The same where row v of every turn is the same wording: each wording's turns are put in random order.

    Every turn's mean is taken off before, and residuals are widened by sqrt(V/(V-1)): turns then differ by nothing but what is
    left of single wordings.
    """
    rng, (count, wordings) = np.random.default_rng(seed), (len(tables), len(tables[0]))
    flat = relabelling.reduced(np.concatenate([residuals(table) for table in tables]))
    wide = flat.reshape(count, wordings, -1) * np.sqrt(wordings / (wordings - 1))
    centres = np.zeros((FLOORS, count, wide.shape[2]))
    for wording in range(wordings):
        orders = rng.permuted(np.tile(np.arange(count), (FLOORS, 1)), axis=1)
        centres += wide[orders, wording] / wordings
    return _floor(centres, level)


def _floor(centres: Float[np.ndarray, "conversation turn axis"], level: float) -> dict[str, object]:
    paths = np.linalg.norm(np.diff(centres, axis=1), axis=2).sum(1)
    away = np.linalg.norm(centres - centres[:, :1], axis=2)
    return {
        "path_floor": float(paths.mean()),
        "path_floor_high": float(np.quantile(paths, level)),
        "floor_mean": away.mean(0).tolist(),
        "floor_sd": away.std(0).tolist(),
        "floor_high": np.quantile(away, level, axis=0).tolist(),
    }
