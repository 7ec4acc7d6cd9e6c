"""Which page a folder of results has, by what lies in it: suites, geometry, judging or a series of drift."""

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
    """geometry, suites, drift or judging; None of a folder that holds none of them, such as a run's."""
    if results_io.find(folder, POSITION) is not None:
        return "geometry"
    if suite_documents(folder):
        return "suites"
    if next(folder.glob(MANIFESTS), None):
        return "drift"
    from meridian.report import judging_page

    return "judging" if judging_page.holds(folder) else None


def of(folder: Path, title: str) -> FolderPage:
    """The page of what lies in `folder`. ValueError of a folder that has none; ResultError if a result cannot be read."""
    kind = kind_of(folder)
    if kind == "geometry":
        from meridian.report import geometry_page  # imported here: the suites' statistics take a while

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
    """report.html in a folder that has a page, and a line: where it is, or which result cannot be read and keeps it away.

    What was measured is written by then, so a result that cannot be read does not end the command. DiskError if the disk refuses.
    """
    try:
        if kind_of(folder) is not None:
            say(f"Report {draw(folder)}")
    except DiskError:
        raise
    except UserError as error:
        say(f"No report: {error}")


def draw(folder: Path) -> Path:
    """report.html in a folder that has a page; returns its path. UserError if a result cannot be read or the disk refuses."""
    from meridian.report import folder_page

    return folder_page.write(of(folder, "/".join(folder.resolve().parts[-2:])), folder)
