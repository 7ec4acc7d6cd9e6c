"""Disks that refuse: every step of writing a file, with every reason that a system gives."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

REASONS = {
    name: getattr(errno, name) for name in ("ENOSPC", "EROFS", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "EDQUOT", "EACCES")
}
STEPS = ("mkdir", "open", "fsync", "chmod", "replace")  # of `results_io.write_bytes`; "write" is its sixth


class Refused:
    """Counts the calls of one step on files below `place`, and refuses the `nth` (from 0; None: none).

    A folder that is there is not counted: it need not be made, and it is opened and synced only so that a renaming lasts, when
    the result is written.
    """

    def __init__(self, step: Callable[..., Any], place: str, reason: int, nth: int | None) -> None:
        self.step, self.place, self.reason, self.nth, self.calls = step, place, reason, nth, 0
        self.may_be_there = step in (os.open, os.mkdir)

    def __call__(self, path: Any, *arguments: Any, **named: Any) -> Any:
        there = self.may_be_there and Path(path).is_dir()
        of_folder = isinstance(path, int) and stat.S_ISDIR(os.fstat(path).st_mode)
        if not there and not of_folder and (isinstance(path, int) or str(path).startswith(self.place)):
            self.calls += 1
            if self.calls - 1 == self.nth:
                raise OSError(self.reason, os.strerror(self.reason))
        return self.step(path, *arguments, **named)


@contextlib.contextmanager
def refusing(step: str, place: str, reason: int, nth: int | None = 0) -> Iterator[Refused]:
    """A context in which the `nth` call of os.<step> below `place` fails."""
    refused = Refused(getattr(os, step), place, reason, nth)
    with mock.patch.object(os, step, refused):
        yield refused


@contextlib.contextmanager
def full(reason: int, after: int = 0) -> Iterator[None]:
    """A context in which a file's content cannot be written beyond `after` bytes."""
    fdopen = os.fdopen

    def opened(*arguments: Any, **named: Any) -> Any:
        stream = fdopen(*arguments, **named)
        write = stream.write

        def written(content: Any) -> int:
            write(content[:after])
            raise OSError(reason, os.strerror(reason))

        proxy = mock.MagicMock(wraps=stream)
        proxy.__enter__.return_value, proxy.write = proxy, written
        proxy.__exit__.side_effect = lambda *_: stream.close()
        return proxy

    with mock.patch.object(os, "fdopen", opened):
        yield
