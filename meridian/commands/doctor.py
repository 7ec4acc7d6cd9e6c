"""`run.py doctor`: is it the model or the library?"""

from __future__ import annotations

import results_io
from meridian.context import RunContext

UNHEALTHY = 1  # exit code


def command(context: RunContext) -> int:
    """Print the findings and write them to doctor.json; exit code 1 if something is wrong."""
    plan = context.plan(context.tasks()[0])  # one task will do: the model and the library are examined, not the tasks
    from circuits import claims, numerics
    from meridian import doctor

    settings, reporter = context.settings, context.reporter
    # only the time estimate uses the circuit, and assumes one if none is stored; a search would be a run of its own
    if settings["circuit"]["kind"] != "discovered" and plan.task.name in plan.identity.circuits:
        plan.circuit = claims.resolve(plan, settings["circuit"], context.folder(plan.task.name), reporter.bar)
    with numerics.pinned(plan.model_settings.get("device")):
        report = doctor.examine_model(plan, reporter.say, settings["doctor"]["device"])
    doctor.show(report, reporter.console)
    path = context.model_folder / "doctor.json"
    results_io.write(path, report.to_dict())
    reporter.say(f"Report {path}")
    return 0 if report.healthy else UNHEALTHY
