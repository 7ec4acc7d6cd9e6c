"""Two runs on the same items: McNemar's test, and the difference of their rates with a score interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from calibrations.statistics import mcnemar as discordant_tests
from calibrations.statistics import sign_flip_test
from calibrations.statistics.arrays import root
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics.clusters import estimated_design_effect, largest_design_effect

CHI_SQUARE_VALID = 25  # discordant pairs from which the continuity chi-square is near enough to the exact p
FAR = 1e6  # replaces an infinite z during root finding
FEW_CLUSTERS = 50  # a variance over fewer than about 50 clusters is not reliable (Cameron & Miller 2015)
FEW_CHANGED = 10  # clusters with changed items: fewer do not show how similarly the items of a cluster change
FLIPS, SEED = 20_000, 0  # sign flips of clusters: all of them up to 2^14, else random ones
EXACT, TANGO = "exact McNemar", "Tango score"


@dataclass(frozen=True)
class Cells:
    """The 2x2 table of items judged in both runs: right in both, only in A, only in B, in neither. `dropped`: all other items.

    The counts are whole numbers, unless they come from `worth`.
    """

    both: float
    only_a: float
    only_b: float
    neither: float
    dropped: int = 0

    @property
    def n(self) -> float:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def delta(self) -> float:
        """Rate of B minus rate of A. Needs items."""
        return (self.only_b - self.only_a) / self.n

    @property
    def discordance(self) -> float:
        """Share of items on which A and B differ. Needs items."""
        return (self.only_a + self.only_b) / self.n

    def worth(self, design_effect: float) -> Cells:
        """The table at its effective sample size: all counts divided by the design effect."""
        counts = (self.both, self.only_a, self.only_b, self.neither)
        return Cells(*(count / design_effect for count in counts), dropped=self.dropped)


def cells(a: Mapping[str, bool | None], b: Mapping[str, bool | None]) -> Cells:
    """Count the items (by id) of two runs. An item missing, or None, on either side is dropped and counted."""
    shared = [key for key in a.keys() & b.keys() if a[key] is not None and b[key] is not None]
    pairs = [(bool(a[key]), bool(b[key])) for key in shared]
    return Cells(
        both=pairs.count((True, True)),
        only_a=pairs.count((True, False)),
        only_b=pairs.count((False, True)),
        neither=pairs.count((False, False)),
        dropped=len(a.keys() | b.keys()) - len(shared),
    )


def mcnemar(b: int, c: int) -> Estimate:
    """McNemar's test from the discordant counts b (only A right) and c (only B right). `value` and `p_value`: exact p.

    p = two-sided binomial(b + c, 1/2); 1 without discordant pairs. `detail`: chi2 = (|b-c| - 1)^2/(b+c) and its p by the
    published formula (None at b + c = 0, where statsmodels gives p = 0), whether it is valid (b + c >= 25), and
    mid_p = p - P(X = min(b, c)), 1 at b = c. UserError for negative counts. Source: McNemar 1947; Fagerland et al. 2013 (mid-p).
    """
    if min(b, c) < 0:
        raise UserError(f"discordant counts are {b} and {c}; expected counts from 0: count the pairs again")
    n = b + c
    detail = {"only_a": b, "only_b": c, "chi2": None, "chi2_p": None, "chi2_valid": n >= CHI_SQUARE_VALID}
    if n == 0:
        detail |= {"mid_p": 1.0, "note": "no discordance"}
        return Estimate(1.0, "p", 0, p_value=1.0, test=EXACT, detail=detail)
    found = discordant_tests(b, c)
    detail |= {
        "chi2": found.chi2_corrected,
        "chi2_p": float(stats.chi2.sf(found.chi2_corrected, 1)),
        "mid_p": mid_p(b, c),
    }
    p = min(1.0, found.p_exact)
    return Estimate(p, "p", n, p_value=p, test=EXACT, assumptions=("items are independent",), detail=detail)


def mid_p(b: int, c: int) -> float:
    """2 P(X < m) + P(X = m), m = min(b, c), X ~ binomial(b + c, 1/2); 1 at b = c."""
    if b == c:
        return 1.0
    least, n = min(b, c), b + c
    return float(2 * stats.binom.cdf(least, n, 0.5) - stats.binom.pmf(least, n, 0.5))


def difference(table: Cells, level: float = 0.95) -> Estimate:
    """Rate of B minus rate of A over shared items, with Tango's score interval and the exact McNemar p.

    Undefined without shared items. `detail`: the four cells, the discordance, and McNemar's own detail. Source: Tango
    1998.
    """
    excluded = {"not judged in both runs": table.dropped} if table.dropped else {}
    if table.n == 0:
        return missing("undefined", "the two runs share no judged item", "share", excluded=excluded)
    test = mcnemar(int(table.only_a), int(table.only_b))
    counts = {"both": table.both, "only_a": table.only_a, "only_b": table.only_b, "neither": table.neither}
    return Estimate(
        table.delta,
        "share",
        int(table.n),
        ci=score_interval(table, level),
        p_value=test.p_value,
        test=EXACT,
        assumptions=("items are independent",),
        excluded=excluded,
        detail={**test.detail, **counts, "discordance": table.discordance},
    )


def score_z(table: Cells, delta: float) -> float:
    """Tango's score statistic of "rate B - rate A = delta": (c - b - n delta)/sqrt(n (2 q + delta (1 - delta))).

    q is the maximum-likelihood P(only A) under that difference, the larger root of 2n q^2 + B q - b delta (1 - delta) = 0,
    B = -(b + c) + (2n - c + b) delta; b items are right only in A, c only in B. An infinite z marks a delta that the counts rule
    out. Source: Tango 1998.
    """
    n, b, c = table.n, table.only_a, table.only_b
    linear = -(b + c) + (2 * n - c + b) * delta
    constant = -b * delta * (1 - delta)
    q = (math.sqrt(max(linear**2 - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance, gap = n * (2 * q + delta * (1 - delta)), c - b - n * delta
    if variance <= 1e-12 * n:
        return 0.0 if abs(gap) <= 1e-9 * n else math.copysign(math.inf, gap)
    return gap / math.sqrt(variance)


def score_interval(table: Cells, level: float = 0.95) -> Interval:
    """All differences that Tango's score test does not reject at 1 - level. Needs items. Source: Tango 1998."""
    bound, delta = float(stats.norm.isf((1 - level) / 2)), table.delta
    reach = 1 - 1e-9  # at the very ends the variance under the null is 0

    def edge(end: float, sign: float) -> float:
        if delta == end:
            return end

        def excess(x: float) -> float:
            return float(np.clip(score_z(table, x), -FAR, FAR)) - sign * bound

        return root(excess, *sorted((end * reach, delta)), xtol=1e-12)

    return Interval(edge(-1.0, 1.0), edge(1.0, -1.0), level, TANGO)


