"""Registration: a hypothesis is put on the chain before its data. Only then is a result confirmatory; it is decided once.

Its place can be forged only by rewriting the file from there on. The head hash is printed so that it can be kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from result_types import ChangeRow, ComparisonRow
from results_io import UserError
from suites import bounded_yaml
from suites.drift import series_record
from suites.drift.corpus import AXES
from suites.drift.series_record import SeriesRecord
from suites.log.chain import Writer

KEYS = ("claim", "metric", "axis", "direction", "test", "alpha", "margin", "n", "exclusion")
METRICS = ("refusal", "hedging", "length", "centroid")
DIRECTIONS = {"up": 1.0, "down": -1.0, "any": 0.0}
TEST = "permutation within prompts"
LARGEST = 1e15  # bound of numbers: beyond it no margin or count is plausible
DECIDED = ("claim", "snapshot", "outcome", "role", "p", "difference")  # keys of a decision; an open one has four


def read(path: Path) -> dict[str, Any]:
    """A hypothesis from a YAML file. UserError for an unreadable file, a missing or unknown key, and an invalid value."""
    try:
        data = bounded_yaml.read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"hypothesis={path} cannot be read ({' '.join(str(error).split())[:200]}); give a YAML file"
        ) from error
    if not isinstance(data, dict) or set(data) != set(KEYS):
        raise UserError(f"hypothesis={path} needs exactly the keys {', '.join(KEYS)}; correct the file")
    for key, allowed in (("metric", METRICS), ("axis", AXES), ("direction", tuple(DIRECTIONS)), ("test", (TEST,))):
        if data[key] not in allowed:
            raise UserError(f"{path}: {key} is {data[key]!r}; expected one of {', '.join(allowed)}")
    for key, least, most in (("alpha", 0, 1), ("margin", 0, None), ("n", 1, None)):
        value = data[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
        if not is_number or value < least or (most is not None and value > most):
            reach = f"from {least:g} on" if most is None else f"from {least:g} to {most:g}"
            raise UserError(f"{path}: {key} is {value!r}; expected a number {reach}")
    for key in ("claim", "exclusion"):
        value = data[key]
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise UserError(f"{path}: {key} is {value!r}; expected a line of text, in quotation marks")
    return data


def register(folder: Path, hypothesis: Mapping[str, Any], time: datetime) -> str:
    """Append the hypothesis to the chain; returns the head. UserError if the same claim is registered already."""
    with Writer(folder / series_record.NAME) as writer:
        series = series_record.read(folder / series_record.NAME)
        if any(known["claim"] == hypothesis["claim"] for known in series.registered):
            raise UserError(f"the claim {hypothesis['claim']!r} is registered already; a hypothesis is registered once")
        writer.append([{"kind": series_record.REGISTERED, **hypothesis, "time": time.isoformat()}])
        return writer.head.hash


def decided(series: SeriesRecord, comparisons: Mapping[str, Sequence[ComparisonRow]]) -> list[dict[str, Any]]:
    """The decision on each registered claim, by the first comparison with later data that has its test on enough prompts.

    `comparisons`: axis records by snapshot, without those of a detector that is not locked. A claim whose snapshot began before
    it was registered is never confirmatory. What the chain says was decided stands, whatever an analysis with other settings
    finds: a claim is decided once.
    """
    return [_decision(claim, series, comparisons) for claim in series.registered]


def _decision(
    claim: Mapping[str, Any], series: SeriesRecord, comparisons: Mapping[str, Sequence[ComparisonRow]]
) -> dict[str, Any]:
    known = next((one for one in series.decisions if one["claim"] == claim["claim"]), None)
    if known is not None and known["snapshot"] in series.snapshots:
        return {name: known[name] for name in DECIDED}
    for snapshot in series.finished:
        if snapshot.first is None or snapshot.first < claim["seq"]:
            continue
        row = _test_of(claim, comparisons.get(snapshot.id, ()))
        if row is not None and row["p"] is not None and row["detail"].get("prompts", 0) >= claim["n"]:
            outcome = "supported" if supports(claim, row) else "not supported"
            found = (claim["claim"], snapshot.id, outcome, "confirmatory", row["p"], row["difference"])
            return dict(zip(DECIDED, found, strict=True))
    return dict(zip(DECIDED[:4], (claim["claim"], None, "open", "confirmatory"), strict=True))


def _test_of(claim: Mapping[str, Any], rows: Sequence[ComparisonRow]) -> ChangeRow | None:
    """The axis test of a claim; None if there is none."""
    own = (
        one for one in rows if one["level"] == "axis" and (one["name"], one["axis"]) == (claim["metric"], claim["axis"])
    )
    return next(own, None)


def supports(claim: Mapping[str, Any], row: ChangeRow) -> bool:
    """p at most alpha, in the direction of the claim, by at least its margin. The p is two-sided, as registered.

    A distance has no direction; it is up where anything moved.
    """
    sign = DIRECTIONS[claim["direction"]]
    way = 1.0 if row["direction"] is None else row["direction"]
    right = sign in (0, way)
    return right and row["p"] <= claim["alpha"] and abs(row["difference"] or 0.0) >= claim["margin"]


def write_decisions(folder: Path, decisions: Sequence[Mapping[str, Any]], time: datetime) -> int:
    """Put decisions on the chain that are not there yet; returns their number."""
    with Writer(folder / series_record.NAME) as writer:
        known = {one["claim"] for one in series_record.read(folder / series_record.NAME).decisions}
        new = [one for one in decisions if one["outcome"] != "open" and one["claim"] not in known]
        if new:
            writer.append([{"kind": series_record.DECISION, **one, "time": time.isoformat()} for one in new])
        return len(new)
