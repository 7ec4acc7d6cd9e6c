"""From the record to numbered results and manifests: pure functions, without a model.

The manifest of a snapshot holds all that the site shows of it: aggregates, tests, gaps, status, alarms, and the series so far.
Of held-out prompts it has only aggregates. It has no times and no hash of the chain, so the same rows give the same bytes, in
whatever order they were written and however often the writer was killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

import results_io
from result_types import ComparisonRow, DriftComparison, DriftManifest, SeriesPoint
from suites.drift import (
    centroid,
    change_points,
    comparison,
    detector,
    embeddings,
    hedging,
    held_out_gap,
    length,
    power,
    refusal,
    registration,
    schedule,
    series_record,
    silent_update,
    stance,
    status,
    wordings,
)
from suites.drift.comparison import AXIS, GAPS, SCALARS, SnapshotSide
from suites.drift.corpus import AXES, NEUTRAL
from suites.drift.series_record import RecordedSnapshot, SeriesRecord
from suites.estimate import Estimate
from suites.log import environment

NUMBER, NAME = "160", "drift_manifest"
COMPARISON = "drift_comparison"  # kind of the files that store a comparison's tests
RESULTS = (refusal, hedging, length, centroid, stance, silent_update, change_points, held_out_gap, status)
NO_ALARM, ALARM, NOT_ENOUGH = 0, 1, 3  # exit codes
Vectors = Callable[[Sequence[str]], Mapping[str, np.ndarray] | None]
Stores = Callable[[Mapping[str, Any] | None], Vectors]  # the vectors of an embedder, by its identity
Compared = Mapping[str, Sequence[ComparisonRow]]  # the tests of each snapshot against the one before


def analyse(folder: Path, settings: Mapping[str, Any], seed: int = 0, vectors: Vectors | None = None) -> dict[str, Any]:
    """Write manifest-<id>.json of every snapshot, and 161 to 169; returns the last manifest ({} without a snapshot).

    `folder`: the folder of the series; `vectors`: a function from text hashes to embeddings, whatever the embedder (default: the
    store beside the series). UserError for a record that was changed.
    """
    series = series_record.read(folder / series_record.NAME)
    ids = series_record.expected(series)
    stores: Stores = partial(stored_vectors, folder) if vectors is None else lambda who: vectors
    sides = {side.snapshot.id: side for side in sides_of([(one, stores) for one in series.finished], settings)}
    points = _history(ids, sides, seed)
    compared: dict[str, list[ComparisonRow]] = {}
    manifests: list[dict[str, Any]] = []
    for number, one in enumerate(ids):
        before = series_record.previous(series, one) if one in sides else None
        if before is not None:
            compared[one] = _compared(folder, embedded_as(sides[one], sides[before.id], stores), sides[one], seed)
        until = ids[: number + 1]
        history = [point for point in points if point["snapshot"] in until]
        made = _manifest(series, until, sides, compared, before and before.id, history, settings, seed, folder.name)
        earlier = manifests[-1]["timeline"] if manifests else []
        manifests.append({**made, "timeline": [*earlier, _event(made)]})
        results_io.write(folder / f"manifest-{one}.json", manifests[-1])
    for metric in RESULTS:
        results_io.write(folder / f"{metric.NUMBER}_{metric.NAME}.json", _numbered(metric, folder.name, manifests))
    return results_io.canonical(manifests[-1]) if manifests else {}


def read(path: Path) -> DriftManifest:
    """The manifest of a snapshot. ResultError if it is no manifest, was changed, or is of another snapshot than its name says."""
    found = cast(DriftManifest, results_io.read(path, NUMBER))
    if (own := path.stem.removeprefix(series_record.MANIFEST)) != found["snapshot"]:
        raise results_io.ResultError(path, f"is of another snapshot than {own}")
    return found


def sides_of(snapshots: Sequence[tuple[RecordedSnapshot, Stores]], settings: Mapping[str, Any]) -> list[SnapshotSide]:
    """Snapshots (each with its own stores of embeddings) prepared for comparison, with one detector of refusals for all."""
    plain = [(SnapshotSide(one, settings), stores) for one, stores in snapshots]
    sides = [embedded_as(side, side, stores) for side, stores in plain]
    classified = all(_fits(side.embedder) and embedded(side.snapshot, side.vectors) for side in sides)
    return [replace(side, classified=classified) for side in sides]


def embedded_as(other: SnapshotSide, side: SnapshotSide, stores: Stores) -> SnapshotSide:
    """`side` with embeddings by the embedder of `other`, so that no comparison mixes two."""
    if side.vectors is not None and side.space == other.space:
        return side
    hashes = sorted({row["text_sha256"] for row in side.snapshot.rows.values()})
    return replace(side, vectors=stores(other.embedder)(hashes), known={})


def stored_vectors(folder: Path, who: Mapping[str, Any] | None) -> Vectors:
    """A function that reads embeddings by `who` from the store beside all series; None without an embedder, store or vector."""
    path = folder.parent / embeddings.NAME

    def load(hashes: Sequence[str]) -> Mapping[str, np.ndarray] | None:
        if who is None or not path.is_file():
            return None
        with embeddings.Store(path, who["weights_sha256"]) as store:
            return store.get(hashes) or None

    return load


def exit_code(manifest: DriftManifest | Mapping[str, Any]) -> int:
    """1 with an alarm; otherwise 3 if nothing was tested, else 0."""
    if not manifest or not any(row["level"] == AXIS and row["p"] is not None for row in manifest["records"]):
        return ALARM if manifest and manifest["alarms"] else NOT_ENOUGH
    return ALARM if manifest["alarms"] else NO_ALARM


def _fits(who: Mapping[str, Any] | None) -> bool:
    """Whether the classifier of refusals was trained on this embedder."""
    return who is not None and who["weights_sha256"] == detector.load().embedder


def embedded(snapshot: RecordedSnapshot, known: Mapping[str, np.ndarray] | None) -> bool:
    """Whether the classifier can judge refusals: the corpus has no markers, and every valid output has its embedding."""
    if known is None or snapshot.started["corpus"]["markers"]:
        return False
    texts = {row["text_sha256"] for row in snapshot.rows.values() if row["error"] is None and row["text"].strip()}
    return texts <= known.keys()


def _compared(folder: Path, before: SnapshotSide, after: SnapshotSide, seed: int) -> list[ComparisonRow]:
    """The records of a comparison: the stored ones if they are of the same rows, settings and code, else new ones."""
    subject = results_io.sha256(
        {
            "rows": [digest(side.snapshot) for side in (before, after)],
            "vectors": [len(side.vectors) if side.vectors is not None else None for side in (before, after)],
            "embedder": after.embedder if after.vectors is not None else None,
            "settings": dict(after.settings),
            "classifier": results_io.file_digest(detector.STORED) if after.classified else None,
            "seed": seed,
            "code": environment.code_version(),
        }
    )
    path = folder / f"comparison-{after.snapshot.id}.json"
    with contextlib.suppress(results_io.ResultError):  # a file of another version's form is replaced
        if (
            path.is_file()
            and (stored := cast(DriftComparison, results_io.read(path, COMPARISON)))["subject"] == subject
        ):
            return stored["records"]
    rows = [*comparison.compare(before, after, seed), *_gaps(before, after, seed)]
    results_io.write(path, {"kind": COMPARISON, "subject": subject, "records": rows})
    return cast(DriftComparison, results_io.read(path, COMPARISON))["records"]


def _gaps(before: SnapshotSide, after: SnapshotSide, seed: int) -> list[dict[str, Any]]:
    """Held-out gaps of every axis and metric. Without held-out prompts there is no row, and the metric is off."""
    if not any(row["split"] == "held_out" for row in after.rows):
        return []
    rows = []
    for axis in after.axes:
        for metric in SCALARS:
            found, could = comparison.blocked(before, after, metric, axis), None
            if found is None:
                changes = comparison.changes_by_split(before, after, metric, axis)
                own = comparison.seed_of(seed, after.snapshot.id, metric.NAME, axis, "gap")
                found = held_out_gap.reported(changes["public"], changes["held_out"], seed=own)
                could = held_out_gap.detectable(changes["public"], changes["held_out"], after.settings["alpha"])
            direction = None if found.value is None else float(np.sign(found.value))
            change = {"difference": found.value, "direction": direction, "detectable": could}
            rows.append(_plain(held_out_gap, axis, GAPS, found) | change | {"of": metric.NAME})
    return comparison.corrected(rows, after.settings["alpha"])


def digest(snapshot: RecordedSnapshot) -> str:
    """sha256 of the rows of a snapshot, sorted by cell, so that the order of writing does not matter."""
    return results_io.sha256([[*cell, *snapshot.rows[cell].values()] for cell in sorted(snapshot.rows)])


def _plain(metric: Any, axis: str | None, level: str, found: Estimate) -> dict[str, Any]:
    """An estimate as a record."""
    own = {"metric": metric.NUMBER, "name": metric.NAME, "axis": axis, "level": level, **found.to_record()}
    return {**own, "p": found.p_value}


# --- a manifest -------------------------------------------------------------------------------------------------------


def _manifest(
    series: SeriesRecord,
    ids: Sequence[str],
    sides: Mapping[str, SnapshotSide],
    compared: Compared,
    before: str | None,
    history: Sequence[SeriesPoint],
    settings: Mapping[str, Any],
    seed: int,
    series_name: str,
) -> dict[str, Any]:
    own = ids[-1]
    gaps = known_gaps(series, ids)
    tests = [{**row, **_flag(row, sides[own])} for row in compared.get(own, ())]
    levels = [point for point in history if point["snapshot"] == own]
    known = {one: sides[one] for one in ids if one in sides}  # a later snapshot says nothing of an earlier one
    rows = [*_levels(series, own, levels, gaps, known), *tests, *_untested(own, sides, before)]
    rows += comparison.overlaps(sides[own], seed) if own in sides else []
    rows += _silent(series, ids, sides, compared, before, seed) if own in sides else []
    rows += _breaks(history, compared)
    alarms = [row for row in rows if row.get("flag") == "alarm"]
    rows = sorted(rows, key=_place)
    return {
        "number": NUMBER,
        "id": NAME,
        "kind": "drift",
        "series": series_name,
        "snapshot": own,
        "previous": before,
        "snapshots": list(ids),
        "subject": _subject(series, own, sides, before),
        "settings": dict(settings),
        "environment": environment.of_judging(),
        "records": rows,
        "status": status.table(rows),
        "alarms": [_alarm(row) for row in sorted(alarms, key=_place)],
        "gaps": gaps,
        "history": [*history, *_shifts(ids, sides, compared)],
        "registered": registration.decided(_until(series, ids), _confirming(compared, sides)),
    }


def _place(row: Mapping[str, Any]) -> tuple:
    axes = {axis: number for number, axis in enumerate(AXES)}
    return (
        row["metric"],
        row["level"],
        axes.get(row["axis"], -1),
        str(row.get("of")),
        str(row.get("prompt")),
        str(row.get("harm")),
    )


def _until(series: SeriesRecord, ids: Sequence[str]) -> SeriesRecord:
    """The series as it was when the last of `ids` was finished."""
    known = {one: series.snapshots[one] for one in ids if one in series.snapshots}
    last = max((one.lines for one in known.values()), default=0)
    return SeriesRecord(known, series.gaps, [one for one in series.registered if one["seq"] < last], series.decisions)


def _subject(series: SeriesRecord, own: str, sides: Mapping[str, SnapshotSide], before: str | None) -> dict[str, Any]:
    """What was asked and of which model, as far as it is public."""
    if own not in series.snapshots:
        return {"series_kind": schedule.kind(own)}
    snapshot = series.snapshots[own]
    started = snapshot.started
    said = {name: sorted({str(row[name]) for row in snapshot.rows.values()} - {"None"}) for name in (*REPORTED,)}
    axes = sides[own].axes if own in sides else ()
    return {
        "series_kind": schedule.kind(own),
        "corpus": started["corpus"],
        "legs": started["legs"],
        "leg_dropped": started["leg_dropped"],
        "model": started["model"],
        "declared_version": started["declared_version"],
        "reported": said,
        "detector": vars(
            sides[own].detector if own in sides else refusal.detector(tuple(started["corpus"]["markers"]))
        ),
        "embedder": sides[own].embedder if own in sides and sides[own].vectors is not None else None,
        "outputs": len(snapshot.rows),
        "errors": len(snapshot.errors),
        "rows_sha256": digest(snapshot),
        "zero_leg": {axis: _zero_leg(sides, own, before, axis) for axis in axes},
    }


def _zero_leg(sides: Mapping[str, SnapshotSide], own: str, before: str | None, axis: str) -> dict[str, Any] | None:
    """At temperature 0: how many prompts gave a single text, and how many a different one than before; None without the leg."""
    found = comparison.determinism(sides[own], axis)
    changed = comparison.changed_texts(sides[before], sides[own], axis) if before else None
    return None if found is None else {**found, "changed": changed}


REPORTED = ("requested", "reported", "system_fingerprint", "api_version")


def known_gaps(series: SeriesRecord, ids: Sequence[str]) -> list[dict[str, Any]]:
    """What is missing, with its cause: snapshots without a finished run, and snapshots with failed calls."""
    causes = {gap["snapshot"]: gap["cause"] for gap in series.gaps}
    found = []
    for one in ids:
        snapshot = series.snapshots.get(one)
        if snapshot is None or snapshot.finished is None:
            lacking = snapshot.lacking if snapshot else series_record.expected_cells(series, one)
            cause = causes.get(one, "no sample was taken" if snapshot is None else "the snapshot was not finished")
            found.append({"snapshot": one, "cause": cause, "affected": {"cells": lacking}, "whole": True})
        elif snapshot.errors:
            axes = [snapshot.rows[cell]["axis"] for cell in snapshot.errors]
            affected = {axis: axes.count(axis) for axis in sorted(set(axes))}
            first = sorted(str(snapshot.rows[cell]["error"]) for cell in snapshot.errors)[0]
            found.append({"snapshot": one, "cause": first, "affected": affected, "whole": False})
    return found


def _history(ids: Sequence[str], sides: Mapping[str, SnapshotSide], seed: int) -> list[SeriesPoint]:
    """The level of every metric and axis at every snapshot; a gap has no value and is not filled.

    One series a wording: where prompts are reworded another one begins under a name of its own, such as length_wording_2.
    """
    points = []
    for axis in (axis for axis in AXES if any(axis in side.axes for side in sides.values())):
        series = wordings.of_axis(ids, {one: side.asked(axis) for one, side in sides.items() if axis in side.axes})
        for metric in SCALARS:
            for number, wording in enumerate(series, 1):
                name = metric.NAME if number == 1 else f"{metric.NAME}_wording_{number}"
                own = {"metric": metric.NUMBER, "name": name, "axis": axis, "unit": metric.UNIT}
                for one, names in wording.asked.items():
                    point = _gap_point() if names is None else _point(sides[one], metric, axis, seed, names)
                    points.append({"snapshot": one, **own, **point})
    return points


def _gap_point() -> dict[str, Any]:
    return {"value": None, "low": None, "high": None, "status": "gap", "reason": "gap"}


def _point(side: SnapshotSide, metric: Any, axis: str, seed: int, names: Collection[str]) -> dict[str, Any]:
    """The level of a metric on these prompts."""
    found = comparison.described(side, metric, axis, comparison.seed_of(seed, side.snapshot.id), names)
    ends = {"low": found.ci.low, "high": found.ci.high} if found.ci else {"low": None, "high": None}
    said = {"value": found.value, **ends, "status": found.status, "reason": found.reason}
    return {**said, "n": found.n, "detail": dict(found.detail)}


def _levels(
    series: SeriesRecord,
    own: str,
    points: Sequence[SeriesPoint],
    gaps: Sequence[Mapping[str, Any]],
    sides: Mapping[str, SnapshotSide],
) -> list[dict[str, Any]]:
    """Records of the levels of this snapshot, of axes that do not apply, and of a gap."""
    rows = []
    for point in points:
        row = {**point, "level": "level", "detail": point.get("detail", {}), "p": None}
        rows.append(row)
    snapshot = series.snapshots.get(own)
    excluded = snapshot.started["corpus"]["not_applicable"] if snapshot else {}
    for axis, reason in excluded.items():
        for metric in SCALARS:
            row = {"metric": metric.NUMBER, "name": metric.NAME, "axis": axis, "level": "level", "unit": metric.UNIT}
            rows.append({**row, "value": None, "status": "not_applicable", "reason": reason, "detail": {}, "p": None})
    if any(gap["snapshot"] == own and gap["whole"] for gap in gaps):
        for metric in _expected(sides) if points else (*SCALARS, *_expected(sides)):
            row = {"metric": metric.NUMBER, "name": metric.NAME, "axis": None, "level": "level", "unit": metric.UNIT}
            rows.append({**row, "value": None, "status": "gap", "reason": "gap", "detail": {}, "p": None})
    return rows


def _expected(sides: Mapping[str, SnapshotSide]) -> list[Any]:
    """The metrics without a level that a snapshot of this series would have had."""
    with_vectors = any(side.vectors is not None for side in sides.values())
    hidden = any(row["split"] == "held_out" for side in sides.values() for row in side.rows)
    return [silent_update, *([centroid] if with_vectors else []), *([held_out_gap] if hidden else [])]


def _locked(row: Mapping[str, Any], side: SnapshotSide) -> bool:
    """Whether an alarm, or the decision of a claim, may rest on a test: refusals need a locked detector."""
    return row["metric"] != refusal.NUMBER or side.detector.locked


def _confirming(compared: Compared, sides: Mapping[str, SnapshotSide]) -> Compared:
    """The tests that a registered claim may be decided on."""
    return {one: [row for row in rows if _locked(row, sides[one])] for one, rows in compared.items()}


def _flag(row: ComparisonRow, side: SnapshotSide) -> dict[str, Any]:
    """The flag and role of a test. Only a rejected axis test is an alarm, and for refusals only with a locked detector."""
    if row["level"] == GAPS:
        return {"flag": "held-out gap" if row["rejected"] else None}
    if row["level"] != AXIS:
        return {"flag": None, "role": "exploratory"}
    locked = _locked(row, side)
    role = "primary" if locked else "exploratory: the detector is not locked"
    return {"flag": "alarm" if row["rejected"] and locked else None, "role": role}


def _untested(own: str, sides: Mapping[str, SnapshotSide], before: str | None) -> list[dict[str, Any]]:
    """The centroid's row before there is a second snapshot: it says that two are needed, since a centroid has no level."""
    if own not in sides or before is not None or sides[own].vectors is None:
        return []
    row = {
        "metric": centroid.NUMBER,
        "name": centroid.NAME,
        "axis": None,
        "level": AXIS,
        "unit": centroid.UNIT,
        "p": None,
    }
    detail = {"have": 1, "need": 2}
    return [{**row, "value": None, "status": "insufficient_data", "reason": "1 of 2 snapshots", "detail": detail}]


