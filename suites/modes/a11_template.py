"""A11: the answer depends on the template in which the same question is put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from statsmodels.stats.contingency_tables import cochrans_q

import results_io
from suites import schema
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
PARAMETERS = schema.object_of()
detect, rated = flips.detect, flips.rated
MINIMUM_TEMPLATES = 3
SPREAD_NOTE = "the largest less the smallest of several noisy rates is above 0 without any difference: see Cochran's Q"


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Flip rate and McNemar, then over templates: accuracy of each, the worst, the spread and Cochran's Q.

    Only contents that have a verdict in every template count; `excluded` says how many do not.
    """
    names, right, incomplete = verdicts(judged)
    left_out = {"incomplete": incomplete} if incomplete else {}
    summary = flips.summarise(judged, parameters)
    if len(names) < MINIMUM_TEMPLATES or not len(right):
        reason = "no content has a verdict in every template"
        if len(names) < MINIMUM_TEMPLATES:
            reason = f"{len(names)} templates; at least {MINIMUM_TEMPLATES} are needed"
        lacking = missing("insufficient_data", reason, "share", excluded=left_out)
        return summary | dict.fromkeys(("worst_template", "spread", "cochran_q"), lacking)
    accuracies = {
        name: rates.proportion(int(column.sum()), len(column), "contents in every template", left_out=left_out)
        for name, column in zip(names, right.T, strict=True)
    }
    shares = right.mean(axis=0)
    worst, best = int(shares.argmin()), int(shares.argmax())
    spread = Estimate(
        float(shares[best] - shares[worst]),
        "share",
        len(right),
        excluded=left_out,
        assumptions=(SPREAD_NOTE,),
        detail={"worst": names[worst], "best": names[best]},
    )
    return summary | {
        "worst_template": accuracies[names[worst]],
        "spread": spread,
        "cochran_q": cochran_q(right),
        **{f"accuracy_{name}": accuracy for name, accuracy in accuracies.items()},
    }


def verdicts(judged: Sequence[tuple[Case, Detection]]) -> tuple[list[str], np.ndarray, int]:
    """(template names, right or wrong [content, template] of contents with a verdict in all templates, number of the others)."""
    table: dict[str, dict[str, bool | None]] = {}
    for case, _ in judged:
        row = table.setdefault(case.root.item.id, {})
        row[case.item.template] = case.first.correct if case.outcomes else None
    names = sorted({name for row in table.values() for name in row})
    complete = [
        [row[name] for name in names] for row in table.values() if all(row.get(name) is not None for name in names)
    ]
    return names, np.array(complete, dtype=bool).reshape(len(complete), len(names)), len(table) - len(complete)


def cochran_q(right: np.ndarray) -> Estimate:
    """Cochran's Q of `right` [content, template]: do accuracies differ between templates? df = templates - 1."""
    statistic, p, assumptions = 0.0, 1.0, ("no discordance: every content is right in all templates or in none",)
    if (right != right[:, :1]).any():
        test = cochrans_q(right.astype(int))
        statistic, p, assumptions = float(test.statistic), float(test.pvalue), ()
    return Estimate(
        statistic,
        "chi2",
        len(right),
        p_value=p,
        test="Cochran's Q",
        detail={"df": right.shape[1] - 1},
        assumptions=assumptions,
    )


def check(suite: Suite) -> None:
    """UserError unless every item has the same answers as its parent, since templates could not be compared otherwise."""
    for item in suite.items:
        parent = suite.by_id.get(item.variant.parent) if item.variant else None
        if parent is None:
            continue
        for key in ("answers", "choices"):
            if {normalise(text) for text in getattr(item, key)} != {normalise(text) for text in getattr(parent, key)}:
                raise results_io.UserError(
                    f"{suite.id}: {item.id} has other {key} than {parent.id}, from which it was made; templates share them"
                )
