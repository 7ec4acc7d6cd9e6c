"""`run.py figures`: figures and tables of a finished run, for papers, and its report.

For folders of suites, geometry, judging and drift it writes their page.
"""

from __future__ import annotations

from pathlib import Path

import results_io
from meridian.context import RunContext
from results_io import UserError

GEOMETRY = "171"  # a result that only runs of geometry=... have
SUITES = "131"  # a result that only runs of suite=... have


def command(context: RunContext) -> None:
    """Figures, tables and report.html of the run in `from`, or of a folder of suites, geometry, judging or drift."""
    from meridian import paper, report
    from meridian.report import pages
    from meridian.run_folder import CERTIFICATE, RunFolder

    settings = context.settings
    if not settings["from"]:
        raise UserError("figures needs from=; give the folder of a finished run, for example results/pocket/ioi")
    paper.check(settings["figures"])
    folder = Path(str(settings["from"]))
    if results_io.find(folder, GEOMETRY) is not None:
        say = context.reporter.say
        say(paper.write_geometry(folder, settings["figures"], say=say).sentence())
    elif results_io.find(folder, SUITES) is not None:
        say = context.reporter.say
        say(paper.write_suites(folder, settings["figures"], say=say).sentence())
    if folder.is_dir() and not (folder / CERTIFICATE).is_file() and pages.kind_of(folder) is not None:
        context.reporter.say(f"Report {pages.draw(folder)}")
        return
    _require_a_run(folder)
    run = RunFolder.open_as_certified(str(settings["from"]))
    context.reporter.say(paper.write(run, settings["figures"], say=context.reporter.say).sentence())
    context.reporter.say(f"Report {report.write(run)}")


def _require_a_run(folder: Path) -> None:
    """UserError for a folder with neither a run nor a page, in or below it: the remedy names a folder below that has a page."""
    from meridian.report import pages
    from meridian.run_folder import CERTIFICATE, below

    if not folder.is_dir() or next(below(folder, CERTIFICATE), None) is not None:
        return  # RunFolder says what is wrong
    known = sorted(
        path for path in {found.parent for found in below(folder, "*.json")} if pages.kind_of(path) is not None
    )
    remedy = f"use {known[0]}" if known else "give the folder of a finished run, for example results/pocket/ioi"
    others = f", or another of the {len(known)} folders below with such results" if len(known) > 1 else ""
    raise UserError(
        f"{folder} has no {CERTIFICATE} and no results of suites, geometry, judging or drift; {remedy}{others}"
    )
