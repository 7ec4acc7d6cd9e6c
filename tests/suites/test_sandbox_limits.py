"""The limits of a process, and how its replies and its end are read: quick, without docker and without another user."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from suites.execution import sandbox
from suites.execution.sandbox import Process, Session

NAMES = ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC")
READ = f"""
import resource
def f():
    return [resource.getrlimit(getattr(resource, name)) for name in {NAMES!r}]
"""
LARGE_FILE = "def f(): open('x', 'wb').write(b'x' * (2 << 20))"
MANY_FILES = "def f(): return len([open('/dev/null') for _ in range(40)])"
MUCH_MEMORY = "def f(): return len('x' * (1 << 30))"
FORGE = """
import os
def f():
    for descriptor in range(3, 32):
        for line in (b'{"nonce": "", "value": 3}\\n', b'{"value": 3}\\n'):
            try:
                os.write(descriptor, line)
            except OSError:
                pass
    return -1
"""


@pytest.fixture
def box(monkeypatch) -> Process:
    """A sandbox of 512 MiB, whoever runs the tests."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return Process(512)


def called(session: Session, program: str) -> dict:
    assert session.ask({"do": "load", "program": program, "entry": "f"}, 30.0)["value"] is True
    return {key: value for key, value in session.ask({"do": "call", "args": []}, 30.0).items() if key != "nonce"}


def test_a_process_has_its_limits_before_the_program_is_loaded(box):
    """2.5 s of processor time are 3 full ones; 512 MiB; files of 1 MiB, 32 of them; no core, no process. None can be raised."""
    expected = [3, 536_870_912, 1_048_576, 32, 0, 0]
    assert box.limits(2.5) == dict(zip(NAMES, expected, strict=True))
    with box.session(2.5) as session:
        assert called(session, READ) == {"value": [[one, one] for one in expected]}


def test_beyond_its_limits_a_program_gets_an_error(box):
    with box.session(30.0) as session:
        raised = [called(session, text)["raised"] for text in (LARGE_FILE, MANY_FILES, MUCH_MEMORY)]
    assert raised == ["OSError", "OSError", "MemoryError"]


@pytest.mark.parametrize(
    ("command", "code", "killed"),
    [
        ("exit 137", 137, True),  # what docker says of a container that ran out of memory
        ("exit 129", 129, True),
        ("exit 128", 128, False),
        ("exit 1", 1, False),
        ("exit 0", 0, False),
        ("kill -9 $$", -signal.SIGKILL, True),
    ],
)
def test_a_code_above_128_and_a_signal_are_a_kill(command, code, killed):
    reading, writing = os.pipe()
    try:
        with (
            contextlib.contextmanager(sandbox._opened)(["sh", "-c", command], reading, writing, {}) as session,
            pytest.raises(sandbox.SandboxEnded) as ended,
        ):
            session.ask({"do": "hello"}, 30.0)
    finally:
        os.close(reading)
    assert (ended.value.code, ended.value.killed) == (code, killed)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b'{"nonce": "ab", "value": 3}', {"nonce": "ab", "value": 3}),
        (b'{"nonce": "", "value": 3}', None),
        (b'{"nonce": null, "value": 3}', None),
        (b'{"nonce": "AB", "value": 3}', None),
        (b'{"value": 3}', None),
        (b'{"nonce": "ab", "value": NaN}', None),
        (b'["ab"]', None),
        (b'"ab"', None),
        (b"[" * 100_000, None),
        (b"\xff", None),
    ],
)
def test_a_reply_is_an_object_with_the_nonce_of_the_request(line, reply):
    assert sandbox._reply(line, "ab") == reply


def test_what_a_program_writes_itself_is_no_reply(box):
    with box.session(30.0) as session:
        assert called(session, FORGE) == {"value": -1}
        assert called(session, "def f(): return 4") == {"value": 4}
