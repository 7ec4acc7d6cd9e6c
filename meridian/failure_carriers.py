"""Which heads carry a failure: what task=failures found on one half of the pairs, and whether the other half confirms it."""

from __future__ import annotations

import pandas as pd

from calibrations.evidence import Head
from circuits.circuit import parse_head
from meridian.figures.heads import layer_head_map
from meridian.finding import Finding
from meridian.run_folder import FailureHead, RunFolder, carriers_of
from results_io import UserError


def of(run: RunFolder) -> Finding:
    """The share of the difference between failing and passing prompts that each head restores, on the discovery half.

    Heads whose whole interval lies above the bar are framed. `table` has one row for each of these heads and each half, with the
    verdict of the confirmation half. UserError if the run is not about failures.
    """
    traced = run.document("141")
    if traced is None:
        raise UserError(f"{run.path} is not about failures, so no head carries one; run task=failures after a suite")
    names, restored = (traced["data"]["heads"][field] for field in ("names", "restored"))
    group = traced["group"]
    figure = layer_head_map(
        [_place(name) for name in names],
        restored,
        name="restored",
        title=f"Which heads turn a failure of {group['suite']} into a pass?",
        caption="Share of the difference between failing and passing prompts that the head's passing output restores; the named "
        "heads are framed. Discovery half of the pairs. Result 141.",
        unit="share restored",
        marked=tuple(_place(found["head"]) for found in traced["named"]),
    )
    return Finding(figure, pd.DataFrame(carriers_of(run), columns=list(FailureHead._fields)))


def _place(name: str) -> Head:
    node = parse_head(name)
    return node.layer, node.index
