"""Output and error stream of a command: a run never ends because of what is on their other side.

A stream that the shell closed (`>&-`) is /dev/null: Python has none in its place, and the next file that is opened would get its
number. A character that the stream's encoding has not is written out ("\\u2265"). If whoever reads leaves (`| head -1`), what
comes after that is dropped, and the run goes on: its results are whole, and its exit code is its own, which for `gate` and
`verify` is what they were asked.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

OUTPUT, ERRORS = 1, 2  # the numbers that a system gives them


class _Leaving(io.FileIO):
    """A stream that goes on as /dev/null when its reader leaves."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # also for what is written past Python
            os.close(null)
            return super().write(data)


def take_over() -> None:
    """Put such streams in the place of Python's own: before a file is opened."""
    for number in range(ERRORS + 1):
        _require_open(number)
    sys.stdout, sys.stderr = _over(sys.stdout, OUTPUT), _over(sys.stderr, ERRORS)


def _require_open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # which gets the lowest number that is free


def _over(stream: TextIO | None, number: int) -> TextIO:
    """A stream like the one that is there."""
    if stream is not None:
        stream.flush()
    buffered = io.BufferedWriter(_Leaving(number, "w", closefd=False))
    by_line = number == ERRORS or (stream is not None and stream.isatty())
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(buffered, encoding, "backslashreplace", line_buffering=by_line)
