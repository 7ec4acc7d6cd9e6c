"""Rates of yes-or-no outcomes: Wilson intervals and the exact upper bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from scipy import stats

from calibrations.statistics import wilson_interval
from results_io import UserError
from suites.estimate import Estimate, Interval, missing
from suites.statistics.clusters import effective_number, estimated_design_effect, largest_design_effect

WILSON, CLOPPER_PEARSON = "Wilson", "Clopper-Pearson, one-sided upper"
EFFECTIVE = "Wilson, effective sample size"
SCORE = "one-sided score test, rate below {limit:g}"
FEW_CLUSTERS = 20  # fewer give no usable interval over clusters
FEW_RARER = 10  # clusters with the rarer outcome: fewer do not show how similar the items of a cluster are


def wilson(successes: int, n: int, level: float = 0.95, unit: str = "share") -> Estimate:
    """Share successes/n with its Wilson score interval, clipped to [0, 1].

    Undefined for n = 0. UserError for a count outside 0..n. Source: Wilson 1927.
    """
    _require_counts(successes, n)
    if n == 0:
        return missing("undefined", "no items to take a rate over", unit)
    low, high = wilson_interval(successes, n, level)
    return Estimate(
        successes / n,
        unit,
        n,
        ci=Interval(low, high, level, WILSON),
        assumptions=("items are independent",),
        detail={"successes": successes},
    )


def clustered(outcomes: Sequence[bool], clusters: Sequence[str], level: float = 0.95, unit: str = "share") -> Estimate:
    """Share of true `outcomes` [item], with Wilson's interval at the effective sample size n / design effect.

    The design effect is estimated from the spread between `clusters` [item]. This is impossible with fewer than 20 clusters, or
    with the rarer outcome in fewer than 10 (both counted by `effective_number`): then a cluster counts as one item
    (`largest_design_effect`). The interval is never narrower than the plain one, which is `independent` in `detail`. If every
    item is its own cluster, it is the plain one. Undefined without items. UserError unless each item has a cluster. Source: Kish
    1965; Korn & Graubard 1998, with Wilson's interval in place of the exact one; Dean & Pagano 2015.
    """
    if len(outcomes) != len(clusters):
        raise UserError(
            f"{len(clusters)} cluster labels for {len(outcomes)} outcomes; expected one each: label every item"
        )
    plain = wilson(sum(outcomes), len(outcomes), level, unit)
    if plain.value is None or plain.ci is None or len(set(clusters)) == len(clusters):
        return plain
    effect, note = _design_effect(outcomes, clusters, level)
    worth = plain.n / effect
    detail = {
        "independent": asdict(plain.ci),
        "clusters": len(set(clusters)),
        "design_effect": effect,
        "effective_n": worth,
    }
    return replace(
        plain,
        ci=Interval(*wilson_interval(plain.value * worth, worth, level), level, EFFECTIVE),
        assumptions=("clusters are independent", note),
        detail={**plain.detail, **detail},
    )


def below(rate: Estimate, limit: float) -> Estimate:
    """`rate` with the p-value of "it is not below `limit`": P(Z <= (rate - limit) / sqrt(limit (1 - limit) / n)).

    n is the effective sample size if `clustered` found one. Wilson's interval inverts this test: its upper end is at or below the
    limit if and only if p <= (1 - level)/2. A missing rate, and any rate at a limit of 0 or 1, is returned unchanged. Source:
    Wilson 1927; Agresti & Coull 1998.
    """
    if rate.value is None or not 0 < limit < 1:
        return rate
    worth = rate.detail.get("effective_n", rate.n)
    z = (rate.value - limit) / (limit * (1 - limit) / worth) ** 0.5
    sample = ", effective sample size" if "effective_n" in rate.detail else ""
    return replace(rate, p_value=float(stats.norm.cdf(z)), test=SCORE.format(limit=limit) + sample)


def clopper_pearson_bound(events: float, n: float, level: float) -> float:
    """The share p at which P(X <= events | n, p) = 1 - level; 1 if all n are events. Source: Clopper & Pearson 1934.

    Counts may be fractional: those of dependent items, divided by their design effect (Korn & Graubard 1998).
    """
    return 1.0 if events == n else float(stats.beta.ppf(level, events + 1, n - events))


def upper_bound(events: int, n: int, level: float = 0.95, unit: str = "share") -> Estimate:
    """Share events/n with its exact one-sided upper bound, `clopper_pearson_bound`: the interval is [0, bound].

    Undefined for n = 0. UserError for a count outside 0..n.
    """
    _require_counts(events, n)
    if n == 0:
        return missing("undefined", "no items to take a rate over", unit)
    return Estimate(
        events / n,
        unit,
        n,
        ci=Interval(0.0, clopper_pearson_bound(events, n, level), level, CLOPPER_PEARSON),
        assumptions=("items are independent",),
        detail={"events": events},
    )


def _design_effect(outcomes: Sequence[bool], clusters: Sequence[str], level: float) -> tuple[float, str]:
    """(design effect, a note on how it was found)."""
    rarer = sum(outcomes) <= len(outcomes) / 2
    having = {cluster for cluster, outcome in zip(clusters, outcomes, strict=True) if outcome == rarer}
    with_rarer = [cluster for cluster in clusters if cluster in having]
    if effective_number(clusters) < FEW_CLUSTERS:
        few = f"{len(set(clusters))} clusters, after their sizes worth {effective_number(clusters):.1f}"
    elif effective_number(with_rarer) < FEW_RARER:
        few = f"{len(set(with_rarer))} clusters with the rarer outcome"
    else:
        return estimated_design_effect(outcomes, clusters, level), "the design effect is estimated from the clusters"
    return largest_design_effect(clusters), f"items of a cluster count as the same: {few}, too few to estimate from"


def _require_counts(successes: int, n: int) -> None:
    if not 0 <= successes <= n:
        raise UserError(f"{successes} of {n} is no rate; expected a count between 0 and {n}: count the items again")
