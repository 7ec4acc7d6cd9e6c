"""Chooses the page for a folder of results by its content: suites, geometry, judging or a drift series."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import results_io
from meridian.figures.drift import MANIFESTS
from meridian.report.folder_page import FolderPage
from meridian.run_folder import POSITION, suite_documents
from results_io import DiskError, UserError


def kind_of(folder: Path) -> str | None:
    """geometry, suites, drift or judging; None if the folder holds none of them, like a run's folder."""
    if results_io.find(folder, POSITION) is not None:
        return "geometry"
    if suite_documents(folder):
        return "suites"
    if next(folder.glob(MANIFESTS), None):
        return "drift"
    from meridian.report import judging_page

    return "judging" if judging_page.holds(folder) else None


def of(folder: Path, title: str) -> FolderPage:
    """The page of `folder`. ValueError if it has none; ResultError if a result cannot be read."""
    kind = kind_of(folder)
    if kind == "geometry":
        from meridian.report import geometry_page  # imported here, because the suites' statistics load slowly

        return geometry_page.of(folder, title)
    if kind == "suites":
        from meridian.report import suites_page

        return suites_page.of(folder, title)
    if kind == "drift":
        from meridian.report import drift_page

        return drift_page.of(folder, title)
    if kind == "judging":
        from meridian.report import judging_page

        return judging_page.of(folder, title)
    raise ValueError(f"{folder} has no page of its own; a run's report is meridian.report.write")


def write(folder: Path, say: Callable[[str], Any]) -> None:
    """Write report.html into a folder that has a page, and print where it is, or which result cannot be read.

    The measurements are already written by then, so an unreadable result does not end the command. DiskError for a disk problem.
    """
    try:
        if kind_of(folder) is not None:
            say(f"Report {draw(folder)}")
    except DiskError:
        raise
    except UserError as error:
        say(f"No report: {error}")


def draw(folder: Path) -> Path:
    """Write report.html into a folder that has a page; returns its path.

    UserError if a result cannot be read, or for a disk problem.
    """
    from meridian.report import folder_page

    return folder_page.write(of(folder, "/".join(folder.resolve().parts[-2:])), folder)
