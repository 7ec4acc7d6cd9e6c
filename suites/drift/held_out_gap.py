"""168 held-out gap: did secret held-out prompts drift more than public ones, as if the model were tuned to the public test?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from suites.drift import power
from suites.estimate import Estimate, missing
from suites.statistics import permutation

NUMBER, NAME, TITLE = "168", "held_out_gap", "Held-out gap"
UNIT = "difference of mean changes"
MINIMUM = 10  # prompts a side for the held-out gap, the same


def gap(public: Sequence[float], held_out: Sequence[float], *, seed: int) -> Estimate:
    """Mean per-prompt change (B - A) of held-out prompts minus that of public ones, whatever their number: see `reported`.

    One-sided: that the held-out ones moved more, in the direction in which all prompts moved together, which relabelling does
    not change; where all fell, a gap below 0 is more. Labels are permuted among the prompts, which are those of one axis.
    """
    x, y = np.asarray(public, dtype=float), np.asarray(held_out, dtype=float)
    alternative = "less" if np.concatenate([x, y]).sum() < 0 else "greater"
    return permutation.difference(x, y, seed=seed, alternative=alternative, unit=UNIT)


def reported(changes: Mapping[str, float], held_out: Mapping[str, float], *, seed: int) -> Estimate:
    """`gap` of public `changes` and `held_out` changes {prompt: B - A}. Insufficient with fewer than 10 prompts a side."""
    least = min(len(changes), len(held_out))
    if least < MINIMUM:
        reason = f"{len(changes)} public and {len(held_out)} held-out prompts; at least {MINIMUM} a side"
        return missing("insufficient_data", reason, UNIT, len(changes) + len(held_out))
    ordered = [[values[name] for name in sorted(values)] for values in (changes, held_out)]
    return gap(*ordered, seed=seed)


def detectable(changes: Mapping[str, float], held_out: Mapping[str, float], alpha: float = 0.05) -> float | None:
    """The gap that the one-sided test detects with power .8: (z_{1-alpha} + z_.8) sqrt(var_p/n_p + var_h/n_h).

    p: public, h: held-out prompts. None under 10 prompts a side, and without any variance.
    """
    if min(len(changes), len(held_out)) < MINIMUM:
        return None
    error = np.sqrt(sum(np.var(list(one.values()), ddof=1) / len(one) for one in (changes, held_out)))
    return float((stats.norm.ppf(1 - alpha) + stats.norm.ppf(power.POWER)) * error) or None
