"""report.html of a folder of suites, drift, geometry or judging: a single file built from the parts of a run's report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

import results_io
from meridian import report
from meridian.figures import plotly as browser
from meridian.figures.values import Figure
from meridian.report import bundle, sources
from meridian.report.browsed_table import BrowsedTable
from meridian.report.figure_numbers import numbers_of
from meridian.report.figure_sections import FigureWithNumbers

SCRIPTS = ("page.js", "sources.js", "heads.js", "figures.js", "tables.js", "address.js", "start_folder.js")
NO_RUN = {"heads": [], "attention": {"examples": []}}  # in place of a run's data, which the shared script reads


@dataclass(frozen=True)
class FolderPage:
    """The content of a folder: sentences (`lines`), tables with the worst rows first, then figures with their numbers."""

    kind: str  # "Behavioural suites"
    title: str
    lines: tuple[str, ...]
    tables: tuple[BrowsedTable, ...]
    figures: tuple[FigureWithNumbers, ...] = ()

    @property
    def shown_tables(self) -> tuple[BrowsedTable, ...]:
        """The tables that have rows."""
        return tuple(table for table in self.tables if table.rows)


def with_numbers(figures: Iterable[Figure], files: Mapping[str, str]) -> tuple[FigureWithNumbers, ...]:
    """Each figure with its table of numbers and the results named in its caption. `files`: {number of a result: its file}."""
    return tuple(
        FigureWithNumbers(one, numbers_of(one), tuple(sources.of_caption(one.caption, files))) for one in figures
    )


def render(page: FolderPage) -> str:
    """The page as HTML: a single file that needs no network. The same results give the same bytes."""
    drawn = {one.figure.name: browser.specification(one.figure) for one in page.figures}
    packed = json.dumps(drawn, sort_keys=True, separators=(",", ":"))
    return (
        report.environment([])
        .get_template("folder.html.j2")
        .render(
            page=page,
            style=Markup(report.style()),
            script=Markup(report.script(SCRIPTS)),
            data=Markup(json.dumps(NO_RUN)),
            library=bundle.library() if drawn else "",
            specifications=bundle.pack(packed) if drawn else "",
        )
    )


def write(page: FolderPage, folder: Path) -> Path:
    """Write report.html into `folder` in one step; returns its path."""
    path = Path(folder) / report.NAME
    results_io.write_text(path, render(page))
    return path
