"""Whether code that a model wrote may run here, and in which sandbox, according to the settings `code`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meridian.context import RunContext
from results_io import UserError

if TYPE_CHECKING:
    from suites.execution.sandbox import Sandbox
    from suites.execution.scoring import Executor, SuiteExecutions
    from suites.item import Suite
    from suites.log.generations import RecordedRun


def allowed(context: RunContext, suites: Sequence[Suite], every: bool) -> list[Suite]:
    """The suites that may run.

    With code.allow=false, suites that execute code may not. If `every` suite was asked for, they are left out and a message
    says so. UserError if such a suite was asked for by name.
    """
    from suites.execution import scoring

    held = [suite.id for suite in suites if scoring.needs_sandbox(suite)]
    if not held or context.settings["code"]["allow"]:
        return list(suites)
    if not every:
        raise UserError(
            f"{held[0]} runs code that the model writes, and code.allow is false; code.allow=true runs it, in a container "
            "(code.image=NAME@sha256:...) or, for models that you trust, with code.sandbox=process"
        )
    context.reporter.say(f"Left out, since code.allow is false: {', '.join(held)}")
    return [suite for suite in suites if suite.id not in held]


def executor(context: RunContext, folder: Path, suites: Sequence[Suite]) -> Executor | None:
    """The function that runs the programs of these suites; None if they have none. UserError if the sandbox is not available."""
    from suites.execution import execution_record, sandbox, scoring

    settings = context.settings["code"]
    kinds = {s.id: settings["sandbox"] or scoring.sandbox_of(s) for s in suites if scoring.needs_sandbox(s)}
    opened: dict[str, Sandbox] = {kind: sandbox.open_sandbox(kind, settings) for kind in set(kinds.values())}
    if not opened:
        return None
    for kind, one in opened.items():
        about = one.identity
        context.reporter.say(f"Code runs in: {kind} ({about['isolation']}; network {about['network']})")

    def executed(suite: Suite, run: RecordedRun) -> SuiteExecutions:
        with (
            execution_record.ExecutionRecord(folder / execution_record.NAME) as known,
            context.reporter.counting("programs") as bar,
        ):
            return scoring.execute(suite, run, opened[kinds[suite.id]], known, bar, settings["start"])

    return executed
