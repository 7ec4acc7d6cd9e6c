"""Figures of geometry: maps of outputs, the matrix of table 179, turns, and the paper's numbers beside the estimates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy

import results_io
from meridian.figures.values import Curves, EstimateMark, Figure, Forest, HeatMap, MapArrow, OutputMap, Series
from meridian.run_folder import RunFolder
from result_types import (
    ConstructPoints,
    GeometryEnvelope,
    GeometryRecord,
    MatrixResult,
    PositionResult,
    SetPoints,
    StoredCell,
)
from results_io import UserError
from suites.geometry import (
    coverage,
    findings,
    framing,
    languages,
    mtmm,
    paraphrase,
    position,
    reasoning,
    turns,
    width,
)

LEVEL = 0.95
ALPHA = 0.05  # for single constructs; a twentieth is expected even if nothing moves
CORNERS = 60  # points of a drawn ellipse
MAPS = 6  # constructs shown, those with the largest movement first
SHARED = {  # metrics whose overall estimate is a mean of squares; it is shown as a distance, like the published number
    position.NUMBER: "ODS, distance from the reference",
    paraphrase.NUMBER: "PIS, distance that wording moves",
    framing.NUMBER: "PSS, shift of a framing",
    turns.NUMBER: "DS, drift over the turns",
    languages.NUMBER: "LDS, distance between languages",
    width.NUMBER: "OW, width",
}
RATIOS = {
    reasoning.NUMBER: "RSS, PIS with reasoning over without (ratio)",
    coverage.NUMBER: "PS, issues covered (share)",
}


def documents(folder: Path) -> dict[str, GeometryEnvelope]:
    """The results of geometry in a folder, by number. UserError if there are none."""
    numbers = [metric.NUMBER for metric in findings.METRICS] + [mtmm.NUMBER]
    found = {number: path for number in numbers if (path := results_io.find(folder, number)) is not None}
    if position.NUMBER not in found:
        raise UserError(f"{folder} has no result 171; give the folder of a run of geometry=all")
    return {number: cast(GeometryEnvelope, results_io.read(path)) for number, path in found.items()}


def points(found: Mapping[str, GeometryEnvelope]) -> dict[str, SetPoints]:
    """{set: its points in result 171}, without sets that do not apply. UserError if points have other axes than their set."""
    sets = cast(PositionResult, found[position.NUMBER])["data"]["sets"]
    drawn = {name: cast(SetPoints, one) for name, one in sets.items() if "constructs" in one}
    for name, one in drawn.items():
        if one["axes"] and any(len(point) != len(one["axes"]) for point in _every_point(one)):
            raise UserError(f"result 171 has points of {name} that are not on its axes; run geometry again")
    return drawn


def _every_point(shown: SetPoints) -> Iterator[Sequence[float]]:
    for data in shown["constructs"].values():
        yield from () if data["reference"] is None else (data["reference"],)
        for variant in data["variants"].values():
            yield from variant["points"] or ()


def build(folder: Path) -> Iterator[Figure]:
    """Every figure that the results in a folder allow."""
    found = documents(folder)
    applied = points(found)  # a set that does not apply has nothing to show
    for name, shown in applied.items():
        yield from maps(name, shown)
        yield from drift(name, found[turns.NUMBER], _distance(shown))
        yield from compared(name, found, _distance(shown))
    if mtmm.NUMBER in found:
        for name, data in cast(MatrixResult, found[mtmm.NUMBER])["data"].items():
            if name in applied:
                yield matrix(name, data["cells"], _distance(applied[name]))


def of_run(run: RunFolder) -> Iterator[Figure]:
    """The geometry figures of the run's model, for the sets that apply to it; none without geometry results beside the run."""
    folder = run.geometry_folder
    if folder is None:
        return
    yield from build(folder)


def maps(name: str, shown: SetPoints) -> Iterator[OutputMap]:
    """The constructs in their first two declared axes; those with the largest framed shift first."""
    if len(shown["axes"]) < 2:
        return
    found = [one for key, data in shown["constructs"].items() if (one := _map(name, key, data, shown)) is not None]
    found.sort(key=lambda one: -max((np.hypot(a.x1 - a.x0, a.y1 - a.y0) for a in one.arrows), default=0.0))
    yield from found[:MAPS]


