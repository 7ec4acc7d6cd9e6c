"""DS and velocity (174): how far a conversation carries the answer to one question."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
UNPAIRED, PAIRED = "repeats of turn 0 and the last relabelled", "signs of the repeats' differences flipped"
FLOORS = 2000  # conversations drawn for the noise floor
FLOOR = ("path_floor", "path_floor_high", "floor_mean", "floor_sd", "floor_high")
NO_FLOOR: dict[str, object] = {**dict.fromkeys(FLOOR)}  # outputs are not random, or a single draw shows no noise


def path_length(centres: Float[np.ndarray, "turn axis"]) -> float:
    """sum_t |o_t - o_(t-1)|."""
    return float(np.linalg.norm(np.diff(centres, axis=0), axis=1).sum())


def ds(
    turns: Sequence[ArrayLike],
    *,
    paired: bool = False,
    repeats: Sequence[Sequence[ArrayLike]] | None = None,
    numbers: Sequence[int] | None = None,
    exact: bool = False,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """sqrt(max(0, delta^2)) from turn 0 to the last turn T; `turns`: the repeats [repeat, axis] of every measured turn, in order.

    `numbers`: the turn's number for each, rising from 0 (default: every turn was measured); T of velocity and slope.
    delta^2 = |o_T - o_0|^2 - noise of both means. `paired`: repeat v of every turn has the same wording, and the noise is that of
    the differences. `detail`: velocity |o_T - o_0|/T, path length, straightness |o_T - o_0|/path, and the Theil-Sen slope of the
    distance from turn 0 on the turn. It also has a floor: the path and distances of as many turns with noise alone. The floor
    comes from the draws of turn 0 (`noise_floor`); if the rows of `turns` are means, these draws are given as `repeats`
    [turn][wording], tables [draw, axis]. For pairs without `repeats` it comes from their differences (`paired_floor`). `exact`
    outputs have none. Not applicable with one turn; insufficient under 5 repeats. UserError for points of different spaces, for
    paired turns of different lengths, and for numbers that are not one per turn, rising from 0.
    """
    tables = [points(one, "outputs of a turn") for one in turns]
    after = _numbered(len(tables), numbers)
    if len(tables) < 2:
        note = "no turn after the first"
        return Metric(PublishedScore(None, FORMULA, note), missing("not_applicable", note, UNIT))
    same_axes(*tables)
    fewest = min(map(len, tables))
    if fewest == 0:
        return Metric(PublishedScore(None, FORMULA), missing("insufficient_data", "a turn without outputs", UNIT))
    if paired and len({len(table) for table in tables}) > 1:
        raise UserError("turns with different wordings; expected the same in each: leave out those that a turn lacks")
    centres = np.array([centre(table) for table in tables])
    centres = settled(centres - centres[0], *tables)  # relative to turn 0
    distance = float(np.linalg.norm(centres[-1] - centres[0]))
    formula = PublishedScore(distance, FORMULA, f"velocity {distance / after[-1]:.6f}")
    detail = {"velocity": distance / after[-1], "turns": after[-1], "numbers": after} | _walk(centres, after)
    if fewest < FEWEST:
        reason = f"{fewest} repeats of a turn; at least {FEWEST} are needed"
        return Metric(formula, missing("insufficient_data", reason, UNIT, fewest, detail=detail))
    samples = [settled(tables[-1] - tables[0], *tables)] if paired else [tables[0], tables[-1]]
    p = relabelling.of_samples(samples, seed, resamples)
    found = displacement.between(centres[-1] - centres[0], samples, level)
    floor = NO_FLOOR if exact else _floor_of(tables, paired, repeats, seed, level)
    return Metric(
        formula,
        Estimate(
            found.distance,
            UNIT,
            fewest,
            ci=None if found.low is None or found.high is None else Interval(found.low, found.high, level, METHOD),
            p_value=p,
            test=None if p is None else PAIRED if paired else UNPAIRED,
            assumptions=() if p is not None else (relabelling.NO_P,),
            detail=detail | {"squared": found.squared} | floor,
        ),
    )


def _numbered(count: int, numbers: Sequence[int] | None) -> list[int]:
    after = list(range(count)) if numbers is None else list(numbers)
    if len(after) != count or any(first != 0 for first in after[:1]) or any(a >= b for a, b in pairwise(after)):
        raise UserError(f"{count} turns with the numbers {after}; expected one a turn, rising from 0")
    return after


def _walk(centres: Float[np.ndarray, "turn axis"], after: Sequence[int]) -> dict[str, object]:
    length = path_length(centres)
    away = np.linalg.norm(centres - centres[0], axis=1)
    slope = stats.theilslopes(away, after)[0]
    return {
        "path": length,
        "straightness": float(away[-1] / length) if length else None,
        "distances": away.tolist(),
        "slope": float(slope),  # pyright: ignore[reportArgumentType]
    }


def _floor_of(
    tables: Sequence[Float[np.ndarray, "repeat axis"]],
    paired: bool,
    repeats: Sequence[Sequence[ArrayLike]] | None,
    seed: int,
    level: float,
) -> dict[str, object]:
    if paired and repeats is None:
        return paired_floor(tables, seed, level)
    by_turn = [[table] for table in tables]
    if repeats is not None:
        by_turn = [[points(one, "draws of a turn") for one in turn] for turn in repeats]
    return noise_floor(by_turn[0], [[len(one) for one in turn] for turn in by_turn], seed, level)


def noise_floor(
    start: Sequence[Float[np.ndarray, "draw axis"]], counts: Sequence[Sequence[int]], seed: int, level: float
) -> dict[str, object]:
    """Path and distances of simulated conversations without movement: each turn's mean is resampled from the draws of turn 0.

    `start`: the draws of turn 0, by wording; `counts`: the number of draws [turn][wording] behind each mean. Within a wording,
    deviations from its mean are drawn with replacement and multiplied by sqrt(n/(n-1)), so the variance of a mean is S_0/n. Later
    turns do not enter. NO_FLOOR if a wording has a single draw.
    """
    if min(map(len, start)) < 2:
        return NO_FLOOR
    rng, sizes = np.random.default_rng(seed), [len(one) for one in start]
    wide = relabelling.reduced(np.concatenate([residuals(one) * np.sqrt(len(one) / (len(one) - 1)) for one in start]))
    by_wording = np.split(wide, np.cumsum(sizes)[:-1])
    centres = np.zeros((FLOORS, len(counts), wide.shape[1]))
    for turn, own in enumerate(counts):
        for one, count in zip(by_wording, own, strict=True):
            centres[:, turn] += one[rng.integers(len(one), size=(FLOORS, count))].mean(1) / len(start)
    paths = np.linalg.norm(np.diff(centres, axis=1), axis=2).sum(1)
    return _floor(paths, np.linalg.norm(centres - centres[:, :1], axis=2), level)


def paired_floor(tables: Sequence[Float[np.ndarray, "wording axis"]], seed: int, level: float) -> dict[str, object]:
    """As `noise_floor`, for paired wordings (row v of every turn) whose single draws are unknown.

    The floor of turn t uses turns 0 and t alone: the differences of V wordings minus their mean are multiplied by sqrt(V/(V-1))
    and get random signs. The floor of a step of the path uses its two turns. So a turn that moves some wordings more than others
    does not affect the floor of another turn.
    """
    rng, count = np.random.default_rng(seed), len(tables[0])
    flips = rng.choice([1.0, -1.0], size=(FLOORS, count))

    def walked(first: Float[np.ndarray, "wording axis"], second: Float[np.ndarray, "wording axis"]) -> np.ndarray:
        left = residuals(settled(second - first, first, second)) * np.sqrt(count / (count - 1))
        return np.linalg.norm(flips @ relabelling.reduced(left) / count, axis=1)

    away = np.stack([np.zeros(FLOORS), *(walked(tables[0], table) for table in tables[1:])], axis=1)
    steps = [walked(tables[0], tables[1])]
    for first, second in pairwise(tables[1:]):
        flips = rng.choice([1.0, -1.0], size=(FLOORS, count))
        steps.append(walked(first, second))
    return _floor(np.sum(steps, axis=0), away, level)


def _floor(
    paths: Float[np.ndarray, " conversation"], away: Float[np.ndarray, "conversation turn"], level: float
) -> dict[str, object]:
    return {
        "path_floor": float(paths.mean()),
        "path_floor_high": float(np.quantile(paths, level)),
        "floor_mean": away.mean(0).tolist(),
        "floor_sd": away.std(0).tolist(),
        "floor_high": np.quantile(away, level, axis=0).tolist(),
    }
