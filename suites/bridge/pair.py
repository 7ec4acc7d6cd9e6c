"""TracePair and SuitePairs: a failing prompt beside a passing twin of the same shape, and all pairs of one suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from result_types import StoredPair, StoredReference, StoredSuitePairs

MINIMUM_PAIRS = 20  # fewer are an anecdote: no hypothesis is tested on them


@dataclass(frozen=True)
class TracePair:
    """One failure as a circuit question: what is different in the run that goes wrong?

    `clean` is the passing twin, `corrupted` the failing prompt. Both end right before the first token in which the wanted and the
    actual output differ (a common beginning of the two outputs is part of both texts). `answer` is the wanted token, `wrong` the
    actual one, each after `joint`. Both texts have the same number of tokens, so position t of one run corresponds to position t
    of the other. `changed`: the first and the last position whose tokens differ. `positions` names character spans of `clean`.
    Logit differences are answer minus wrong, in nats, from a new run of the intact model.
    """

    source: str
    partner: str
    strategy: str
    template: str
    cluster: str
    clean: str
    corrupted: str
    answer: str
    wrong: str
    joint: str
    changed: tuple[int, int]
    positions: Mapping[str, tuple[int, int]]
    clean_logit_diff: float
    corrupted_logit_diff: float

    @classmethod
    def from_dict(cls, stored: StoredPair) -> TracePair:
        spans = {role: tuple(span) for role, span in stored["positions"].items()}
        return cls(**{**stored, "changed": tuple(stored["changed"]), "positions": spans})


@dataclass(frozen=True)
class ReferencePrompt:
    """A passing prompt that is in no pair; ablations take means and donors from these prompts."""

    text: str
    template: str
    cluster: str
    positions: Mapping[str, tuple[int, int]]

    @classmethod
    def from_dict(cls, stored: StoredReference) -> ReferencePrompt:
        spans = {role: tuple(span) for role, span in stored["positions"].items()}
        return cls(**{**stored, "positions": spans})


@dataclass(frozen=True)
class SuitePairs:
    """The pairs of one suite, and why its other failures have none.

    `failures`: their number; `rejected`: those without a valid pair, by reason. `bos`: whether the prompts begin with the
    tokenizer's BOS token. `sha256`: of the suite. `related`: tasks about the same behaviour, on which the circuit may be active.
    """

    suite: str
    mode: str
    title: str
    failures: int
    pairs: tuple[TracePair, ...]
    references: tuple[ReferencePrompt, ...]
    rejected: Mapping[str, int] = field(default_factory=dict)
    bos: bool = True
    sha256: str = ""
    related: tuple[str, ...] = ()

    @property
    def traceable(self) -> bool:
        """Whether there are at least MINIMUM_PAIRS pairs."""
        return len(self.pairs) >= MINIMUM_PAIRS

    @property
    def sentence(self) -> str:
        """ "k of n failures traceable", and why the others are not."""
        most_first = sorted(self.rejected.items(), key=lambda one: (-one[1], one[0]))
        reasons = ", ".join(f"{count} {reason}" for reason, count in most_first)
        others = f"; others: {reasons}" if reasons else ""
        anecdote = "" if self.traceable or not self.pairs else f" (fewer than {MINIMUM_PAIRS}: an anecdote)"
        return f"{self.suite} ({self.mode}): {len(self.pairs)} of {self.failures} failures traceable{anecdote}{others}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: StoredSuitePairs) -> SuitePairs:
        return cls(
            **{
                **stored,
                "pairs": tuple(map(TracePair.from_dict, stored["pairs"])),
                "references": tuple(map(ReferencePrompt.from_dict, stored["references"])),
                "related": tuple(stored["related"]),
            }
        )
