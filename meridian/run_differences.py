"""Differences between two runs with intervals from a bootstrap over clusters, paired if the prompts are the same.

Every quantity is theta = sum F / sum D over prompts (a mean has D = 1), and its difference is theta_b - theta_a. If paired, one
matrix of cluster counts weighs both sides, so that variation shared by the prompts cancels. If unpaired, each side has its own
matrix. Clusters are drawn within templates, as in the calibrations (`calibrations.statistics.bootstrap_counts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibrations import preconditions
from calibrations.evidence import PRIMARY, Evidence
from calibrations.statistics import (
    Insufficient,
    bootstrap_counts,
    bootstrap_means,
    bootstrap_ratios,
    percentile_interval,
    simultaneous_intervals,
)

LEVEL = 0.95
ROUNDING = 1e-4  # share of the largest effect within which backends agree (engine=auto requires it)
EFFECTS = (  # (result, field, name) of effects per prompt and head
    ("02", "denoising", "denoising effect"),
    ("03", "attribution", "direct logit attribution"),
    ("21", "effect", "knock-out effect"),
)
SHARE = "share of the clean value"
Parts = tuple[np.ndarray, np.ndarray | None]  # numerator and denominator of each prompt; None for a mean


@dataclass(frozen=True)
class QuantityDifference:
    """b - a of one quantity with its interval at `LEVEL`."""

    quantity: str
    unit: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class NoDifference:
    """A quantity, or an effect of heads, that cannot be compared with these data."""

    quantity: str
    unit: str
    reason: str


@dataclass(frozen=True)
class HeadDifferences:
    """b - a of one effect for every head, with simultaneous intervals over all heads at `LEVEL`."""

    quantity: str
    unit: str
    heads: Sequence[tuple[int, int]]
    a: Float[np.ndarray, " head"]
    b: Float[np.ndarray, " head"]
    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]

    @property
    def differs(self) -> np.ndarray:
        """[head] True if the interval excludes 0 and the difference exceeds rounding between backends."""
        largest = max(np.abs(self.a).max(), np.abs(self.b).max())
        return ((self.low > 0) | (self.high < 0)) & (np.abs(self.b - self.a) > ROUNDING * largest)


@dataclass(frozen=True)
class RunPair:
    """Two runs on their evaluation prompts. `config` is the common section of the calibrations' settings."""

    a: Evidence
    b: Evidence
    config: Mapping[str, Any]

    @cached_property
    def paired(self) -> bool:
        """True if both ran on the same prompts, by id."""
        first, second = ([str(e.data("01")["prompt_id"][row]) for row in e.rows] for e in (self.a, self.b))
        return first == second

    @cached_property
    def counts(self) -> tuple[Int[np.ndarray, "resample prompt"], Int[np.ndarray, "resample prompt"]]:
        """How often each prompt of a and of b occurs in each resample: one matrix for both if paired, else independent.

        Insufficient("n_clusters") if a template has a single cluster.
        """
        seed, resamples = self.config["bootstrap_seed"], self.config["bootstrap_resamples_p"]

        def drawn(e: Evidence, seed: int) -> Int[np.ndarray, "resample prompt"]:
            return bootstrap_counts(len(e.clean), resamples, seed=seed, clusters=e.clusters, strata=e.templates)

        first = drawn(self.a, seed)
        return first, first if self.paired else drawn(self.b, seed + 1)

    def mean(self, name: str, unit: str, values: Callable[[Evidence], np.ndarray]) -> QuantityDifference | NoDifference:
        """Difference of the means of one value per prompt."""
        return self._difference(name, unit, lambda e: (np.asarray(values(e), dtype=float), None))

    def ratio(self, name: str, parts: Callable[[Evidence], Parts]) -> QuantityDifference | NoDifference:
        """Difference of two ratios of means; none unless both runs pass the gates of behaviour and denominator."""

        def gated(evidence: Evidence) -> Parts:
            preconditions.require_behaviour(evidence, self.config)
            return parts(evidence)

        return self._difference(name, SHARE, gated)

    def _difference(
        self, name: str, unit: str, parts: Callable[[Evidence], Parts]
    ) -> QuantityDifference | NoDifference:
        try:
            values, draws = [], []
            for evidence, counts in zip((self.a, self.b), self.counts, strict=True):
                top, bottom = parts(evidence)
                values.append(float(top.mean() if bottom is None else top.sum() / bottom.sum()))
                draws.append(bootstrap_means(counts, top) if bottom is None else bootstrap_ratios(counts, top, bottom))
            low, high = percentile_interval(draws[1] - draws[0], LEVEL)
        except Insufficient as missing:
            return NoDifference(name, unit, str(missing))
        return QuantityDifference(name, unit, values[0], values[1], values[1] - values[0], low, high)

    def quantities(self) -> list[QuantityDifference | NoDifference]:
        """Behaviour, accuracy, faithfulness under every recipe, above the floor, and completeness."""
        behaviour = f"clean {self.a.metric}"
        found = [
            self.mean(behaviour, unit_of(self.a), lambda e: e.clean)
            if self.a.metric == self.b.metric
            else NoDifference(behaviour, "", f"b measures the {self.b.metric}"),
            self.mean("accuracy", "share of prompts", lambda e: e.per_prompt("01", "correct")),
        ]
        for method in preconditions.METHODS:
            name = f"faithfulness, {method.replace('_', ' ')}"
            found.append(self.ratio(name, lambda e, m=method: (e.ablated("circuit", m), e.clean)))
        found.append(self.ratio("faithfulness above the floor, mean", above_floor))
        found.append(self.ratio("completeness, mean", lambda e: (e.clean - e.ablated("complement", PRIMARY), e.clean)))
        return found

    @cached_property
    def effects(self) -> list[HeadDifferences | NoDifference]:
        """Every effect of heads that either run measured. ValueError if the heads are not the same."""
        if self.a.heads != self.b.heads:
            raise ValueError("the runs have different heads; compare heads of models of one shape")
        return [self._effect(*one) for one in EFFECTS if self.a.has(one[0]) or self.b.has(one[0])]

    def _effect(self, number: str, field: str, name: str) -> HeadDifferences | NoDifference:
        unit = "nats" if number == "03" else unit_of(self.a)
        absent = [side for side, evidence in zip("ab", (self.a, self.b), strict=True) if not evidence.has(number)]
        if absent:
            return NoDifference(name, unit, f"{absent[0]} has no result {number}")
        if number != "03" and self.a.metric != self.b.metric:
            return NoDifference(name, unit, f"a measures the {self.a.metric}, b the {self.b.metric}")
        try:
            effects = [evidence.head_effect(number, field) for evidence in (self.a, self.b)]
            a, b = (effect.mean(axis=0) for effect in effects)
            first, second = (bootstrap_means(c, effect) for c, effect in zip(self.counts, effects, strict=True))
            intervals = simultaneous_intervals(b - a, second - first, LEVEL)
        except Insufficient as missing:
            return NoDifference(name, unit, str(missing))
        low, high = (np.array(ends) for ends in zip(*intervals, strict=True))
        return HeadDifferences(name, unit, self.a.heads, a, b, low, high)


def above_floor(evidence: Evidence) -> Parts:
    """(F - F_0, D - F_0), with every head ablated in F_0. Insufficient("denominator") unless that lowers the total."""
    floor = evidence.ablated("empty", PRIMARY)
    if evidence.clean.sum() <= floor.sum():
        raise Insufficient("denominator", "without any head the value is no smaller")
    return evidence.ablated("circuit", PRIMARY) - floor, evidence.clean - floor


def unit_of(evidence: Evidence) -> str:
    """The unit of the task's metric: "probability" for a difference of probabilities, else "nats"."""
    return "probability" if evidence.metric == "probability difference" else "nats"
