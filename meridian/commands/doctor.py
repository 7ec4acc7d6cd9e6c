"""`run.py doctor`: is it the model or the library?"""

from __future__ import annotations

import results_io
from meridian.context import RunContext

UNHEALTHY = 1  # exit code


def command(context: RunContext) -> int:
    """Print what was found and keep it in doctor.json; exit code 1 if something is wrong."""
    plan = context.plan(context.tasks()[0])  # one task will do: the model and the library are examined, not the tasks
    from circuits import claims
    from meridian import doctor

    settings, reporter = context.settings, context.reporter
    # the circuit only serves the estimate of time, which assumes one where none is stored; a search would be a run of its own
    if settings["circuit"]["kind"] != "discovered" and plan.task.name in plan.identity.circuits:
        plan.circuit = claims.resolve(plan, settings["circuit"], context.folder(plan.task.name), reporter.bar)
    report = doctor.examine_model(plan, reporter.say, settings["doctor"]["device"])
    doctor.show(report, reporter.console)
    path = context.model_folder / "doctor.json"
    results_io.write(path, report.to_dict())
    reporter.say(f"Report {path}")
    return 0 if report.healthy else UNHEALTHY
