"""A12: a fact is missed, depending on how long the context is and how deep the fact stands in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.contingency_tables import Table

import results_io
from suites import schema
from suites.estimate import Estimate, missing
from suites.item import Suite
from suites.modes import rates
from suites.outcome import Case, Detection

ID = "A12"
NAME = "needle"
TITLE = "Needle missed"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = (
    "Two questions: the needle against a filler of its length (where the information flows), and the needle at a "
    "passing depth against a failing one."
)
PARAMETERS = schema.object_of(cell_minimum=schema.whole("least items for a cell's own interval (10)"))
CELL_MINIMUM = 10  # fewest items of a cell with its own interval
FACTORS = ("length", "depth")


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the answer is wrong. A prompt that does not fit into the model's context is an error of the call, never a miss."""
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    if case.first.correct is None:
        return rates.unjudged("not_applicable", "the suite's scorer does not say which answer is right", "verified")
    detail = {factor: case.item.factors.get(factor) for factor in FACTORS}
    if case.first.correct:
        return Detection(False, "verified", detail=detail)
    evidence = f"expected {case.item.answers[0] if case.item.answers else ''!r}, got {case.first.text.strip()!r}"
    return Detection(
        True, "verified", subtype="missed", span=(0, len(case.first.text)), evidence=evidence, detail=detail
    )


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate over all, of each length, each depth and each cell of the two, and the trend over depth.

    A cell with fewer than `cell_minimum` items has no rate; its items still count for its length and its depth.
    """
    minimum = parameters.get("cell_minimum", CELL_MINIMUM)
    decided = [(case, seen.failed) for case, seen in judged if seen.failed is not None]
    grid: dict[str, Estimate] = {}
    for keys in (("length",), ("depth",), FACTORS):
        cells: dict[tuple[str, ...], list[bool]] = {}
        for case, failed in decided:
            cells.setdefault(tuple(case.item.factors.get(key, "") for key in keys), []).append(failed)
        for cell in sorted(cells, key=lambda names: [_order(name) for name in names]):
            name = ",".join(f"{key}={value}" for key, value in zip(keys, cell, strict=True))
            reason = "items in this cell, which count in its row and column"
            grid[f"failure_rate[{name}]"] = rates.proportion(sum(cells[cell]), len(cells[cell]), reason, minimum)
    return {
        "failure_rate": rates.failure_rate(judged),
        **rates.over_clusters(judged),
        "depth_trend": depth_trend(decided),
        **grid,
    }


def depth_trend(decided: Sequence[tuple[Case, bool]]) -> Estimate:
    """Least-squares slope of failing on depth, per unit of depth, with the linear-by-linear association test of the 2 x k table.

    A trend cannot show needles that are missed in the middle only, so `detail` also has the chi-square test of any difference.
    Depths are numbers, or else their rank in order of name. Insufficient without items; undefined with one depth, or if all or
    no items failed. Source: Agresti, Categorical Data Analysis, 3.4.
    """
    names = sorted({case.item.factors.get("depth", "") for case, _ in decided}, key=_order)
    failed = np.array([outcome for _, outcome in decided], dtype=bool)
    if not decided:
        return missing("insufficient_data", "no items", "share per depth")
    if len(names) < 2 or failed.all() or not failed.any():
        reason = "one depth only" if len(names) < 2 else "every item has failed, or none"
        return missing("undefined", reason, "share per depth", len(decided))
    scores = np.array([_order(name)[0] for name in names])
    if not np.isfinite(scores).all():
        scores = np.arange(len(names), dtype=float)
    index = np.array([names.index(case.item.factors.get("depth", "")) for case, _ in decided])
    table = np.array([np.bincount(index[failed == outcome], minlength=len(names)) for outcome in (False, True)])
    trend: Any = Table(table, shift_zeros=False).test_ordinal_association(col_scores=scores)
    fit: Any = stats.linregress(scores[index], failed.astype(float))
    any_difference: Any = stats.chi2_contingency(table, correction=False)
    detail = {
        "depths": names,
        "failed": table[1].tolist(),
        "n": table.sum(axis=0).tolist(),
        "z": float(trend.zscore),
        "p_any_difference": float(any_difference.pvalue),
    }
    few = (f"a depth has fewer than {CELL_MINIMUM} items",) if min(detail["n"]) < CELL_MINIMUM else ()
    return Estimate(
        float(fit.slope),
        "share per depth",
        len(decided),
        assumptions=few,
        p_value=float(trend.pvalue),
        test="linear-by-linear association",
        detail=detail,
    )


def check(suite: Suite) -> None:
    """UserError unless every item has both factors."""
    for item in suite.items:
        lacking = [factor for factor in FACTORS if factor not in item.factors]
        if lacking:
            raise results_io.UserError(
                f"{suite.id}: {item.id} lacks the factors {', '.join(lacking)}; declare where its needle is"
            )


def _order(name: str) -> tuple[float, str]:
    try:
        return float(name), ""
    except ValueError:
        return float("inf"), name
