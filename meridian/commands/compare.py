"""`run.py compare`: two finished runs side by side."""

from __future__ import annotations

from meridian.context import RunContext
from results_io import UserError


def command(context: RunContext) -> None:
    """Compare runs `a` and `b`; print the result and write it below the results folder."""
    from meridian import run_comparison, run_comparison_table

    settings, reporter = context.settings, context.reporter
    for side in "ab":
        if not settings[side]:
            raise UserError(f"compare needs {side}=; give the folder of a finished run, for example results/pocket/ioi")
    found = run_comparison.compare(str(settings["a"]), str(settings["b"]))
    run_comparison_table.show(found, reporter.console)
    reporter.say(f"Comparison {run_comparison.write(found, context.results) / run_comparison.FILE}")
