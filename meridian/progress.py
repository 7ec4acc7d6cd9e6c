"""The progress bar of one measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rich.progress import Progress


class Bar:
    """Reports the pairs of one measurement to a rich progress bar, and to `tell` (title, done, total, pairs per second)."""

    def __init__(self, progress: Progress, title: str, tell: Callable[[str, int, int, float], Any]) -> None:
        self.progress, self.title, self.tell = progress, title, tell
        self.done, self.total = 0, 0
        self.lock = threading.Lock()  # measurements may report from several threads
        self.started = time.monotonic()
        self.task = progress.add_task(
            title, total=None, rate="", count=""
        )  # shows indefinite motion until pairs are expected

    def expect(self, pairs: int) -> None:
        self.total += pairs
        self.progress.update(self.task, total=self.total or None, count=self._count)

    def advance(self, pairs: int) -> None:
        with self.lock:
            self.done += pairs
            self.total = max(
                self.total, self.done
            )  # the expected total is only an estimate if a search decides when to stop
            rate = self.done / max(time.monotonic() - self.started, 1e-9)
            self.tell(self.title, self.done, self.total, rate)
        self.progress.update(self.task, completed=self.done, total=self.total, count=self._count, rate=f"{rate:,.0f}/s")

    @property
    def _count(self) -> str:
        return f"{self.done:>7,.0f}/{self.total:<7,.0f}" if self.total else ""
