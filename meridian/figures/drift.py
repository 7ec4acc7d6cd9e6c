"""A series over its snapshots: a curve for each metric and axis of the last manifest's history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meridian.figures.values import Curves, Series
from result_types import DriftManifest, SeriesPoint

MANIFESTS = "manifest-*.json"  # files of a series, one for each snapshot


def build(manifest: DriftManifest) -> Iterator[Curves]:
    """One figure for each metric of the series that has a value; missing values are gaps in its curve."""
    history = manifest["history"]
    for name in dict.fromkeys(point["name"] for point in history):
        own = [point for point in history if point["name"] == name]
        if any(point["value"] is not None for point in own):
            yield _curves(name, own, manifest)


def _curves(name: str, own: Sequence[SeriesPoint], manifest: DriftManifest) -> Curves:
    snapshots = manifest["snapshots"]
    series = []
    for axis in dict.fromkeys(point["axis"] for point in own):
        at = {point["snapshot"]: point for point in own if point["axis"] == axis}
        points = [at.get(one) for one in snapshots]
        columns = [tuple(point and point[side] for point in points) for side in ("value", "low", "high")]
        series.append(Series(axis, *columns))
    said = name.replace("_", " ")
    return Curves(
        name=f"drift_{name}",
        title=f"{said[:1].upper()}{said[1:]} over the snapshots",
        caption=f"Mean over prompts ({own[0]['unit']}) with bootstrap intervals, by axis; of the centroid, its distance "
        f"from the snapshot before. A curve breaks where a snapshot is missing. Result {manifest['number']}.",
        x_label="snapshot",
        y_label=own[0]["unit"],
        x=tuple(snapshots),
        series=tuple(series),
        level=0.95,
    )
