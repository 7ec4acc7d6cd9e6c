"""The fixed scale: the unit of all distances of a set, taken once from a named reference run and kept in reference.yaml.

Without one, distances are in units of the coordinates. They cannot be compared between models whose outputs differ in spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Float

import results_io
from results_io import UserError
from suites import declaration, schema
from suites.geometry.metric import centre
from suites.geometry.metric import residuals as around_mean

KINDS = ("rms", "mahalanobis")
DIGITS = 9  # significant digits that are written
NUMBERS = schema.list_of({"type": "number", "description": "a number"}, "a list of numbers, one an axis")
ROWS = schema.list_of(NUMBERS, "a matrix, row by row")
SCHEMA = schema.object_of(
    run=schema.text("the reference run"),
    mean=NUMBERS,
    sd=NUMBERS,
    rms={"type": "number", "exclusiveMinimum": 0, "description": "a number above 0"},
    matrix=ROWS,
    plane=schema.object_of(("axes", "shares"), axes={**ROWS, "minItems": 2, "maxItems": 2}, shares=NUMBERS),
)


def check(scale: Mapping[str, Any], axes: int | None, where: str) -> None:
    """UserError for an unknown key, a unit that is not above 0, a singular matrix, and lengths that differ from `axes`.

    `axes`: number of axes; None: unknown.
    """
    schema.check(dict(scale), SCHEMA, where, "scale")
    lengths = {f"scale.{name}": {len(scale[name])} for name in ("mean", "sd") if name in scale}
    if "matrix" in scale:
        lengths["scale.matrix"] = {len(scale["matrix"]), *map(len, scale["matrix"])}
    if "plane" in scale:
        lengths["scale.plane.axes"] = set(map(len, scale["plane"]["axes"]))
    for name, found in lengths.items():
        if len(found) > 1 or (axes is not None and found != {axes}):
            wanted = "one length" if axes is None else f"{axes}, one an axis"
            raise UserError(f"{where}: {name} has {' and '.join(map(str, sorted(found)))} numbers; expected {wanted}")
    if "matrix" in scale and not np.linalg.matrix_rank(np.asarray(scale["matrix"])) == len(scale["matrix"]):
        raise UserError(f"{where}: scale.matrix is singular; expected one that keeps every axis")


def apply(values: Float[np.ndarray, "point axis"], scale: Mapping[str, Any]) -> Float[np.ndarray, "point axis"]:
    """Points in units of the fixed scale: divided by its pooled RMS (1 if none), or mapped by its matrix (Mahalanobis)."""
    if "matrix" in scale:
        return values @ np.asarray(scale["matrix"], dtype=np.float64)
    return values / float(scale.get("rms", 1.0))


def apply_variance(value: float, axes: int, scale: Mapping[str, Any]) -> float:
    """A variance (a sum over axes, equal on each) in squared units of the scale: value / rms^2, or value tr(M'M)/axes."""
    if "matrix" in scale:
        return value * float((np.asarray(scale["matrix"], dtype=np.float64) ** 2).sum()) / axes
    return value / float(scale.get("rms", 1.0)) ** 2


def plane(scale: Mapping[str, Any]) -> Float[np.ndarray, "two axis"] | None:
    """The first two principal axes of the reference run, unit vectors; None if none are fixed."""
    return np.asarray(scale["plane"]["axes"], dtype=np.float64) if "plane" in scale else None


def of(
    draws: Sequence[Float[np.ndarray, "point axis"]], run: str, kind: str = "rms", with_plane: bool = False
) -> dict[str, Any]:
    """The scale of a reference run named `run`; `draws`: the points of each construct.

    It has, per axis, the mean and the pooled SD within constructs, and `rms`, the root of the summed squares of these SDs.
    `mahalanobis` adds `matrix`, the symmetric root of the inverse pooled covariance / sqrt(axes), so that the RMS is again 1.
    `with_plane` adds the first two principal axes of all points, with their shares of variance. UserError if nothing varies, or
    not on every axis.
    """
    freedom = sum(len(one) - 1 for one in draws)
    residuals = np.concatenate([around_mean(one) for one in draws]) if draws else np.zeros((0, 1))
    if freedom <= 0 or not (residuals**2).sum() > 0:
        raise UserError("outputs of the reference run do not vary within a construct; expected some spread to scale by")
    variances = (residuals**2).sum(0) / freedom
    found: dict[str, Any] = {
        "run": run,
        "mean": _rounded(np.mean([centre(one) for one in draws], axis=0)),
        "sd": _rounded(np.sqrt(variances)),
        "rms": float(f"{np.sqrt(variances.sum()):.{DIGITS}g}"),
    }
    if kind == "mahalanobis":
        found["matrix"] = [_rounded(row) for row in _whitening(residuals.T @ residuals / freedom)]
    if with_plane:
        found["plane"] = _plane(np.concatenate(draws))
    return found


def write(path: Path, scale: Mapping[str, Any]) -> None:
    """Append the scale to reference.yaml, keeping its content and comments. UserError if it already has a scale."""
    require_none(path)
    text = path.read_text(encoding="utf-8")
    added = yaml.safe_dump({"scale": dict(scale)}, sort_keys=False, width=120, default_flow_style=None)
    results_io.write_text(path, text.rstrip("\n") + "\n" + added)


def require_none(path: Path) -> None:
    """UserError if this reference.yaml has a scale."""
    if "scale" in declaration.read_yaml(path):
        raise UserError(
            f"{schema.shown_path(path)} has a scale already, and distances measured in it would be of another unit; take the "
            "key scale out to fix it anew"
        )


def _whitening(covariance: Float[np.ndarray, "axis axis"]) -> Float[np.ndarray, "axis axis"]:
    values, vectors = np.linalg.eigh(covariance)
    if values.min() <= 1e-9 * values.max():
        raise UserError(
            f"outputs of the reference run vary on fewer than {len(values)} axes; Mahalanobis needs all: fix it as rms"
        )
    return vectors @ np.diag(1 / np.sqrt(values * len(values))) @ vectors.T


def _plane(points: Float[np.ndarray, "point axis"]) -> dict[str, Any]:
    """The two directions of largest variance, each with the sign that makes its largest entry positive."""
    _, lengths, rows = np.linalg.svd(around_mean(points), full_matrices=False)
    if len(rows) < 2:
        raise UserError(
            f"a plane needs two axes and three outputs; the reference run has {points.shape[1]} and {len(points)}"
        )
    axes = [row * np.sign(row[np.abs(row).argmax()]) for row in rows[:2]]
    return {"axes": [_rounded(row) for row in axes], "shares": _rounded(lengths[:2] ** 2 / (lengths**2).sum())}


def _rounded(values: Float[np.ndarray, " axis"]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
