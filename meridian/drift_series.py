"""A series of snapshots: its settings, and taking one snapshot of an opened model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results_io
from meridian.context import RunContext
from results_io import UserError

NO_ALARM, NOT_ENOUGH = 0, 3  # exit codes; 1 is an alarm


def settings_of(context: RunContext) -> dict[str, Any]:
    """The section `drift` of the settings, with the snapshot that was asked for."""
    found = {**context.settings["drift"], "snapshot": context.settings["snapshot"]}
    for name in ("alpha", "most_errors"):
        if isinstance(found[name], bool) or not 0 < found[name] < 1:
            raise UserError(f"drift.{name}={found[name]} is no share; write a number between 0 and 1")
    for name in ("default_samples", "zero_samples", "minimum_prompts", "every", "resamples"):
        if found[name] < 1:
            raise UserError(f"drift.{name}={found[name]} is too small; use a whole number of at least 1")
    return found


def analysed_by(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an analysis depends on."""
    names = ("corpus", "every", "default_samples", "zero_samples", "alpha", "minimum_prompts", "most_errors")
    return {name: settings[name] for name in (*names, "resamples", "prompt_level")}


def take_with(context: RunContext, folder: Path, model: Any, settings: Mapping[str, Any]) -> int:
    """Take one snapshot of an opened model, embed its texts if there is an embedder, and print the head of the chain.

    Returns NO_ALARM, or NOT_ENOUGH if no call was answered. The printed head is to be kept elsewhere.
    """
    from suites.drift import corpus, series_record, snapshot

    questions = corpus.load(settings["corpus"], settings["held_out"] and Path(settings["held_out"]))
    embed(folder)  # a process killed after a snapshot's last line left its texts without vectors
    with context.reporter.bar("drift") as bar:
        taken = snapshot.take(model, questions, folder, settings, seed=context.seed, bar=bar)
    if not taken.finished:
        context.reporter.say(f"{taken.id} is a gap: none of {taken.asked} calls was answered")
        return NOT_ENOUGH
    embed(folder)
    series = series_record.read(folder / series_record.NAME)
    if (published := series_record.commitments(series))["commitments"]:
        results_io.write_text(folder / corpus.COMMITMENTS, results_io.dumps(published))
    count = len(series.snapshots[taken.id].rows)
    context.reporter.say(f"{taken.id}: {count} outputs, {taken.errors} failed; head {taken.head}, to be kept elsewhere")
    return NO_ALARM


def embed(folder: Path) -> int:
    """Embed every recorded text that has no vector yet, and return how many.

    All snapshots are covered, because an embedder may have been installed after them.
    """
    from suites.drift import embeddings, series_record
    from suites.modes import embedding

    series = series_record.read(folder / series_record.NAME)
    rows = [row for one in series.snapshots.values() for row in one.rows.values()]
    return embeddings.fill(folder.parent / embeddings.NAME, rows, embedding.embedder) if rows else 0
