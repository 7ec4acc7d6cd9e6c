"""The record of a shadow evaluation: shadow.jsonl, a hash chain without texts, and a separate file with texts that expire.

started    the candidate's identity, rate, a hash of the sampling key; once
sampled    one request: its name, day, hashes of the redacted texts, what was detected in both answers, how much was redacted
verdict    a deployed judge's verdicts on both answers, in both orders
alarm      the first alarm of a metric on one side of its p0: after how many of its items, among how many metrics
expired    how many texts were deleted, and up to which day

`texts.jsonl` has the redacted texts by the request's name. It is not part of the chain, so that texts can be deleted in time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import results_io
from results_io import UserError
from suites import bounded_text
from suites.log import chain, line_form
from suites.log.line_form import MAYBE_TEXT, NUMBER, Form

NAME, TEXTS = "shadow.jsonl", "texts.jsonl"
STARTED, SAMPLED, VERDICT, ALARM, EXPIRED = "started", "sampled", "verdict", "alarm", "expired"
RESTORE = "restore it from a copy, or move it away: what is on the record stays there without its texts"
TEXT: Form = {
    **dict.fromkeys(("request", "prompt", "live", "candidate", "expires"), str),
    **{"system": MAYBE_TEXT, "earlier": list},
}
FORMS: Mapping[str, Form] = {  # of what is read of a line
    STARTED: {"candidate": dict, "rate": NUMBER, "key": str},
    SAMPLED: {"request": str, "day": str, "part": int, "live": dict, "candidate": dict},
    VERDICT: dict.fromkeys(("request", "judge", "original", "swapped"), MAYBE_TEXT),
    ALARM: {"metric": str, "side": str, "n": int, "worse": bool},
    EXPIRED: {"texts": int, "until": str},
}


@dataclass
class TrafficStream:
    """The content of a record, in its order. `alarms` by metric and side. `texts`: those still stored, by the request's name."""

    started: Mapping[str, Any] | None = None
    sampled: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    verdicts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    alarms: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    texts: dict[str, dict[str, Any]] = field(default_factory=dict)


def read(folder: Path) -> TrafficStream:
    """The record of a folder. UserError for a line that was changed."""
    stream = TrafficStream()
    for line in chain.read(Path(folder) / NAME, FORMS):
        if line["kind"] == STARTED:
            stream.started = line
        elif line["kind"] == SAMPLED:
            stream.sampled[line["request"]] = line
        elif line["kind"] == VERDICT:
            stream.verdicts[line["request"]] = line
        elif line["kind"] == ALARM:
            stream.alarms.setdefault((line["metric"], line["side"]), line)
    stream.texts = _texts(Path(folder) / TEXTS)
    return stream


def _texts(path: Path) -> dict[str, dict[str, Any]]:
    """The stored texts by the request's name; {} without a file. UserError for a line that holds none."""
    if not os.path.lexists(path):
        return {}
    found = {}
    # not splitlines: the texts are people's, and hold other line separators than LF
    for number, line in enumerate(bounded_text.given(path, RESTORE).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number} is not JSON ({error}); {RESTORE}") from None
        if (at := line_form.misfit(one, TEXT)) is not None:
            raise UserError(f"{path}: line {number} holds no texts: its {at or 'value'} is missing or wrong; {RESTORE}")
        found[one["request"]] = one
    return found


class TrafficRecord:
    """The writer of one record. Use as a context manager; UserError as `chain.Writer`."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._writer = chain.Writer(self.folder / NAME)
        self.stream = read(self.folder)

    def __enter__(self) -> TrafficRecord:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    def start(self, **facts: Any) -> None:
        """Record once what is monitored. UserError if the record is of something else, since a stream has one candidate."""
        known = self.stream.started
        if known is None:
            (self.stream.started,) = self._writer.append([_line(STARTED, **facts)])
            return
        differs = [
            name
            for name, value in facts.items()
            if results_io.canonical(known.get(name)) != results_io.canonical(value)
        ]
        if differs:
            raise UserError(
                f"{self.folder} is the record of another {differs[0]} than this run has; go on with that one, or begin another "
                "record with shadow.name=NAME"
            )

    def add(self, lines: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, Any]]) -> None:
        """Append sampled requests, and store their texts. Texts are stored first, so every line on the chain had its texts."""
        self.stream.texts |= {one["request"]: dict(one) for one in texts}
        self._write_texts()
        found = self._writer.append([_line(SAMPLED, **one) for one in lines])
        self.stream.sampled |= {one["request"]: one for one in found}

    def judged(self, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Append a judge's verdicts."""
        found = self._writer.append([_line(VERDICT, **one) for one in verdicts])
        self.stream.verdicts |= {one["request"]: one for one in found}

    def alarmed(self, alarms: Sequence[Mapping[str, Any]]) -> None:
        """Append alarms that are not on the record yet: one that was given stays, whatever is watched later."""
        new = [one for one in alarms if (one["metric"], one["side"]) not in self.stream.alarms]
        if new:
            found = self._writer.append([_line(ALARM, **one) for one in new])
            self.stream.alarms |= {(one["metric"], one["side"]): one for one in found}

    def expire(self, today: str) -> int:
        """Delete the expired texts permanently; returns their number."""
        over = [name for name, one in self.stream.texts.items() if one["expires"] <= today]
        if over:
            for name in over:
                del self.stream.texts[name]
            self._write_texts()
            self._writer.append([_line(EXPIRED, texts=len(over), until=today)])
        return len(over)

    def _write_texts(self) -> None:
        lines = "".join(
            f"{json.dumps(one, ensure_ascii=False, sort_keys=True)}\n" for one in self.stream.texts.values()
        )
        results_io.write_text(self.folder / TEXTS, lines)


def _line(kind: str, **rest: Any) -> dict[str, Any]:
    return {"kind": kind, "ts": datetime.now(UTC).isoformat(timespec="milliseconds"), **rest}
