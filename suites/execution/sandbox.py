"""Sandboxes for candidates: containers without network or privileges (`docker`), or a separate process with limits (`process`).

`process` is no isolation: every readable file stays accessible, and so does the network if the kernel does not allow
`unshare -rn`. NPROC does not bind root, so root is refused. It is for trusted models and for tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol, cast

from results_io import UserError

INSIDE = Path(__file__).with_name("inside.py")
PYTHON = ("-I", "-S")  # no environment, no user's packages, no packages at all
LIMITS, ISOLATED = "limits, no isolation", "container"
DIGEST = re.compile(r"[\w.:/-]+@sha256:[0-9a-f]{64}")
NOBODY = "65534:65534"
FLAGS = (  # of `docker run`; other flags come from the settings
    "--pull=never",  # what is not here is not asked for in the network
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp:rw,noexec,nosuid,nodev,size=64m",
    f"--user={NOBODY}",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
)
MOST_REPLY = 1 << 20  # bytes of one reply; a candidate that answers more is ended
FILE_BYTES, DESCRIPTORS = 1 << 20, 32  # limits of a process: bytes per file, open descriptors
WITHOUT_NETWORK = ("unshare", "-rn")
KILLED_ABOVE = 128  # larger exit codes of docker mean a signal
GRACE = 2.0  # seconds that a process has to end after it closed its replies


class CannotStart(Exception):
    """The sandbox itself did not start, so nothing is known about the candidate."""


class TimedOut(Exception):
    """No reply in time."""


class SandboxEnded(Exception):
    """The process ended without a reply; `killed`: by a signal, from a limit or from itself."""

    def __init__(self, code: int, killed: bool) -> None:
        super().__init__(f"it ended with exit code {code} and gave no answer")
        self.code, self.killed = code, killed


class TooMuch(Exception):
    """A reply of more than MOST_REPLY bytes."""


class Sandbox(Protocol):
    """Starts processes for candidates."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What an execution depends on besides the program: the kind of sandbox, its limits, its image."""
        ...

    def session(self, seconds: float) -> contextlib.AbstractContextManager[Session]:
        """A process that waits for requests; `seconds`: its total processor time. CannotStart if it cannot be started."""
        ...


