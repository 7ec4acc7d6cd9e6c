"""`run.py shadow`: a candidate answers a sample of logged requests, unseen by users, and is monitored for a change."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.table import Table

import results_io
from meridian import overrides
from meridian.commands import drift, judge
from meridian.context import RunContext
from result_types import ShadowResult
from results_io import UserError

if TYPE_CHECKING:
    from suites.judging.judge import Judge
    from suites.models.base import ModelUnderTest
    from suites.shadow.evaluation import Pass
    from suites.shadow.traffic_record import TrafficRecord

FOLDER = "shadow"  # below results
QUIET, ALARM, NOT_ENOUGH = 0, 1, 3  # exit codes
UNKNOWN_RUBRIC = "the record does not say by which rubric it judged; run with judge= once"


def command(context: RunContext) -> int:
    """Make one pass over the traffic and write result 189.

    Exit code 0: no alarm; 1: an alarm that the candidate is worse; 3: nothing has been sampled yet, or too many calls failed.
    UserError for wrong settings, and for a judge that may not be deployed.
    """
    if not (given := context.settings["follow"]):
        raise UserError("shadow needs follow=; give the file of logged requests, for example follow=traffic.jsonl")
    from suites.shadow import evaluation, redaction, sampling, traffic, traffic_record

    settings = context.settings["shadow"]
    logged = traffic.read(Path(given))
    redactor = redaction.Redactor(settings["redact"])
    from suites.models import open_model

    model = open_model(context.model_settings)
    deployed = _deployed_judge(context, model)
    evaluation.require_chat(logged, model, settings)
    folder = folder_of(context, Path(given))
    key = sampling.key_of(folder, settings["key_env"])
    with context.alone(folder), traffic_record.TrafficRecord(folder) as opened:
        _plan(context, model, opened, key, settings, deployed)
        done = _pass(context, logged, model, opened, key, redactor, settings)
        if deployed is not None:
            _judge(context, deployed, opened)
        code = _finish(context, folder, opened, done, settings, model)
        _feed(context, opened, logged, settings)
    return code


def folder_of(context: RunContext, follow: Path) -> Path:
    """results/shadow/<name>. UserError for a name that is not a plain folder name."""
    name = context.settings["shadow"]["name"] or f"{follow.stem}-{context.model_settings['name']}".replace("/", "_")
    if name.startswith(".") or {"/", "\\", "\0"} & set(name):
        raise UserError(f"shadow.name={name} is no plain name; expected one such as may-traffic")
    return context.results / FOLDER / overrides.folder_name(name)


def _plan(
    context: RunContext,
    model: ModelUnderTest,
    opened: TrafficRecord,
    key: bytes,
    settings: Mapping[str, Any],
    deployed: Judge | None,
) -> None:
    """Fix on the record whatever the test depends on, and look whether the judge of its verdicts may still decide."""
    opened.start(candidate=dict(model.identity), rate=settings["rate"], key=results_io.sha256(key.hex()))
    by = None if deployed is None else (deployed.fingerprint, deployed.rubric.sha256)
    opened.plan(settings["alpha"], settings["expected"], by)
    stream = opened.stream
    if deployed is None and stream.judge is not None:
        from suites.judging import passport

        why = UNKNOWN_RUBRIC
        if stream.rubric is not None:
            why = passport.why_not(context.results / judge.FOLDER, stream.judge, stream.rubric)
        if why is not None:
            stream.doubt = f"its judge may not be deployed now ({why})"
            context.reporter.say(f"The verdicts on the record decide nothing: {stream.doubt}")


def _pass(
    context: RunContext,
    logged: Any,
    model: ModelUnderTest,
    opened: TrafficRecord,
    key: bytes,
    redactor: Any,
    settings: Mapping[str, Any],
) -> Pass:
    """Delete expired texts, ask the candidate the sampled requests that have no answer yet, and print what was done."""
    from suites.shadow import evaluation

    now = datetime.now(UTC)
    if deleted := opened.expire(now.date().isoformat()):
        context.reporter.say(f"{deleted} texts were older than {settings['retention']} days and are deleted")
    with context.reporter.counting("shadow") as bar:
        done = evaluation.follow(logged, model, opened, key, redactor, settings, now, bar)
    flag = settings["opt_in"]
    if logged and not done.opted_in:
        context.reporter.say(
            f"None of {done.requests} requests has meta.{flag}: true; only requests of people who agreed are used. Where all in "
            "the file have, say so with shadow.opt_in=all"
        )
    context.reporter.say(
        f"{done.requests} requests, {done.opted_in} may be used, {done.sampled} in the sample; {done.asked} asked now, "
        f"{done.failed} failed, {done.over_budget} over the budget"
    )
    if done.why is not None:
        context.reporter.say(f"{done.failed} of {done.asked} calls failed and are in no rate; the first: {done.why}")
    return done


def _deployed_judge(context: RunContext, candidate: ModelUnderTest) -> Judge | None:
    """The judge that the settings name, or None. UserError if it may not be deployed or is the candidate itself."""
    if context.settings.get("judge") is None:
        return None
    from suites.judging import judge as judging
    from suites.judging import passport

    opened = judge.judges(context, "pairs")
    if len(opened) > 1:
        raise UserError(
            "shadow needs one judge; name one of the demo with judge.planted, for example judge.planted=fair"
        )
    judging.refuse_itself(opened[0], {candidate.name: candidate.identity}, allowed=False)
    why = passport.why_not(context.results / judge.FOLDER, opened[0].fingerprint, opened[0].rubric.sha256)
    if why is not None:
        raise UserError(
            f"the judge {opened[0].name} may not be deployed ({why}); validate it first with run.py judge do=validate, or leave "
            "judge= out"
        )
    return opened[0]


def _judge(context: RunContext, deployed: Judge, opened: TrafficRecord) -> None:
    from suites.shadow import evaluation

    with judge.record_of(context, deployed) as (_, judgements, bar):
        evaluation.judge_pairs(opened, deployed, judgements, bar)


def _finish(
    context: RunContext,
    folder: Path,
    opened: TrafficRecord,
    done: Pass,
    settings: Mapping[str, Any],
    model: ModelUnderTest,
) -> int:
    """Write the suite of failed requests and result 189, print the table, and return the exit code."""
    from suites.shadow import evaluation, results, suite

    target = suite.write(folder, folder.name, opened.stream, settings["siblings"], settings["max_tokens"])
    stream = opened.stream
    by = None if stream.judge is None else {"judge": stream.judge, "rubric": stream.rubric}
    subject = {"candidate": model.name, "identity": dict(model.identity), "judge": by}
    path, worse = results.write(folder, opened.stream, done, settings, subject, None if target is None else target.name)
    context.reporter.console.print(table(read(path)))
    if target is not None:
        own = shlex.quote(f"suite.path={target}")
        typed = context.choice("model", "results")
        context.reporter.say(f"What failed, with its siblings: python run.py suite=file {own}{typed}")
        if any("judge" in reasons for reasons in evaluation.failing(opened.stream).values()):
            context.reporter.say(
                "That suite sees empty outputs and phrases of refusal. What the judge found worse is judged again between two "
                "runs of it: python run.py judge do=pairs"
            )
    context.reporter.say(f"Results {path}")
    if not opened.stream.sampled:
        return NOT_ENOUGH
    unanswered, most = len(stream.unanswered), settings["most_failed"]
    of_pass = done.failed > most * done.asked
    if not worse and (of_pass or unanswered > most * (len(stream.sampled) + unanswered)):
        what = "calls failed" if of_pass else f"requests on record have no answer ({unanswered}, every call failed)"
        context.reporter.say(
            f"More than {most:.0%} of the {what} (shadow.most_failed), so the answers are not a random sample of the traffic: no "
            "alarm shows nothing"
        )
        return NOT_ENOUGH
    return ALARM if worse else QUIET


def read(path: Path) -> ShadowResult:
    """Read result 189. ResultError if the file is not one, or was changed after it was written."""
    return cast(ShadowResult, results_io.read(path, "189"))


def table(document: ShadowResult) -> Table:
    """One row per metric: the observed share, the rate p0 that it is tested against, the e-value, and the items until alarm.

    An alarm names the side of p0 on which the share was then.
    """
    shown = Table(title="Shadow", box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("metric", "n", "share", "against", "direction", "e", "alarm after"):
        shown.add_column(name, justify="left" if name in ("metric", "direction") else "right")
    for one in document["records"]:
        share = "" if one["value"] is None else f"{one['value']:.3f}"
        alarm = ", ".join(f"{n} {side}" for side, n in one.get("alarms", {}).items()) or "-"
        name = one["metric_id"].removeprefix("W.shadow.")
        shown.add_row(name, str(one["n"]), share, f"{one['p0']:g}", one["direction"], f"{one['e']:.3g}", alarm)
    return shown


def _feed(context: RunContext, opened: TrafficRecord, logged: Any, settings: Mapping[str, Any]) -> None:
    """Pass the completed weeks on to a drift series."""
    if settings["series"] is None or not logged:
        return
    from suites.shadow import snapshots

    with contextlib.ExitStack() as stack:
        folder = context.results / drift.FOLDER / overrides.folder_name(str(settings["series"]))
        stack.enter_context(context.alone(folder))
        last = max(one.day for one in logged)
        weeks = snapshots.feed(folder, opened.stream, last, settings["max_tokens"])
    series = shlex.quote(f"series={settings['series']}")
    context.reporter.say(
        f"{', '.join(weeks) or 'No new week'} for drift: python run.py drift {series} do=analyse{context.choice('results')}"
    )
