"""A series of snapshots: its settings, and taking one snapshot of an opened model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_io
from meridian import overrides
from meridian.context import RunContext
from results_io import UserError

if TYPE_CHECKING:
    from suites.drift.corpus import Corpus
    from suites.drift.series_record import RecordedSnapshot

NO_ALARM, NOT_ENOUGH = 0, 3  # exit codes; 1 is an alarm


def settings_of(context: RunContext) -> dict[str, Any]:
    """The section `drift` of the settings, with the snapshot that was asked for."""
    found = {**context.settings["drift"], "snapshot": context.settings["snapshot"]}
    for name in ("alpha", "most_errors"):
        if isinstance(found[name], bool) or not 0 < found[name] < 1:
            raise UserError(f"drift.{name}={found[name]} is not a share; write a number between 0 and 1")
    for name in ("default_samples", "zero_samples", "minimum_prompts", "every", "resamples"):
        if found[name] < 1:
            raise UserError(f"drift.{name}={found[name]} is too small; use a whole number of at least 1")
    return found


def settings_for(context: RunContext, folder: Path) -> dict[str, Any]:
    """`settings_of` with the corpus that the series in `folder` was last asked; before its first snapshot that of the settings.

    UserError if another corpus was typed: a series is asked one.
    """
    from suites.drift import series_record

    settings = settings_of(context)
    series = series_record.read(folder / series_record.NAME)
    if not series.order:
        return settings
    known = series.snapshots[series.order[-1]].started["corpus"]["name"]
    if "drift.corpus" not in map(overrides.setting, context.typed):
        return {**settings, "corpus": known}
    if _name(settings["corpus"]) != known:
        raise UserError(
            f"drift.corpus={settings['corpus']} is not {known}, which the series {folder.name} was asked; leave it out, or start "
            "another series"
        )
    return settings


def questions_of(settings: Mapping[str, Any], asked: RecordedSnapshot) -> Corpus:
    """The public prompts of the corpus that a snapshot was asked.

    UserError if the corpus of these settings has another name, or does not hold every public prompt of the record as it was.
    """
    from suites.drift import corpus

    found, recorded = corpus.load(settings["corpus"]), asked.started["corpus"]
    if found.name != recorded["name"]:
        raise UserError(
            f"{asked.id} was asked the corpus {recorded['name']}, not {found.name}; give that one as drift.corpus="
        )
    hashes = {prompt.key: prompt.hash for prompt in found.prompts}
    for one in recorded["public"]:
        if hashes.get(key := f"{one['id']}@{one['version']}") != one["hash"]:
            raise UserError(
                f"the corpus {found.name} has no {key} as {asked.id} was asked it; give the folder that has it as drift.corpus="
            )
    return found


def analysed_by(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an analysis rests on; of a corpus in a folder its name, wherever it lies."""
    names = ("every", "default_samples", "zero_samples", "alpha", "minimum_prompts", "most_errors")
    rest = {name: settings[name] for name in (*names, "resamples", "prompt_level")}
    return {"corpus": _name(settings["corpus"]), **rest}


def _name(corpus: str | Path) -> str:
    """What a corpus is called: its name, or that of its folder."""
    return Path(corpus).name


def set_torn_line_aside(folder: Path) -> None:
    """Let the record of a series end with a whole line, before anything reads it: whoever was killed may have torn the last."""
    from suites.drift import series_record
    from suites.log import chain

    if (path := folder / series_record.NAME).is_file():
        with chain.Writer(path):
            pass


def take_with(context: RunContext, folder: Path, model: Any, settings: Mapping[str, Any]) -> int:
    """Take one snapshot of an opened model, embed its texts if there is an embedder, and print the head of the chain.

    Returns NO_ALARM, or NOT_ENOUGH if no call was answered. The printed head is to be kept elsewhere.
    """
    from suites.drift import corpus, series_record, snapshot

    questions = corpus.load(settings["corpus"], settings["held_out"] and Path(settings["held_out"]))
    embed(folder)  # a process killed after a snapshot's last line left its texts without vectors
    with context.reporter.counting("drift") as bar:
        taken = snapshot.take(model, questions, folder, settings, seed=context.seed, bar=bar)
    if not taken.finished:
        context.reporter.say(f"{taken.id} is a gap: none of {taken.asked} calls was answered")
        return NOT_ENOUGH
    embed(folder)
    series = series_record.read(folder / series_record.NAME)
    if (published := series_record.commitments(series))["commitments"]:
        results_io.write_text(folder / corpus.COMMITMENTS, results_io.dumps(published))
    count = len(series.snapshots[taken.id].rows)
    context.reporter.say(f"{taken.id}: {count} outputs, {taken.errors} failed")
    context.reporter.say(f"Head, to be kept elsewhere: {taken.head}")
    return NO_ALARM


def embed(folder: Path) -> int:
    """Embed what has no vector by the installed embedder yet, and return how many texts.

    Covered are the snapshots that it embeds, also those taken before there was one, and the snapshot before each, which they
    are compared with. What another one embedded stays as it is.
    """
    from suites.drift import embeddings, series_record
    from suites.modes import embedding

    series = series_record.read(folder / series_record.NAME)
    if (who := embeddings.identity()) is None:
        return 0
    own = [one for one in series.finished if (one.embedder or who)["weights_sha256"] == who["weights_sha256"]]
    needed = {one.id: one for later in own for one in (series_record.previous(series, later.id), later) if one}
    rows = [row for one in needed.values() for row in one.rows.values()]
    return embeddings.fill(folder.parent / embeddings.NAME, rows, embedding.embedder) if rows else 0
