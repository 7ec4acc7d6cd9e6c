"""The data of a snapshot for readers: CSV, JSON and Parquet of its records; of held-out prompts, aggregates only."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

import results_io
import shown_text
from result_schemas import limits, mismatches
from result_types import DriftManifest, ManifestContent, ManifestRow
from results_io import UserError
from suites import bounded_text
from suites.drift import corpus

REVEALED = "data/revealed.json"  # retired held-out prompts, of all snapshots
ESCAPED = "backslashreplace"  # of half a character, which JSON may hold and UTF-8 not
COLUMNS: Mapping[str, pa.DataType] = {
    **dict.fromkeys(
        ("snapshot", "metric", "name", "axis", "level", "prompt", "harm", "of", "unit", "status"), pa.string()
    ),
    **dict.fromkeys(("value", "low", "high", "before", "after", "difference", "p", "adjusted_p"), pa.float64()),
    "detectable": pa.float64(),
    "m": pa.int64(),
    "n": pa.int64(),
    "rejected": pa.bool_(),
    **dict.fromkeys(("flag", "test", "reason"), pa.string()),
}


def rows(manifest: ManifestContent) -> list[dict[str, Any]]:
    """The records of a manifest as a flat table."""
    return [_row(manifest["snapshot"], record) for record in manifest["records"]]


def _row(snapshot: str, record: ManifestRow) -> dict[str, Any]:
    found: dict[str, Any] = {"snapshot": snapshot, **{name: record.get(name) for name in COLUMNS if name != "snapshot"}}
    if ci := record.get("ci"):
        found |= {"low": ci["low"], "high": ci["high"]}
    for name, kind in COLUMNS.items():
        value = found[name]
        if value is not None and kind == pa.float64():
            found[name] = float(value) if isinstance(value, int | float) else None  # other values are in `reason`
        elif isinstance(value, str):
            found[name] = value.encode(errors=ESCAPED).decode()
    return found


def files(manifest: ManifestContent, head: Mapping[str, Any] | None) -> dict[str, bytes]:
    """{file name in data/<id>/: its bytes}."""
    table = rows(manifest)
    public = {
        "manifest.json": _json({**manifest, "schema_version": results_io.SCHEMA_VERSION}),
        "metrics.csv": _csv(table),
        "metrics.json": _json(table),
        "metrics.parquet": _parquet(table),
        "prompts.json": _json(manifest["subject"].get("corpus", {}).get("public", [])),
    }
    if committed := manifest["subject"].get("corpus", {}).get("commitments"):
        public[corpus.COMMITMENTS] = _json({"commitments": committed})
    return public if head is None else {**public, "head.json": _json(dict(head))}


def revealed(prompts: Sequence[Mapping[str, Any]]) -> bytes:
    """Text and salt of what was held out and is retired, with which anybody can check its commitment."""
    return _json(sorted(prompts, key=lambda one: (one["prompt"]["id"], one["prompt"]["version"])))


def read_manifest(text: str, where: str) -> ManifestContent:
    """A manifest in the form that a site publishes or that the series stores. UserError for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"manifest={where} is not JSON ({error}); give manifest.json of a snapshot's data") from error
    if not isinstance(found, dict) or found.get("id") != "drift_manifest":
        raise UserError(f"manifest={where} is no manifest of drift; give manifest.json of a snapshot's data")
    manifest = content(cast(DriftManifest, found))
    if reason := limits(manifest) or next(mismatches(manifest, ManifestContent, ""), None):
        raise UserError(f"manifest={where}: {reason}; give manifest.json of a snapshot's data as it was published")
    return manifest


def content(manifest: DriftManifest) -> ManifestContent:
    """The content of a manifest, from which pages are made, without the keys that every stored result has."""
    found = {key: value for key, value in manifest.items() if key not in (results_io.DIGEST, "schema_version")}
    return cast(ManifestContent, found)


def read_head(path: Path) -> dict[str, Any]:
    """The chain's head of a snapshot, in the form that a site publishes. UserError for anything else."""
    try:
        found = json.loads(bounded_text.read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no head of a snapshot ({error}); build the site again") from error
    if not isinstance(found, dict) or not {"snapshot", "lines", "hash"} <= found.keys():
        raise UserError(f"{path} is no head of a snapshot, which has snapshot, lines and hash; build the site again")
    return found


def read_revealed(path: Path, manifest: ManifestContent) -> list[dict[str, Any]]:
    """The revealed prompts in the form that a site publishes, each checked against the manifest's commitment.

    One that was committed to by another snapshot alone is left out, since it cannot be checked. UserError for anything else.
    """
    try:
        found = json.loads(bounded_text.read(path))
        keys = [f"{one['prompt']['id']}@{one['prompt']['version']}" for one in found]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} has no revealed prompts ({error}); build the site again from the series") from error
    committed = manifest["subject"].get("corpus", {}).get("commitments") or {}
    known = [one for key, one in zip(keys, found, strict=True) if key in committed]
    return [corpus.as_committed(one, {"commitments": committed}, path) for one in known]


def _json(value: Any) -> bytes:
    return (json.dumps(results_io.canonical(value), sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode(
        errors=ESCAPED
    )


def _csv(table: Sequence[Mapping[str, Any]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if value is None else shown_text.cell(value) for name, value in row.items()} for row in table
    )
    return stream.getvalue().encode()


def _parquet(table: Sequence[Mapping[str, Any]]) -> bytes:
    """Parquet with one row group, a fixed version and codec, and no pandas or Arrow metadata: same rows, same bytes."""
    schema = pa.schema(list(COLUMNS.items()))
    sink = pa.BufferOutputStream()
    content = pa.Table.from_pylist(list(table), schema=schema)
    pq.write_table(
        content, sink, row_group_size=max(1, len(table)), version="2.6", compression="snappy", store_schema=False
    )
    return sink.getvalue().to_pybytes()
