"""Outcome, Case and Detection: what a model said, an item with all of its outputs, and whether that is a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from suites.item import Item

Tier = Literal["heuristic", "verified"]
UNCHANGED = "the model's tokenizer reads it as the same tokens as the original: nothing was changed"


@dataclass(frozen=True)
class Outcome:
    """One output. `finish` is "stop", "length", "filtered" (the provider stopped it for safety) or "error".

    An error has no text and is never scored as wrong.

    `correct`: the verdict of the suite's scorer; None without a scorer or after an error. `tests`: how each test of a program
    ended, by name; None if no program was run. `tokens`: length of the output in the model's own tokens (None if an endpoint
    does not say). `confidence`: probability that the model assigned to the output, or None.
    """

    leg: str
    sample: int
    text: str
    finish: str = "stop"
    error: str | None = None
    correct: bool | None = None
    tokens: int | None = None
    confidence: float | None = None
    tests: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Case:
    """An item with its outcomes, and the case of its parent item (None: it is an original)."""

    item: Item
    outcomes: tuple[Outcome, ...]
    parent: Case | None = None

    @property
    def first(self) -> Outcome:
        """The first output, which modes of a single output judge."""
        return self.outcomes[0]

    @property
    def root(self) -> Case:
        """The original that the case was made from, through any number of changes; the case itself if it is an original."""
        return self if self.parent is None else self.parent.root

    @property
    def cluster(self) -> str:
        """The sampling unit that dependent cases share: the item's own cluster, or else its parent's.

        An original without a cluster is its own sampling unit.
        """
        if self.item.cluster or self.parent is None:
            return self.item.cluster or self.item.id
        return self.parent.cluster


@dataclass(frozen=True)
class Detection:
    """Whether a case failed in one mode. `failed` is None if the mode gives no verdict; `reason` then says why.

    `span`: the characters of the output that show the failure; `evidence`: the same in words. `subtype`: kind of failure
    ("trailing_text").
    """

    failed: bool | None
    tier: Tier
    reason: str = ""
    subtype: str = ""
    span: tuple[int, int] | None = None
    evidence: str = ""
    severity: Literal["low", "medium", "high"] = "medium"
    detail: Mapping[str, Any] = field(default_factory=dict)