def _map(name: str, key: str, data: ConstructPoints, shown: SetPoints) -> OutputMap | None:
    plain = {
        k: v for k, v in data["variants"].items() if v["points"] and v["method"] != "turns"
    }  # these have a separate figure
    clouds = {k: np.array(v["points"], dtype=float)[:, :2] for k, v in plain.items()}
    means = {k: cloud.mean(0) for k, cloud in clouds.items()}
    base = np.array([means[k] for k in means if plain[k]["method"] == _neutral_method(data)])
    if len(base) < 3:
        return None
    centre = base.mean(0)
    arrows = []
    for persona in dict.fromkeys(v["persona"] for v in plain.values() if v["persona"]):
        framed = np.mean([means[k] for k in means if plain[k]["persona"] == persona], axis=0)
        arrows.append(MapArrow(persona.replace("_", " "), *map(float, (*centre, *framed))))
    kept = width.kept(_neutral(data))[:, :2]
    exact = "One point a prompt: likelihoods are exact. " if shown["deterministic"] else ""
    return OutputMap(
        name=f"map_{name}_{key}",
        title=f"{data['title']}: where the outputs lie",
        caption=f"{exact}Small: outputs without turns. Circles: neutral wordings ({len(base)}), their centre with its "
        f"{LEVEL:.0%} ellipse; arrows go to the centre of framed wordings. Outline: hull of the nine tenths of the neutral "
        f"wordings that lie nearest to their median (OW). Cross: the reference. {_plane(shown)}Result 171.",
        x_label=_axis(shown, 0),
        y_label=_axis(shown, 1),
        draws=_pairs(np.concatenate(list(clouds.values()))),
        wordings=_pairs(base),
        centre=(float(centre[0]), float(centre[1])),
        ellipse=_pairs(ellipse(base)),
        hull=_pairs(outline(kept)),
        reference=None if data["reference"] is None else (float(data["reference"][0]), float(data["reference"][1])),
        arrows=tuple(arrows),
    )


def _neutral(data: ConstructPoints) -> np.ndarray:
    """The mean output of every neutral wording, which OW is of, on all axes."""
    used = [v["points"] for v in data["variants"].values() if v["method"] == _neutral_method(data)]
    return np.array([np.mean(points, axis=0) for points in used if points])


def _neutral_method(data: ConstructPoints) -> str:
    """The method of the neutral wordings, as the metrics take them: paraphrases, or else the direct ones."""
    return "paraphrase" if any(v["method"] == "paraphrase" for v in data["variants"].values()) else "direct"


def _plane(shown: SetPoints) -> str:
    """What the axes are where none is declared."""
    return "" if shown["kind"] != "embedding" else f"Plane of the reference run: {' and '.join(shown['axes'])}. "


def _axis(shown: Mapping[str, Any], place: int) -> str:
    """An axis label with its unit: log-odds are in nats unless the set fixes a scale."""
    name = shown["axes"][place]
    if shown["kind"] == "choices":
        return f"{name} ({'scaled log-odds' if shown['scale'] else 'log-odds, nats'})"
    return f"{name} (scaled)" if shown["scale"] else name


def _distance(shown: SetPoints) -> str:
    """The unit of distances, which is that of the coordinates unless the set fixes a scale."""
    if shown["scale"]:
        return "scaled distance"
    return "distance, nats" if shown["kind"] == "choices" else "distance"


