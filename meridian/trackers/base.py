"""What a run tells whoever follows it from afar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meridian.run_folder import RunFolder


@dataclass(frozen=True)
class FollowedRun:
    """The run that is followed: one model on one task, with the configuration and the weights' digest."""

    name: str  # "pocket/ioi" or "pocket/ioi/seed=1": the folder below results/
    model: str
    task: str
    model_sha256: str | None  # None of a model that shows no weights
    config: Mapping[str, Any]


class Tracker:
    """Follows one run at a time. This class does nothing; a tracker overrides the events that it reports."""

    def begin(self, subject: FollowedRun) -> None:
        """A run begins, or goes on."""

    def progress(self, measurement: str, done: int, total: int, rate: float) -> None:
        """`done` of `total` (variant, prompt) pairs of a measurement are run, at `rate` pairs per second."""

    def judged(self, certificate: Mapping[str, Any]) -> None:
        """What the calibrations say: rows and, if all were asked, the tier."""

    def finished(self, run: RunFolder) -> None:
        """The run's folder is complete: certificate, numbered results, report."""

    def asked(self, folder: Path) -> None:
        """Behavioural suites are done; their numbered results are in the folder."""

    def end(self, failed: bool) -> None:
        """The run is over."""


def reason(error: Exception) -> str:
    """What an error says, in one line; its kind if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


class NeverFatal:
    """Wraps another tracker: its first error is reported in one line and ends the tracking, never the run."""

    def __init__(self, tracker: Tracker, say: Callable[[str], Any]) -> None:
        self._tracker, self._say = tracker, say

    @contextlib.contextmanager
    def following(self, subject: Callable[[], FollowedRun]) -> Iterator[None]:
        """Follow what is done inside; it counts as failed if it raises."""
        about = subject()  # an error here is the run's own, not the tracker's
        self("begin", about)
        try:
            yield
        except BaseException:
            self("end", True)
            raise
        self("end", False)

    def __call__(self, event: str, *about: Any) -> None:
        """Tell the tracker of an event, by its method's name."""
        try:
            getattr(self._tracker, event)(*about)
        except Exception as error:
            broken, self._tracker = self._tracker, Tracker()
            self._say(f"{type(broken).__name__} stops following at {event!r} ({reason(error)}); the run goes on")
            with contextlib.suppress(Exception):
                broken.end(True)
