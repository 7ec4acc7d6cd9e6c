"""`run.py drift`: do a model's answers differ from its earlier ones, and which heads changed?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import results_io
from meridian import drift_series
from meridian.context import RunContext
from meridian.drift_series import NO_ALARM, NOT_ENOUGH, analysed_by, settings_for, settings_of
from result_types import DriftManifest, ManifestContent
from results_io import UserError
from shown_text import WIDTH

if TYPE_CHECKING:
    from suites.drift.series_record import SeriesRecord
    from suites.drift.site import SiteSource

FOLDER = "drift"  # below results
DEMO = "pocket-demo"
LONGEST_NAME = 100  # bytes of a series' name: it names a folder and is part of other names


def command(context: RunContext) -> int:
    """Do what `do` names: snapshot, analyse, site, register, verify, hold_out, retire, reveal or trace; else the first three.

    Exit code 0 without an alarm, 1 with one, 3 if there is not enough data. UserError for an unknown `do` or no series.
    """
    steps: Mapping[str, Callable[[RunContext, Path], int]] = {
        "snapshot": take,
        "analyse": analyse,
        "site": build,
        "register": register,
        "verify": verify,
        "reveal": reveal,
        "trace": trace,
    }
    of_no_series: Mapping[str, Callable[[RunContext], int]] = {"hold_out": hold_out, "retire": retire}
    asked = context.settings["do"]
    if asked is not None and asked not in {**steps, **of_no_series}:
        raise UserError(
            f"do={asked} is unknown; use {', '.join((*steps, *of_no_series))}, or leave it out for a snapshot, analysis and site"
        )
    if asked in of_no_series:
        return of_no_series[asked](context)
    if asked == "site" and context.settings["manifest"]:
        return build(context, Path())
    folder = folder_of(context)
    if asked is not None:
        return steps[asked](context, folder)
    taken = take(context, folder)
    code = analyse(context, folder) or taken  # a snapshot without an answer is a gap; the site shows it
    build(context, folder)
    if context.settings["series"] == DEMO:
        from meridian import drift_demo

        drift_demo.trace_first(context, folder)
    return code


def folder_of(context: RunContext) -> Path:
    """results/drift/<series>. UserError if the series has no name, or one that is no plain folder name or too long."""
    name = "" if (given := context.settings["series"]) is None else str(given)
    if not name or name.startswith(".") or {"/", "\\", "\0"} & set(name) or len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"drift needs series=, a plain name such as {DEMO} of up to {LONGEST_NAME} bytes; it is {given!r}"
        )
    return context.results / FOLDER / name


def take(context: RunContext, folder: Path) -> int:
    """The snapshot of now, or all five of the demo. Exit code 3 if the model gave no answer: that is a gap.

    UserError also for an endpoint that refuses (a wrong key, a wrong setting): nothing is known of that week then.
    """
    drift_series.set_torn_line_aside(folder)
    if context.settings["series"] == DEMO:
        from meridian import drift_demo

        drift_demo.take(context, folder, settings_of(context))
        return NO_ALARM
    from suites.drift import schedule, snapshot
    from suites.models import open_model
    from suites.models.connection import UnansweredError

    settings = settings_for(context, folder)
    try:
        model = open_model(context.model_settings)
    except UnansweredError as error:
        week = schedule.week_id(snapshot.now())
        is_gap = snapshot.absent(folder, week, str(error))
        what = "is a gap" if is_gap else "is none of the weeks of this series, so nothing is missing"
        context.reporter.say(f"{week} {what}: {error}")
        return NOT_ENOUGH
    return drift_series.take_with(context, folder, model, settings)


def analyse(context: RunContext, folder: Path) -> int:
    """Write results 161 to 169 and a manifest for every snapshot from the record, and print the table of alarms."""
    from meridian.report import pages
    from suites.drift import analysis, registration, series_record, snapshot

    require_record(folder)
    series_record.require_whole(folder, series_record.read(folder / series_record.NAME))
    manifest = analysis.analyse(folder, analysed_by(settings_for(context, folder)), context.seed)
    if manifest["registered"]:
        registration.write_decisions(folder, manifest["registered"], snapshot.now())
    manifests = [analysis.read(folder / f"manifest-{one}.json") for one in manifest["snapshots"]]
    context.reporter.console.print(alarm_table(manifests), width=min(context.reporter.console.width, WIDTH))
    context.reporter.say(f"Results {folder} ({series_record.NAME}, manifest-<id>.json, 161 to 169)")
    pages.write(folder, context.reporter.say)
    return analysis.exit_code(manifest)


def alarm_table(manifests: list[DriftManifest]) -> Table:
    """One row for each alarm, and one for each snapshot without an alarm."""
    table = Table(title="Alarms", box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("snapshot", "metric", "axis", "change", "p adj.", "why"):
        table.add_column(name, no_wrap=name != "why", justify="right" if name in ("change", "p adj.") else "left")
    for one in manifests:
        gap = any(gap["snapshot"] == one["snapshot"] and gap["whole"] for gap in one["gaps"])
        if not one["alarms"]:
            what = (
                "a gap" if gap else "no snapshot before it" if one["previous"] is None else f"against {one['previous']}"
            )
            table.add_row(one["snapshot"], "-" if gap or one["previous"] is None else "none", "", "", "", what)
        for alarm in one["alarms"]:
            change = "" if alarm["difference"] is None else f"{alarm['difference']:+.3f}"
            p = "" if alarm["adjusted_p"] is None else f"{alarm['adjusted_p']:.2g}"
            why = alarm["reason"] or f"against {one['previous']}"
            table.add_row(one["snapshot"], alarm["name"], alarm["axis"], change, p, why)
    return table


def build(context: RunContext, folder: Path) -> int:
    """Write the site from the manifests of a series, or from a published manifest, and print where its first page is."""
    from suites.drift import analysis, series_record, site, snapshot

    settings = context.settings
    if settings["manifest"]:
        source = published(Path(settings["manifest"]))
        out, secrets = Path(settings["out"] or "drift-site"), ()
    else:
        require_record(folder)
        paths = sorted(folder.glob("manifest-*.json"))
        series = series_record.read(folder / series_record.NAME)
        series_record.require_whole(folder, series)
        manifests = [site.downloads.content(analysis.read(path)) for path in paths]
        heads = {one.id: series_record.head(series, one.id) for one in series.finished}
        shown = revealed(folder, series)
        source = site.SiteSource(folder.name, in_order(manifests), heads, commit(), shown)
        out = Path(settings["out"] or folder / "site")
        secrets = kept_out(series, settings_for(context, folder)["held_out"], folder, shown)
        if not secrets and any(one.started["corpus"]["held_out"] for one in series.snapshots.values()):
            context.reporter.say(
                "Held-out prompts were asked, and without drift.held_out= no page can be searched for their texts"
            )
    page = site.build(source, out, snapshot.now(), secrets)
    context.reporter.say(f"Site {page}")
    return NO_ALARM


def revealed(folder: Path, series: SeriesRecord) -> list[dict[str, Any]]:
    """What do=reveal wrote beside the record, each checked against its commitment."""
    from suites.drift import corpus, series_record

    published = series_record.commitments(series)
    return [corpus.revealed(path, published) for path in sorted(folder.glob("revealed-*.json"))]


def kept_out(series: SeriesRecord, held_out: str | None, folder: Path, shown: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts of the held-out prompts (of the demo, those beside its record), none of which may be published.

    What the record says was asked in public is no secret, nor are the messages of the revealed prompts, `shown`.
    """
    from suites.drift import corpus

    paths = [Path(held_out)] if held_out else list(folder.glob("held-out.yaml"))
    asked = [prompt for one in series.snapshots.values() for prompt in one.started["corpus"]["public"]]
    public = [
        message["content"] for prompt in (*asked, *(one["prompt"] for one in shown)) for message in prompt["messages"]
    ]
    return [text for path in paths for text in corpus.secrets(path, public)]


