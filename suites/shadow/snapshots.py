"""Snapshots: the deployed model's answers as weeks of a drift series, so that `run.py drift` can monitor live traffic.

No two weeks have the same requests, so the "prompts" of a snapshot are random parts of the traffic. A keyed hash of its id
assigns a request to one of PARTS. A change within the parts is a change of the model, or of what people ask. Only completed
weeks are written. A drift record keeps the redacted answers forever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from results_io import UserError
from suites.drift import schedule, series_record, snapshot
from suites.drift.corpus import NEUTRAL, Prompt
from suites.log.chain import Writer
from suites.shadow.traffic_record import TrafficStream

PARTS = 20  # twice as many as an axis needs
NAME = "live-traffic"
MESSAGE = "part {number} of {PARTS} of the live traffic"


def prompts() -> list[Prompt]:
    """One stand-in prompt for each part."""
    return [
        Prompt(f"part-{number:02d}", 1, NEUTRAL, (("user", MESSAGE.format(number=number + 1, PARTS=PARTS)),))
        for number in range(PARTS)
    ]


def feed(
    folder: Path, stream: TrafficStream, last_day: str, max_tokens: int, clock: snapshot.Clock = snapshot.now
) -> list[str]:
    """Append every completed week that is not in the series of `folder`; returns their ids.

    `last_day`: day of the newest request in the traffic, whose week is not over. Only requests with stored texts count.
    UserError for a series that is not one of live traffic.
    """
    with Writer(Path(folder) / series_record.NAME) as writer:
        series = series_record.read(Path(folder) / series_record.NAME)
        if other := next((one for one in series.snapshots.values() if one.started["corpus"]["name"] != NAME), None):
            raise UserError(
                f"the drift series {Path(folder).name} is about {other.started['corpus']['name']}, not live traffic; give "
                "shadow.series another name"
            )
        weeks: dict[str, list[dict[str, Any]]] = {}
        for name, line in stream.sampled.items():
            if name in stream.texts:
                week = _week(line["day"])
                weeks.setdefault(week, []).append(_row(line, stream.texts[name]["live"], len(weeks.get(week, ()))))
        over = [week for week in schedule.in_order(list(weeks)) if series_record.series_before(week, _week(last_day))]
        fresh = [week for week in over if week not in series.snapshots]
        for week in fresh:
            _append(writer, week, weeks[week], max_tokens, clock)
    return fresh


def _append(
    writer: Writer, week: str, rows: Sequence[Mapping[str, Any]], max_tokens: int, clock: snapshot.Clock
) -> None:
    now = clock().isoformat()
    writer.append([{**_started(week, len(rows), max_tokens), "time": now}])
    writer.append([{"kind": series_record.GENERATION, "snapshot": week, "time": now, **row} for row in rows])
    writer.append([{"kind": series_record.FINISHED, "snapshot": week, "n": len(rows), "errors": 0, "time": now}])


def _started(week: str, n: int, max_tokens: int) -> dict[str, Any]:
    parts = prompts()
    corpus = {
        "name": NAME,
        "version": "1",
        "sha256": hashlib.sha256("".join(one.hash for one in parts).encode()).hexdigest(),
        "markers": [],
        "not_applicable": {},
        "public": [{**one.frozen, "hash": one.hash, "answer": None} for one in parts],
        "held_out": 0,
        "commitments": {},
    }
    return {
        "kind": series_record.STARTED,
        "snapshot": week,
        "expected_n": n,
        "corpus": corpus,
        "legs": [{"name": snapshot.DEFAULT, "samples": n, "temperature": None}],
        "leg_dropped": "answers were logged, not asked for: there is no leg at temperature 0",
        "model": {"name": NAME, "identity": {"kind": "endpoint", "requested": NAME}},
        "declared_version": NAME,
        "every": 1,
        "max_tokens": max_tokens,
        "seed": 0,
    }


def _row(line: Mapping[str, Any], answer: str, sample: int) -> dict[str, Any]:
    prompt = prompts()[line["part"]]
    return {
        "prompt": prompt.id,
        "version": prompt.version,
        "prompt_hash": prompt.hash,
        "axis": NEUTRAL,
        "split": prompt.split,
        "harm": prompt.harm,
        "leg": snapshot.DEFAULT,
        "sample": sample,
        "text": answer,
        "text_sha256": hashlib.sha256(answer.encode("utf-8", "surrogatepass")).hexdigest(),
        "tokens": len(answer.split()),  # the log does not give the number of tokens
        "finish": "stop",
        "requested": NAME,
        "reported": None,
        "system_fingerprint": None,
        "api_version": None,
        "safety": False,
        "error": None,
    }


def _week(day: str) -> str:
    year, week, _ = date.fromisoformat(day).isocalendar()
    return f"{year:04d}-W{week:02d}"
