"""The record of a series: run_log.jsonl, an append-only chain of facts, read into values.

    snapshot_started   id, expected_n, corpus, legs, model, declared version, schedule
    generation         one output of one prompt, leg and sample
    snapshot_finished  n, errors
    gap                snapshot, cause, affected
    registered         a hypothesis, before the data
    decision           what became of it, once
    revealed           a held-out prompt was published: what is asked of it from then on is no longer held out
    recovery           a torn line was set aside (the chain's own)

Times are recorded here and nowhere else. The hash of the chain after a finished snapshot is its head. Keep it elsewhere: a
rewritten file cannot have the same head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from results_io import UserError
from suites.drift import schedule
from suites.log import chain
from suites.log.line_form import MAYBE_TEXT, NUMBER, Form

NAME, MANIFEST = "run_log.jsonl", "manifest-"  # the latter is the prefix of manifests, which analyses write
STARTED, GENERATION, FINISHED = "snapshot_started", "generation", "snapshot_finished"
GAP, REGISTERED, DECISION, REVEALED = "gap", "registered", "decision", "revealed"
ROW = (  # the columns of a generation that analyses read; no times and no positions in the file
    *(
        "prompt",
        "version",
        "prompt_hash",
        "axis",
        "split",
        "harm",
        "leg",
        "sample",
        "text",
        "text_sha256",
        "tokens",
        "finish",
    ),
    *("requested", "reported", "system_fingerprint", "api_version", "safety", "error"),
)
CORPUS: Form = {
    **{"name": str, "sha256": str, "markers": [str], "not_applicable": dict, "held_out": int, "commitments": dict},
    "public": [{"id": str, "version": int, "hash": str, "messages": [{"content": str}]}],
}
FORMS: Mapping[str, Form] = {  # of what is read of a line
    STARTED: {
        **{"snapshot": str, "expected_n": int, "every": int, "seed": int, "declared_version": str, "corpus": CORPUS},
        "legs": [{"name": str, "samples": int, "temperature": (*NUMBER, type(None))}],
        **{"leg_dropped": MAYBE_TEXT, "model": {"name": str, "identity": dict}},
    },
    GENERATION: {
        **{"snapshot": str, "version": int, "sample": int, "tokens": (int, type(None)), "safety": bool},
        **dict.fromkeys(("prompt", "prompt_hash", "axis", "split", "harm", "leg"), str),
        **dict.fromkeys(("text", "text_sha256", "finish", "requested"), str),
        **dict.fromkeys(("reported", "system_fingerprint", "api_version", "error"), MAYBE_TEXT),
    },
    FINISHED: {"snapshot": str, "n": int, "errors": int},
    GAP: {"snapshot": str, "cause": str, "affected": dict},
    REGISTERED: {
        "claim": str,
        "metric": str,
        "axis": str,
        "direction": str,
        **dict.fromkeys(("alpha", "margin", "n"), NUMBER),
    },
    DECISION: {"claim": str, "snapshot": str, "outcome": str},
    REVEALED: {"prompt": str},
}


class AskedCell(NamedTuple):
    """The prompt, leg and sample of one generation."""

    prompt: str
    leg: str
    sample: int


@dataclass
class RecordedSnapshot:
    """All that the record holds of one snapshot. If a cell was asked twice, the later line counts.

    `embedder`: identity of what embeds its outputs, as recorded when it was finished; if there was none, that of the next
    finished snapshot which has one.
    """

    id: str
    started: Mapping[str, Any]
    first: int | None = None
    rows: dict[AskedCell, Mapping[str, Any]] = field(default_factory=dict)
    finished: Mapping[str, Any] | None = None
    head: str = ""
    lines: int = 0
    embedder: Mapping[str, Any] | None = None

    @property
    def errors(self) -> list[AskedCell]:
        return [cell for cell, row in self.rows.items() if row["error"] is not None]

    @property
    def lacking(self) -> int:
        """Number of missing outputs: never asked, or failed."""
        return self.started["expected_n"] - (len(self.rows) - len(self.errors))

    @property
    def legs(self) -> dict[str, Mapping[str, Any]]:
        return {leg["name"]: leg for leg in self.started["legs"]}


@dataclass
class SeriesRecord:
    """The record of a series, read into values."""

    snapshots: dict[str, RecordedSnapshot] = field(default_factory=dict)
    gaps: list[Mapping[str, Any]] = field(default_factory=list)
    registered: list[Mapping[str, Any]] = field(default_factory=list)
    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    revealed: set[str] = field(default_factory=set)

    @property
    def order(self) -> list[str]:
        """Recorded snapshots, from the earliest to the latest."""
        return schedule.in_order(list(self.snapshots))

    @property
    def finished(self) -> list[RecordedSnapshot]:
        """The finished snapshots, in order."""
        return [self.snapshots[one] for one in self.order if self.snapshots[one].finished is not None]


def read(path: Path) -> SeriesRecord:
    """The record, every line checked. UserError for a line that was changed, and for one that no drift series has."""
    series = SeriesRecord()
    for line, end in chain.read_with_heads(path, FORMS):
        _require_begun(series, line, path)
        _fold(series, line, end.hash)
    known = None
    for snapshot in reversed(series.finished):
        known = snapshot.embedder = snapshot.embedder or known
    return series


def _require_begun(series: SeriesRecord, line: Mapping[str, Any], path: Path) -> None:
    """UserError for a line about a snapshot that no line before it began, and for a schedule without an end."""
    kind, fault = line["kind"], ""
    if kind == STARTED and line["every"] < 1:
        fault = f"has a snapshot every {line['every']} weeks, expected 1 or more"
    if kind in (GENERATION, FINISHED) and line["snapshot"] not in series.snapshots:
        fault = "is of a snapshot that no line before it began"
    if fault:
        raise UserError(f"{path}: line {line['seq'] + 1} {fault}; restore the file from a copy, or move it away")


def _fold(series: SeriesRecord, record: Mapping[str, Any], head: str) -> None:
    kind, seq = record["kind"], record["seq"]
    if kind == STARTED:
        series.snapshots.setdefault(record["snapshot"], RecordedSnapshot(record["snapshot"], record))
    elif kind == GENERATION:
        snapshot = series.snapshots[record["snapshot"]]
        snapshot.first = seq if snapshot.first is None else snapshot.first
        key = f"{record['prompt']}@{record['version']}"
        row = {name: record[name] for name in ROW}
        if row["split"] == "held_out" and key in series.revealed:
            row["split"] = REVEALED
        snapshot.rows[AskedCell(key, record["leg"], record["sample"])] = row
    elif kind == FINISHED:
        snapshot = series.snapshots[record["snapshot"]]
        snapshot.finished, snapshot.head, snapshot.lines = record, head, seq + 1
        snapshot.embedder = record.get("embedder")
    elif kind == REVEALED:
        series.revealed.add(record["prompt"])
    elif kind in (GAP, REGISTERED, DECISION):
        {GAP: series.gaps, REGISTERED: series.registered, DECISION: series.decisions}[kind].append(record)


def head(series: SeriesRecord, identifier: str) -> dict[str, Any]:
    """The chain's head when a snapshot was finished."""
    snapshot = series.snapshots[identifier]
    return {"snapshot": identifier, "lines": snapshot.lines, "hash": snapshot.head}


