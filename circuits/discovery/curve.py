"""Faithfulness against the size of a circuit, and the areas by which MIB ranks discovery methods.

With m(C) the summed logit difference of the run in which only the components C are intact, M all of them and no component
at all in the empty set,

    f(C) = (m(C) - m(empty)) / (m(M) - m(empty))

MIB (Mueller et al., ICML 2025) takes the curve at fixed shares of all components and on a linear axis of shares

    CPR = trapezoid area under f             large where small circuits do the task; above its most where they overshoot
    CMD = trapezoid area under |1 - f|       0 where every circuit does just what the model does

from the smallest share to 1, so a circuit that is faithful at every size has CPR .999 and CMD 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from circuits.discovery import resampling

ROUNDING = 1e-9  # 0.1 * 30 heads are 3, whatever floats make of it


def sizes(total: int, shares: Sequence[float]) -> list[int]:
    """Components at each share of `total`, rounded up: two shares of a small model may have one size."""
    return [min(total, max(1, math.ceil(share * total - ROUNDING))) for share in shares]


def normalised(
    kept: Float[np.ndarray, "*set prompt"],
    whole: Float[np.ndarray, " prompt"],
    empty: Float[np.ndarray, " prompt"],
    counts: Int[np.ndarray, "resample prompt"] | None = None,
) -> Float[np.ndarray, "*resample_and_set"]:
    """f from logit differences by prompt: (sum kept - sum empty) / (sum whole - sum empty).

    With `counts` the sums are those of each resample, resamples first; a resample in which the empty set does as much as
    the model has no f (NaN).
    """
    if counts is None:
        return (kept.sum(-1) - empty.sum()) / (whole.sum() - empty.sum())
    floor, gap = counts @ empty, counts @ (whole - empty)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(gap > 0, 1 / gap, np.nan)
    above = counts @ np.atleast_2d(kept).T - floor[:, None]
    found = above * scale[:, None]
    return found if kept.ndim > 1 else found[:, 0]


def performance(shares: Float[np.ndarray, " share"], f: Float[np.ndarray, "*resample share"]) -> Any:
    """CPR, the trapezoid area under f."""
    return np.trapezoid(f, shares, axis=-1)


def distance(shares: Float[np.ndarray, " share"], f: Float[np.ndarray, "*resample share"]) -> Any:
    """CMD, the trapezoid area under |1 - f|."""
    return np.trapezoid(np.abs(1 - f), shares, axis=-1)


@dataclass(frozen=True, eq=False)
class Curve:
    """Logit differences by prompt of the circuits at some shares of the model, and at its two ends."""

    shares: tuple[float, ...]
    sizes: tuple[int, ...]
    kept: Float[np.ndarray, "share prompt"]
    whole: Float[np.ndarray, " prompt"]
    empty: Float[np.ndarray, " prompt"]

    def summary(self, counts: Int[np.ndarray, "resample prompt"]) -> dict[str, Any]:
        """f at every share, CPR and CMD, each with a 95 % interval over resamples of the prompts.

        The intervals are those of the circuits at hand: sets are not chosen anew (that is what stability is about).
        """
        shares, f = np.array(self.shares), normalised(self.kept, self.whole, self.empty)
        drawn = normalised(self.kept, self.whole, self.empty, counts)
        drawn = drawn[np.isfinite(drawn).all(1)]
        low, high = resampling.interval(drawn)
        return {
            "curve": {"share": self.shares, "size": self.sizes, "faithfulness": f, "low": low, "high": high},
            "cpr": _with_interval(performance(shares, f), performance(shares, drawn)),
            "cmd": _with_interval(distance(shares, f), distance(shares, drawn)),
            "resamples": {"drawn": len(counts), "without_faithfulness": len(counts) - len(drawn)},
        }


def _with_interval(estimate: float, draws: Float[np.ndarray, " resample"]) -> dict[str, float]:
    low, high = resampling.interval(draws)
    return {"estimate": float(estimate), "low": float(low), "high": float(high)}
