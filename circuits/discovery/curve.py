"""Faithfulness against the size of a circuit, and the areas by which MIB ranks discovery methods.

Let m(C) be the task's metric (logit difference, or difference of probabilities), summed over prompts, of the run in which
only the components C are intact. With M all components,

    f(C) = (m(C) - m(empty)) / (m(M) - m(empty))

MIB (Mueller et al., ICML 2025) takes the curve at fixed shares of all components and on a linear axis of shares

    CPR = trapezoid area under f             large if small circuits do the task, larger still if they overshoot
    CMD = trapezoid area under |1 - f|       0 if every circuit does exactly what the model does

from the smallest share to 1, so an edge circuit that is faithful at every size has CPR .999 and CMD 0. MIB has so many
components that every share is a different size. Here the axis is the actual share of each size: with 32 heads, every share up
to .02 is one head, 1/32, and CPR is at most .969. So compare areas only between methods that rank the same components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from circuits.discovery import resampling
from results_io import UserError

MAXIMUM_UNDEFINED = 0.01  # with a larger share of resamples without f there is no interval, as in the calibrations
ROUNDING = 1e-9  # 0.1 * 30 heads are 3, although the float product is larger


def sizes(total: int, shares: Sequence[float]) -> list[int]:
    """Number of components at each share of `total`, rounded up; in a small model two shares may have one size."""
    return [min(total, max(1, math.ceil(share * total - ROUNDING))) for share in shares]


def normalised(
    kept: Float[np.ndarray, "*set prompt"],
    whole: Float[np.ndarray, " prompt"],
    empty: Float[np.ndarray, " prompt"],
    counts: Int[np.ndarray, "resample prompt"] | None = None,
) -> Float[np.ndarray, "*resample_and_set"]:
    """f from the metric per prompt: (sum kept - sum empty) / (sum whole - sum empty).

    With `counts` the sums are taken in each resample, with the resample axis first. If the empty set does as much as the model
    in a resample, f of that resample is NaN.
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
    """The metric per prompt of the circuits at some shares of the model, of no component and of all; the last share is 1."""

    shares: tuple[float, ...]
    sizes: tuple[int, ...]
    kept: Float[np.ndarray, "share prompt"]
    whole: Float[np.ndarray, " prompt"]
    empty: Float[np.ndarray, " prompt"]

    @property
    def real_shares(self) -> Float[np.ndarray, " share"]:
        """Each size as a share of all components."""
        return np.array(self.sizes) / self.sizes[-1]

    def summary(self, counts: Int[np.ndarray, "resample prompt"], refusal: str | None = None) -> dict[str, Any]:
        """f at every share, CPR and CMD, each with a 95 % interval over resamples of the prompts.

        Resamples do not choose the circuits anew; `stability` covers that. There is no interval if `refusal` gives a reason, or
        if more than `MAXIMUM_UNDEFINED` of the resamples have no f. Raises UserError if none has f.
        """
        shares, f = self.real_shares, normalised(self.kept, self.whole, self.empty)
        drawn = normalised(self.kept, self.whole, self.empty, counts)
        usable = drawn[np.isfinite(drawn).all(1)]
        refusal = refusal or _too_few(len(usable), len(drawn))
        low, high = (None, None) if refusal else resampling.interval(usable)
        return {
            "curve": {
                "share": shares,
                "asked": self.shares,
                "size": self.sizes,
                "faithfulness": f,
                "low": low,
                "high": high,
            },
            "cpr": _with_interval(performance(shares, f), None if refusal else performance(shares, usable)),
            "cmd": _with_interval(distance(shares, f), None if refusal else distance(shares, usable)),
            "resamples": {
                "drawn": len(drawn),
                "without_faithfulness": len(drawn) - len(usable),
                "no_interval": refusal,
            },
        }


def _too_few(usable: int, drawn: int) -> str | None:
    """Why the usable resamples give no interval; None if they do."""
    if not usable:
        raise UserError(
            f"none of {drawn} resamples of the discovery prompts has a faithfulness: in each the model does no more than "
            "without any component; raise prompts.discovery, or use a task that the model does"
        )
    undefined = drawn - usable
    if undefined > MAXIMUM_UNDEFINED * drawn:
        return f"{undefined} of {drawn} resamples have no faithfulness (at most {MAXIMUM_UNDEFINED:.0%} may)"
    return None


def _with_interval(estimate: float, draws: Float[np.ndarray, " resample"] | None) -> dict[str, float | None]:
    low, high = (None, None) if draws is None else map(float, resampling.interval(draws))
    return {"estimate": float(estimate), "low": low, "high": high}
