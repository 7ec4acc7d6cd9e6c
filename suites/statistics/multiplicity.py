"""Multiple testing: a declared family of p-values, the adjusted ones and those that remain significant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from calibrations.statistics import Insufficient, adjusted_p
from calibrations.statistics.multiplicity import Correction


@dataclass(frozen=True)
class Family:
    """`adjusted`: p by name, corrected over the `m` p-values of the family; `excluded`: names without a p.

    `rejected`: names whose adjusted p is at most alpha.
    """

    family: str
    method: Correction
    alpha: float
    m: int
    adjusted: Mapping[str, float] = field(default_factory=dict)
    rejected: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def adjust(p: Mapping[str, float | None], family: str, alpha: float = 0.05, method: Correction = "bh") -> Family:
    """Correct the p-values of one declared family: "bh" (Benjamini-Hochberg), "by", "holm" or "bonferroni".

    A p that is None or NaN is excluded and not in m. An empty family rejects nothing.
    """
    present = {name: value for name, value in p.items() if value is not None and not math.isnan(value)}
    excluded = tuple(name for name in p if name not in present)
    try:
        values = adjusted_p(list(present.values()), method).tolist()
    except Insufficient:  # not_run: nothing was tested
        return Family(family, method, alpha, 0, excluded=excluded)
    adjusted = dict(zip(present, values, strict=True))
    # The last binary digit must not decide a p that is exactly alpha.
    rejected = tuple(name for name in present if adjusted[name] <= alpha * (1 + 1e-12))
    return Family(family, method, alpha, len(present), adjusted, rejected, excluded)
