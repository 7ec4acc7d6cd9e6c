"""Conversion of inputs to finite float64 arrays, with errors that name the array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

Interval = tuple[float, float]  # lower end, upper end


def finite(name: str, values: ArrayLike, ndim: int | None = None) -> Float[np.ndarray, ...]:
    """`values` as a float64 array; raises ValueError if an entry is not finite or the number of axes is not `ndim`."""
    array = np.asarray(values, dtype=np.float64)
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; expected {ndim} axes")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise ValueError(f"{name} holds {bad} entries that are not finite; drop or recompute them first")
    return array


def paired(first: tuple[str, ArrayLike], second: tuple[str, ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Two named finite vectors of one common length; raises ValueError otherwise."""
    x, y = finite(*first, ndim=1), finite(*second, ndim=1)
    if x.shape != y.shape:
        raise ValueError(f"{first[0]} has {x.size} entries and {second[0]} has {y.size}; expected the same number")
    return x, y


def is_constant(values: np.ndarray, axis: int | None = None) -> np.ndarray | bool:
    """True where `values` vary by rounding at most (range <= 1e-12 of the largest magnitude)."""
    spread = values.max(axis=axis) - values.min(axis=axis)
    return spread <= 1e-12 * np.abs(values).max(axis=axis)


def root(function: Callable[[float], float], low: float, high: float, xtol: float = 2e-12) -> float:
    """The point between `low` and `high` where `function` changes sign (Brent 1973). Raises as scipy's `brentq`."""
    return float(scipy.optimize.brentq(function, low, high, xtol=xtol))  # pyright: ignore[reportArgumentType]


def tails(level: float) -> tuple[float, float]:
    """Lower and upper cumulative probabilities of a two-sided interval: .9 -> (.05, .95)."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a confidence level between 0 and 1, for example 0.9")
    return (1 - level) / 2, (1 + level) / 2
