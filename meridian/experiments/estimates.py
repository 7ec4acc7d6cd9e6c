"""PromptEstimate and PromptSample: a number with its 95 % interval over prompts, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from calibrations.statistics import Insufficient
from calibrations.statistics.bootstrap import bootstrap_counts, percentile_interval
from calibrations.statistics.ratio import reportable_ratio

Weights = Float[np.ndarray, "resample prompt"]  # how often each resample counts each prompt
Statistic = Callable[[Weights], Float[np.ndarray, " resample"]]


@dataclass(frozen=True)
class PromptEstimate:
    """`value` with the ends of its 95 % interval. What the data do not support is None; `reason` then says why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def holds(self, number: float) -> bool | None:
        """Whether a published number lies in the interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= number <= self.high

    @property
    def sign(self) -> int | None:
        """+1 or -1 if the whole interval lies above or below 0, otherwise None."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return None
        return 1 if self.low > 0 else -1

    def less_from(self, whole: float) -> PromptEstimate:
        """`whole` minus this."""
        low, high = (None if end is None else whole - end for end in (self.high, self.low))
        return replace(self, value=None if self.value is None else whole - self.value, low=low, high=high)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "interval": [self.low, self.high], "reason": self.reason}


def undefined(reason: str) -> PromptEstimate:
    """An estimate without a value, and the reason why."""
    return PromptEstimate(None, reason=reason)


@dataclass(frozen=True)
class PromptSample:
    """Prompts whose clusters are the sampling units. Intervals are percentiles of a cluster bootstrap, except those of `ratio`.

    `resamples` and `seed` determine the bootstrap; statistics of one sample share their resamples.
    """

    clusters: tuple[str, ...]
    resamples: int = 2000
    seed: int = 0

    def __len__(self) -> int:
        return len(self.clusters)

    @cached_property
    def counts(self) -> Weights:
        return bootstrap_counts(len(self), self.resamples, seed=self.seed, clusters=np.array(self.clusters))

    def of(self, statistic: Statistic) -> PromptEstimate:
        """A statistic of weighted prompts; its value is the statistic at equal weights.

        There is no interval if prompts are too few or the statistic is undefined in over 1 % of the resamples.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(np.ones((1, len(self))))[0])
            if not np.isfinite(value):
                return undefined("division by nothing")
            try:
                return PromptEstimate(value, *percentile_interval(statistic(self.counts)))
            except Insufficient as missing:
                return PromptEstimate(value, reason=str(missing))

    def mean(self, values: ArrayLike) -> PromptEstimate:
        """sum_p w_p x_p / sum_p w_p over the prompts where x is a number."""
        array = np.asarray(values, float)
        known = np.isfinite(array)
        if not known.any():
            return undefined("no prompt has a value")
        filled = np.where(known, array, 0.0)
        return self.of(lambda weights: (weights @ filled) / (weights @ known.astype(float)))

    def spread(self, values: ArrayLike) -> PromptEstimate:
        """Standard deviation of x over prompts: sqrt(mean x^2 - (mean x)^2)."""
        array = np.asarray(values, float)
        centred = array - array.mean()
        return self.of(
            lambda weights: np.sqrt(np.clip(_mean(weights, centred**2) - _mean(weights, centred) ** 2, 0, None))
        )

    def ratio(self, numerator: ArrayLike, denominator: ArrayLike) -> PromptEstimate:
        """mean F / mean D with its Fieller interval; no value unless mean D is clearly above 0."""
        try:
            found = reportable_ratio(numerator, denominator, np.array(self.clusters))
        except Insufficient as missing:
            return undefined(missing.detail or str(missing))
        return PromptEstimate(found.value, *found.fieller())

    def difference_of_ratios(self, numerator: ArrayLike, denominator: ArrayLike, first: ArrayLike) -> PromptEstimate:
        """mean F / mean D over the prompts in `first`, minus the same ratio over the others."""
        f, d, inside = np.asarray(numerator, float), np.asarray(denominator, float), np.asarray(first, bool)
        parts = [self.part(inside).ratio(f[inside], d[inside]), self.part(~inside).ratio(f[~inside], d[~inside])]
        if missing := [part.reason for part in parts if part.value is None]:
            return undefined(missing[0])

        def statistic(weights: Weights) -> Float[np.ndarray, " resample"]:
            one, other = (weights * chosen for chosen in (inside, ~inside))
            return (one @ f) / (one @ d) - (other @ f) / (other @ d)

        return self.of(statistic)

    def part(self, chosen: ArrayLike) -> PromptSample:
        """The chosen prompts as a sample of their own."""
        rows: Iterable[int] = np.flatnonzero(np.asarray(chosen, bool))
        return replace(self, clusters=tuple(self.clusters[row] for row in rows))


def _mean(weights: Weights, values: Float[np.ndarray, " prompt"]) -> Float[np.ndarray, " resample"]:
    return (weights @ values) / weights.sum(1)
