"""A11: the answer depends on the template in which the same question is put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from statsmodels.stats.contingency_tables import cochrans_q

import results_io
from suites.estimate import Estimate, missing
from suites.item import Suite
from suites.modes import flips, rates
from suites.normalise import normalise
from suites.outcome import Case, Detection

ID = "A11"
NAME = "template"
TITLE = "Template sensitivity"
TIER = "verified"
TRACEABLE = "partly"
TRACE_NOTE = (
    "The best template against the worst, aligned at the entity, the query and the answer only; templates of equal "
    "length are best."
)
PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
MINIMUM_TEMPLATES = 3


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the original template is answered right and this one is not."""
    return flips.detect(case)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Flip rate and McNemar, then over templates: accuracy of each, the worst, the spread and Cochran's Q. Source: spec A11.

    Only contents that have a verdict in every template count; `excluded` says how many do not.
    """
    names, right, incomplete = verdicts(judged)
    left_out = {"incomplete": incomplete} if incomplete else {}
    summary = flips.summarise(judged)
    if len(names) < MINIMUM_TEMPLATES or not len(right):
        reason = "no content has a verdict in every template"
        if len(names) < MINIMUM_TEMPLATES:
            reason = f"{len(names)} templates; at least {MINIMUM_TEMPLATES} are needed"
        lacking = missing("insufficient_data", reason, "share", excluded=left_out)
        return summary | dict.fromkeys(("worst_template", "spread", "cochran_q"), lacking)
    accuracies = {
        name: rates.share(int(column.sum()), len(column), "contents in every template", left_out=left_out)
        for name, column in zip(names, right.T, strict=True)
    }
    shares = right.mean(axis=0)
    worst, best = names[int(shares.argmin())], names[int(shares.argmax())]
    return summary | {
        "worst_template": accuracies[worst],
        "spread": spread(right, worst, best, left_out),
        "cochran_q": cochran_q(right),
        **{f"accuracy_{name}": accuracy for name, accuracy in accuracies.items()},
    }


def spread(right: np.ndarray, worst: str, best: str, left_out: Mapping[str, int]) -> Estimate:
    """Accuracy of the best template less that of the worst, over [content, template]."""
    shares = right.mean(axis=0)
    note = "the largest less the smallest of several noisy rates is above 0 without any difference: see Cochran's Q"
    return Estimate(
        float(shares.max() - shares.min()),
        "share",
        len(right),
        excluded=left_out,
        assumptions=(note,),
        detail={"worst": worst, "best": best},
    )


def verdicts(judged: Sequence[tuple[Case, Detection]]) -> tuple[list[str], np.ndarray, int]:
    """Templates by name, right or wrong [content, template] of the contents complete over them, and how many are not complete."""
    table: dict[str, dict[str, bool | None]] = {}
    for case, _ in judged:
        row = table.setdefault(_root(case), {})
        row[case.item.template] = case.first.correct if case.outcomes else None
    names = sorted({name for row in table.values() for name in row})
    complete = [
        [row[name] for name in names] for row in table.values() if all(row.get(name) is not None for name in names)
    ]
    return names, np.array(complete, dtype=bool).reshape(len(complete), len(names)), len(table) - len(complete)


def cochran_q(right: np.ndarray) -> Estimate:
    """Cochran's Q over [content, template]: do the templates differ in how often they are answered right? df = templates - 1."""
    if (right == right[:, :1]).all():
        return Estimate(
            0.0,
            "chi2",
            len(right),
            p_value=1.0,
            test="Cochran's Q",
            detail={"df": right.shape[1] - 1},
            assumptions=("no discordance: every content is right in all templates or in none",),
        )
    test = cochrans_q(right.astype(int))
    return Estimate(
        float(test.statistic),
        "chi2",
        len(right),
        p_value=float(test.pvalue),
        test="Cochran's Q",
        detail={"df": int(test.df)},
    )


def check(suite: Suite) -> None:
    """UserError unless every item has the answers of the item that it was made from: else templates cannot be compared."""
    for item in suite.items:
        parent = suite.by_id.get(item.variant.parent) if item.variant else None
        if parent is None:
            continue
        for key in ("answers", "choices"):
            if {normalise(text) for text in getattr(item, key)} != {normalise(text) for text in getattr(parent, key)}:
                raise results_io.UserError(
                    f"{suite.id}: {item.id} has other {key} than {parent.id}, from which it was made; templates share them"
                )


def _root(case: Case) -> str:
    while case.parent is not None:
        case = case.parent
    return case.item.id
