"""How many items a question needs, and the smallest difference that the items at hand can show."""

from __future__ import annotations

import math

from scipy import stats

from calibrations.statistics import wilson_interval
from calibrations.statistics.arrays import root
from results_io import UserError
from suites.estimate import Estimate, missing

ALPHA, POWER = 0.05, 0.80
ROUNDING = 1e-9  # relative; keeps a root that is whole up to rounding error from being rounded up


def items_for_width(width: float, share: float = 0.5, level: float = 0.95) -> Estimate:
    """Smallest n whose Wilson interval around `share` is at most `width` wide, end to end: 381 for .10 at .5.

    UserError for a width or level outside (0, 1).
    """
    _require_shares(width=width, level=level)

    def wide(n: int) -> bool:
        low, high = wilson_interval(share * n, n, level)
        return high - low > width + 1e-12

    enough = 1
    while wide(enough):
        enough *= 2
    low = enough // 2
    while enough - low > 1:  # bisection: the width falls as n grows
        middle = (low + enough) // 2
        low, enough = (middle, enough) if wide(middle) else (low, middle)
    return _items(enough, f"Wilson width {width:g} at {share:g}")


def items_for_paired(delta: float, discordance: float, alpha: float = ALPHA, power: float = POWER) -> Estimate:
    """Items that McNemar's test needs to detect a difference `delta` if the runs differ on a share `discordance` of them.

    n = ((z_a sqrt(psi) + z_b sqrt(psi - d^2))/d)^2, two-sided, with d = delta, psi = discordance, z_a and z_b the normal
    quantiles of 1 - alpha/2 and `power`. Undefined for a delta of 0 or above the discordance. UserError for an alpha or power
    outside (0, 1). Source: Connor 1987.
    """
    _require_shares(alpha=alpha, power=power)
    if not 0 < abs(delta) <= discordance <= 1:
        reason = f"a difference of {delta:g} with {discordance:g} of the items discordant does not exist"
        return missing("undefined", reason, "items")
    return _items(_paired(abs(delta), discordance, alpha, power), f"discordance {discordance:g}")


def minimum_detectable_effect(n: int, discordance: float, alpha: float = ALPHA, power: float = POWER) -> Estimate:
    """Smallest difference that McNemar's test detects in n items with the given power: `items_for_paired` inverted.

    A difference d makes at least a share d of the items discordant, so max(discordance, d) is used. Two runs that never differed
    on n items thus still have a limit, about 7.85/n. Insufficient if even a difference of 1 needs more items. UserError for an
    alpha or power outside (0, 1), or a discordance outside [0, 1].
    """
    _require_shares(alpha=alpha, power=power)
    if not 0 <= discordance <= 1:
        raise UserError(f"discordance is {discordance}; expected a share between 0 and 1: divide the count by n")

    def excess(delta: float) -> float:
        return _paired(delta, max(discordance, delta), alpha, power) - n

    if n < 1 or excess(1.0) > 0:
        return missing("insufficient_data", f"{n} items; no difference is detectable", "share", n)
    effect = root(excess, 1e-9, 1.0, xtol=1e-12)
    return Estimate(effect, "share", n, detail={"discordance": discordance, "alpha": alpha, "power": power})


def _paired(delta: float, discordance: float, alpha: float, power: float) -> float:
    z_alpha, z_power = float(stats.norm.isf(alpha / 2)), float(stats.norm.ppf(power))
    spread = math.sqrt(max(discordance - delta**2, 0.0))
    return ((z_alpha * math.sqrt(discordance) + z_power * spread) / delta) ** 2


def _items(n: float, what: str) -> Estimate:
    count = math.ceil(n - ROUNDING * n)
    return Estimate(float(count), "items", count, detail={"for": what})


def _require_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 < value < 1:
            raise UserError(f"{name} is {value}; expected a number between 0 and 1, for example 0.05 or 0.8")