def ellipse(means: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """The confidence ellipse of the centre of points [wording, 2] at this level, by Hotelling's T^2."""
    count = len(means)
    radius = np.sqrt(2 * (count - 1) / (count - 2) * scipy.stats.f.ppf(level, 2, count - 2) / count)
    values, vectors = np.linalg.eigh(np.cov(means.T))
    angles = np.linspace(0, 2 * np.pi, CORNERS)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    return means.mean(0) + radius * (vectors @ (np.sqrt(np.maximum(values, 0))[:, None] * circle)).T


def outline(points: np.ndarray) -> np.ndarray:
    """The corners of the convex hull, in order; the points themselves if they lie on a line."""
    try:
        return points[scipy.spatial.ConvexHull(points).vertices]
    except scipy.spatial.QhullError:
        return points[np.argsort(points[:, 0], kind="stable")][[0, -1]]


def matrix(name: str, cells: Sequence[StoredCell], unit: str) -> HeatMap:
    """Table 179. Cells without a value are hatched and say why; they never have a colour of the scale."""
    by_place = {(cell["trait"], cell["method"]): cell for cell in cells}

    def value(trait: str, method: str) -> float | None:
        return by_place[trait, method]["value"]

    def text(trait: str, method: str) -> str:
        cell = by_place[trait, method]
        share = "" if (found := cell.get("share")) is None else f" · PS {found:.2f}"
        return (f"{cell['value']:.2f}" if cell["status"] == "ok" else cell["status"].replace("_", " ")) + share

    return HeatMap(
        name=f"matrix_{name}",
        title=f"Traits by methods: {name}",
        caption="The paper's figure 12 filled with values, means over constructs, as distances without the noise of draws and "
        "wordings. Hatched cells have none and say their status; that the rows are independent dimensions is a claim of the "
        "paper. Result 179.",
        x_label="method",
        y_label="trait",
        x=mtmm.METHODS,
        y=mtmm.TRAITS,
        values=tuple(tuple(value(t, m) for m in mtmm.METHODS) for t in mtmm.TRAITS),
        text=tuple(tuple(text(t, m) for m in mtmm.METHODS) for t in mtmm.TRAITS),
        unit=unit,
        diverging=any((cell["value"] or 0) < 0 for cell in cells),
    )


def drift(name: str, document: GeometryEnvelope, unit: str) -> Iterator[Curves]:
    """Distance from turn 0 by turn, mean over constructs, with the distance that the noise of draws alone would give."""
    found = (r["detail"] for r in document["records"] if r["suite"] == name and r["construct"] and r["status"] == "ok")
    live = [one for one in found if "distances" in one]
    after = {tuple(one.get("numbers", range(len(one["distances"])))) for one in live}  # older results number no turn
    if len(after) != 1 or {len(one["distances"]) for one in live} != set(map(len, after)):
        return
    distances = np.array([one["distances"] for one in live])
    series = [Series("distance, mean over constructs", tuple(distances.mean(0).tolist()))]
    band = "no band: these outputs are exact, or one draw does not show their noise"
    if all(len(one.get(key) or ()) == len(one["distances"]) for one in live for key in ("floor_mean", "floor_sd")):
        series.append(_still(live))
        band = f"band: where the noise of draws puts that mean in {LEVEL:.0%} of runs in which nothing moves, which is not 0"
    yield Curves(
        name=f"turns_{name}",
        title=f"How far the answer drifts: {name}",
        caption=f"Distance from the answer at turn 0 to the same question, mean over {len(live)} constructs; {band}. Result 174.",
        x_label="turn",
        y_label=unit,
        x=tuple(map(str, *after)),
        series=tuple(series),
        level=LEVEL,
    )


def _still(live: Sequence[Mapping[str, Any]]) -> Series:
    """The mean distance over constructs if only noise moves, with its band at LEVEL; constructs are taken as independent."""
    still, spread = (np.array([one[key] for one in live]) for key in ("floor_mean", "floor_sd"))
    half = scipy.stats.norm.ppf(0.5 + LEVEL / 2) * np.sqrt((spread**2).sum(0)) / len(live)
    middle = still.mean(0)
    ends = (np.maximum(middle - half, 0), middle + half)
    return Series("no movement", tuple(middle.tolist()), *(tuple(end.tolist()) for end in ends))


def compared(name: str, found: Mapping[str, GeometryEnvelope], unit: str) -> Iterator[Forest]:
    """The paper's number beside the estimate, metric by metric: as distances, and what is none in a figure of its own."""
    if rows := _beside(name, found, SHARED):
        yield Forest(
            name=f"published_and_estimate_{name}",
            title=f"The paper's numbers and the estimates: {name}",
            caption="Means over constructs. The published numbers count the noise of draws and wordings as movement; the "
            "estimates do not. Squares are shown as their root, 0 where they are not above 0. PSS and LDS are "
            "shown as the distances that they are before the paper divides them by the baseline's spread. Results 171 to 177.",
            x_label=unit,
            rows=tuple(rows),
            lines={"0": 0.0},
            level=LEVEL,
        )
    if rows := _beside(name, found, RATIOS):
        yield Forest(
            name=f"published_and_estimate_ratios_{name}",
            title=f"The paper's numbers and the estimates, ratios and shares: {name}",
            caption="RSS: published as the ratio of mean PIS, estimated as the geometric mean over constructs without the noise "
            "of draws. PS: published by the mean output of a side, estimated by more than half of the outputs. Results 176, 178.",
            x_label="ratio, share",
            rows=tuple(rows),
            lines={"0": 0.0},
            level=LEVEL,
        )


def _beside(name: str, found: Mapping[str, GeometryEnvelope], titles: Mapping[str, str]) -> list[EstimateMark]:
    """Two rows a metric, and a label of it where it has several; none of what does not apply."""
    rows: list[EstimateMark] = []
    for number, title in titles.items():
        for record in found[number]["records"] if number in found else ():
            if record["suite"] != name or record["construct"] or record["status"] in ("not_applicable", "off"):
                continue
            squared = record["unit"] == paraphrase.SQUARED
            group = title if record["label"] is None else f"{title}: {record['label'].replace('_', ' ')}"
            low, high = (record["ci"]["low"], record["ci"]["high"]) if record["ci"] else (None, None)
            rows.append(_published(record, found[number]["records"], group))
            value = record["value"]
            rows.append(
                EstimateMark("estimate", _root(value, squared), _root(low, squared), _root(high, squared), group=group)
            )
    return rows


def _published(record: GeometryRecord, records: Sequence[GeometryRecord], group: str) -> EstimateMark:
    """The paper's number as a distance. PSS and LDS are ratios: of these, the numerator's mean over constructs."""
    if not record["metric_id"].startswith((f"{framing.ID}.", f"{languages.ID}.")):
        return EstimateMark("published", record["published"]["value"], group=group)
    own = [
        r["detail"]
        for r in records
        if r["construct"] and (r["suite"], r["label"]) == (record["suite"], record["label"])
    ]
    shifts = [detail["shift"] for detail in own if "shift" in detail]
    return EstimateMark("published", float(np.mean(shifts)) if shifts else None, group=group)


def _root(value: float | None, squared: bool) -> float | None:
    return value if value is None or not squared else float(np.sqrt(max(value, 0.0)))


def _pairs(points: np.ndarray) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in points)
