"""Metric: the paper's number and the corrected estimate of one geometric metric, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from results_io import UserError
from suites.estimate import Estimate

LEVEL = 0.95
UNIT = "scaled distance"  # Euclidean, after division by the fixed scale
SQUARED = "squared scaled distance"
LARGEST = 1e60  # largest coordinate: its fourth power is still finite
RATIO = "ratio"
ROUNDING = 1e-12  # relative to the largest coordinate: rounding errors are smaller, real differences larger
NO_INTERVAL = (
    "no interval of the ratio: few outputs leave the variance that it divides by unknown where tails are heavy; "
    "distance_interval is that of the distance itself"
)


@dataclass(frozen=True)
class PublishedScore:
    """The value of the paper's formula on the same data, or None if it has none (`note` says why). Never a verdict."""

    value: float | None
    formula: str
    note: str = ""

    def to_record(self) -> dict[str, Any]:
        """As data, for the key `published` of a record."""
        return {"value": self.value, "formula": self.formula, "note": self.note}


@dataclass(frozen=True)
class Metric:
    """One metric in two versions: `published`, and `estimate` with its interval, null and status."""

    published: PublishedScore
    estimate: Estimate


def points(values: ArrayLike, what: str = "points") -> Float[np.ndarray, "point axis"]:
    """`values` as [point, axis]; a vector is points on one axis. UserError unless all are finite numbers of at most 1e60."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not found.shape[1] or not np.isfinite(found).all():
        raise UserError(
            f"{what} of shape {found.shape} with {int((~np.isfinite(found)).sum())} coordinates not finite; expected a table "
            "[point, axis] of numbers: leave out outputs that have no coordinate"
        )
    if found.size and np.abs(found).max() > LARGEST:
        raise UserError(
            f"{what} with the coordinate {np.abs(found).max():.3g}; expected at most {LARGEST:g}: its square is no number"
        )
    return found


def settled(
    differences: Float[np.ndarray, "*shape"], *tables: Float[np.ndarray, "*points"]
) -> Float[np.ndarray, "*shape"]:
    """`differences` of coordinates of `tables`, set to 0 where they are mere rounding: up to 1e-12 of the largest coordinate.

    The floating-point mean of seven numbers .1 is not .1. Without this, outputs that all agree would have a spread of 1e-17, and
    a ratio with that spread as denominator would be meaningless.
    """
    largest = max((float(np.abs(table).max()) for table in tables if table.size), default=0.0)
    return np.where(np.abs(differences) <= ROUNDING * largest, 0.0, differences)


def centre(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, " axis"]:
    """The mean of at least one point, computed relative to the first, so that equal points give exactly that point."""
    return table[0] + settled(table - table[0], table).mean(0)


def residuals(table: Float[np.ndarray, "point axis"]) -> Float[np.ndarray, "point axis"]:
    """x - mean of at least one point; exactly 0 where points differ by rounding alone."""
    moved = settled(table - table[0], table)
    return moved - moved.mean(0)


def same_axes(*tables: Float[np.ndarray, "point axis"]) -> int:
    """The number of axes of all `tables`. UserError if it differs, since the points then lie in different spaces."""
    axes = sorted({table.shape[1] for table in tables})
    if len(axes) != 1:
        raise UserError(f"points with {' and '.join(map(str, axes))} axes; expected one space: measure all alike")
    return axes[0]
