"""The record of a shadow evaluation: shadow.jsonl, a hash chain without texts, and a separate file with texts that expire.

started    the candidate's identity, rate, a hash of the sampling key; once
planned    alpha, and the expected rates that are new: they count requests after this line
judge      the judge and its rubric; once
failed     the requests of which the candidate's call failed, by name; they are asked again
sampled    one request: its name, day, hashes of the redacted texts, what was detected in both answers, how much was redacted
verdict    the judge's verdicts on both answers, in both orders
expired    how many texts were deleted, and up to which day

Whatever the test depends on is on the chain before the data that it decides, so its alarms follow from the chain alone and no
later setting moves them. A record of an older version has no line `planned` or `judge`, and lines `alarm` that are not used:
they do not say of which test they are.

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
STARTED, PLANNED, JUDGE, SAMPLED = "started", "planned", "judge", "sampled"
FAILED, VERDICT, ALARM, EXPIRED = "failed", "verdict", "alarm", "expired"
ANOTHER = "or begin another record with shadow.name=NAME"
RESTORE = "restore it from a copy, or move it away: what is on the record stays there without its texts"
TEXT: Form = {
    **dict.fromkeys(("request", "prompt", "live", "candidate", "expires"), str),
    **{"system": MAYBE_TEXT, "earlier": list},
}
FORMS: Mapping[str, Form] = {  # of what is read of a line
    STARTED: {"candidate": dict, "rate": NUMBER, "key": str},
    PLANNED: {"alpha": NUMBER, "expected": [{"detector": str, "rate": NUMBER}]},
    JUDGE: {"judge": str, "rubric": str},
    FAILED: {"requests": [str]},
    SAMPLED: {"request": str, "day": str, "part": int, "live": dict, "candidate": dict},
    VERDICT: {"request": str, "judge": str, "original": MAYBE_TEXT, "swapped": MAYBE_TEXT},
    ALARM: {"metric": str, "side": str, "n": int, "worse": bool},
    EXPIRED: {"texts": int, "until": str},
}


@dataclass(frozen=True)
class ExpectedRate:
    """The rate of a detector that was fixed with line `since` of the record: it is tested on the requests after that line."""

    p0: float
    since: int


@dataclass
class TrafficStream:
    """The content of a record, in its order. `texts`: those still stored, by the request's name.

    `judge`: whose verdicts these are; `rubric`: None if an older version made them. `doubt`: why they decide nothing now, which
    depends on the judge's passport and is not on the record. `failed`: requests of which a call failed, answered later or not.
    """

    started: Mapping[str, Any] | None = None
    alpha: float | None = None
    expected: dict[str, ExpectedRate] = field(default_factory=dict)
    judge: str | None = None
    rubric: str | None = None
    doubt: str | None = None
    sampled: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    verdicts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    texts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def unanswered(self) -> set[str]:
        """The requests of which every call failed."""
        return self.failed - self.sampled.keys()

    def take(self, line: Mapping[str, Any]) -> None:
        """Add the next line. The first one about a request counts, so everything keeps the record's order.

        Only an older version let several judges into one record. Their first one's verdicts are used.
        """
        kind = line["kind"]
        if kind == STARTED:
            self.started = line
        elif kind == PLANNED:
            self.alpha = line["alpha"] if self.alpha is None else self.alpha
            for one in line["expected"]:
                self.expected.setdefault(one["detector"], ExpectedRate(one["rate"], line["seq"]))
        elif kind == FAILED:
            self.failed.update(line["requests"])
        elif kind == SAMPLED:
            self.sampled.setdefault(line["request"], line)
        elif kind in (JUDGE, VERDICT):
            self.judge = self.judge or line["judge"]
            if kind == JUDGE:
                self.rubric = self.rubric or line["rubric"]
            elif line["judge"] == self.judge:
                self.verdicts.setdefault(line["request"], line)


def read(folder: Path) -> TrafficStream:
    """The record of a folder. UserError for a line that was changed."""
    stream = TrafficStream()
    for line in chain.read(Path(folder) / NAME, FORMS):
        stream.take(line)
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
            one = bounded_text.value(line)
        except ValueError as error:
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
            self._append([_line(STARTED, **facts)])
            return
        differs = [
            name
            for name, value in facts.items()
            if results_io.canonical(known.get(name)) != results_io.canonical(value)
        ]
        if differs:
            raise UserError(
                f"{self.folder} is the record of another {differs[0]} than this run has; go on with that one, {ANOTHER}"
            )

    def plan(self, alpha: float, expected: Mapping[str, float | None], judge: tuple[str, str] | None = None) -> None:
        """Fix alpha, the judge (fingerprint, hash of its rubric), and expected rates. None leaves a rate or the judge as it is.

        UserError, and nothing is written, for another value than the record has: alarms come with a probability of at most alpha
        only in a test that is fixed before its data.
        """
        stream, rates = self.stream, {name: p0 for name, p0 in expected.items() if p0 is not None}
        known = {f"shadow.expected.{name}": one.p0 for name, one in stream.expected.items()}
        known |= {} if stream.alpha is None else {"shadow.alpha": stream.alpha}
        for name, value in {
            "shadow.alpha": alpha,
            **{f"shadow.expected.{name}": p0 for name, p0 in rates.items()},
        }.items():
            if known.get(name, value) != value:
                raise UserError(
                    f"{name}={value:g} differs from the {known[name]:g} of {self.folder}, which was fixed before its data; go on "
                    f"with {name}={known[name]:g}, {ANOTHER}"
                )
        if judge is not None and judge != (stream.judge or judge[0], stream.rubric or judge[1]):
            what = "judge" if judge[0] != stream.judge else "rubric"
            raise UserError(
                f"{self.folder} has verdicts of another {what} than this run; go on with that one or without judge=, {ANOTHER}"
            )
        new = [{"detector": name, "rate": p0} for name, p0 in rates.items() if name not in stream.expected]
        if stream.alpha is None or new:
            self._append([_line(PLANNED, alpha=alpha, expected=new)])
        if judge is not None and stream.rubric is None:
            self._append([_line(JUDGE, judge=judge[0], rubric=judge[1])])

    def add(self, lines: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, Any]]) -> None:
        """Append sampled requests, and store their texts. Texts are stored first, so every line on the chain had its texts."""
        self.stream.texts |= {one["request"]: dict(one) for one in texts}
        self._write_texts()
        self._append([_line(SAMPLED, **one) for one in lines])

    def failed(self, requests: Sequence[str]) -> None:
        """Append the names of requests of which the call failed."""
        if requests:
            self._append([_line(FAILED, requests=list(requests))])

    def judged(self, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Append a judge's verdicts."""
        self._append([_line(VERDICT, **one) for one in verdicts])

    def expire(self, today: str) -> int:
        """Delete the expired texts permanently; returns their number."""
        over = [name for name, one in self.stream.texts.items() if one["expires"] <= today]
        if over:
            for name in over:
                del self.stream.texts[name]
            self._write_texts()
            self._append([_line(EXPIRED, texts=len(over), until=today)])
        return len(over)

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in self._writer.append(lines):
            self.stream.take(line)

    def _write_texts(self) -> None:
        lines = "".join(
            f"{json.dumps(one, ensure_ascii=False, sort_keys=True)}\n" for one in self.stream.texts.values()
        )
        results_io.write_text(self.folder / TEXTS, lines)


def _line(kind: str, **rest: Any) -> dict[str, Any]:
    return {"kind": kind, "ts": datetime.now(UTC).isoformat(timespec="milliseconds"), **rest}
