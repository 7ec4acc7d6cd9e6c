"""How a long job says how far it is, and the bar that shows nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Where a running measurement says how far it is."""

    def expect(self, pairs: int) -> None:
        """`pairs` more (variant, prompt) pairs are coming."""

    def advance(self, pairs: int) -> None:
        """`pairs` of them are done."""


class NoProgress:
    """A Progress that shows nothing."""

    def expect(self, pairs: int) -> None: ...

    def advance(self, pairs: int) -> None: ...
