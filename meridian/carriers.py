"""Which heads carry a failure: what task=failures found on one half of the pairs, and what became of it on the other."""

from __future__ import annotations

import numpy as np
import pandas as pd

from circuits.circuit import parse_head
from meridian.figures.estimates import cells
from meridian.figures.values import HeatMap
from meridian.finding import Finding
from meridian.run_folder import RunFolder
from results_io import UserError

TRACE, CARRIERS = "141", "142"


def of(run: RunFolder) -> Finding:
    """Share of the difference between failing and passing prompts that each head restores, on the discovery half.

    Heads whose whole interval is above the bar are framed. `table` has one row for each of them and each half, with its verdict
    on the confirmation half. UserError if the run is not about failures.
    """
    traced, judged = run.document(TRACE), run.document(CARRIERS)
    if traced is None:
        raise UserError(f"{run.path} is not about failures, so no head carries one; run task=failures after a suite")
    restored = {parse_head(name): share for name, share in zip(*_columns(traced), strict=True)}
    shape = (max(head.layer for head in restored) + 1, max(head.index for head in restored) + 1)
    shares = np.full(shape, np.nan)
    for head, share in restored.items():
        shares[head.layer, head.index] = share
    named = [parse_head(found["head"]) for found in traced["named"]]
    group = traced["group"]
    figure = HeatMap(
        name="restored",
        title=f"Which heads turn a failure of {group['suite']} into a pass?",
        caption="Share of the difference between failing and passing prompts that the head's passing output restores; the named "
        "heads are framed. Discovery half of the pairs. Result 141.",
        x_label="head",
        y_label="layer",
        x=tuple(map(str, range(shape[1]))),
        y=tuple(map(str, range(shape[0]))),
        values=cells(shares),
        unit="share restored",
        marked=tuple((head.layer, head.index) for head in named),
    )
    rows = [
        {**_row(found), "half": "discovery", "low": found["low"], "high": found["high"]} for found in traced["named"]
    ]
    for found in judged["records"] if judged else ():
        low, high = found["interval"] or (None, None)
        rows.append({**_row(found), "half": "confirmation", "low": low, "high": high, "verdict": found["verdict"]})
    return Finding(figure, pd.DataFrame(rows, columns=["head", "half", "estimate", "low", "high", "verdict"]))


def _columns(traced: dict) -> tuple[list[str], list[float]]:
    heads = traced["data"]["heads"]
    return heads["names"], [np.nan if share is None else share for share in heads["restored"]]


def _row(found: dict) -> dict:
    return {"head": found["head"], "estimate": found["restored"]}
