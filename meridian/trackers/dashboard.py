"""The W&B workspace "circuits x calibrations": one row per circuit, one column per calibration.

Built with wandb-workspaces (extra `dashboard`); `scripts/wandb_dashboard.py` saves it, which needs a W&B login.
"""

from __future__ import annotations

from typing import Any

import wandb_workspaces.reports.v2 as panels
import wandb_workspaces.workspaces as workspaces
from wandb_workspaces.reports.v2.interface import ParallelCoordinatesPlotColumn

from calibrations.registry import CALIBRATIONS

NAME = "circuits x calibrations"
GATES = ("P.behaviour", "P.faithfulness", "P.random_circuits", "P.completeness", "P.outside")


def columns() -> list[str]:
    """Summary keys in the order of the table: the tier, the preconditions, then every calibration's verdict."""
    return [
        "tier",
        "tier_name",
        "ceiling",
        *(f"{name}/verdict" for name in GATES),
        *(f"{name}/verdict" for name in CALIBRATIONS),
    ]


def build(entity: str, project: str) -> workspaces.Workspace:
    """The workspace: a table with pinned columns, and panels for tiers, estimates and progress."""
    verdicts = [
        ParallelCoordinatesPlotColumn(panels.SummaryMetric(f"{name}/verdict_code"), display_name=name)
        for name in CALIBRATIONS
    ]
    estimates: list[Any] = [
        panels.BarPlot(title=f"{name} estimate", metrics=[panels.SummaryMetric(f"{name}/estimate")])
        for name in CALIBRATIONS
    ]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[
            workspaces.Section(
                name="Tiers and verdicts",
                panels=[
                    panels.BarPlot(title="tier", metrics=[panels.SummaryMetric("tier")]),
                    panels.ParallelCoordinatesPlot(title="verdicts: 1 pass, 0 undecided, -1 fail", columns=verdicts),
                ],
                is_open=True,
            ),
            workspaces.Section(name="Estimates", panels=estimates),
            workspaces.Section(
                name="Progress",
                panels=[panels.LinePlot(title="pairs per second", y=["progress/pairs_per_second"])],
            ),
        ],
        runset_settings=workspaces.RunsetSettings(
            filters=[workspaces.Metric("JobType") == "circuit"],
            order=[workspaces.Ordering(workspaces.Summary("tier"), ascending=False)],
            pinned_columns=[f"summary:{name}" for name in columns()],
        ),
    )
