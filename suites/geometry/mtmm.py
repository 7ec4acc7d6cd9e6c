"""MTMM (179), the multitrait-multimethod matrix: do scores vary with the trait, or with the method (the way of asking)?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from results_io import UserError
from suites.estimate import Estimate, Interval, Status, missing
from suites.geometry.metric import LEVEL, ROUNDING, settled

NUMBER, ID, NAME = "179", "G.mtmm", "mtmm"
TRAITS = ("position", "coverage", "stability")
METHODS = ("direct", "paraphrase", "language", "persona")
NAMES = {  # the paper's figure 12, with OW under coverage
    ("position", "direct"): "baseline ODS",
    ("position", "paraphrase"): "ODS variance over wordings",
    ("position", "language"): "cross-lingual ODS shift",
    ("position", "persona"): "steerability",
    ("coverage", "direct"): "baseline PS and OW",
    ("coverage", "paraphrase"): "coverage consistency",
    ("coverage", "language"): "multilingual pluralism gap",
    ("coverage", "persona"): "persona restriction",
    ("stability", "direct"): "baseline noise",
    ("stability", "paraphrase"): "PIS",
    ("stability", "language"): "LDS",
    ("stability", "persona"): "PSS",
}
FEWEST_UNITS, FEWEST_SIDE = 30, 3  # units to correlate over; traits and methods
RESAMPLES = 1000
DIGITS = 12  # decimal places, relative to the largest score: scores equal to so many are ties
DISCRIMINANT = {"discriminant": "heterotrait", "discriminant_same_method": "same method"}
CORRECTED = {  # only pairs that share no output: the errors of two traits by one method are not independent
    "convergent_disattenuated": "convergent",
    "heterotrait_disattenuated": "heterotrait",
}
READINGS = ("convergent", "heterotrait", "same_method", *DISCRIMINANT, "htmt", "htmt_absolute", *CORRECTED)
NO_HALVES = "a way of asking has fewer than four wordings, of which no two halves give the score"


@dataclass(frozen=True)
class Components:
    """Mean squares and variance components of trait, method, trait x method and residual. Negative components are kept."""

    mean_squares: Mapping[str, float]
    components: Mapping[str, float]


def shares(table: ArrayLike) -> dict[str, float]:
    """Shares of the sum of squares of a table [trait, method] due to trait, method and the rest.

    UserError for a table with missing values or without variance.
    """
    cells = _from_first(_finite(table, 2, "[trait, method]"))
    centre = cells.mean()
    trait = cells.shape[1] * ((cells.mean(1) - centre) ** 2).sum()
    method = cells.shape[0] * ((cells.mean(0) - centre) ** 2).sum()
    total = ((cells - centre) ** 2).sum()
    if total <= 0:
        raise UserError("all cells of the table are equal; expected some variance to share out")
    return {"trait": float(trait / total), "method": float(method / total), "rest": float(1 - (trait + method) / total)}


def components(cells: ArrayLike) -> Components:
    """Variance components of `cells` [trait, method, replicate] from mean squares, with all effects random.

    UserError unless there are at least two traits, methods and replicates.
    """
    table = _from_first(_finite(cells, 3, "[trait, method, replicate]"))
    t, m, r = table.shape
    if min(t, m, r) < 2:
        raise UserError(f"{t} traits x {m} methods x {r} replicates; expected at least two of each")
    centre, means = table.mean(), table.mean(2)
    by_trait, by_method = means.mean(1), means.mean(0)
    squares = {
        "trait": m * r * ((by_trait - centre) ** 2).sum() / (t - 1),
        "method": t * r * ((by_method - centre) ** 2).sum() / (m - 1),
        "trait x method": r * ((means - by_trait[:, None] - by_method[None] + centre) ** 2).sum() / ((t - 1) * (m - 1)),
        "residual": ((table - means[..., None]) ** 2).sum() / (t * m * (r - 1)),
    }
    both = squares["trait x method"]
    found = {
        "trait": (squares["trait"] - both) / (m * r),
        "method": (squares["method"] - both) / (t * r),
        "trait x method": (both - squares["residual"]) / r,
        "residual": squares["residual"],
    }
    return Components({k: float(v) for k, v in squares.items()}, {k: float(v) for k, v in found.items()})


def campbell_fiske(
    scores: ArrayLike,
    traits: Sequence[str],
    methods: Sequence[str],
    *,
    halves: ArrayLike | None = None,
    by_construction: Collection[frozenset[tuple[str, str]]] = (),
    seed: int = 0,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> dict[str, Estimate]:
    """Spearman correlations over units of `scores` [unit, trait, method], summarised as by Campbell and Fiske.

    `convergent`: mean r of one trait by two methods; `heterotrait`: mean r of two traits by two methods; `same_method`: mean r of
    two traits by one method. `discriminant`: share of comparisons in which a convergent r exceeds the r of two traits by two
    methods that shares one of its scores; `discriminant_same_method`: the same for two traits by one method. HTMT of two traits:
    mean correlation between them (different methods) / geometric mean of the mean correlations within each. `by_construction`:
    pairs of (trait, method) that share a denominator; they are left out of everything about discrimination. All these are raw.

    `halves` [split, 2, unit, trait, method]: scores of halves of the outputs, which give the `reliability`. The r between two
    methods then also have a disattenuated mean, of r / sqrt(reliability_i reliability_j), not truncated at 1 (Spearman 1904); it
    is undefined if a reliability is not above 0. Intervals are bootstrapped over units, with their halves. Insufficient under 30
    units, 3 traits or 3 methods; undefined if a score is the same in all units. UserError for scores that are not finite, and
    for names that do not fit their shape. Source: Campbell & Fiske 1959, Henseler et al. 2015 (HTMT).
    """
    table = np.asarray(scores, dtype=np.float64)
    table = _finite(table, 3, "[unit, trait, method]") if table.size or table.ndim != 3 else table
    units, t, m = table.shape
    if (t, m) != (len(traits), len(methods)):
        raise UserError(f"{len(traits)} traits and {len(methods)} methods named for {t} and {m}; name each")
    names = READINGS
    if units < FEWEST_UNITS or min(t, m) < FEWEST_SIDE:
        reason = f"{units} units, {t} traits, {m} methods; at least {FEWEST_UNITS}, {FEWEST_SIDE} and {FEWEST_SIDE} are needed"
        return absent("insufficient_data", reason, units)
    labels = [(trait, method) for trait in traits for method in methods]
    if same := [label for label, one in zip(labels, table.reshape(units, -1).T, strict=True) if _all_equal(one)]:
        reason = f"{same[0][0]} by {same[0][1]} is the same in all units, so that nothing correlates with it"
        return absent("undefined", reason, units)
    kinds, flat = _kinds(labels, by_construction), table.reshape(units, -1)
    parts = None if halves is None else _finite(halves, 5, "[split, half, unit, trait, method]")
    parts = None if parts is None else parts.reshape(*parts.shape[:3], -1)

    def summaries(chosen: np.ndarray) -> dict[str, float]:
        reliable = None if parts is None else reliability(parts[:, :, chosen])
        return _summaries(_spearman(flat[chosen]), labels, kinds, reliable)

    own, rng = summaries(np.arange(units)), np.random.default_rng(seed)
    draws = [summaries(rng.integers(units, size=units)) for _ in range(resamples)]
    found = {
        name: _estimate(name, own[name], [draw[name] for draw in draws], units, level) for name in names if name in own
    }
    return found | {
        name: missing("insufficient_data", NO_HALVES, _unit(name), units) for name in names if name not in own
    }


def absent(status: Status, reason: str, units: int = 0) -> dict[str, Estimate]:
    """Every summary without a value, and the reason why."""
    return {name: missing(status, reason, _unit(name), units) for name in READINGS}


def reliability(halves: Float[np.ndarray, "split half unit variable"]) -> Float[np.ndarray, " variable"]:
    """2r/(1 + r) (Spearman-Brown), r the Spearman correlation over units between two halves' scores, averaged over splits.

    It is the reliability of the whole, which has twice the outputs. NaN if a half's score is the same in all units.
    """
    ranks = _ranks(halves, axis=2)
    ranks = ranks - ranks.mean(2, keepdims=True)
    lengths = np.linalg.norm(ranks, axis=2).prod(1)
    products = (ranks[:, 0] * ranks[:, 1]).sum(1)
    r = np.divide(products, lengths, out=np.full(lengths.shape, np.nan), where=lengths > 0).mean(0)
    return 2 * r / (1 + r)


def pairs(
    scores: Float[np.ndarray, "unit trait method"],
    traits: Sequence[str],
    methods: Sequence[str],
    halves: Float[np.ndarray, "split half unit trait method"] | None,
    by_construction: Collection[frozenset[tuple[str, str]]] = (),
) -> list[dict[str, object]]:
    """Every pair of scores with its kind, raw r, and disattenuated r if they share no output and both reliabilities exceed 0."""
    labels = [(trait, method) for trait in traits for method in methods]
    r = _spearman(scores.reshape(len(scores), -1))
    reliable = None if halves is None else reliability(halves.reshape(*halves.shape[:3], -1))
    found = []
    for (i, j), kind in _kinds(labels, by_construction).items():
        corrected = _disattenuated(r, (i, j), reliable) if kind in CORRECTED.values() else np.nan
        found.append({
            "first": list(labels[i]),
            "second": list(labels[j]),
            "kind": kind,
            "r": float(r[i, j]) if np.isfinite(r[i, j]) else None,
            "disattenuated": float(corrected) if np.isfinite(corrected) else None,
        })  # fmt: skip
    return found


def _disattenuated(
    r: Float[np.ndarray, "variable variable"], pair: tuple[int, int], reliable: Float[np.ndarray, " variable"] | None
) -> float:
    if reliable is None or not min(reliable[pair[0]], reliable[pair[1]]) > 0:
        return np.nan
    return float(r[pair] / np.sqrt(reliable[pair[0]] * reliable[pair[1]]))


def _kinds(
    labels: Sequence[tuple[str, str]], by_construction: Collection[frozenset[tuple[str, str]]]
) -> dict[tuple[int, int], str]:
    """The kind of each pair of variables; pairs of different traits that share a denominator are "by construction"."""
    found = {}
    for i, j in combinations(range(len(labels)), 2):
        (trait, method), (other, another) = labels[i], labels[j]
        if trait == other:
            found[i, j] = "convergent"
        elif frozenset((labels[i], labels[j])) in by_construction:
            found[i, j] = "by construction"
        else:
            found[i, j] = "heterotrait" if method != another else "same method"
    return found


def _summaries(
    r: Float[np.ndarray, "variable variable"],
    labels: Sequence[tuple[str, str]],
    kinds: Mapping[tuple[int, int], str],
    reliable: Float[np.ndarray, " variable"] | None = None,
) -> dict[str, float]:
    of = {
        name: [r[pair] for pair, found in kinds.items() if found == kind]
        for name, kind in (("convergent", "convergent"), ("heterotrait", "heterotrait"), ("same_method", "same method"))
    }
    traits = list(dict.fromkeys(trait for trait, _ in labels))
    ratios, absolute = [], []
    for first, second in combinations(traits, 2):
        across = [
            r[p] for p, kind in kinds.items() if kind == "heterotrait" and {labels[k][0] for k in p} == {first, second}
        ]
        within = [
            [r[p] for p, kind in kinds.items() if kind == "convergent" and labels[p[0]][0] == trait]
            for trait in (first, second)
        ]
        if not across:
            continue
        product = float(np.mean(within[0]) * np.mean(within[1]))
        ratios.append(float(np.mean(across)) / product**0.5 if product > 0 else np.nan)
        size = float(np.mean(np.abs(within[0])) * np.mean(np.abs(within[1])))
        absolute.append(float(np.mean(np.abs(across))) / size**0.5 if size > 0 else np.nan)
    means = {name: float(np.mean(values)) if values else np.nan for name, values in of.items()}
    beaten = {name: _exceeds(r, kinds, other) for name, other in DISCRIMINANT.items()}
    corrected = {
        name: float(np.mean([_disattenuated(r, pair, reliable) for pair, found in kinds.items() if found == kind]))
        for name, kind in CORRECTED.items()
        if reliable is not None and of[kind]
    }
    return (
        means
        | beaten
        | corrected
        | {
            "htmt": float(np.mean(ratios)) if ratios else np.nan,
            "htmt_absolute": float(np.mean(absolute)) if absolute else np.nan,
        }
    )


def _exceeds(r: Float[np.ndarray, "variable variable"], kinds: Mapping[tuple[int, int], str], other: str) -> float:
    """Share of comparisons (a convergent r, an r of kind `other` that shares a score with it) in which the first is larger."""
    found = [
        r[own] > r[rival]
        for own, kind in kinds.items() if kind == "convergent"
        for rival, against in kinds.items() if against == other and set(own) & set(rival)
    ]  # fmt: skip
    return float(np.mean(found)) if found else np.nan


def _spearman(table: Float[np.ndarray, "unit variable"]) -> Float[np.ndarray, "variable variable"]:
    ranks = _ranks(table, axis=0)
    ranks = ranks - ranks.mean(0)
    lengths = np.linalg.norm(ranks, axis=0)
    scale = np.outer(lengths, lengths)
    return np.divide(ranks.T @ ranks, scale, out=np.full(scale.shape, np.nan), where=scale > 0)


def _ranks(table: Float[np.ndarray, "*shape"], axis: int) -> Float[np.ndarray, "*shape"]:
    """Ranks along an axis; scores that differ by rounding alone are ties."""
    largest = np.maximum(np.abs(table).max(axis, keepdims=True), 1e-300)
    return stats.rankdata(np.round(table / largest, DIGITS), axis=axis)


def _all_equal(scores: Float[np.ndarray, " unit"]) -> bool:
    return bool(np.ptp(scores) <= ROUNDING * np.abs(scores).max())


def _from_first(table: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The cells minus the first one. Variances do not change, and equal cells become exactly 0."""
    return settled(table - table.flat[0], table)


def _estimate(name: str, value: float, draws: Sequence[float], units: int, level: float) -> Estimate:
    if not np.isfinite(value):
        reason = "correlations within a trait are not positive on average"
        reason = "a score has a reliability that is not above 0" if name in CORRECTED else reason
        return missing("undefined", reason, _unit(name), units)
    usable = np.array([draw for draw in draws if np.isfinite(draw)])
    tail = (1 - level) / 2
    interval = None
    if len(usable) > len(draws) * level:
        low, high = (float(np.quantile(usable, share)) for share in (tail, 1 - tail))
        interval = Interval(low, high, level, "percentile bootstrap over units")
    return Estimate(
        value, _unit(name), units, ci=interval, detail={"resamples_without_value": len(draws) - len(usable)}
    )


def _unit(name: str) -> str:
    return "share of comparisons" if name in DISCRIMINANT else "correlation"


def _finite(values: ArrayLike, axes: int, wanted: str) -> np.ndarray:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != axes or not table.size or not np.isfinite(table).all():
        raise UserError(
            f"a table of shape {table.shape}; expected {wanted}, full and finite: a cell without a value has no place"
        )
    return table
