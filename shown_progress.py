"""Progress of long jobs: the protocol, and a progress bar that shows nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a running measurement."""

    def expect(self, pairs: int) -> None:
        """`pairs` more (variant, prompt) pairs are coming."""

    def advance(self, pairs: int) -> None:
        """`pairs` of the expected pairs are done."""


class NoProgress:
    """A Progress that shows nothing."""

    def expect(self, pairs: int) -> None: ...

    def advance(self, pairs: int) -> None: ...


NO_PROGRESS = NoProgress()