def in_order(manifests: list[ManifestContent]) -> list[ManifestContent]:
    """Manifests from the earliest to the latest."""
    from suites.drift import schedule

    by_id = {one["snapshot"]: one for one in manifests}
    return [by_id[one] for one in schedule.in_order(list(by_id))]


def published(path: Path) -> SiteSource:
    """The source of a site rebuilt from public data: manifest.json, and head.json and revealed.json where a site has them.

    UserError if the manifest is missing or is not UTF-8 text.
    """
    from suites.drift import site
    from suites.drift.site import downloads

    if not path.is_file():
        raise UserError(f"manifest={path} is not there; give manifest.json of a snapshot's data")
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise UserError(f"manifest={path} is not text in UTF-8; give manifest.json of a snapshot's data") from error
    manifest = downloads.read_manifest(text, str(path))
    head = path.with_name("head.json")
    heads = {manifest["snapshot"]: downloads.read_head(head)} if head.is_file() else {}
    beside = path.parent.parent / Path(downloads.REVEALED).name
    shown = downloads.read_revealed(beside, manifest) if beside.is_file() else ()
    return site.SiteSource(manifest["series"], [manifest], heads, commit(), shown)


def commit() -> str:
    """The commit of the code, with a note if files have changed since; "unknown" without one."""
    from suites.log import environment

    found = environment.of_asking({}, {})
    if found["git_sha"] is None:
        return "unknown"
    return found["git_sha"][:12] + (" (modified)" if found["git_changed"] else "")


