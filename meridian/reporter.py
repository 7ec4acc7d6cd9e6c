"""Console output of a run, and its tracker."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import shown_text
from meridian.progress import Bar

if TYPE_CHECKING:
    from meridian.trackers import NeverFatal

PLAIN_WIDTH = 160  # of output to a file or a pipe
PAIRS = "pairs"  # of a variant and a prompt
BAR = 20  # columns; with its numbers, a measurement's line stays below 100


class Reporter:
    """One console and one tracker. It also counts pairs and time, for the last line of a run."""

    tracker: NeverFatal  # set by context.start, because opening a tracker needs `say` of an existing reporter

    def __init__(self, console: Console | None = None) -> None:
        on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None if standard output was closed
        self.console = console or Console(width=None if on_terminal else PLAIN_WIDTH)
        self.started = time.monotonic()
        self.pairs = 0  # (variant, prompt) pairs run so far

    def say(self, sentence: str) -> None:
        """Print one sentence on the console, in lines of at most `shown_text.WIDTH` columns."""
        lines = shown_text.folded(shown_text.visible(sentence), min(self.console.width, shown_text.WIDTH))
        self.console.print(lines, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, title: str, noun: str = PAIRS) -> Iterator[Bar]:
        """A progress bar with rate and time left for one measurement; one line replaces it when it ends.

        Consoles that are not terminals (files, notebooks) get the line only. `noun`: what the bar counts.
        """
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(BAR),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[rate]:>8}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        started = time.monotonic()
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            bar = Bar(progress, title, lambda *about: self.tracker("progress", *about))
            yield bar
        self.pairs += bar.done if noun == PAIRS else 0
        self.say(finished_line(title, bar.done, time.monotonic() - started, noun))

    def counting(self, title: str) -> contextlib.AbstractContextManager[Bar]:
        """A bar for work that is no pair of variant and prompt: its title says what is counted."""
        return self.bar(title, "")

    def rate(self) -> str:
        """Time taken, pairs, and pairs per second: "41 s, 61,200 variants x prompts at 1,493/s"."""
        seconds = time.monotonic() - self.started
        done = (
            f"{self.pairs:,} variants x prompts at {self.pairs / seconds:,.0f}/s"
            if self.pairs
            else "nothing measured anew"
        )
        return f"{seconds:.0f} s, {done}"


def finished_line(title: str, done: int, seconds: float, noun: str = PAIRS) -> str:
    """The line that replaces a bar, without a count if nothing was done, and without a rate below one per second.

    An example: "02 activation patching           45,800 pairs    1,131/s   40 s".
    """
    rate = done / max(seconds, 1e-9)
    count = f"{done:>9,} {noun:<{len(PAIRS)}} {f'{rate:,.0f}/s' if rate >= 1 else '':>10}" if done else " " * 26
    return f"{title:<28} {count} {seconds:>5.0f} s"
