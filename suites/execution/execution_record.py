"""executions.jsonl: the result of every program, on a hash chain. A recorded program is not run again.

A line has the hash of the program, the status of every test, and the sandbox. Times differ from run to run; a recorded timeout
stays a timeout, so that results do not differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import results_io
from suites.execution.harness import Execution, ProgramTest
from suites.log import chain
from suites.log.line_form import MAYBE_TEXT, Form

NAME, SCHEMA, KIND = "executions.jsonl", 1, "execution"
FORMS: Mapping[str, Form] = {KIND: {"key": str, "tests": dict, "why": dict, "error": MAYBE_TEXT}}


def key(program: str, entry: str, tests: Sequence[ProgramTest], timeout: float, sandbox: Mapping[str, Any]) -> str:
    """Identity of an execution: hash of the program, its tests, its time limit, and its sandbox."""
    about = {"program": program, "entry": entry, "timeout": timeout, "sandbox": dict(sandbox)}
    return results_io.sha256({**about, "tests": [asdict(test) for test in tests]})


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a record, oldest first; [] if there is no file. UserError for a line that was changed."""
    return [line for line in chain.read(path, FORMS) if line["kind"] == KIND]


def to_execution(line: Mapping[str, Any]) -> Execution:
    """The execution in a line of the record."""
    return Execution(line["tests"], line["why"], line["error"])


class ExecutionRecord:
    """The writer of one record. Use as a context manager; UserError as `chain.Writer`."""

    def __init__(self, path: Path) -> None:
        self._writer = chain.Writer(path)
        self._known = {line["key"]: to_execution(line) for line in read(path) if line["error"] is None}

    def __enter__(self) -> ExecutionRecord:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    def get(self, identity: str) -> Execution | None:
        """The recorded execution, or None; one whose sandbox did not start is tried again."""
        return self._known.get(identity)

    def add(self, identity: str, program: str, found: Execution, about: Mapping[str, Any]) -> None:
        """Append one execution, which is on disk afterwards."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"schema": SCHEMA, "kind": KIND, "ts": now, "key": identity, **about}
        line |= {"program_sha256": results_io.sha256(program), "tests": dict(found.tests), "why": dict(found.why)}
        self._writer.append([{**line, "error": found.error}])
        self._known |= {identity: found} if found.error is None else {}
