"""Taking a snapshot: every prompt, leg and sample is asked once and recorded; a stopped snapshot is resumed.

No cache of generations is used, since a hit would return last week's answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from shown_progress import Progress
from suites.drift import embeddings, schedule, series_record
from suites.drift.corpus import Corpus, Prompt
from suites.drift.series_record import AskedCell, RecordedSnapshot, SeriesRecord
from suites.log import chain, generations
from suites.log.chain import Writer
from suites.models.base import Generation, ModelUnderTest, Request

SEEDS = 2**31
SAME = ("kind", "weights", "base_url", "requested", "intervention")  # of a model's identity, fixed within one snapshot
CHUNK = 256  # generations between two writes to disk: a kill loses at most so many
DEFAULT, ZERO = "default", "zero"
Clock = Callable[[], datetime]


@dataclass(frozen=True)
class SnapshotLeg:
    """One way of asking: `samples` draws at a temperature (None: none is sent). `reason`: why it is fewer than configured."""

    name: str
    samples: int
    temperature: float | None


@dataclass(frozen=True)
class Taken:
    """The result of `take`: the snapshot's id, how many outputs were asked now, and the chain's head if it is finished."""

    id: str
    asked: int
    errors: int
    finished: bool
    head: str


def now() -> datetime:
    """This moment in UTC."""
    return datetime.now(UTC)


def legs_of(model: ModelUnderTest, settings: Mapping[str, Any]) -> tuple[tuple[SnapshotLeg, ...], str]:
    """The legs that a model can do, and the reason if one is left out ("" if none is).

    Without `zero`, intervals are sqrt((20 + 5)/20) = 1.118 times as wide as with all outputs.
    """
    default = SnapshotLeg(DEFAULT, settings["default_samples"], None)
    zero = SnapshotLeg(ZERO, settings["zero_samples"], 0.0)
    if takes_temperature(model):
        return (default, zero), ""
    factor = ((default.samples + zero.samples) / default.samples) ** 0.5
    return (
        default,
    ), f"the endpoint refuses temperature, so the leg zero is dropped; intervals are {factor:.3f} times as wide"


def takes_temperature(model: ModelUnderTest) -> bool:
    """False for an endpoint that refuses temperature 0, as its probe found."""
    probe = getattr(model, "probe", None)
    return True if probe is None else bool(probe.greedy)


def identifier(model: ModelUnderTest, settings: Mapping[str, Any], clock: Clock) -> str:
    """The id of the snapshot to take now. UserError for a local checkpoint without an order."""
    if model.identity["kind"] == "endpoint":
        return schedule.week_id(clock())
    if settings.get("order") is None:
        raise UserError(
            "a local checkpoint needs its place in the series; give drift.order, for example the training step"
        )
    return schedule.checkpoint_id(settings["order"], model.identity["weights"])


def take(
    model: ModelUnderTest,
    corpus: Corpus,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    clock: Clock = now,
    bar: Progress | None = None,
) -> Taken:
    """Ask everything that a snapshot lacks. `folder`: the folder of the series; `settings`: as in configs/drift.

    A snapshot that was begun continues with its own legs and seed. UserError for a finished id, an id of another kind than the
    series has, a week before a recorded one, changed prompts, and a snapshot begun with another model, corpus or version.
    """
    own = identifier(model, settings, clock)
    with Writer(folder / series_record.NAME) as writer:
        series = series_record.read(folder / series_record.NAME)
        series_record.require_whole(folder, series)
        _require_open(series, own, settings)
        legs, reason = legs_of(model, settings)
        if (begun := series.snapshots.get(own)) is not None:
            require_as_begun(begun, model, corpus, settings)
            legs, seed = tuple(SnapshotLeg(**leg) for leg in begun.started["legs"]), begun.started["seed"]
        earlier = [{cell.prompt for cell in one.rows} for one in series.finished]
        prompts = corpus.active(earlier)
        _require_unchanged(series, prompts)
        cells = {
            AskedCell(prompt.key, leg.name, sample): (prompt, leg)
            for prompt in prompts
            for leg in legs
            for sample in range(leg.samples)
        }
        if own not in series.snapshots:
            _require_declared(series, own, model, settings)
            started = _started(own, model, corpus, legs, reason, settings, series, len(cells), seed)
            writer.append([{**started, "time": clock().isoformat()}])
        _note_unfinished(writer, series, own, clock)
        known = series.snapshots[own].rows if own in series.snapshots else {}
        missing = [cell for cell in cells if cell not in known or known[cell]["error"] is not None]
        rows = {cell: row for cell, row in known.items() if row["error"] is None}
        rows |= _ask(model, {cell: cells[cell] for cell in missing}, own, corpus, seed, writer, clock, bar)
        return _finish(writer, own, rows, len(missing), clock)


def _require_open(series: SeriesRecord, own: str, settings: Mapping[str, Any]) -> None:
    """UserError unless the snapshot may be taken now."""
    _require_one_kind(series, own)
    _require_unfinished(series, own)
    _require_not_over(series, own)
    if asked := settings.get("snapshot"):
        if asked != own and schedule.kind(asked) == "week":
            raise UserError(
                f"{asked} is not this week, {own}; a sample taken later is not one of that week: leave it out"
            )
        if asked != own:
            raise UserError(f"snapshot={asked} is not {own}, the one of this order and these weights; leave it out")
    clash = [one for one in series.snapshots if one.partition("-")[0] == own.partition("-")[0] and one != own]
    if clash and schedule.kind(own) == "checkpoint":
        raise UserError(f"{clash[0]} has the order of {own}; give every checkpoint of a series its own drift.order")


def _require_unfinished(series: SeriesRecord, own: str) -> None:
    """UserError for a snapshot that has all its samples."""
    if (known := series.snapshots.get(own)) is not None and known.finished is not None:
        raise UserError(f"the snapshot {own} is finished; a sample taken later is none of it: take the next one")


def _require_not_over(series: SeriesRecord, own: str) -> None:
    """UserError for a week before a recorded one: a clock set back would change which snapshots are compared."""
    if series.snapshots and schedule.kind(own) == "week" and series_record.series_before(own, last := series.order[-1]):
        raise UserError(
            f"{own} is over, as {last} is on record, so it gets no samples; set the clock of this machine right"
        )


def _require_declared(series: SeriesRecord, own: str, model: ModelUnderTest, settings: Mapping[str, Any]) -> None:
    """UserError if an endpoint is asked for another model under the same declared version: that is no silent update."""
    before = [one for one in series.order if series_record.series_before(one, own)]
    if settings.get("version") is not None or model.identity["kind"] != "endpoint" or not before:
        return
    known, asked = (
        series.snapshots[before[-1]].started["model"]["identity"].get("requested"),
        model.identity.get("requested"),
    )
    if known != asked:
        raise UserError(
            f"{before[-1]} was asked of the model {known}, and {own} would be asked of {asked} under the same declared version; "
            "say which version that is with drift.version, or start another series"
        )


def require_as_begun(
    begun: RecordedSnapshot, model: ModelUnderTest, corpus: Corpus, settings: Mapping[str, Any]
) -> None:
    """UserError if a stopped snapshot would continue with another model, other prompts or another declared version."""
    started = begun.started
    identity = [{name: one.get(name) for name in SAME} for one in (started["model"]["identity"], model.identity)]
    declared = settings.get("version")
    for what, before, now in (
        ("model", *identity),
        ("corpus", started["corpus"]["sha256"][:16], corpus.sha256[:16]),
        (
            "drift.version",
            started["declared_version"],
            started["declared_version"] if declared is None else str(declared),
        ),
    ):
        if before != now:
            raise UserError(
                f"{begun.id} was begun with the {what} {before}, and it would go on with {now}; a snapshot has one: "
                "go on with that one, or take the next snapshot"
            )


def _require_one_kind(series: SeriesRecord, own: str) -> None:
    """UserError for a checkpoint in a series of weeks, or a week in a series of checkpoints; gaps count."""
    schedule.in_order([*series.snapshots, *(gap["snapshot"] for gap in series.gaps), own])


def _require_unchanged(series: SeriesRecord, prompts: Sequence[Prompt]) -> None:
    """UserError if a prompt has another hash than the same id and version had in an earlier snapshot."""
    asked = {cell.prompt: row["prompt_hash"] for one in series.snapshots.values() for cell, row in one.rows.items()}
    for prompt in prompts:
        if asked.get(prompt.key, prompt.hash) != prompt.hash:
            raise UserError(f"{prompt.key} was asked with another text before; give the changed prompt a new version")


def _started(
    own: str,
    model: ModelUnderTest,
    corpus: Corpus,
    legs: Sequence[SnapshotLeg],
    reason: str,
    settings: Mapping[str, Any],
    series: SeriesRecord,
    expected: int,
    seed: int,
) -> dict[str, Any]:
    return {
        "kind": series_record.STARTED,
        "snapshot": own,
        "expected_n": expected,
        "corpus": _described(corpus, series.revealed),
        "legs": [asdict(leg) for leg in legs],
        "leg_dropped": reason or None,
        "model": {"name": model.name, "identity": dict(model.identity)},
        "declared_version": declared_version(settings, series, own, model),
        "every": settings["every"],
        "max_tokens": corpus.max_tokens,
        "seed": seed,
    }


def _described(corpus: Corpus, revealed: Collection[str]) -> dict[str, Any]:
    """What an analysis needs to know of the corpus; of held-out prompts, their number and commitments only.

    A prompt that was revealed is held out no longer.
    """
    public = [prompt for prompt in corpus.prompts if prompt.split == "public"]
    return {
        "name": corpus.name,
        "version": corpus.version,
        "sha256": corpus.sha256,
        "markers": list(corpus.markers),
        "not_applicable": dict(corpus.not_applicable),
        "public": [{**prompt.frozen, "hash": prompt.hash, "answer": prompt.answer} for prompt in public],
        "held_out": sum(prompt.split == "held_out" and prompt.key not in revealed for prompt in corpus.prompts),
        "commitments": {key: dict(one) for key, one in corpus.commitments.items()},
    }


def declared_version(settings: Mapping[str, Any], series: SeriesRecord, own: str, model: ModelUnderTest) -> str:
    """The declared version: drift.version, else the previous snapshot's, else (for the first snapshot) the model's name."""
    if settings.get("version") is not None:
        return str(settings["version"])
    before = [one for one in series.order if series_record.series_before(one, own)]
    return series.snapshots[before[-1]].started["declared_version"] if before else model.name


def _note_unfinished(writer: Writer, series: SeriesRecord, own: str, clock: Clock) -> None:
    """Record a gap for every earlier unfinished snapshot that has none yet."""
    known = {gap["snapshot"] for gap in series.gaps}
    for one in series.order:
        snapshot = series.snapshots[one]
        if series_record.series_before(one, own) and snapshot.finished is None and one not in known:
            note_gap(writer, one, "the snapshot was not finished", {"cells": snapshot.lacking}, clock)


def note_gap(writer: Writer, snapshot: str, cause: str, affected: Mapping[str, int | None], clock: Clock) -> None:
    """Append a gap: what is missing and why. Nothing is imputed."""
    noted = {"kind": series_record.GAP, "snapshot": snapshot, "cause": cause, "affected": dict(affected)}
    writer.append([{**noted, "detected_at": clock().isoformat()}])


def absent(folder: Path, snapshot: str, cause: str, clock: Clock = now) -> bool:
    """Put on record that no sample of a snapshot could be taken, once; False for a week that the schedule leaves out: no gap.

    UserError in a series of local checkpoints, and for a finished snapshot or a week that is over.
    """
    with Writer(folder / series_record.NAME) as writer:
        series = series_record.read(folder / series_record.NAME)
        _require_one_kind(series, snapshot)
        _require_unfinished(series, snapshot)
        _require_not_over(series, snapshot)
        begun, weeks = series.snapshots.get(snapshot), series_record.scheduled_until(series, snapshot)
        if begun is None and weeks and snapshot not in weeks:
            return False
        if not any(gap["snapshot"] == snapshot for gap in series.gaps):
            lacking = begun.lacking if begun else series_record.expected_cells(series, snapshot)
            note_gap(writer, snapshot, cause, {"cells": lacking}, clock)
        return True


def _ask(
    model: ModelUnderTest,
    wanted: Mapping[AskedCell, tuple[Prompt, SnapshotLeg]],
    own: str,
    corpus: Corpus,
    seed: int,
    writer: Writer,
    clock: Clock,
    bar: Progress | None,
) -> dict[AskedCell, Mapping[str, Any]]:
    """Ask the cells chunk by chunk; each chunk is on disk before the next is asked."""
    drawn = int(results_io.sha256([seed, own])[:8], 16) % SEEDS
    cells, found = list(wanted), {}
    if bar is not None:
        bar.expect(len(cells))
    for start in range(0, len(cells), CHUNK):
        chunk = cells[start : start + CHUNK]
        outputs = _outputs(model, {cell: _request(cell, *wanted[cell], corpus, drawn) for cell in chunk}, bar)
        rows = {cell: _row(cell, wanted[cell][0], outputs[cell], model) for cell in chunk}
        time = clock().isoformat()
        writer.append(
            [{"kind": series_record.GENERATION, "snapshot": own, "time": time, **row} for row in rows.values()]
        )
        found |= rows
    return found


def _outputs(
    model: ModelUnderTest, requests: Mapping[AskedCell, Request], bar: Progress | None
) -> dict[AskedCell, Generation]:
    """The model's output for each request. A request at a temperature that the model now refuses fails without being sent."""
    takes = takes_temperature(model)
    able = {cell: one for cell, one in requests.items() if takes or one.temperature is None}
    outputs = model.generate(list(able.values()), lambda count: None if bar is None else bar.advance(count))
    if len(outputs) != len(able):  # a missing output must not shift the others to other prompts
        raise ValueError(f"{model.name} gave {len(outputs)} generations for {len(able)} requests")
    refused = Generation("", "error", error="the endpoint refuses temperature")
    return dict.fromkeys(requests, refused) | dict(zip(able, outputs, strict=True))


