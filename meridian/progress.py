"""The progress bar of one measurement."""

from __future__ import annotations

import threading
import time

from rich.progress import Progress


class Bar:
    """Reports the pairs of one measurement to a rich progress bar."""

    def __init__(self, progress: Progress, title: str) -> None:
        self.progress, self.done, self.total = progress, 0, 0
        self.lock = threading.Lock()  # measurements may report from several threads
        self.started = time.monotonic()
        self.task = progress.add_task(title, total=0, rate="")

    def expect(self, pairs: int) -> None:
        self.total += pairs
        self.progress.update(self.task, total=self.total)

    def advance(self, pairs: int) -> None:
        with self.lock:
            self.done += pairs
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        self.progress.update(self.task, completed=self.done, rate=f"{rate:,.0f}/s")
