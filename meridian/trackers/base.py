"""The interface of trackers: the events that a run reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meridian.run_folder import RunFolder


@dataclass(frozen=True)
class FollowedRun:
    """The followed run: one model on one task, with its configuration and the digest of the weights."""

    name: str  # "pocket/ioi" or "pocket/ioi/seed=1": the folder below results/
    model: str
    task: str
    model_sha256: str | None  # None if the model gives no access to its weights
    config: Mapping[str, Any]


class Tracker:
    """Follows one run at a time. This class does nothing; subclasses override the events that they report."""

    def begin(self, subject: FollowedRun) -> None:
        """A run begins or resumes."""

    def progress(self, measurement: str, done: int, total: int, rate: float) -> None:
        """`done` of `total` (variant, prompt) pairs of a measurement have run, at `rate` pairs per second."""

    def judged(self, certificate: Mapping[str, Any]) -> None:
        """The calibrations have judged: the certificate has rows and, if all were asked for, the tier."""

    def finished(self, run: RunFolder) -> None:
        """The run's folder is complete: certificate, numbered results, report."""

    def asked(self, folder: Path) -> None:
        """Behavioural suites are done; their numbered results are in the folder."""

    def end(self, failed: bool) -> None:
        """The run is over."""


def reason(error: Exception) -> str:
    """The error's message in one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


class NeverFatal:
    """Wraps another tracker: its first error is reported in one line and ends the tracking, never the run."""

    def __init__(self, tracker: Tracker, say: Callable[[str], Any]) -> None:
        self._tracker, self._say = tracker, say

    @contextlib.contextmanager
    def following(self, subject: Callable[[], FollowedRun]) -> Iterator[None]:
        """A context that follows the run inside it; the run counts as failed if it raises."""
        about = subject()  # an error here is the run's own, not the tracker's
        self("begin", about)
        try:
            yield
        except BaseException:
            self("end", True)
            raise
        self("end", False)

    def __call__(self, event: str, *about: Any) -> None:
        """Report an event to the tracker; `event` is the name of the tracker's method."""
        try:
            getattr(self._tracker, event)(*about)
        except Exception as error:
            broken, self._tracker = self._tracker, Tracker()
            self._say(f"{type(broken).__name__} stops following at {event!r} ({reason(error)}); the run goes on")
            with contextlib.suppress(Exception):
                broken.end(True)
