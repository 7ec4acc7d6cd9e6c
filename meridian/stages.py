"""The three stages of a run (measure, calibrate, certify) as functions of its context, and the output at the end."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import code_digest
import results_io
from calibrations import calibrate as calibrating
from calibrations import certificate, claims_tried, preconditions, rules, summary
from calibrations.evidence import Evidence
from meridian import aggregate, allocator, commandline, integrity
from meridian.commandline import FAILURES, FILE, TRACED
from meridian.context import RunContext
from meridian.headline import READ, WORDED_BY, headline
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError

if TYPE_CHECKING:
    from circuits.circuit import Circuit
    from circuits.measure import Plan


class NothingToCertify(Exception):
    """The trace named no head, so there is no circuit to certify."""


def measure(context: RunContext, task: str) -> Path:
    """Stage 1 for one task; returns the folder of its results."""
    plan = context.plan(task)
    from circuits import numerics

    with numerics.pinned(plan.model_settings.get("device")):
        return _measure(context, plan, task)


def _measure(context: RunContext, plan: Plan, task: str) -> Path:
    from circuits import measure

    folder, shared = context.folder(task), context.folder(task, default=True)
    announce_rows(context, plan)
    integrity.require_named(folder)
    integrity.announce(folder, context.reporter.say)
    plan.circuit = claimed_circuit(context, plan, folder)
    numbers = numbers_read(context)
    plan.require_reference()
    measure.check(plan, numbers)
    for number in left_out_by_setting(context):
        measure.path_of(folder, number).unlink(missing_ok=True)  # it may be from an earlier run with other settings
    announce_replacement(context, plan, folder)
    reporter, prompts = context.reporter, f"prompts-{plan.prompts_sha256[:12]}"
    arguments = (allocator.before_each(reporter.bar), shared, reporter.say, lambda: context.alone(shared, prompts))
    measure.measure(plan, folder, ["01"], *arguments)
    if not context.settings["measurement"]["regardless"] and (absent := absent_behaviour(context, folder)):
        measure.remove_stale(plan, folder, [number for number in numbers if number not in calibrating.ALWAYS_READ])
        plan, numbers = plan.with_settings(plan.settings["without_behaviour"]), list(calibrating.ALWAYS_READ)
        reporter.say(
            f"{plan.identity.name} {absent}; the other measurements are left out (measurement.regardless=true: not)"
        )
    measure.measure(plan, folder, numbers, *arguments)
    return folder


def announce_rows(context: RunContext, plan: Plan) -> None:
    """For prompts from a file, print what was chosen for its rows and how many are left out, before anything is measured."""
    source, path = plan.task.source, context.settings["task"].get("path")
    if source and path:
        context.reporter.say(f"{path}: SHA-256 {results_io.file_digest(Path(path))}, its rows {source.sha256}")
    for note in source.notes if source else ():
        context.reporter.say(note)
    if source and source.left_out:
        first, reason = next(iter(source.left_out.items()))
        context.reporter.say(
            f"{len(source.left_out)} rows are left out, row {first} since it {reason}; `run.py check` names the others"
        )


def claimed_circuit(context: RunContext, plan: Plan, folder: Path) -> Circuit:
    """The circuit that the run is about. NothingToCertify if failures were traced and no head was named."""
    from circuits import claims

    reporter = context.reporter
    if not context.traced:
        return claims.resolve(plan, context.settings["circuit"], folder, reporter.bar, reporter.say)
    if plan.task.name != FAILURES:
        raise UserError(f"circuit={TRACED} is about failures; run it with task={FAILURES}, or leave it out")
    from meridian import failures
    from suites.bridge import hypothesis

    pairs = context.failures[0]
    found = hypothesis.propose(plan, pairs, folder, reporter.bar, context.settings["circuit"]["method"])
    for sentence in (pairs.sentence, *found.sentences):
        reporter.say(sentence)
    if found.circuit is None:
        failures.withdraw(folder)
        raise NothingToCertify("No component hypothesis, so nothing to certify")
    return found.circuit


def numbers_read(context: RunContext) -> list[str]:
    """Numbers of the measurements read by the requested calibrations, in order."""
    from circuits.measurements import MEASUREMENTS

    left_out = left_out_by_setting(context)
    if context.complete:
        return [number for number in MEASUREMENTS if number not in left_out]
    read = {*calibrating.measurements_of(context.identifiers)}
    if context.traced:
        from suites.bridge import confirmation

        read |= {*confirmation.NEEDED}
    return [number for number in MEASUREMENTS if number in read and number not in left_out]


def left_out_by_setting(context: RunContext) -> list[str]:
    """The measurements that `measurement.left_out` names. UserError for an unknown one, or one that every run needs."""
    from circuits.measurements import MEASUREMENTS

    asked = context.settings["measurement"]["left_out"]
    possible = [number for number in MEASUREMENTS if number not in calibrating.ALWAYS_READ]
    if wrong := [number for number in asked if number not in possible]:
        raise UserError(
            f"measurement.left_out names {wrong[0]!r}; use numbers in quotes, of {', '.join(map(repr, possible))}"
        )
    return list(asked)


def announce_replacement(context: RunContext, plan: Plan, folder: Path) -> None:
    """Warn if the folder has results of other weights, which can happen because its name does not include `model.path`."""
    path, now = results_io.find(folder, "01"), plan.identity.sha256
    try:
        stored = results_io.read(path)["subject"]["model_sha256"] if path else now
    except (UserError, KeyError):
        return
    if stored != now:
        context.reporter.say(
            f"{folder} holds results of other weights ({stored[:8]}, now {now[:8]}), which are replaced; "
            "results=<another folder> keeps both"
        )


def absent_behaviour(context: RunContext, folder: Path) -> str | None:
    """Why 01 shows no behaviour to explain; None if there is one."""
    config = calibrating.section(context.settings["calibration"], calibrating.PRECONDITIONS)
    return preconditions.absence(Evidence.load(folder, config, ("01",)), config)


def calibrate(context: RunContext, folder: Path) -> calibrating.Documents:
    """Stage 2 for one folder of results."""
    allocator.give_back()
    return calibrating.calibrate(folder, context.identifiers, context.settings["calibration"])


def folded_by(settings: Mapping[str, Any], task: str) -> tuple[Mapping[str, Any], rules.Standing]:
    """(the settings, with a preset's ceiling in the certificate section; how their rules compare with the released ones)."""
    named = settings["task"]["name"]
    standing = rules.standing(settings, named if named == FILE else task)
    if preset := settings.get("preset"):
        settings = {**settings, "certificate": {**settings["certificate"], "preset": preset}}
    return settings, standing


def certify(context: RunContext, folder: Path, documents: calibrating.Documents) -> dict[str, Any]:
    """Stage 3: fold the verdicts; certificate.json is written only if all calibrations were asked for."""
    settings, standing = folded_by(context.settings, documents[calibrating.PRECONDITIONS]["subject"]["task"])
    if context.traced:
        from meridian import failures

        folded = failures.certify(folder, documents, settings, standing, context.reporter.say)
    else:
        folded = certificate.certify(documents, settings["certificate"], standing)
    evidence = Evidence.load(folder, settings["calibration"]["common"], READ)
    folded |= integrity.made_from(folder, context.differs)
    folded["headline"] = headline(evidence, documents, settings, context.identity.origin)
    folded["headline"][WORDED_BY] = code_digest.version_of("headlines")
    if context.complete:
        results_io.write(folder / CERTIFICATE, folded)
    context.reporter.tracker("judged", folded)
    return folded


def report(context: RunContext, folder: Path) -> None:
    """Write report.html and tell the tracker; skipped unless all calibrations ran."""
    if not context.complete:
        return
    from meridian import report

    allocator.give_back()
    run = RunFolder.open(folder)
    report.write(run)
    context.reporter.tracker("finished", run)


def show(context: RunContext, folder: Path, folded: Mapping[str, Any]) -> None:
    """Print the certificate in a few lines, or as the whole table if `verbose` or if not all calibrations were asked for.

    If all were asked for, the number of claims tried is printed too: always with the whole table, else if there are several.
    """
    from meridian import certificate_lines

    reporter, complete, verbose = context.reporter, context.complete, context.settings["verbose"]
    tried = (
        claims_tried.about(folded["subject"], summary.certificates_in(context.results)[0].values())
        if complete
        else None
    )
    if verbose or not complete:
        certificate_lines.show_table(RunFolder(folder), folded, folded["headline"], reporter.console, complete)
        if tried:
            reporter.say(f"1 of {tried.sentence}")
        written = " · certificate.json · report.html" if complete else ""
        reporter.say(f"Results {folder}{written} · {reporter.rate()}\n")
        return
    several = [("Claims", f"1 of {tried.sentence}")] if tried and len(tried.tiers) > 1 else []
    details = [*several, ("Report", str(folder / "report.html")), ("Took", reporter.rate())]
    certificate_lines.show(RunFolder.open(folder), reporter.console, next_command(context, folder, folded), details)
    reporter.say("")


def next_command(context: RunContext, folder: Path, folded: Mapping[str, Any]) -> str:
    """The next command to type: one that shows every calibration with its reasons or, at the highest tier, `verify`.

    Empty if the model or task was given as a Python object.
    """
    if context.given_model is not None or context.given_task is not None:
        return ""
    if folded["tier"] == folded["of"]:
        return f"python run.py verify {shlex.quote(f'from={folder}')}"
    return " ".join(["python run.py", *map(shlex.quote, commandline.as_typed(context.typed)), "verbose=true"])


def summarise(context: RunContext, refused: Collection[str] = ()) -> None:
    """Pool every certificate under the results folder and run the global M93 over them.

    UserError after pooling if some tasks were `refused`, and before pooling if all were.
    """
    tasks = context.tasks()
    left_out = f"{len(refused)} of {len(tasks)} tasks left out, for the reasons above: {', '.join(refused)}"
    if len(refused) == len(tasks):
        raise UserError(left_out)
    pooled = aggregate.pool(context.results, context.settings["calibration"], context.reporter.say)
    if len(pooled["circuits"]) > 1 or context.settings["verbose"]:
        context.reporter.say(
            f"{len(pooled['circuits'])} certificates pooled in {context.results / 'summary.json'}; "
            f"{summary.sentence(pooled['multiplicity'])}"
        )
    if refused:
        raise UserError(left_out)
