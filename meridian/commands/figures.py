"""`run.py figures`: figures and tables of a finished run, for papers."""

from __future__ import annotations

from pathlib import Path

import results_io
from meridian.context import RunContext
from results_io import UserError

GEOMETRY = "171"  # a result that only a run of geometry=... has
SUITES = "131"  # and one that only a run of suite=... has


def command(context: RunContext) -> None:
    """Figures and tables of the run in `from`."""
    from meridian import paper
    from meridian.run_folder import RunFolder

    settings = context.settings
    if not settings["from"]:
        raise UserError("figures needs from=; give the folder of a finished run, for example results/pocket/ioi")
    paper.check(settings["figures"])
    if results_io.find(Path(str(settings["from"])), GEOMETRY) is not None:
        context.reporter.say(paper.write_geometry(Path(str(settings["from"])), settings["figures"]).sentence())
        return
    if results_io.find(Path(str(settings["from"])), SUITES) is not None:
        context.reporter.say(paper.write_suites(Path(str(settings["from"])), settings["figures"]).sentence())
        return
    context.reporter.say(
        paper.write(RunFolder.open_as_certified(str(settings["from"])), settings["figures"]).sentence()
    )
