"""Output and error stream of a command: a run never ends because of the reader of its output.

A stream that the shell closed (`>&-`) becomes /dev/null; otherwise Python would have no stream, and the next opened file would
get its number. A character that the stream's encoding lacks is escaped ("\\u2265"). If the reader leaves (`| head -1`), further
output is dropped and the run continues. Its results are complete, and its exit code is its own, which for `gate` and `verify`
is their answer.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

OUTPUT, ERRORS = 1, 2  # file descriptors


class _Leaving(io.FileIO):
    """A stream that becomes /dev/null when its reader leaves."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # also for output that does not pass through Python
            os.close(null)
            return super().write(data)


def take_over() -> None:
    """Replace Python's own streams; call this before any file is opened."""
    for number in range(ERRORS + 1):
        _require_open(number)
    sys.stdout, sys.stderr = _over(sys.stdout, OUTPUT), _over(sys.stderr, ERRORS)


def _require_open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number


def _over(stream: TextIO | None, number: int) -> TextIO:
    """A replacement with the settings of `stream`."""
    if stream is not None:
        stream.flush()
    buffered = io.BufferedWriter(_Leaving(number, "w", closefd=False))
    by_line = number == ERRORS or (stream is not None and stream.isatty())
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(buffered, encoding, "backslashreplace", line_buffering=by_line)
