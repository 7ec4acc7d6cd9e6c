"""Ctrl-C at any moment: one sentence and exit code 130, also during imports, and at once if pressed twice.

The first Ctrl-C raises KeyboardInterrupt, so that what is being written is removed; `run.py` says the sentence when it arrives. A
second one ends the process where it stands: results appear in one step, so none is ever half-written.

Python drops what is raised inside of a finalizer or a weak reference's callback, as imports have many, and only prints it. So a
KeyboardInterrupt that was dropped is raised once more. While the interpreter is taken down, after everything was said, Python has
put its handlers aside and a signal would kill the process; there Ctrl-C is ignored, and the exit code stays that of the run.

Nor is it raised inside an import: a library in C++ then ends the process (nanobind's did), and others go on without what they
could not import. The first Ctrl-C there is raised once the import is over, which takes a second or two.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

STOPPED = "Stopped. What was measured is kept; the same command goes on from there."
CODE = 130  # of the exit
SECONDS_AFTER_A_DROP = 0.01  # then the finalizer is over
SECONDS_BETWEEN_LOOKS = 0.01  # whether an import is over
IMPORTING = "<frozen importlib"  # how the file names of Python's own frames begin while it imports
_told = False  # the sentence was said
_saying = False  # it is being said
_raised = False  # the first Ctrl-C was passed on
_awaited = False  # it waits for the end of an import
_due = False  # the import is over, and what comes now is the one that waited
_caught = False  # somebody is there who catches KeyboardInterrupt


def take_over() -> None:
    """Handle Ctrl-C from now on: before anything else is imported."""
    signal.signal(signal.SIGINT, _handle)
    sys.unraisablehook = _raise_again
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the first one registered is the last one run


def asked() -> bool:
    """True once Ctrl-C was pressed: whatever error arrives then comes of it, as where an import in C makes another of it."""
    return _raised or _awaited


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
    global _told, _saying
    if not _told:
        _saying = True
        print(STOPPED, file=sys.stderr, flush=True)
        _told, _saying = True, False
    return CODE


def _handle(number: int, frame: FrameType | None) -> None:
    global _raised, _awaited, _due
    if _saying:  # once whole; the process ends by itself in a moment
        return
    again, _awaited, _due = _raised or (_awaited and not _due), False, False
    if again or not _caught:
        leave()
    if _imports(frame):
        _awaited = True
        _thread.start_new_thread(_raise_after_import, ())  # threading's waits for a lock that the main thread may hold
        return
    _raised = True
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is of an import."""
    while frame is not None and not frame.f_code.co_filename.startswith(IMPORTING):
        frame = frame.f_back
    return frame is not None


def _raise_after_import() -> None:
    """Interrupt the main thread as soon as it is in no import."""
    global _due
    main = threading.main_thread().ident
    while main is not None and _imports(sys._current_frames().get(main)):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    _due = True
    _wake_main()


def _wake_main() -> None:
    """Send the main thread a Ctrl-C that also ends what it waits for: `interrupt_main` only sets a flag, and wakes no call."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """What Python calls with an exception that it drops."""
    global _raised
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    _raised = False
    timer = threading.Timer(SECONDS_AFTER_A_DROP, _wake_main)
    timer.daemon = True
    timer.start()


def leave() -> None:
    """End the process here and now, without what waits to be run at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that comes now would say it once more
    if not _told:
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(CODE)