@dataclass
class Session:
    """One process, with the descriptor of its replies."""

    process: subprocess.Popen[bytes]
    replies: int
    _read: bytes = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The reply to one request. TimedOut, SandboxEnded or TooMuch without one; lines with another nonce are ignored."""
        nonce, until = secrets.token_hex(16), time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which reading will show
            self._send(json.dumps({**request, "nonce": nonce}).encode() + b"\n", until)
        while True:
            found = _reply(self._line(until), nonce)
            if found is not None:
                return found

    def _send(self, line: bytes, until: float) -> None:
        """Write a line. TimedOut if the process does not read it in time: a pipe holds only 64 KiB."""
        assert self.process.stdin is not None
        into, left = self.process.stdin.fileno(), memoryview(line)
        os.set_blocking(into, False)
        while left:
            seconds = until - time.monotonic()
            if seconds <= 0 or not select.select([], [into], [], seconds)[1]:
                raise TimedOut
            left = left[os.write(into, left) :]

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._read:
            if len(self._read) > MOST_REPLY:
                raise TooMuch
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.replies], [], [], left)[0]:
                raise TimedOut
            block = os.read(self.replies, 1 << 16)
            if not block:
                raise self._ended()
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _ended(self) -> SandboxEnded:
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:  # it closed its replies but keeps running
            return SandboxEnded(0, False)
        return SandboxEnded(code, code < 0 or code > KILLED_ABOVE)


@dataclass(frozen=True)
class Process:
    """A process with limits: its own session, `python -I -S`, an empty environment, a temporary folder, rlimits.

    UserError for root.
    """

    memory_mib: int

    def __post_init__(self) -> None:
        if os.geteuid() == 0:
            raise UserError(
                "code.sandbox=process is refused to root, whom no limit of processes binds; run as another user, or use docker"
            )

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "kind": "process",
            "isolation": LIMITS,
            "network": "cut" if _can_cut_network() else "open",
            "python": sys.version.split()[0],
            "memory_mib": self.memory_mib,
        }

    @contextlib.contextmanager
    def session(self, seconds: float) -> Iterator[Session]:
        prefix = WITHOUT_NETWORK if _can_cut_network() else ()
        reading, writing = os.pipe()
        limits = json.dumps(self.limits(seconds))
        command = [*prefix, sys.executable, *PYTHON, "-c", INSIDE.read_text(encoding="utf-8"), str(writing), limits]
        with tempfile.TemporaryDirectory(prefix="meridian-code-") as folder:
            try:
                yield from _opened(command, reading, writing, {"cwd": folder, "env": {}, "pass_fds": (writing,)})
            finally:
                os.close(reading)

    def limits(self, seconds: float) -> dict[str, int]:
        """Limits by their names in `resource`: processor seconds, bytes of memory and files, descriptors, no core, no fork."""
        return {
            "RLIMIT_CPU": int(seconds) + 1,
            "RLIMIT_AS": self.memory_mib << 20,
            "RLIMIT_FSIZE": FILE_BYTES,
            "RLIMIT_NOFILE": DESCRIPTORS,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": 0,
        }


@dataclass(frozen=True)
class Docker:
    """`docker run` of an image given by its digest. UserError without docker, its daemon, or such an image."""

    image: str | None
    memory_mib: int
    processes: int

    def __post_init__(self) -> None:
        if self.image is None or not DIGEST.fullmatch(self.image):
            raise UserError(
                f"code.image={self.image} is no image by digest; give one with Python as code.image=NAME@sha256:..., which "
                "`docker images --digests` lists"
            )
        if shutil.which("docker") is None:
            raise UserError(
                "there is no docker on PATH; install it, or use code.sandbox=process for models that you trust"
            )
        asked = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
        if asked.returncode:
            why = " ".join(asked.stderr.split())[:200]
            raise UserError(
                f"docker does not answer ({why}); start it, or use code.sandbox=process for models that you trust"
            )

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "kind": "docker",
            "isolation": ISOLATED,
            "network": "cut",
            "image": self.image,
            "flags": list(self.flags),
        }

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, f"--pids-limit={self.processes}", f"--memory={self.memory_mib}m")

    def command(self, name: str) -> list[str]:
        """The command of one container."""
        run = ["docker", "run", "--rm", "--interactive", f"--name={name}", *self.flags, "--workdir=/tmp"]
        return [*run, str(self.image), "python3", *PYTHON, "-c", INSIDE.read_text(encoding="utf-8"), "1", "{}"]

    @contextlib.contextmanager
    def session(self, seconds: float) -> Iterator[Session]:
        name = f"meridian-{secrets.token_hex(8)}"
        reading, writing = os.pipe()
        try:
            yield from _opened(self.command(name), reading, writing, {"stdout": writing})
        finally:
            os.close(reading)
            subprocess.run(["docker", "rm", "--force", name], capture_output=True)  # it outlives its client


def open_sandbox(kind: str, settings: Mapping[str, Any]) -> Sandbox:
    """The sandbox of a kind, with the settings `code`: `Process` for "process", else `Docker`. UserError as these."""
    if kind == "process":
        return Process(settings["memory_mib"])
    return Docker(settings["image"], settings["memory_mib"], settings["processes"])


def _opened(command: Sequence[str], reading: int, writing: int, how: Mapping[str, Any]) -> Iterator[Session]:
    """The session of a command; its process group is killed afterwards. CannotStart with the command's error output."""
    errors: IO[bytes]
    with tempfile.TemporaryFile() as errors:
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, **how}
        try:
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, start_new_session=True, **options)
            process = cast("subprocess.Popen[bytes]", started)
        except OSError as error:
            raise CannotStart(str(error)) from error
        finally:
            os.close(writing)
        try:
            yield Session(process, reading)
        except CannotStart as error:
            errors.seek(0)
            said = " ".join(errors.read(1000).decode(errors="replace").split())
            raise CannotStart(said or str(error)) from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


def _reply(line: bytes, nonce: str) -> Mapping[str, Any] | None:
    """A line as a reply; None if it is no reply, or a reply to another request."""
    try:
        found = json.loads(line, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("nonce") == nonce else None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


@cache
def _can_cut_network() -> bool:
    """Whether the kernel lets this user create a network namespace."""
    if shutil.which(WITHOUT_NETWORK[0]) is None:
        return False
    return subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True).returncode == 0
