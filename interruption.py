"""Ctrl-C at any moment: one sentence and exit code 130, also during imports, and at once if pressed twice.

The first Ctrl-C raises KeyboardInterrupt, so that what is being written is removed; `run.py` says the sentence when it arrives. A
second one ends the process where it stands: results appear in one step, so none is ever half-written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

STOPPED = "Stopped. What was measured is kept; the same command goes on from there."
CODE = 130  # of the exit
_told = False  # the sentence was said
_raised = False  # the first Ctrl-C was passed on
_caught = False  # somebody is there who catches KeyboardInterrupt


def take_over() -> None:
    """Handle Ctrl-C from now on: before anything else is imported."""
    signal.signal(signal.SIGINT, _handle)


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """A context whose caller catches KeyboardInterrupt and calls `say`; outside of it Ctrl-C ends the process."""
    global _caught, _told
    _caught, _told = True, False
    try:
        yield
    finally:
        _caught = False


def say() -> int:
    """Say the sentence on the error stream, once; returns the exit code."""
    global _told
    if not _told:
        _told = True
        print(STOPPED, file=sys.stderr, flush=True)
    return CODE


def _handle(number: int, frame: FrameType | None) -> None:
    global _raised
    if _caught and not _raised:
        _raised = True
        raise KeyboardInterrupt
    leave()


def leave() -> None:
    """End the process here and now, without what waits to be run at its end."""
    if not _told:
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(CODE)
