"""`run.py suite=...`: behavioural suites, and which of their failures a circuit could explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import results_io
from meridian import code_execution, integrity, optimised_suffix
from meridian.commands import judge
from meridian.context import RunContext
from result_types import TraceResult
from results_io import UserError

if TYPE_CHECKING:
    from suites.bridge.pair import SuitePairs
    from suites.judgement import JudgedSuite

ALL = "all"
DONE, NOT_ENOUGH = 0, 3  # exit codes


def command(context: RunContext) -> int:
    """Run every applicable suite on the model; print the summary and which failures a circuit could explain.

    Exit code 0; 3 if no case has a verdict, because every call failed or no program could be run.
    """
    folder = folder_asked(context)
    with context.followed(folder, "suites"):
        code = run(context, folder)
        context.reporter.tracker("asked", folder)
    return code


def run(context: RunContext, folder: Path) -> int:
    """Run the suites asked for, write their results to `folder`, and print the next step. Returns DONE or NOT_ENOUGH."""
    from meridian.report import pages
    from suites import declaration, runner, summary
    from suites.bridge import pairing, stored_pairs
    from suites.models import open_model

    asked, reporter = context.settings["suite"], context.reporter
    suites = declaration.load_all(_names(asked))
    if asked["name"] == "file" and suites[0].id in (ALL, "file", *declaration.names()):
        raise UserError(
            f"the suite in {asked['path']} has the id {suites[0].id}, under which others keep their results; give it another id"
        )
    integrity.announce(folder, reporter.say)
    suites = code_execution.allowed(context, suites, asked["name"] == ALL)
    optimised_suffix.check(context, suites)
    executor = code_execution.executor(context, folder, suites)
    model = open_model(context.model_settings)
    suites = [*suites, *optimised_suffix.made(context, folder, suites, model)]
    found = runner.run(
        suites,
        model,
        folder,
        reporter.counting,
        reporter.say,
        context=asked.get("context"),
        seed=context.seed,
        grader=judge.grader(context, model) if context.settings.get("judge") else None,
        executor=executor,
        sla=asked.get("sla"),
    )
    groups = [pairing.group(judged, model) for judged in found.suites if judged.applies and judged.failures]
    hashes = {suite.id: suite.sha256 for suite in suites}
    stored_pairs.write(folder, groups, model.identity, hashes)
    traced = known_traces(context.model_folder, model.identity.get("weights"), hashes)
    notes = [*traced, *next_step(groups, context.choice("model", "results"))]
    summary.show(found, reporter.console, groups, notes)
    pages.write(folder, reporter.say)
    if not nothing_judged(found.suites):
        return DONE
    reporter.say(
        "No case has a verdict, because every call failed or no program could be run; what was generated is kept, and the same "
        "command tries the rest again"
    )
    return NOT_ENOUGH


def nothing_judged(suites: Sequence[JudgedSuite]) -> bool:
    """Whether there are cases, and all of them, in all suites, rest on a failed call or on a program that was not run."""
    cases = sum(len(one.cases) for one in suites)
    return 0 < cases == sum(one.counts["error"] for one in suites)


def folder_asked(context: RunContext) -> Path:
    """The folder of the results: results/<model>/suites, or a folder below it for a single suite."""
    from suites import declaration
    from suites.bridge import stored_pairs

    asked = context.settings["suite"]
    below = "" if asked["name"] == ALL else declaration.load_all(_names(asked))[0].id
    return context.model_folder / stored_pairs.FOLDER / below


def _names(asked: Mapping[str, Any]) -> list[str] | None:
    """The suites to load: None for the whole catalogue, else the name of one suite or the user's own folder."""
    if asked["name"] == ALL:
        return None
    if asked["name"] == "file" and not asked.get("path"):
        raise UserError("suite=file needs suite.path; give the folder that holds suite.yaml and its lock")
    return [asked["path"] if asked["name"] == "file" else asked["name"]]


def known_traces(folder: Path, weights: str | None, suites: Mapping[str, str]) -> list[str]:
    """One line per earlier trace of these weights and suite versions, with the heads that it named.

    `folder`: all results of the model; `suites`: {id: hash of the suite}.
    """
    from suites.bridge import hypothesis

    lines = []
    for path in sorted(folder.rglob(f"{hypothesis.NUMBER}_{hypothesis.ID}.json")):
        try:
            traced = cast(TraceResult, results_io.read(path))
        except results_io.NoDigestError as error:
            lines.append(f"Not listed: {error}")
            continue
        group = traced["group"]
        if traced["subject"]["model_sha256"] == weights and suites.get(group["suite"]) == group["suite_sha256"]:
            heads = ", ".join(f"{one['head']} ({one['restored']:.2f})" for one in traced["named"]) or "no head"
            lines.append(f"Traced: {group['suite']} leads to {heads}")
    return lines


def next_step(groups: Sequence[SuitePairs], typed: str) -> list[str]:
    """How to trace the largest group, or another one; empty if no group has enough pairs.

    `typed`: overrides to repeat in the command.
    """
    ready = [group for group in groups if group.traceable]
    if not ready:
        return []
    largest = max(ready, key=lambda group: (len(group.pairs), group.suite))
    return [
        f"Next: python run.py task=failures calibration=all{typed}",
        f"traces the largest group, {largest.suite}; task.group=<suite> another",
    ]