def commitments(series: SeriesRecord) -> dict[str, Any]:
    """The commitments of all snapshots, including retired prompts; the first commitment of a key counts."""
    found: dict[str, Any] = {}
    for one in series.order:
        found = {**series.snapshots[one].started["corpus"]["commitments"], **found}
    return {"commitments": dict(sorted(found.items()))}


def retired(series: SeriesRecord) -> set[str]:
    """Prompts that were asked once, and neither in the last finished snapshot nor in one that was begun after it.

    A snapshot that was stopped says nothing of what it would still ask, so it retires nothing.
    """
    if not series.finished:
        return set()
    last = series.finished[-1].id
    recent = [last, *(one for one in series.order if series_before(last, one))]
    still = {cell.prompt for one in recent for cell in series.snapshots[one].rows}
    return {cell.prompt for one in series.finished for cell in one.rows} - still


def note_revealed(folder: Path, key: str, commitment: str, time: datetime) -> None:
    """Append that a held-out prompt was revealed, once."""
    with chain.Writer(folder / NAME) as writer:
        if key not in read(folder / NAME).revealed:
            noted = {"kind": REVEALED, "prompt": key, "hmac_sha256": commitment, "time": time.isoformat()}
            writer.append([noted])


def previous(series: SeriesRecord, identifier: str) -> RecordedSnapshot | None:
    """The last finished snapshot before `identifier` that is on schedule: two weeks ago if every second week is scheduled."""
    before = [one for one in series.finished if series_before(one.id, identifier)]
    if before and schedule.kind(identifier) == "week":
        on = set(scheduled_until(series, identifier))
        before = [one for one in before if one.id in on]
    return before[-1] if before else None


def scheduled_until(series: SeriesRecord, last: str) -> list[str]:
    """The weeks that a series should have, from its first one (taken or a gap) to `last`; [] without any snapshot."""
    if not series.snapshots:
        return []
    first = schedule.in_order([*series.snapshots, *(gap["snapshot"] for gap in series.gaps)])[0]
    return schedule.scheduled(first, last, int(series.snapshots[series.order[0]].started["every"]))


def expected(series: SeriesRecord) -> list[str]:
    """Every snapshot that there should be: the recorded ones and gaps, and the scheduled weeks between that nobody took."""
    known = {*series.snapshots, *(gap["snapshot"] for gap in series.gaps)}
    ordered = schedule.in_order(list(known))
    if not ordered or schedule.kind(ordered[0]) != "week" or not series.snapshots:
        return ordered
    return schedule.in_order([*ordered, *scheduled_until(series, ordered[-1])])


def require_whole(folder: Path, series: SeriesRecord) -> None:
    """UserError if a manifest is of a snapshot that is no longer recorded: a truncated record is still a valid chain."""
    known = set(expected(series))
    for path in sorted(folder.glob(f"{MANIFEST}*.json")):
        if path.stem.removeprefix(MANIFEST) not in known:
            raise UserError(
                f"{path} is of a snapshot that {NAME} does not hold, so the record was cut; restore it from a copy, or move that "
                "file away"
            )


def expected_cells(series: SeriesRecord, identifier: str) -> int | None:
    """Outputs that a missing snapshot should have had: as many as the one before it; None without one."""
    before = [one for one in series.order if series_before(one, identifier)]
    return series.snapshots[before[-1]].started["expected_n"] if before else None


def series_before(one: str, other: str) -> bool:
    """Whether a snapshot is earlier than another of its series."""
    return one != other and schedule.in_order([one, other])[0] == one


def rows_of(snapshot: RecordedSnapshot, leg: str) -> list[Mapping[str, Any]]:
    """The rows of a leg, sorted by prompt and sample, whatever order they were written in."""
    return [snapshot.rows[cell] for cell in sorted(snapshot.rows) if cell.leg == leg]


def by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows without an error, by prompt and version."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["error"] is None:
            found.setdefault(f"{row['prompt']}@{row['version']}", []).append(row)
    return found
