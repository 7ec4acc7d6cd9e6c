"""E-processes: monitor a rate item by item, with false alarms in at most alpha of the streams, however often one looks.

Under the null hypothesis the expectation of an e-process is at most 1 at any stopping time. It therefore ever reaches 1/alpha
with a probability of at most alpha (Ville 1939). A p-value that is looked at every day has no such bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import betaln

from calibrations.statistics import e_benjamini_hochberg
from results_io import UserError

LARGEST_EXPONENT = 700.0  # of exp: beyond about 709 it overflows
Direction = Literal["above", "below", "equal"]


@dataclass(frozen=True)
class Watched:
    """A stream of 0 and 1 tested against the rate `p0`. `e`: after the last item, `largest`: the maximum over all items.

    `alarm`: after how many items e first reached 1/alpha, None if it never did; `alarms` is for several streams. `path`: e after
    every item, `hits`: successes. `direction`: whether the observed rate is above or below p0, since the test of "rate = p0" is
    two-sided.
    """

    n: int
    successes: int
    p0: float
    e: float
    largest: float
    alarm: int | None
    path: tuple[float, ...] = field(default=(), repr=False)
    hits: tuple[int, ...] = field(default=(), repr=False)

    @property
    def rate(self) -> float | None:
        """Successes / n; None without an item."""
        return self.successes / self.n if self.n else None

    @property
    def direction(self) -> Direction:
        return self.side(self.n)

    def side(self, n: int) -> Direction:
        """Whether the observed rate of the first `n` items is above or below p0."""
        expected, seen = n * self.p0, self.hits[n - 1] if n else 0
        return "equal" if seen == expected else "above" if seen > expected else "below"


@dataclass(frozen=True)
class FirstAlarm:
    """The first alarm on one side of p0: after how many items of the stream (`n`), and at which time (`at`)."""

    n: int
    at: int


def alarms(
    watched: Sequence[Watched], times: Sequence[Sequence[int]], alpha: float = 0.05, among: int = 0
) -> list[dict[Direction, FirstAlarm]]:
    """For every stream its first alarm on each side of p0, where e-BH over all streams selects it after any item of any.

    `times` [stream][item]: when each item came, rising, on one clock for all streams. `among`: the number of streams that there
    can be; those that have not begun have e = 1. Streams that are all quiet give any alarm with a probability of at most `alpha`,
    whatever their dependence: k alarms need k e-values of at least K/(alpha k), so their mean over the K streams is then at least
    1/alpha, and that mean is an e-process, too, if K is fixed. UserError for times that do not rise. Source: Wang & Ramdas 2022.
    """
    if not watched:
        return []
    clock = np.unique(np.concatenate([np.asarray(own, dtype=int) for own in times]))
    seen = np.zeros((clock.size, len(watched)), dtype=int)  # items of each stream so far
    for place, (one, own) in enumerate(zip(watched, times, strict=True)):
        if len(own) != one.n or np.any(np.diff(np.asarray(own, dtype=int)) <= 0):
            raise UserError(
                f"stream {place + 1} has {one.n} items and {len(own)} times; expected a rising time for each item"
            )
        seen[:, place] = np.searchsorted(np.asarray(own, dtype=int), clock, side="right")
    values = np.stack([np.r_[1.0, one.path][seen[:, place]] for place, one in enumerate(watched)], axis=1)
    selected = np.array([chosen(row, alpha, among) for row in values], dtype=bool).reshape(values.shape)
    found: list[dict[Direction, FirstAlarm]] = []
    for place, one in enumerate(watched):
        first: dict[Direction, FirstAlarm] = {}
        for row in np.flatnonzero(selected[:, place]):
            n = int(seen[row, place])
            first.setdefault(one.side(n), FirstAlarm(n, int(clock[row])))
        found.append(first)
    return found


def chosen(values: Sequence[float] | np.ndarray, alpha: float, among: int = 0) -> list[bool]:
    """Whether e-BH over `among` e-values selects each of these; the others, if there are fewer, are 1."""
    waiting = np.ones(max(0, among - len(values)))
    return [bool(one) for one in e_benjamini_hochberg(np.r_[values, waiting], alpha)[: len(values)]]


def e_value(successes: int, n: int, p0: float) -> float:
    """e = (integral over p from 0 to 1 of p^s (1 - p)^(n - s)) / (p0^s (1 - p0)^(n - s)), the integral being B(s + 1, n - s + 1).

    It is the likelihood ratio of the beta(1, 1) mixture to "rate = p0"; 1 without an item. UserError for a p0 that is not
    between 0 and 1, or successes outside 0..n. Source: Robbins 1970; Ramdas et al. 2023.
    """
    if not 0 <= successes <= n:
        raise UserError(f"{successes} successes of {n}; expected a number from 0 to {n}: count them again")
    return float(_e_values(np.array([successes]), np.array([n]), p0)[0])


def watch(outcomes: Sequence[bool], p0: float, alpha: float = 0.05) -> Watched:
    """The e-process of `outcomes` [item] in their order. UserError for an alpha or a p0 that is not between 0 and 1."""
    if not 0 < alpha < 1:
        raise UserError(f"alpha is {alpha}; expected a number between 0 and 1, for example 0.05")
    hits = np.cumsum(np.asarray(outcomes, dtype=bool), dtype=int)
    path = _e_values(hits, np.arange(1, hits.size + 1), p0)
    if not path.size:
        return Watched(0, 0, p0, 1.0, 1.0, None)
    reached = np.flatnonzero(path >= 1 / alpha)
    alarm = int(reached[0]) + 1 if reached.size else None
    values = tuple(path.tolist())
    return Watched(len(values), int(hits[-1]), p0, values[-1], max(values), alarm, values, tuple(hits.tolist()))


def _e_values(successes: np.ndarray, n: np.ndarray, p0: float) -> np.ndarray:
    """`e_value` of several counts."""
    if not 0 < p0 < 1:
        raise UserError(f"the rate to compare with is {p0}; expected a number between 0 and 1, for example 0.05")
    log_null = successes * math.log(p0) + (n - successes) * math.log1p(-p0)
    return np.exp(np.minimum(betaln(successes + 1, n - successes + 1) - log_null, LARGEST_EXPONENT))
