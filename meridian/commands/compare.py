"""`run.py compare`: two finished runs side by side, or two snapshots of drift."""

from __future__ import annotations

from meridian.context import RunContext
from results_io import UserError


def command(context: RunContext) -> None:
    """Compare `a` and `b`; print the result and write it below the results folder. UserError for a run and a snapshot."""
    settings, reporter = context.settings, context.reporter
    for side in "ab":
        if not settings[side]:
            raise UserError(f"compare needs {side}=; give the folder of a finished run, for example results/pocket/ioi")
    from meridian import drift_comparison

    of_drift = [drift_comparison.is_drift(str(settings[side])) for side in "ab"]
    if any(of_drift):
        if not all(of_drift):
            lone = settings["ab"[of_drift.index(False)]]
            raise UserError(
                f"{lone} is not a series of drift and the other side is one; compare two runs, or two snapshots"
            )
        from meridian.drift_series import analysed_by, settings_of

        reporter.say(f"Comparison {drift_comparison.command(context, analysed_by(settings_of(context)))}")
        return
    from meridian import run_comparison, run_comparison_table

    found = run_comparison.compare(str(settings["a"]), str(settings["b"]))
    run_comparison_table.show(found, reporter.console)
    reporter.say(f"Comparison {run_comparison.write(found, context.results) / run_comparison.FILE}")
