"""Faithfulness as a ratio of means, with its linearised scores, Fieller interval and denominator gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

from calibrations.statistics.arrays import Interval, paired, tails
from calibrations.statistics.clusters import covariance_of_means
from calibrations.statistics.errors import Insufficient

# Below a t of 3 the Fieller interval is unbounded too often to report a ratio (our choice).
MINIMUM_DENOMINATOR_T = 3.0
MOST_UNITS = 10_000  # sampling units that `Ratio.units_for` considers; nobody draws more


@dataclass(frozen=True)
class Ratio:
    """theta = sum F / sum D with what is needed to judge it.

    `value`: theta, never clipped. `scores` [prompt]: linearised scores y_p = theta + (F_p - theta D_p) / mean(D), whose
    mean is theta. `standard_error`: sd(y) / sqrt(n), or its cluster-robust form. `denominator_t`: mean(D) / SE(mean D).
    `relative_covariance`: cov(mean y, mean D) / mean(D). `degrees_of_freedom`: number of sampling units minus 1.
    """

    value: float
    scores: Float[np.ndarray, " prompt"]
    standard_error: float
    denominator_t: float
    relative_covariance: float
    degrees_of_freedom: int

    @property
    def score_sd(self) -> float:
        """SD (ddof 1) of the linearised scores: the per-prompt effect size of C11."""
        return float(self.scores.std(ddof=1))

    def fieller(self, level: float = 0.95) -> Interval:
        """Fieller interval: all theta for which the paired t test of F - theta D = 0 does not reject.

        Raises Insufficient("denominator") if that set is unbounded (mean(D)^2 <= q^2 var(mean D)).
        """
        q2 = scipy.special.stdtrit(self.degrees_of_freedom, tails(level)[1]) ** 2
        # With the bound as theta + x, F - (theta + x) D has mean -x mean(D). Solving a x^2 + 2 b x - c = 0 avoids cancellation.
        a, b, c = 1 - q2 / self.denominator_t**2, q2 * self.relative_covariance, q2 * self.standard_error**2
        if a <= 0:
            raise Insufficient(
                "denominator",
                f"Fieller set unbounded at level {level}: t of mean(D) is {self.denominator_t:.3f}",
            )
        root = math.sqrt(b * b + a * c)
        return float(self.value - (b + root) / a), float(self.value - (b - root) / a)

    def t_interval(self, level: float = 0.90) -> Interval:
        """theta +- t quantile x standard error; degrees of freedom: number of sampling units minus 1."""
        half = float(scipy.special.stdtrit(self.degrees_of_freedom, tails(level)[1])) * self.standard_error
        return self.value - half, self.value + half

    def p_within(self, band: Interval) -> float:
        """p of "theta lies in `band`": the larger p of the one-sided t tests against its two ends (Schuirmann 1987)."""
        room = min(self.value - band[0], band[1] - self.value)
        if self.standard_error == 0:
            return float(room <= 0)
        return float(scipy.special.stdtr(self.degrees_of_freedom, -room / self.standard_error))

    def units_for(self, room: float, level: float = 0.90) -> int | None:
        """How many sampling units with this spread give `t_interval` a half-width of at most `room`.

        None if more than MOST_UNITS would be needed.
        """
        n_units = self.degrees_of_freedom + 1
        candidates = np.arange(2, MOST_UNITS + 1)
        half = (
            scipy.special.stdtrit(candidates - 1, tails(level)[1]) * self.standard_error * np.sqrt(n_units / candidates)
        )
        enough = candidates[half < room]
        return int(enough[0]) if len(enough) else None

    def require_denominator(self, minimum_t: float = MINIMUM_DENOMINATOR_T) -> None:
        """Denominator gate: raises Insufficient("denominator") if denominator_t < minimum_t (rounding aside)."""
        if self.denominator_t < minimum_t * (1 - 1e-12):
            raise Insufficient("denominator", f"t of mean(D) is {self.denominator_t:.3f}, below {minimum_t}")


def ratio_of_means(numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike | None = None) -> Ratio:
    """theta = sum F / sum D without the denominator gate; `reportable_ratio` gives a number that may be published.

    `numerator` F [prompt], `denominator` D [prompt]. Completeness is the ratio of D - G to D; a difference of two
    circuits is the ratio of F_a - F_b to D; the normalised form has F - F_empty and D - F_empty. `clusters`
    [prompt] makes the standard error, t and Fieller interval cluster-robust. Raises
    Insufficient("behaviour_absent") if mean(D) <= 0 and Insufficient("n_clusters") for one sampling unit.
    Source: Fieller 1954.
    """
    f, d = paired(("numerator", numerator), ("denominator", denominator))
    if f.size == 0:
        raise Insufficient("n_prompts", "no prompts")
    mean_f, mean_d = float(f.mean()), float(d.mean())
    if mean_d <= 0:
        raise Insufficient("behaviour_absent", f"mean of the denominator is {mean_d:.4g}; expected above 0")
    theta = mean_f / mean_d
    scores = theta + (f - theta * d) / mean_d
    covariance, freedom = covariance_of_means(np.column_stack([scores, d]), clusters)
    se_d = math.sqrt(covariance[1, 1])
    return Ratio(
        value=theta,
        scores=scores,
        standard_error=math.sqrt(covariance[0, 0]),
        denominator_t=mean_d / se_d if se_d > 0 else math.inf,
        relative_covariance=float(covariance[0, 1] / mean_d),
        degrees_of_freedom=freedom,
    )


def reportable_ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    clusters: ArrayLike | None = None,
    minimum_t: float = MINIMUM_DENOMINATOR_T,
) -> Ratio:
    """`ratio_of_means` behind the denominator gate.

    Raises Insufficient("denominator") if mean(D) / SE(mean D) < minimum_t or if the 95 % Fieller set is unbounded, and
    whatever `ratio_of_means` raises.
    """
    ratio = ratio_of_means(numerator, denominator, clusters)
    ratio.require_denominator(minimum_t)
    ratio.fieller(0.95)
    return ratio


class MeanOfRatios(NamedTuple):
    """Mean of F_p / D_p, and how many prompts have a denominator near zero."""

    value: float
    near_zero_denominators: int


def mean_of_ratios(numerator: ArrayLike, denominator: ArrayLike, near_zero: float = 0.1) -> MeanOfRatios:
    """The other definition of faithfulness, mean_p F_p / D_p, for display only: the smallest denominators dominate it.

    It counts prompts with |D_p| < near_zero x median |D|. Raises Insufficient("denominator") if some D_p is 0.
    """
    f, d = paired(("numerator", numerator), ("denominator", denominator))
    if not d.all():
        raise Insufficient("denominator", f"{int((d == 0).sum())} prompts have a logit difference of exactly 0")
    magnitude = np.abs(d)
    return MeanOfRatios(float((f / d).mean()), int((magnitude < near_zero * np.median(magnitude)).sum()))
