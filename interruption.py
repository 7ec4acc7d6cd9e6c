"""Ctrl-C at any moment: one sentence and exit code 130, also during imports, and at once if pressed twice.

A scheduler that ends a job (SIGTERM) and a terminal that closes (SIGHUP) stop it in the same way, with 143 and 129. A process
that was told to ignore one of them, as under nohup, still does. "Ctrl-C" below means any of them.

The first Ctrl-C raises KeyboardInterrupt, so that partly written files are removed; `run.py` prints the sentence when the
exception arrives. A second Ctrl-C ends the process at once. Results appear in one step, so none is ever half-written.

Python drops exceptions that are raised inside a finalizer or a weak reference's callback, of which imports have many, and only
prints them. So a dropped KeyboardInterrupt is raised again. During the interpreter's shutdown, Python has removed its handlers
and a signal would kill the process; Ctrl-C is then ignored, and the exit code stays that of the run.

KeyboardInterrupt is not raised inside an import either: there a C++ library may end the process (nanobind's did), and others
continue without the modules that failed to import. The first Ctrl-C during an import is raised when the import has ended, which
takes a second or two.
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
CODE = 130  # exit code of Ctrl-C
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # a system may lack the last one
SECONDS_AFTER_A_DROP = 0.01  # after this time the finalizer has ended
SECONDS_BETWEEN_LOOKS = 0.01  # interval of checks whether an import has ended
IMPORTING = "<frozen importlib"  # prefix of the file names of Python's own frames during an import
_told = False  # the sentence has been printed
_saying = False  # the sentence is being printed
_raised = False  # the first Ctrl-C has been raised
_awaited = False  # the first Ctrl-C waits for the end of an import
_due = False  # the import has ended, and the next signal is the Ctrl-C that waited
_caught = False  # some caller catches KeyboardInterrupt
_code = CODE  # exit code of the signal that came first
_counted = False  # a signal has come


def take_over() -> None:
    """Handle Ctrl-C from now on; call this before anything else is imported."""
    for number in _signals():
        if number == signal.SIGINT or signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _handle)
    sys.unraisablehook = _raise_again
    atexit.register(_ignore)  # registered first, so it runs last


def _signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]


def _ignore() -> None:
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)


def let_go() -> None:
    """Leave SIGTERM and SIGHUP to the system again, for a worker process: its parent says the sentence."""
    for number in _signals():
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_DFL)


def asked() -> bool:
    """True once Ctrl-C has been pressed. Later errors come from it, even other types, into which imports in C may turn it."""
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
    """Print the sentence on the error stream, once; returns the exit code: 128 and the number of the signal."""
    global _told, _saying
    if not _told:
        _saying = True
        try:
            print(STOPPED, file=sys.stderr, flush=True)
        except OSError:  # the terminal was closed; what is still to be flushed must not change the exit code
            _mute()
        _told, _saying = True, False
    return _code


def _mute() -> None:
    """Let output go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _handle(number: int, frame: FrameType | None) -> None:
    global _raised, _awaited, _due, _code, _counted
    if _saying:  # let the sentence be printed once and whole; the process is about to end
        return
    if not _counted:
        _counted, _code = True, 128 + number
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
    """True if a frame, or one of its callers, belongs to an import."""
    while frame is not None and not frame.f_code.co_filename.startswith(IMPORTING):
        frame = frame.f_back
    return frame is not None


def _raise_after_import() -> None:
    """Interrupt the main thread as soon as it is not inside an import."""
    global _due
    main = threading.main_thread().ident
    while main is not None and _imports(sys._current_frames().get(main)):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    _due = True
    _wake_main()


def _wake_main() -> None:
    """Send the main thread a Ctrl-C that also ends blocking calls; `interrupt_main` would only set a flag."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """The hook that Python calls with an exception that it drops."""
    global _raised
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    _raised = False
    timer = threading.Timer(SECONDS_AFTER_A_DROP, _wake_main)
    timer.daemon = True
    timer.start()


def leave() -> None:
    """End the process at once, without exit handlers."""
    _ignore()  # another one would print the sentence again
    if not _told:
        with contextlib.suppress(OSError):  # the terminal was closed
            os.write(2, f"{STOPPED}\n".encode())
    os._exit(_code)
