"""166 silent update: neutral prompts should not drift; if they do, or a fingerprint changes unannounced, the model changed.

Proven, without statistics: the weights' hash or the endpoint's system_fingerprint changed and the declared version did not.
Candidate: a neutral-control metric is significant after BH in two consecutive comparisons in the same direction, or has one
p <= .001 once. A declared update is neither. Consecutive comparisons share a snapshot and are dependent; `shuffled_rate`
therefore gives the approximate rate at which the rule fires if the snapshots come in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from suites.drift.series_record import RecordedSnapshot
from suites.statistics import multiplicity

NUMBER, NAME, TITLE = "166", "silent_update", "Silent update"
UNIT = "evidence"
MINIMUM_PROMPTS = 10  # on neutral-control, as many as the test of an axis needs
ONE_P = 0.001  # that is a candidate by itself: with two in a row, .6 % of null snapshots are
SHUFFLES = 1000
LEAST_SNAPSHOTS = 4  # fewer have too few orders


def announced(before: RecordedSnapshot, after: RecordedSnapshot) -> bool:
    """Whether the declared version changed; then no update is silent, whatever changed."""
    return before.started["declared_version"] != after.started["declared_version"]


def evidence(before: RecordedSnapshot, after: RecordedSnapshot, earlier: Sequence[RecordedSnapshot] = ()) -> str | None:
    """Why an update is proven; None if it is not. `earlier`: the snapshots before `before`.

    A new fingerprint proves an update, also beside others: an update during a snapshot, or of some servers first, is never seen
    alone. New is one that no snapshot under this declared version reported, or any if all those of `before` are gone. One that
    comes and goes in rotation, or is no longer reported, proves nothing.
    """
    if announced(before, after):
        return None
    weights = [one.started["model"]["identity"].get("weights") for one in (before, after)]
    if all(weights) and weights[0] != weights[1]:
        return f"the weights changed from {weights[0][:8]} to {weights[1][:8]} under the declared version"
    then, now = _fingerprints(before), _fingerprints(after)
    known = then.union(*(_fingerprints(one) for one in earlier if not announced(one, after)))
    if then and now and (now - known or not now & then):
        return f"system_fingerprint changed from {', '.join(sorted(then))} to {', '.join(sorted(now))}"
    return None


def _fingerprints(snapshot: RecordedSnapshot) -> set[str]:
    return {row["system_fingerprint"] for row in snapshot.rows.values()} - {None}


def candidates(history: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Why the last comparison is a candidate, one sentence per metric; empty if it is none.

    `history`: comparisons in order, each {metric: {p, rejected, direction}} on the neutral axis; a direction of None is no
    other's.
    """
    if not history:
        return []
    now, last = history[-1], history[-2] if len(history) > 1 else {}
    found = []
    for metric, one in now.items():
        if one["p"] is not None and one["p"] <= ONE_P:
            found.append(f"{metric}: p = {one['p']:.2g}, at most {ONE_P:g}")
        elif one["rejected"] and last.get(metric, {}).get("rejected") and _same(last[metric], one):
            found.append(f"{metric}: significant twice in a row in the same direction")
    return found


def _same(last: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return now["direction"] is not None and last["direction"] == now["direction"]


def shuffled_rate(
    means: Float[np.ndarray, "snapshot metric"],
    errors: Float[np.ndarray, "snapshot metric"],
    seed: int,
    alpha: float = 0.05,
) -> float | None:
    """Share of comparisons that the rule calls candidates if the snapshots come in random order; None under 4 snapshots.

    The rate is approximate. Here comparisons are normal tests of the axis means with their standard errors, and BH is over these
    metrics alone. The rule itself relabels outputs, corrects over every axis, and includes the centroid.
    """
    x, se = np.asarray(means, dtype=float), np.asarray(errors, dtype=float)
    if len(x) < LEAST_SNAPSHOTS:
        return None
    rng, fired, total = np.random.default_rng(seed), 0, 0
    for _ in range(SHUFFLES):
        order = rng.permutation(len(x))
        history: list[dict[str, dict[str, Any]]] = []
        for before, after in itertools.pairwise(order):
            history.append(compared(x[before], x[after], np.hypot(se[before], se[after]), alpha))
            fired += bool(candidates(history))
            total += 1
    return fired / total


def compared(before: np.ndarray, after: np.ndarray, error: np.ndarray, alpha: float) -> dict[str, dict[str, Any]]:
    """{metric: p, rejected, direction} of a normal test of each metric's change, BH over them."""
    change = after - before
    z = np.divide(change, error, out=np.where(change == 0, 0.0, np.inf), where=error > 0)
    p = {str(number): float(one) for number, one in enumerate(2 * stats.norm.sf(np.abs(z)))}
    family = multiplicity.adjust(p, "shuffled", alpha)
    return {
        name: {"p": one, "rejected": name in family.rejected, "direction": float(np.sign(change[int(name)]))}
        for name, one in p.items()
    }