def _request(cell: AskedCell, prompt: Prompt, leg: SnapshotLeg, corpus: Corpus, drawn: int) -> Request:
    return Request(prompt.text, prompt.system, corpus.max_tokens, leg.temperature, corpus.stop, drawn, cell.sample)


def _row(cell: AskedCell, prompt: Prompt, output: Generation, model: ModelUnderTest) -> dict[str, Any]:
    said = {name: generations.writable(one) if isinstance(one, str) else one for name, one in output.provenance.items()}
    text = generations.writable(output.text)
    return {
        "prompt": prompt.id,
        "version": prompt.version,
        "prompt_hash": prompt.hash,
        "axis": prompt.axis,
        "split": prompt.split,
        "harm": prompt.harm,
        "leg": cell.leg,
        "sample": cell.sample,
        "text": text,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tokens": output.tokens_out,
        "finish": output.finish,
        "requested": model.name,
        "reported": said.get("model"),
        "system_fingerprint": said.get("system_fingerprint"),
        "api_version": said.get("api_version"),
        "safety": bool(said.get("safety")),
        "error": None if output.error is None else generations.writable(output.error),
    }


def _finish(writer: Writer, own: str, rows: Mapping[AskedCell, Mapping[str, Any]], asked: int, clock: Clock) -> Taken:
    """Write the snapshot's last line, unless every call failed. Failed calls are recorded as a gap."""
    failed = [row for row in rows.values() if row["error"] is not None]
    if failed:
        causes = Counter(row["error"] for row in failed)
        affected = dict(sorted(Counter(row["axis"] for row in failed).items()))
        note_gap(writer, own, min(causes, key=lambda one: (-causes[one], one)), affected, clock)
    if len(failed) == len(rows):
        return Taken(own, asked, len(failed), False, "")
    finished = {"kind": series_record.FINISHED, "snapshot": own, "n": len(rows), "errors": len(failed)}
    writer.append([{**finished, "embedder": embeddings.identity(), "time": clock().isoformat()}])
    return Taken(own, asked, len(failed), True, writer.head.hash)


def verify(folder: Path, heads: Mapping[str, str]) -> chain.ChainEnd:
    """The chain's end after checking every line and the given heads {snapshot: hash}. UserError for a changed line or head."""
    end = chain.verify(folder / series_record.NAME)
    series = series_record.read(folder / series_record.NAME)
    for snapshot, expected in heads.items():
        known = series.snapshots.get(snapshot)
        if known is None or known.head != expected:
            raise UserError(
                f"{folder / series_record.NAME} has the head {known.head[:16] if known else 'none'} after {snapshot}, expected"
                f" {expected[:16]}: the record was rewritten; restore it from a copy"
            )
    return end
