"""judgements.jsonl: a judge's questions and verdicts, on a hash chain; known ones are not asked again.

judge       who judges: identity, rubric; once for each
judgement   one verdict: the pair or item, order, hashes of prompt and texts, output, verdict, confidence, error
validated   the result of a validation, and its time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import results_io
from suites.log import chain
from suites.log.line_form import MAYBE_TEXT, Form

SCHEMA, NAME = 1, "judgements.jsonl"
JUDGE, JUDGEMENT, VALIDATED = "judge", "judgement", "validated"
ALONE = "alone"  # the order of a single answer
FORMS: Mapping[str, Form] = {  # of what is read of a line
    JUDGE: {"judge": str, "identity": dict, "rubric": {"sha256": str}},
    JUDGEMENT: {
        **dict.fromkeys(("key", "id", "order", "judge", "rubric"), str),
        **{"texts": [str], "verdict": MAYBE_TEXT, "error": MAYBE_TEXT},
    },
    VALIDATED: {},
}


def read(path: Path) -> dict[str, Mapping[str, Any]]:
    """The judgements that did not fail, by key; the latest counts. UserError at the first line that breaks the chain."""
    return _judgements(chain.read(path, FORMS))


@dataclass(frozen=True)
class OnRecord:
    """What chains hold of one judge and rubric: its `identities`, the labels that `passes`, and `verdicts` on single answers.

    `passes` is None where no chain has it; `verdicts` {(item, hash of the answer): verdicts}.
    """

    identities: Sequence[Mapping[str, Any]]
    passes: Sequence[str] | None
    verdicts: Mapping[tuple[str, str], set[str | None]]


def on_record(root: Path, judge: str, rubric: str) -> OnRecord:
    """What the chains below `root` hold of this judge (a fingerprint) and rubric (a hash). UserError as `read`."""
    paths = [path for path in sorted(Path(root).rglob(NAME)) if path.is_file() and judge.encode() in path.read_bytes()]
    lines = [line for path in paths for line in chain.read(path, FORMS) if line.get("judge") == judge]
    introduced = [line for line in lines if line["kind"] == JUDGE]
    rubrics = [line["rubric"] for line in introduced if line["rubric"]["sha256"] == rubric]
    known = [one["read_sha256"] for one in rubrics if "read_sha256" in one]
    verdicts: dict[tuple[str, str], set[str | None]] = {}
    for line in lines:
        single = line["kind"] == JUDGEMENT and line["order"] == ALONE and not line.get("repeat")
        if single and line["error"] is None and line["rubric"] in known:
            verdicts.setdefault((line["id"], line["texts"][0]), set()).add(line["verdict"])
    return OnRecord(
        [line["identity"] for line in introduced if results_io.sha256(line["identity"]) == judge],
        next((one["passes"] for one in rubrics if "passes" in one), None),
        verdicts,
    )


class JudgementRecord:
    """The writer of one record. Use as a context manager; UserError as `chain.Writer`."""

    def __init__(self, path: Path) -> None:
        self._writer = chain.Writer(path)
        lines = chain.read(path, FORMS)
        self.known = _judgements(lines)
        self._judges = {(line["judge"], line["rubric"]["sha256"]) for line in lines if line["kind"] == JUDGE}

    def __enter__(self) -> JudgementRecord:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    @property
    def head(self) -> str:
        """The hash that the next line continues."""
        return self._writer.head.hash

    def introduce(self, fingerprint: str, identity: Mapping[str, Any], rubric: Mapping[str, Any]) -> None:
        """Record the judge and the rubric, once."""
        if (fingerprint, rubric["sha256"]) not in self._judges:
            self._judges.add((fingerprint, rubric["sha256"]))
            self._write([_line(JUDGE, judge=fingerprint, identity=dict(identity), rubric=dict(rubric))])

    def add(self, judgements: Sequence[Mapping[str, Any]]) -> None:
        """Append judgements as one batch, which is on disk afterwards."""
        self._write([_line(JUDGEMENT, **one) for one in judgements])

    def validated(self, **found: Any) -> None:
        """Record the result of a validation."""
        self._write([_line(VALIDATED, **found)])

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.known |= _judgements(self._writer.append(lines))


def _judgements(lines: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {line["key"]: line for line in lines if line["kind"] == JUDGEMENT and line["error"] is None}


def _line(kind: str, **rest: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": kind, "ts": datetime.now(UTC).isoformat(timespec="milliseconds"), **rest}
