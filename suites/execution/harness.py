"""The harness: calls a program's tests one by one in a sandbox, and compares the replies outside of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from suites.execution.sandbox import CannotStart, Sandbox, SandboxEnded, Session, TimedOut, TooMuch

Status = Literal["passed", "failed", "error", "timeout", "killed"]
TOLERANCE = 1e-9  # relative and absolute, for floating-point numbers
NOT_LOADED = "the program was not loaded"
MOST_TEXT = 200  # characters of an error's name and of its message


@dataclass(frozen=True)
class ProgramTest:
    """One call of the entry function: `args`, and the value that it must return or the name of the error that it must raise."""

    name: str
    args: Sequence[Any]
    returns: Any = None
    raises: str | None = None


@dataclass(frozen=True)
class Execution:
    """The result of a program: the status of every test, and a sentence for each that did not pass.

    `error`: why the sandbox did not start; then there are no tests, and nothing is known about the program.
    """

    tests: Mapping[str, Status]
    why: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def passed(self) -> bool | None:
        """Whether every test passed; None if the sandbox did not start."""
        return None if self.error is not None else all(status == "passed" for status in self.tests.values())


class _Broken(Exception):
    """The process can take no more calls; it has the status of the current test and the reason."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status: Status = status


def run(
    program: str, entry: str, tests: Sequence[ProgramTest], sandbox: Sandbox, timeout: float, start: float
) -> Execution:
    """Run every test, in one process as long as it lives. A process that ended or was too slow is replaced for the other tests.

    `timeout`: seconds for loading and for each test; `start`: seconds for starting the sandbox.
    """
    statuses: dict[str, Status] = {}
    why: dict[str, str] = {}
    left = list(tests)
    while left:
        try:
            with sandbox.session(timeout * (len(left) + 1)) as session:
                for test, status, reason in _calls(session, program, entry, left, timeout, start):
                    statuses[test.name] = status
                    if reason:
                        why[test.name] = reason
        except CannotStart as error:
            return Execution({}, error=f"the sandbox did not start: {error}")
        left = [test for test in tests if test.name not in statuses]
    return Execution(statuses, why)


def _calls(
    session: Session, program: str, entry: str, tests: Sequence[ProgramTest], timeout: float, start: float
) -> Iterator[tuple[ProgramTest, Status, str]]:
    """(test, status, why) of the tests, until the process can take no more calls. CannotStart if it does not answer at all."""
    try:
        session.ask({"do": "hello"}, start)
    except (TimedOut, SandboxEnded, TooMuch) as error:
        raise CannotStart(str(error) or "it gave no sign of life") from error
    try:
        loaded = _asked(session, {"do": "load", "program": program, "entry": entry}, timeout)
    except _Broken as error:
        for test in tests:  # loading would end like this each time
            yield test, error.status, f"{NOT_LOADED}: {error}"
        return
    if loaded.get("value") is not True:
        reason = f"{loaded.get('raised')}: {loaded.get('why')}" if "raised" in loaded else f"{entry} is no function"
        for test in tests:
            yield test, "error", f"{NOT_LOADED}: {reason}"
        return
    for test in tests:
        try:
            reply = _asked(session, {"do": "call", "args": list(test.args)}, timeout)
        except _Broken as error:
            yield test, error.status, str(error)
            return
        yield test, *verdict(test, reply)


def _asked(session: Session, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    try:
        return of_form(session.ask(request, seconds))
    except TimedOut:
        raise _Broken("timeout", f"no answer in {seconds:g} s") from None
    except TooMuch:
        raise _Broken("error", "the answer is too long") from None
    except SandboxEnded as error:
        raise _Broken("killed" if error.killed else "error", str(error)) from None


def of_form(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """A reply with the texts `raised` and `why` cut to MOST_TEXT.

    The program can write replies itself, so one of another form is an error of the program.
    """
    texts = {key: reply[key] for key in ("raised", "why") if key in reply}
    if ("value" in reply) == ("raised" in reply) or not all(isinstance(text, str) for text in texts.values()):
        raise _Broken("error", "its reply has another form than a value, or the name of an error and a message")
    try:
        json.dumps(reply, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise _Broken("error", "its reply holds half a character, or is nested too deep") from None
    return {**reply, **{key: text[:MOST_TEXT] for key, text in texts.items()}}


def verdict(test: ProgramTest, reply: Mapping[str, Any]) -> tuple[Status, str]:
    """(status, why) of a reply. The comparison is made here, with expected values that the sandbox never sees."""
    raised = reply.get("raised")
    if test.raises is not None:
        if raised == test.raises:
            return "passed", ""
        said = f"raised {raised}" if raised is not None else f"returned {_shown(reply.get('value'))}"
        return "failed", f"{said}, expected {test.raises}"
    if raised is not None:
        return "error", f"{raised}: {reply.get('why')}"
    if same(reply.get("value"), test.returns):
        return "passed", ""
    return "failed", f"returned {_shown(reply.get('value'))}, expected {_shown(test.returns)}"


def same(said: Any, expected: Any) -> bool:
    """Equality of JSON values: lists equal tuples, true is not 1, and floating-point numbers may differ by rounding."""
    if isinstance(said, bool) or isinstance(expected, bool):
        return said is expected
    if isinstance(said, float) or isinstance(expected, float):
        if not (isinstance(said, int | float) and isinstance(expected, int | float)):
            return False
        try:
            return math.isclose(said, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:  # an integer too large for a float
            return False
    if isinstance(said, list) and isinstance(expected, list):
        return len(said) == len(expected) and all(same(one, other) for one, other in zip(said, expected, strict=True))
    if isinstance(said, dict) and isinstance(expected, dict):
        return said.keys() == expected.keys() and all(same(said[key], expected[key]) for key in expected)
    return type(said) is type(expected) and said == expected


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
