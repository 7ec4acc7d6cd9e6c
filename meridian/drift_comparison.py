"""`run.py compare` of two drift snapshots: how their answers differ, and which heads the trace between them named.

Each side is either the folder of a series, which stands for its last finished snapshot, or manifest-<id>.json of a snapshot.
Both must have been asked prompts of the same text. The comparison is exploratory: it adds nothing to the chain of either
series and raises no alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy import stats

import results_io
from meridian import drift_trace
from meridian.context import RunContext
from results_io import UserError
from shown_text import WIDTH, folded
from suites.drift import analysis, comparison, series_record
from suites.drift.comparison import AXIS
from suites.drift.series_record import RecordedSnapshot

ID, FILE, MANIFEST = "drift_comparison", "comparison.json", "manifest-"
LEVEL = 0.95  # of the interval of a difference; it holds for these prompts only


@dataclass(frozen=True)
class LocatedSnapshot:
    """One snapshot and the folder of its series."""

    folder: Path
    snapshot: RecordedSnapshot

    @property
    def name(self) -> str:
        return f"{self.folder.resolve().name}_{self.snapshot.id}"


def is_drift(path: str) -> bool:
    """Whether `path` is the folder of a series, or a manifest in such a folder."""
    return (Path(path) / series_record.NAME).is_file() or Path(path).name.startswith(MANIFEST)


def place(path: str) -> LocatedSnapshot:
    """The snapshot that `path` names. UserError if there is no record, or if the snapshot is not finished."""
    given = Path(path)
    folder = given.parent if given.name.startswith(MANIFEST) else given
    if not (folder / series_record.NAME).is_file():
        raise UserError(
            f"{path} has no {series_record.NAME}, where the outputs are; give the folder of a series, or its manifest-<id>.json"
        )
    series = series_record.read(folder / series_record.NAME)
    finished = {one.id: one for one in series.finished}
    wanted = given.stem.removeprefix(MANIFEST) if folder != given else next(reversed(finished), None)
    if wanted not in finished:
        known = ", ".join(finished) or "none"
        raise UserError(f"{path} is about no finished snapshot; those of {folder} are: {known}")
    return LocatedSnapshot(folder, finished[wanted])


def compare(a: str, b: str, settings: Mapping[str, Any], seed: int) -> tuple[list[str], dict[str, Any]]:
    """(names of both sides, the comparison as a document); every difference is b - a.

    `settings`: the settings of an analysis. UserError if both are the same snapshot, or if they share no prompt.
    """
    places = place(a), place(b)
    if places[0].name == places[1].name and places[0].folder.resolve() == places[1].folder.resolve():
        raise UserError(f"a and b are both the snapshot {places[0].snapshot.id}; give two different ones")
    require_same_questions(*(one.snapshot for one in places))
    stores = [partial(analysis.stored_vectors, one.folder.resolve()) for one in places]
    before, after = analysis.sides_of([(one.snapshot, own) for one, own in zip(places, stores, strict=True)], settings)
    before = analysis.embedded_as(after, before, stores[0])
    rows = [_with_interval(row) for row in comparison.compare(before, after, seed) if row["level"] == AXIS]
    subject = {side: _subject(one.snapshot) for side, one in zip("ab", places, strict=True)}
    document = {
        "kind": "comparison",
        "id": ID,
        "subject": subject,
        "inputs_sha256": {side: analysis.digest(one.snapshot) for side, one in zip("ab", places, strict=True)},
        "settings": {**settings, "corpus": places[1].snapshot.started["corpus"]["name"]},
        "records": rows,
        "zero_leg": {axis: comparison.changed_texts(before, after, axis) for axis in after.axes},
        "heads": heads_between(places, subject),
    }
    return [one.name for one in places], document


def require_same_questions(a: RecordedSnapshot, b: RecordedSnapshot) -> None:
    """UserError unless the two share prompts, with the same texts, and recognise refusals by the same markers."""
    asked = [{cell.prompt: row["prompt_hash"] for cell, row in one.rows.items()} for one in (a, b)]
    common = asked[0].keys() & asked[1].keys()
    if not common:
        raise UserError(
            f"{a.id} and {b.id} have no prompt in common; compare snapshots that were asked the same corpus"
        )
    if other := sorted(key for key in common if asked[0][key] != asked[1][key]):
        raise UserError(f"{a.id} and {b.id} were asked other texts as {other[0]}; compare snapshots of the same corpus")
    markers = [one.started["corpus"]["markers"] for one in (a, b)]
    if markers[0] != markers[1]:
        raise UserError(
            f"a refusal begins with {markers[0]} in {a.id} and with {markers[1]} in {b.id}; compare like with like"
        )


def _subject(snapshot: RecordedSnapshot) -> dict[str, Any]:
    started = snapshot.started
    weights = started["model"]["identity"].get("weights")
    return {
        "snapshot": snapshot.id,
        "model": started["model"]["name"],
        "weights": weights,
        "declared_version": started["declared_version"],
    }


def _with_interval(row: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the normal interval of its difference, difference +- z se; no interval without a standard error."""
    error, value = row["detail"].get("standard_error"), row["difference"]
    if value is None or not error:
        return {**row, "low": None, "high": None}
    reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * error
    return {**row, "low": value - reach, "high": value + reach}


