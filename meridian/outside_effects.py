"""Heads outside the claim with a large effect under some intervention, whatever P.outside says about them.

P.outside silences heads with ablations that keep activations in distribution. Noising puts the corrupted run's output in a
head's place, which can have a far larger effect. Such heads are named, but gate nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrations.evidence import Evidence, Head, head_names
from calibrations.number_format import number

MEASURED = {"noising": ("02", "noising"), "denoising": ("02", "denoising"), "knock-out": ("21", "effect")}
SHOWN = 3  # heads that the sentence names


@dataclass(frozen=True)
class HeadEffect:
    """Mean effect of one head over the evaluation prompts, and its rank by size among all heads of the model."""

    measured: str
    value: float
    rank: int
    of: int

    @property
    def text(self) -> str:
        """ "noising 4.61 (2nd of 32)"."""
        return f"{self.measured} {number(self.value)} ({ordinal(self.rank)} of {self.of})"


@dataclass(frozen=True)
class OutsideHead:
    """A head outside the claim with all its effects, at least one of which is large."""

    head: Head
    effects: tuple[HeadEffect, ...]

    @property
    def name(self) -> str:
        """ "L0H2"."""
        return head_names([self.head])

    @property
    def largest(self) -> float:
        """The size of its largest effect."""
        return max(abs(effect.value) for effect in self.effects)


def large(evidence: Evidence, share: float | None) -> list[OutsideHead]:
    """Heads outside the claim with an effect larger in size than `share` of mean D, the largest first.

    `share` is the setting `max_outside` of the verdicts; it is None in results of a version without it. Effects that were not
    measured are left out. The list is empty if mean D is not above 0 or if there is no share.
    """
    limit = (share or 0.0) * float(evidence.clean.mean())
    if limit <= 0:
        return []
    means = {
        name: evidence.head_effect(number, field).mean(axis=0)
        for name, (number, field) in MEASURED.items()
        if evidence.has(number)
    }
    ranks = {name: (-np.abs(values)).argsort(kind="stable").argsort() + 1 for name, values in means.items()}
    found = [
        OutsideHead(head, tuple(HeadEffect(n, float(v[i]), int(ranks[n][i]), len(v)) for n, v in means.items()))
        for i, head in enumerate(evidence.heads)
        if not evidence.in_circuit[i] and any(abs(values[i]) > limit for values in means.values())
    ]
    return sorted(found, key=lambda one: -one.largest)


def sentence(evidence: Evidence, share: float) -> str:
    """The heads found by `large`, in a line or two; empty if there are none or nothing was measured."""
    found = large(evidence, share)
    if not found:
        return ""
    named = "; ".join(f"{one.name} {', '.join(effect.text for effect in one.effects)}" for one in found[:SHOWN])
    more = f"; {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"Outside the claim, effects above {share:g} of D in {evidence.unit}: {named}{more}"


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