def noninferiority_p(table: Cells, margin: float) -> float:
    """One-sided p of "B is worse than A by `margin` or more": Phi(-z) of Tango's statistic at delta = -margin.

    It is below alpha exactly when the lower end of the 1 - 2 alpha score interval is above -margin. UserError for a margin
    outside (0, 1). Source: Tango 1998.
    """
    if not 0 < margin < 1:
        raise UserError(f"margin is {margin}; expected a share between 0 and 1, for example 0.05")
    return float(stats.norm.sf(score_z(table, -margin)))


def design_effect(changes: Sequence[int], clusters: Sequence[str], level: float = 0.95) -> float:
    """Design effect of the `changes` [item] (-1, 0 or 1) in `clusters` [item], by `estimated_design_effect`.

    With fewer than 50 clusters, or changes in fewer than 10 of them, it cannot be estimated. It is then `largest_design_effect`,
    as if the items of a cluster only changed together. Source: Kish 1965; Bell & McCaffrey 2002; Cameron & Miller 2015.
    """
    largest = largest_design_effect(clusters)
    changed = {cluster for cluster, change in zip(clusters, changes, strict=True) if change}
    if largest == 1 or len(set(clusters)) < FEW_CLUSTERS or len(changed) < FEW_CHANGED:
        return largest
    return estimated_design_effect(changes, clusters, level)


def cluster_p(changes: Sequence[int], clusters: Sequence[str]) -> float:
    """Two-sided p of "no change on average", by flipping the sign of each cluster's total change; 1 if every total is 0.

    If every item is its own cluster, this is McNemar's exact p, up to sampling error from 15 changed clusters on (random flips).
    """
    totals: Counter[str] = Counter()
    for cluster, change in zip(clusters, changes, strict=True):
        totals[cluster] += change
    values = [total for total in totals.values() if total]
    if not values:
        return 1.0
    return sign_flip_test(values, n_resamples=FLIPS, seed=SEED, alternative="two-sided").p