def register(context: RunContext, folder: Path) -> int:
    """Put a hypothesis on the chain before its data, and print the head of the chain, to be committed elsewhere."""
    from suites.drift import registration, snapshot

    if not context.settings["hypothesis"]:
        raise UserError("do=register needs hypothesis=; give the YAML file with claim, metric, axis and the others")
    hypothesis = registration.read(Path(context.settings["hypothesis"]))
    head = registration.register(folder, hypothesis, snapshot.now())
    context.reporter.say(f"registered: {hypothesis['claim']}; head {head}, to be committed elsewhere before the data")
    return NO_ALARM


def verify(context: RunContext, folder: Path) -> int:
    """Check every line of the record against the chain, and against the heads published on the series' site."""
    from suites.drift import series_record, snapshot
    from suites.drift.site import downloads

    require_record(folder)
    site = Path(context.settings["out"] or folder / "site")
    heads = [downloads.read_head(path) for path in sorted(site.glob("data/*/head.json"))]
    end = snapshot.verify(folder, {one["snapshot"]: one["hash"] for one in heads})
    series_record.require_whole(folder, series_record.read(folder / series_record.NAME))
    context.reporter.say(
        f"{folder / series_record.NAME}: {end.lines} lines hold, {len(heads)} published heads found; head {end.hash}"
    )
    return NO_ALARM


def hold_out(context: RunContext) -> int:
    """Divide the prompts of the folder drift.corpus= into a public corpus (out=) and a secret file (drift.held_out=)."""
    from suites.drift.corpus import division

    settings, out = settings_of(context), context.settings["out"]
    if not settings["held_out"] or not out or not Path(settings["corpus"]).is_dir():
        raise UserError(
            "do=hold_out needs drift.corpus=FOLDER with all prompts, out=FOLDER for the public ones and drift.held_out=FILE for "
            "the others; give all three"
        )
    secret, public = Path(settings["held_out"]), Path(out)
    made = division.divide(Path(settings["corpus"]), public, secret, settings["held_out_share"])
    context.reporter.say(
        f"{public}: {len(made.public)} public prompts with their lock; ask them with drift.corpus={public}"
    )
    context.reporter.say(
        f"{secret}: {len(made.held_out)} held-out prompts, their salts and the key that chose them; keep this file and "
        f"{settings['corpus']} secret, and give drift.held_out={secret} to each snapshot"
    )
    return NO_ALARM


def retire(context: RunContext) -> int:
    """Mark a held-out prompt (snapshot=<id>@<version>) of the file drift.held_out= as asked no longer, to be revealed later."""
    from suites.drift.corpus import division

    settings, key = settings_of(context), context.settings["snapshot"]
    if not settings["held_out"] or not key:
        raise UserError("do=retire needs drift.held_out=FILE and snapshot=<prompt id>@<version>; give both")
    left = division.retire(Path(settings["held_out"]), key)
    context.reporter.say(
        f"{key} is retired, {left} held-out prompts are left on its axis; do=reveal may publish it after the next snapshot"
    )
    return NO_ALARM


def reveal(context: RunContext, folder: Path) -> int:
    """Publish text and salt of one retired held-out prompt (snapshot=<id>@<version>), verified against its commitment.

    The record says so from then on: if it is asked again, its answers are not held out.
    """
    from suites.drift import corpus, series_record, snapshot

    settings, key = settings_for(context, folder), context.settings["snapshot"]
    if not settings["held_out"] or not key:
        raise UserError("do=reveal needs drift.held_out=FILE and snapshot=<prompt id>@<version>; give both")
    require_record(folder)
    series = series_record.read(folder / series_record.NAME)
    known = series_record.commitments(series)
    active = known["commitments"].keys() - series_record.retired(series)
    found = corpus.reveal(Path(settings["held_out"]), key, known, active)
    series_record.note_revealed(folder, key, found["hmac_sha256"], snapshot.now())
    target = folder / f"revealed-{results_io.sha256(key)[:8]}.json"  # an id may be no name of a file
    results_io.write_text(target, results_io.dumps(found))
    context.reporter.say(f"{target}: the commitment {found['hmac_sha256'][:16]} is of this text and salt")
    return NO_ALARM


def trace(context: RunContext, folder: Path) -> int:
    """Find the heads behind an alarm about a local model; snapshot=, axis= and metric= name the alarm."""
    from meridian import drift_trace

    require_record(folder)
    settings = context.settings
    for name in ("snapshot", "axis", "metric"):
        if not settings[name]:
            raise UserError(f"do=trace needs {name}=; a row of the table of alarms has all three")
    metric = settings["metric"].replace(" ", "_")  # pages write "silent update"
    alarm = drift_trace.Alarm(settings["snapshot"], settings["axis"], metric)
    return drift_trace.command(context, folder, alarm, settings_for(context, folder))


def require_record(folder: Path) -> None:
    """UserError for a series without a record."""
    from suites.drift import series_record

    if not (folder / series_record.NAME).is_file():
        raise UserError(
            f"{folder} has no {series_record.NAME}; take a snapshot first: python run.py drift do=snapshot series=..."
        )