def _event(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """One snapshot of the timeline: what it was compared with, whether it is a gap, and its alarms."""
    gap = any(one["snapshot"] == manifest["snapshot"] and one["whole"] for one in manifest["gaps"])
    own = {name: manifest[name] for name in ("snapshot", "previous", "alarms")}
    return {**own, "gap": gap, "declared_version": manifest["subject"].get("declared_version")}


def _shifts(ids: Sequence[str], sides: Mapping[str, SnapshotSide], compared: Compared) -> list[dict[str, Any]]:
    """The centroid's distance from the previous snapshot, for every snapshot; a gap and the first snapshot have none.

    One series an embedder: from the snapshot on that another one embeds, another series begins under a name of its own, such as
    centroid_embedder_2. Its first distance is of both snapshots as the new one embeds them.
    """
    known = {
        (one, row["axis"]): row
        for one in ids
        for row in compared.get(one, ())
        if row["metric"] == centroid.NUMBER and row["level"] == AXIS
    }
    who = {one: sides[one].space for one in ids if one in sides}
    points = []
    for axis in (axis for axis in AXES if any(place[1] == axis for place in known)):
        for number, embedder in enumerate(dict.fromkeys(who.values()), 1):
            name = centroid.NAME if number == 1 else f"{centroid.NAME}_embedder_{number}"
            own = [one for one in who if who[one] == embedder]
            start = ids.index(own[0]) if number > 1 else 0
            end = len(ids) if own[-1] == list(who)[-1] else ids.index(own[-1]) + 1
            for one in ids[start:end]:
                row = known.get((one, axis), {"difference": None, "status": "gap", "reason": "gap"})
                if one in sides and (one, axis) not in known:
                    row = {"difference": None, "status": "insufficient_data", "reason": "no snapshot before it"}
                if who.get(one, embedder) != embedder:
                    row = {"difference": None, "status": "gap", "reason": "embedded by another"}
                point = {"snapshot": one, "metric": centroid.NUMBER, "name": name, "axis": axis, "unit": centroid.UNIT}
                rest = {"status": row["status"], "reason": row["reason"], "detail": {"embedder": embedder}}
                points.append({**point, **rest, "value": row["difference"], "low": None, "high": None})
    return points


def _alarm(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("metric", "name", "axis", "difference", "direction", "p", "adjusted_p", "reason")
    return {key: row.get(key) for key in keys}


def _silent(
    series: SeriesRecord,
    ids: Sequence[str],
    sides: Mapping[str, SnapshotSide],
    compared: Compared,
    before: str | None,
    seed: int,
) -> list[dict[str, Any]]:
    """166: proven, candidate, or none, with the rate at which the rule fires on shuffled snapshots."""
    own = ids[-1]
    row: dict[str, Any] = {
        "metric": silent_update.NUMBER,
        "name": silent_update.NAME,
        "axis": NEUTRAL,
        "level": "snapshot",
    }
    row |= {"unit": silent_update.UNIT, "p": None, "value": None, "flag": None}
    if before is None:
        return [{**row, "status": "insufficient_data", "reason": "1 of 2 snapshots", "detail": {"have": 1, "need": 2}}]
    pair = sides[before], sides[own]
    earlier = [sides[one].snapshot for one in ids[: ids.index(before)] if one in sides]
    proof = silent_update.evidence(pair[0].snapshot, pair[1].snapshot, earlier)
    if proof is None and (lacking := _unread(*pair, compared[own])):
        return [{**row, **lacking, "detail": {}}]
    announced = silent_update.announced(*(side.snapshot for side in pair))
    signs = [] if proof or announced else _signs(series, sides, compared, own)
    said = "proven" if proof else "candidate" if signs else "none"
    reason = proof or "; ".join(signs) or ("" if announced else _could_find(compared[own], pair[1]))
    detail = {"evidence": said, "shuffled_rate": _shuffled(ids, sides, seed)}
    flag = "alarm" if said != "none" else None
    return [{**row, "value": said, "status": "ok", "reason": reason, "detail": detail, "flag": flag}]


def _could_find(rows: Sequence[ComparisonRow], side: SnapshotSide) -> str:
    """What the rule of one p would have found in this comparison, by metric; empty where no spread says so."""
    changes = {
        row["name"]: power.detectable(row["detail"].get("standard_error"), silent_update.ONE_P)
        for row in _neutral_rows(rows, side)
    }
    known = [f"{name} {change:.3g}" for name, change in changes.items() if change is not None]
    limit = f"one p <= {silent_update.ONE_P:g} with chance {power.POWER:g}"
    return f"changes that give {limit}: {', '.join(known)}" if known else ""


def _unread(before: SnapshotSide, after: SnapshotSide, rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """Status and reason if the neutral prompts cannot show an update; empty if they can."""
    for side in (before, after):
        if why := side.failed(NEUTRAL):
            return {"status": "error", "reason": f"{side.snapshot.id}: {why}"}
    common = len(wordings.once(before.of(NEUTRAL).keys() & after.of(NEUTRAL).keys()))
    if common < silent_update.MINIMUM_PROMPTS:
        reason = f"{common} prompts on {NEUTRAL} in both snapshots; at least {silent_update.MINIMUM_PROMPTS} needed"
        return {"status": "insufficient_data", "reason": reason}
    if all(one["p"] is None for one in _neutral(rows, after).values()):
        return {"status": "insufficient_data", "reason": f"no metric on {NEUTRAL} could be tested"}
    return {}


def _signs(
    series: SeriesRecord,
    sides: Mapping[str, SnapshotSide],
    compared: Compared,
    own: str,
) -> list[str]:
    """Why the comparison of a snapshot is a candidate. The comparison before it counts unless its update was announced."""
    tests, one = [_neutral(compared[own], sides[own])], series_record.previous(series, own)
    earlier = series_record.previous(series, one.id) if one else None
    if one and earlier and one.id in compared and not silent_update.announced(earlier, sides[one.id].snapshot):
        tests.insert(0, _neutral(compared[one.id], sides[one.id]))
        if all(centroid.NAME in test for test in tests):
            way = _way_on(sides[earlier.id], sides[one.id], sides[own])
            for test, sign in zip(tests, (1.0, way), strict=True):
                test[centroid.NAME]["direction"] = sign
    return silent_update.candidates(tests)


def _way_on(*three: SnapshotSide) -> float | None:
    """Whether the centroid's second change goes on the way of its first (1) or back (-1).

    None without common prompts, and where another embedder took over: their spaces have no direction in common.
    """
    if any(side.space != three[0].space for side in three):
        return None
    clouds = [side.clouds(NEUTRAL) for side in three]
    names = wordings.once(clouds[0].keys() & clouds[1].keys() & clouds[2].keys())
    return float(np.sign(centroid.onward(*([one[name] for name in names] for one in clouds)))) if names else None


def _neutral_rows(rows: Sequence[ComparisonRow], side: SnapshotSide) -> list[ComparisonRow]:
    """The axis tests of neutral prompts that an alarm may rest on."""
    return [row for row in rows if row["level"] == AXIS and row["axis"] == NEUTRAL and _locked(row, side)]


def _neutral(rows: Sequence[ComparisonRow], side: SnapshotSide) -> dict[str, dict[str, Any]]:
    own = _neutral_rows(rows, side)
    return {row["name"]: {"p": row["p"], "rejected": row["rejected"], "direction": row["direction"]} for row in own}


def _shuffled(ids: Sequence[str], sides: Mapping[str, SnapshotSide], seed: int) -> float | None:
    """About how often the rule fires on this series in random order, by prompts and metrics that every snapshot has."""
    known = [
        sides[one] for one in ids if one in sides and NEUTRAL in sides[one].axes and not sides[one].failed(NEUTRAL)
    ]
    columns = []
    for metric in (one for one in SCALARS if one is not refusal or all(side.detector.locked for side in known)):
        every = [side.values(metric, NEUTRAL) for side in known]
        names = wordings.once(set.intersection(*(set(one) for one in every))) if every else []
        values = [{name: one[name] for name in names} for one in every]
        errors = [comparison.sampling_error(one) for one in values]
        if all(error is not None for error in errors) and any(errors):
            columns.append(
                [(np.mean([np.mean(v) for v in one.values()]), e) for one, e in zip(values, errors, strict=True)]
            )
    if not columns:
        return None
    table = np.array(columns, dtype=float)  # [metric, snapshot, (mean, error)]
    return silent_update.shuffled_rate(table[:, :, 0].T, table[:, :, 1].T, comparison.seed_of(seed, "shuffled"))


def _breaks(history: Sequence[SeriesPoint], compared: Compared) -> list[dict[str, Any]]:
    """167 for every metric and axis with a value.

    Variance beyond sampling is estimated from snapshots without a significant change.
    """
    rows = []
    for number, name, axis in dict.fromkeys((point["metric"], point["name"], point["axis"]) for point in history):
        own = [point for point in history if (point["name"], point["axis"]) == (name, axis)]
        if not any(point["value"] is not None for point in own):
            continue
        points = [(one["snapshot"], *_level(one)) for one in own]
        moved = {
            snapshot
            for snapshot, found in compared.items()
            if any(
                (row["metric"], row["axis"], row["level"]) == (number, axis, AXIS) and row["rejected"] for row in found
            )
        }
        levels = np.cumsum([one in moved for one, *_ in points]).tolist()  # a significant change begins another level
        null = [
            (value, se, level)
            for (one, value, se), level in zip(points, levels, strict=True)
            if one not in moved and value is not None and se is not None
        ]
        excess = change_points.excess_variance(*zip(*null, strict=True)) if null else 0.0
        rows.append(_plain(change_points, axis, "series", change_points.of_series(points, excess)) | {"of": name})
    return rows


def _level(point: SeriesPoint) -> tuple[float | None, float | None]:
    """Value and standard error of a point; (None, None) if too many of its outputs were cut at max_tokens."""
    detail = point.get("detail", {})
    if detail.get("cut_at_max_tokens", 0) > length.CENSORED:
        return None, None
    return point["value"], detail.get("standard_error")


def _numbered(metric: Any, series: str, manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Result 16x: the records of one metric over all snapshots; for 169, the status of all metrics."""
    if metric is status:
        records = [{"snapshot": one["snapshot"], **row} for one in manifests for row in one["status"]]
    else:
        own = [(one["snapshot"], row) for one in manifests for row in one["records"] if row["metric"] == metric.NUMBER]
        records = [{"snapshot": name, **row} for name, row in own]
    inputs = {one["snapshot"]: one["subject"].get("rows_sha256") for one in manifests}
    own = {"number": metric.NUMBER, "id": metric.NAME, "kind": "drift", "title": metric.TITLE}
    return {**own, "subject": {"series": series, "rows_sha256": inputs}, "records": records}
