"""The scorer `{kind: code, tests: FILE, entry: NAME}` of a suite: every output of a run as a program, run against its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_io import UserError
from shown_progress import Progress
from suites.execution import execution_record, harness, problems, program
from suites.execution.execution_record import ExecutionRecord
from suites.execution.harness import Execution
from suites.execution.sandbox import Sandbox
from suites.item import Suite
from suites.log.generations import RecordedRun, Slot

KIND = "code"
TIMEOUT = 5.0  # default seconds per test
SANDBOXES = ("docker", "process")  # the first is the default


@dataclass(frozen=True)
class SuiteExecutions:
    """The results of every output of one suite, and the identity of the sandbox."""

    found: Mapping[Slot, Execution]
    sandbox: Mapping[str, Any]


NO_IMAGE = "No such image"  # in what docker says
Executor = Callable[[Suite, RecordedRun], SuiteExecutions]


def needs_sandbox(suite: Suite) -> bool:
    """Whether the suite's scorer runs the model's code."""
    return suite.scorer.get("kind") == KIND


def sandbox_of(suite: Suite) -> str:
    """The kind of sandbox that the suite declares."""
    return str(suite.scorer.get("sandbox", SANDBOXES[0]))


def execute(
    suite: Suite, run: RecordedRun, sandbox: Sandbox, known: ExecutionRecord, bar: Progress, start: float
) -> SuiteExecutions:
    """Run every output of a recorded run whose call did not fail; equal programs of an item run once."""
    said = {slot: line["response_text"] for slot, line in run.generations.items() if line["error"] is None}
    identity, found = dict(sandbox.identity), {}
    bar.expect(len(said))
    for slot, text in said.items():
        one = _asked(suite, slot, text, identity)
        execution = known.get(one.key)
        if execution is None:
            execution = harness.run(one.program, one.entry, one.tests, sandbox, one.timeout, start)
            if execution.error is not None and NO_IMAGE in execution.error:
                raise UserError(
                    f"the image {identity['image']} is not on this machine; fetch it with docker pull, or name one that "
                    "`docker images --digests` lists: what the model wrote is kept"
                )
            about = {"suite_id": suite.id, "suite_hash": suite.sha256, "item_id": slot.item, "sandbox": identity}
            known.add(one.key, one.program, execution, about)
        found[slot] = execution
        bar.advance(1)
    return SuiteExecutions(found, identity)


def recorded(folder: Path, suite: Suite, run: RecordedRun) -> SuiteExecutions | None:
    """The recorded results of a run, in the sandbox that was used last; None if no output was run."""
    lines = [
        line
        for line in execution_record.read(Path(folder) / execution_record.NAME)
        if line["suite_hash"] == suite.sha256
    ]
    if not lines:
        return None
    identity = lines[-1]["sandbox"]
    known = {line["key"]: execution_record.to_execution(line) for line in lines}
    said = {slot: line["response_text"] for slot, line in run.generations.items() if line["error"] is None}
    keys = {slot: _asked(suite, slot, text, identity).key for slot, text in said.items()}
    return SuiteExecutions({slot: known[key] for slot, key in keys.items() if key in known}, identity)


@dataclass(frozen=True)
class _ProgramQuestion:
    program: str
    entry: str
    tests: list[harness.ProgramTest]
    timeout: float
    key: str


def _asked(suite: Suite, slot: Slot, text: str, sandbox: Mapping[str, Any]) -> _ProgramQuestion:
    item, entry = suite.by_id[slot.item], suite.scorer["entry"]
    source, tests = program.of_output(item.prompt, text, entry), problems.of_item(item)
    timeout = float(suite.scorer.get("timeout", TIMEOUT))
    return _ProgramQuestion(source, entry, tests, timeout, execution_record.key(source, entry, tests, timeout, sandbox))
