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

from results_io import UserError

LARGEST_EXPONENT = 700.0  # of exp: beyond about 709 it overflows
Direction = Literal["above", "below", "equal"]


@dataclass(frozen=True)
class Watched:
    """A stream of 0 and 1 tested against the rate `p0`. `e`: after the last item, `largest`: the maximum over all items.

    `alarm`: after how many items e first reached 1/alpha, None if it never did. `path`: e after every item. `direction`: whether
    the observed rate is above or below p0, since the test of "rate = p0" is two-sided.
    """

    n: int
    successes: int
    p0: float
    e: float
    largest: float
    alarm: int | None
    path: tuple[float, ...] = field(default=(), repr=False)

    @property
    def rate(self) -> float | None:
        """Successes / n; None without an item."""
        return self.successes / self.n if self.n else None

    @property
    def direction(self) -> Direction:
        if self.rate is None or self.rate == self.p0:
            return "equal"
        return "above" if self.rate > self.p0 else "below"


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
    return Watched(len(values), int(hits[-1]), p0, values[-1], max(values), alarm, values)


def _e_values(successes: np.ndarray, n: np.ndarray, p0: float) -> np.ndarray:
    """`e_value` of several counts."""
    if not 0 < p0 < 1:
        raise UserError(f"the rate to compare with is {p0}; expected a number between 0 and 1, for example 0.05")
    log_null = successes * math.log(p0) + (n - successes) * math.log1p(-p0)
    return np.exp(np.minimum(betaln(successes + 1, n - successes + 1) - log_null, LARGEST_EXPONENT))
