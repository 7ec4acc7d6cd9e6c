"""`run.py task=...`: measure, calibrate and certify, once for each task asked for."""

from __future__ import annotations

from pathlib import Path

from meridian import first_checks, stages
from meridian.context import RunContext
from results_io import UserError


def command(context: RunContext) -> None:
    """Run every task. If one of several is refused, say so and go on with the next.

    UserError at the end if one was refused, and at once for a model with silenced heads.
    """
    if context.settings["model"].get("intervention"):
        raise UserError(
            "model.intervention silences heads for suites, and a circuit is certified on the model as it is; leave it out, or "
            "run suite=all"
        )
    first_checks.check(context)
    tasks, refused = context.tasks(), []
    for task in tasks:
        try:
            certified(context, task)
        except stages.NothingToCertify as reason:
            context.reporter.say(str(reason))
        except UserError as reason:
            if len(tasks) == 1:
                raise
            refused.append(task)
            context.reporter.say(f"{task} left out: {reason}")
    stages.summarise(context, refused)


def certified(context: RunContext, task: str) -> Path:
    """The stages of one task, one after the other; returns the folder of its results."""
    with context.followed(context.folder(task), task):
        folder = stages.measure(context, task)
        documents = stages.calibrate(context, folder)
        certificate = stages.certify(context, folder, documents)
        stages.report(context, folder)
        stages.show(context, folder, certificate)
    return folder