def heads_between(places: Sequence[LocatedSnapshot], subject: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The findings of all traces from a's weights to b's, in either series: alarm; heads named, gained, lost and changed."""
    wanted = {side: one["weights"] for side, one in subject.items()}
    folders = dict.fromkeys(one.folder.resolve() for one in places)
    found = []
    for path in sorted(path for folder in folders for path in folder.glob(f"trace/*/{drift_trace.FILE}")):
        document = drift_trace.read(path)
        if document["subject"] == wanted and None not in wanted.values():
            named = [one["head"] for one in document["named"]]
            rest = {key: document[key] for key in ("alarm", "together", "control", "compared")}
            found.append({**rest, "named": named})
    return found


# --- the terminal -----------------------------------------------------------------------------------------------------


def show(document: Mapping[str, Any], console: Console) -> None:
    """Both subjects, a row for each metric and axis, the changed texts, and the heads."""

    def say(line: str) -> None:
        console.print(Text(folded(line)), soft_wrap=True)

    for side in "ab":
        one = document["subject"][side]
        say(f"{side}  {one['snapshot']}: {one['model']}, declared {one['declared_version']}")
    console.print(_table(document["records"]), width=min(console.width, WIDTH))
    for axis, zero in document["zero_leg"].items():
        if zero is not None:
            say(f"At temperature 0, {zero['changed']} of {zero['prompts']} prompts on {axis} gave another text")
    for one in document["heads"]:
        alarm = one["alarm"]
        say(f"Trace of {alarm['metric']} on {alarm['axis']}: {', '.join(one['named']) or 'no head'} named")
        for line in drift_trace.closing(one["compared"]):
            say(line)
    if not document["heads"]:
        say("No trace between these two is on record, so nothing is known of their heads (do=trace makes one)")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = ("metric", "axis", "a", "b", f"b - a [{100 * LEVEL:g} %]", "p", "p adj.", "note")
    table = Table(title="Differences, by prompt", title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for name in names:
        table.add_column(Text(name), overflow="fold", no_wrap=name == "metric")
    for row in rows:
        numbers = ["" if row[key] is None else f"{row[key]:.4g}" for key in ("before", "after", "p", "adjusted_p")]
        change = "" if row["difference"] is None else f"{row['difference']:+.3f}"
        if row["low"] is not None:
            change += f" [{row['low']:+.3f}, {row['high']:+.3f}]"
        style = "bold" if row["rejected"] else ""
        cells = (row["name"], row["axis"], *numbers[:2], change, *numbers[2:], row["reason"] or "")
        table.add_row(*(Text(cell, style) for cell in cells))
    return table


def command(context: RunContext, settings: Mapping[str, Any]) -> Path:
    """Compare a= and b=, print the result and write it below the results folder; returns the path of the file."""
    from meridian import run_comparison

    a, b = (str(context.settings[side]) for side in "ab")
    names, document = compare(a, b, settings, context.seed)
    show(document, context.reporter.console)
    path = run_comparison.folder_of(context.results, names, document["inputs_sha256"]) / FILE
    results_io.write(path, document)
    return path
