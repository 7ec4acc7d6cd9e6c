"""Files for a paper, written beside a run's results: figures with captions, and tables."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results_io
from meridian import figures, tables
from meridian.figures import behaviour, geometry, geometry_csv, static
from meridian.figures.values import Figure
from meridian.run_folder import RunFolder
from meridian.tables import escaped
from results_io import UserError

FIGURES, TABLES = "figures", "tables"  # folders beside certificate.json
CAPTIONS = "captions"
TOLD = 5  # after so many figures, a line says how many are done
INCLUDED = ("pdf", "png")  # formats that LaTeX can include, best first


def _in_silence(sentence: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Written:
    """What was written, and where."""

    folder: Path
    figures: Sequence[str]
    tables: Sequence[str]

    def sentence(self) -> str:
        """For the terminal."""
        drawn = f"Figures: {len(self.figures)}, with captions, in {self.folder / FIGURES}"
        return f"{drawn}; tables: {len(self.tables)} in {self.folder / TABLES}" if self.tables else drawn


def write(
    run: RunFolder, settings: Mapping[str, Any], folder: Path | None = None, say: Callable[[str], Any] = _in_silence
) -> Written:
    """Write figures and tables of `run` to `folder` (default: the run's own), as `settings` (configs/figures) say.

    `say` is told how many are written of how many.
    UserError for an unknown format or width, or if `only` names nothing that the run has.
    """
    check(settings)
    folder = run.path if folder is None else folder
    say(f"Reading the results of {run.path}")
    drawn, tabulated = figures.of(run), tables.of(run) if settings["tables"] else {}
    names = chosen([*drawn, *tabulated], settings["only"])
    of_figures = [figure for name, figure in drawn.items() if name in names]
    of_tables = [table for name, table in tabulated.items() if name in names]
    _write_figures(of_figures, folder, settings, say)
    for table in of_tables:
        tables.write(table, folder / TABLES, settings["tables"])
    if of_figures:
        _write_captions(list(drawn.values()), folder / FIGURES, settings["width"])
    return Written(folder, [figure.name for figure in of_figures], [table.name for table in of_tables])


def write_geometry(path: Path, settings: Mapping[str, Any], say: Callable[[str], Any] = _in_silence) -> Written:
    """Write figures of a run of `geometry=...` in `path`, and a CSV with the points of each map, as `settings` say.

    UserError for an invalid setting, and if the folder has no such results.
    """
    check(settings)
    drawn = list(geometry.build(path))
    shown = _draw(drawn, path, settings, say)
    for figure in shown:
        results_io.write_text(path / FIGURES / f"{figure.name}.csv", geometry_csv.of(figure))
    return Written(path, [figure.name for figure in shown], [])


def write_suites(path: Path, settings: Mapping[str, Any], say: Callable[[str], Any] = _in_silence) -> Written:
    """Write figures of a run of `suite=...` in `path`: failure rates, and risk against coverage.

    UserError for an invalid setting.
    """
    check(settings)
    shown = _draw(list(behaviour.of_suites(path)), path, settings, say)
    return Written(path, [figure.name for figure in shown], [])


def _draw(drawn: Sequence[Figure], path: Path, settings: Mapping[str, Any], say: Callable[[str], Any]) -> list[Figure]:
    """Write the figures that `settings.only` names as files with captions; returns these figures."""
    names = chosen([figure.name for figure in drawn], settings["only"])
    shown = [figure for figure in drawn if figure.name in names]
    _write_figures(shown, path, settings, say)
    if shown:
        _write_captions(drawn, path / FIGURES, settings["width"])
    return shown


def _write_figures(
    shown: Sequence[Figure], folder: Path, settings: Mapping[str, Any], say: Callable[[str], Any]
) -> None:
    """Write each figure to `folder`/figures. `say` is told of every `TOLD`th."""
    for place, figure in enumerate(shown, start=1):
        static.write(
            figure, folder / FIGURES, settings["formats"], settings["width"], settings["titles"], settings["theme"]
        )
        if place % TOLD == 0 and place < len(shown):
            say(f"{place} of {len(shown)} figures")


def _write_captions(shown: Sequence[Figure], folder: Path, width: str) -> None:
    """Write captions.md for all figures with a file in `folder`, new or old, and captions.tex for those LaTeX can include."""
    forms = {figure.name: [f for f in static.FORMATS if (folder / f"{figure.name}.{f}").is_file()] for figure in shown}
    present = [figure for figure in shown if forms[figure.name]]
    if present:
        results_io.write_text(folder / f"{CAPTIONS}.md", as_markdown(present))
    included = {figure.name: form for figure in present for form in INCLUDED[::-1] if form in forms[figure.name]}
    if included:
        results_io.write_text(folder / f"{CAPTIONS}.tex", as_latex(present, included, width))


def check(settings: Mapping[str, Any]) -> None:
    """UserError for an unknown format, theme or width; called before anything is written."""
    for name, known in (("formats", static.FORMATS), ("tables", tables.FORMATS)):
        value = settings[name]
        if not isinstance(value, list) or any(form not in known for form in value):
            raise UserError(
                f"figures.{name}={value} is unknown; use a list of {', '.join(known)}, such as [{known[0]}]"
            )
    if settings["theme"] not in static.THEMES:
        raise UserError(f"figures.theme={settings['theme']} is unknown; use {' or '.join(static.THEMES)}")
    if settings["width"] not in static.WIDTHS:
        raise UserError(f"figures.width={settings['width']} is unknown; use {' or '.join(static.WIDTHS)}")


def chosen(names: Sequence[str], only: str | Sequence[str] | None) -> set[str]:
    """The names that match `only`: one pattern or several, with * for any characters, or None for all.

    UserError if a pattern matches nothing.
    """
    if only is None:
        return set(names)
    patterns, found = [only] if isinstance(only, str) else list(only), set()
    for pattern in patterns:
        matching = fnmatch.filter(names, str(pattern))
        if not matching:
            stems = dict.fromkeys(re.split(r"_(?=\d)|_", name)[0] for name in names)
            known = ", ".join(f"{stem}*" for stem in stems)
            raise UserError(f"figures.only={pattern} matches none of the run's figures; use a name or {known}")
        found |= set(matching)
    return found


def as_markdown(shown: Sequence[Figure]) -> str:
    """Name, title and caption of each figure."""
    parts = (f"## {figure.name}\n\n**{figure.title}.** {figure.caption}\n" for figure in shown)
    return "# Captions\n\n" + "\n".join(parts)


def as_latex(shown: Sequence[Figure], forms: Mapping[str, str], width: str) -> str:
    """One LaTeX figure environment for each figure; a figure of double width spans both columns of a two-column page.

    `forms`: {name of a figure: the file to include, "pdf" or "png"}. Figures that it does not name are left out.
    """
    kind = "figure*" if width == "double" else "figure"
    return "\n".join(
        f"\\begin{{{kind}}}\n  \\centering\n  \\includegraphics[width=\\{'textwidth' if kind == 'figure*' else 'columnwidth'}]"
        f"{{{FIGURES}/{figure.name}.{forms[figure.name]}}}\n  \\caption{{{escaped(figure.title)}. {escaped(figure.caption)}}}\n"
        f"  \\label{{fig:{figure.name}}}\n\\end{{{kind}}}\n"
        for figure in shown
        if figure.name in forms
    )
