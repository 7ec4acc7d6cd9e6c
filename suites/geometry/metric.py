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
LARGEST = 1e60  # of a coordinate: fourth powers are still numbers
RATIO = "ratio"
NO_INTERVAL = (
    "no interval of the ratio: few outputs leave the variance that it divides by unknown where tails are heavy (.80 of 95 % "
    "intervals held); distance_interval is that of the distance itself"
)


@dataclass(frozen=True)
class PublishedScore:
    """What the paper's formula gives on the same data, or None where it has no value (`note` says why). Never a verdict."""

    value: float | None
    formula: str
    note: str = ""

    def to_record(self) -> dict[str, Any]:
        """As data, for the key `published` of a record."""
        return {"value": self.value, "formula": self.formula, "note": self.note}


@dataclass(frozen=True)
class Metric:
    """One metric twice: `published`, and `estimate` with its interval, null and status."""

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


def same_axes(*tables: Float[np.ndarray, "point axis"]) -> int:
    """How many axes all of `tables` have. UserError if they differ: such points lie in different spaces."""
    axes = sorted({table.shape[1] for table in tables})
    if len(axes) != 1:
        raise UserError(f"points with {' and '.join(map(str, axes))} axes; expected one space: measure all alike")
    return axes[0]
