"""LDS (175): how far apart the answers in several languages lie, relative to the spread of wordings within one language."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from suites.estimate import Estimate, missing
from suites.geometry import displacement, relabelling, spread
from suites.geometry.metric import (
    LEVEL,
    NO_INTERVAL,
    RATIO,
    Metric,
    PublishedScore,
    centre,
    points,
    residuals,
    same_axes,
    settled,
)
from suites.statistics.permutation import FEWEST_RESAMPLES

NUMBER, ID, NAME, UNIT = "175", "G.lds", "languages", RATIO
FORMULA = "mean over pairs of |o_i - o_j| / PIS of the first language"
FEWEST = 5  # wordings of a language


def published(centres: ArrayLike, instability: float) -> float | None:
    """The paper's LDS: `mean_distance` of `centres` [language, axis] / `instability`, the first language's PIS.

    None if the PIS is 0 or there is a single language.
    """
    table = points(centres, "centres of languages")
    return mean_distance(table) / instability if instability and len(table) > 1 else None


def mean_distance(centres: Float[np.ndarray, "language axis"]) -> float:
    """Mean of |o_i - o_j| over all pairs of at least two languages."""
    return float(np.mean([np.linalg.norm(settled(a - b, centres)) for a, b in combinations(centres, 2)]))


def lds(
    languages: Mapping[str, ArrayLike],
    *,
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = FEWEST_RESAMPLES,
) -> Metric:
    """R = sqrt(max(0, Delta^2) / S_0), Delta^2 = mean over pairs of |o_i - o_j|^2 - S_i/V_i - S_j/V_j.

    `languages`: {language: wordings' means [wording, axis]}, the baseline first; S_i is the variance of a language over its V_i
    wordings, S_0 the baseline's. p: wordings permuted between languages. `detail` has the published numerator (`shift`), Delta^2,
    and Delta with its interval (`displacement` of the stacked differences). The ratio has no interval (NO_INTERVAL) and is
    undefined if the baseline's wordings all agree. Not applicable under two languages; insufficient under 5 wordings of one.
    UserError for points of different spaces.
    """
    tables = {name: points(one, f"outputs in {name}") for name, one in languages.items()}
    if len(tables) < 2:
        note = f"{len(tables)} languages; two are needed"
        return Metric(PublishedScore(None, FORMULA, note), missing("not_applicable", note, RATIO))
    same_axes(*tables.values())
    fewest = min(map(len, tables.values()))
    if fewest == 0:
        return Metric(PublishedScore(None, FORMULA), missing("insufficient_data", "a language without outputs", RATIO))
    first, centres = next(iter(tables.values())), np.array([centre(table) for table in tables.values()])
    instability = float(np.linalg.norm(residuals(first), axis=1).mean())
    value = published(centres, instability)
    formula = PublishedScore(value, FORMULA, "" if value is not None else "the first language's PIS is 0")
    if fewest < FEWEST:
        reason = f"{fewest} wordings of a language; at least {FEWEST} are needed"
        return Metric(formula, missing("insufficient_data", reason, RATIO, fewest))
    found = _displacement(list(tables.values()), centres, level)
    variance = spread.total_variance(first)
    detail = {
        "shift": mean_distance(centres),
        "squared": found.squared,
        "distance": found.distance,
        "distance_interval": None if found.low is None else [found.low, found.high],
        "baseline_variance": variance,
        "languages": list(tables),
    }
    if variance == 0:
        reason = f"wordings in {next(iter(tables))} all agree, so the ratio has no denominator"
        return Metric(formula, missing("undefined", reason, RATIO, fewest, detail=detail))
    return Metric(
        formula,
        Estimate(
            found.distance / variance**0.5,
            RATIO,
            fewest,
            p_value=relabelling.groups(list(tables.values()), seed, resamples),
            test="wordings permuted between languages",
            assumptions=("wordings are independent", NO_INTERVAL),
            detail=detail,
        ),
    )


def _displacement(tables: list[np.ndarray], centres: np.ndarray, level: float) -> displacement.Displacement:
    """Delta^2 as one squared length of stacked languages: mean over pairs of |o_i - o_j|^2 = 2/(L-1) sum_i |o_i - o|^2."""
    count = len(tables)
    mixing = (np.eye(count) - 1 / count) * np.sqrt(2 / (count - 1))
    stacked = settled(mixing @ (centres - centres[0]), centres).ravel()
    samples = [np.einsum("l,va->vla", mixing[:, i], table).reshape(len(table), -1) for i, table in enumerate(tables)]
    return displacement.between(stacked, samples, level)
