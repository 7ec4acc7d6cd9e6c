"""Cell values: one construct's contribution to each cell of table 179, by the paper's formula and corrected for noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from jaxtyping import Float

from suites.geometry import findings, framing, languages, paraphrase, position, spread
from suites.geometry.construct import ConstructVariant
from suites.geometry.findings import MetricFinding
from suites.geometry.measure import MeasuredConstruct, SetRun
from suites.geometry.metric import centre, residuals, settled

Cell = tuple[str, str]  # trait, method
ByPersona = Mapping[str | None, Sequence[ConstructVariant]]  # or by language


@dataclass(frozen=True)
class CellValue:
    """`published`: the paper's formula, a distance that includes noise. Its correction has one of three forms:

    `squares`: one unbiased squared distance, or two; with two, the root of the second is subtracted from the root of the first.
    `plain`: a number that is no square. Neither: the data do not suffice for a correction, and `reason` says what is missing.
    """

    published: float
    squares: tuple[float, ...] = ()
    plain: float | None = None
    reason: str = ""

    @property
    def correctable(self) -> bool:
        return bool(self.squares) or self.plain is not None


def corrected(values: Sequence[CellValue]) -> float:
    """The corrected value of one or more cell values of the same form.

    `plain`: their mean. `squares`: the root of the mean square (0 if that is negative), minus that of the second squares.
    """
    if values[0].plain is not None:
        return float(np.mean([one.plain for one in values if one.plain is not None]))
    roots = np.sqrt(np.maximum(np.mean([one.squares for one in values], axis=0), 0.0))
    return float(roots[0] - roots[1:].sum())


def by_construct(run: SetRun, found: Sequence[MetricFinding]) -> dict[Cell, dict[str, CellValue]]:
    """Every cell's values by construct. `found`: the findings of the same set."""
    table: dict[Cell, dict[str, CellValue]] = {}
    for one in run.measured:
        base = findings.wordings(one.construct)
        if one.reason is None and base and one.usable(base) is None:
            own = [finding for finding in found if finding.construct == one.construct.id]
            for cell, value in _of_construct(one, run, own):
                table.setdefault(cell, {})[one.construct.id] = value
    return table


def _of_construct(
    one: MeasuredConstruct, run: SetRun, found: Sequence[MetricFinding]
) -> Iterator[tuple[Cell, CellValue]]:
    base = findings.wordings(one.construct)
    methods = ("persona", "language") if findings.languages_off(run) is None else ("persona",)
    ways = {method: _by(one, method) for method in methods if one.usable(one.construct.of(method)) is None}
    yield from _stability(one, base, run, found)
    if run.reference(one.construct) is not None:
        yield from _position(one, base, ways, run, found)
    if run.coordinates is not None and (run.coordinates.axes or run.plane is not None):
        yield from _coverage(one, base, ways, run)


def _by(one: MeasuredConstruct, method: str) -> ByPersona:
    """The variants of a method by persona or language."""
    names = dict.fromkeys(getattr(variant, method) for variant in one.construct.of(method))
    return {name: one.construct.of(method, **{method: name}) for name in names}


def _stability(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, found: Sequence[MetricFinding]
) -> Iterator[tuple[Cell, CellValue]]:
    """Noise of draws, PIS, and how far personas and languages move the centre: means over these of |o_c - o| and of delta^2."""
    draws = one.draws(base)
    if not run.deterministic:
        noise = float(np.mean([(residuals(table) ** 2).sum(1).mean() ** 0.5 for table in draws]))
        within = spread.of(draws).within
        squares = () if within is None else (within,)
        lacking = "one draw: no two outputs of a wording to compare; draw at least twice"
        yield ("stability", "direct"), CellValue(noise, squares, reason=lacking)
    for finding in _of(found, paraphrase):
        estimate = finding.found.estimate
        if len(base) > 1 and finding.found.published.value is not None:
            squares = () if estimate.value is None else (estimate.value,)
            yield ("stability", "paraphrase"), CellValue(finding.found.published.value, squares, reason=estimate.reason)
    for method, metric in (("persona", framing), ("language", languages)):
        details = [finding.found.estimate.detail for finding in _of(found, metric)]
        if details and all("shift" in detail for detail in details):
            shift, square = (float(np.mean([detail[key] for detail in details])) for key in ("shift", "squared"))
            yield ("stability", method), CellValue(shift, (square,))


def _position(
    one: MeasuredConstruct,
    base: Sequence[ConstructVariant],
    ways: Mapping[str, ByPersona],
    run: SetRun,
    found: Sequence[MetricFinding],
) -> Iterator[tuple[Cell, CellValue]]:
    """Distance from the reference, its spread over wordings, and how much farther from it the personas and languages lie."""
    target, means = np.array(run.reference(one.construct)), one.means(base)
    here = float(np.linalg.norm(settled(centre(means) - target, means)))
    (ods,) = [finding.found.estimate for finding in _of(found, position)]
    known = () if ods.value is None else (float(ods.detail["squared"]),)
    yield ("position", "direct"), CellValue(here, known, reason=ods.reason)
    if len(base) > 1:
        yield ("position", "paraphrase"), _spread_of_distances(one, base, target, run)
    for method, way in ways.items():
        tables = [one.means(variants) for variants in way.values()]
        if tables:
            away = [float(np.linalg.norm(settled(centre(table) - target, table))) for table in tables]
            own = [
                position.ods(table, target, reference_variance=run.reference_variance(one.construct))
                for table in tables
            ]
            squares = [metric.estimate.detail["squared"] for metric in own if metric.estimate.value is not None]
            both = (float(np.mean(squares)), *known) if known and len(squares) == len(tables) else ()
            lacking = next((metric.estimate.reason for metric in own if metric.estimate.value is None), ods.reason)
            yield ("position", method), CellValue(float(np.mean(away)) - here, both, reason=lacking)


def _spread_of_distances(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], target: Float[np.ndarray, " axis"], run: SetRun
) -> CellValue:
    """The SD over wordings of |m_v - r|; its square is corrected by the mean over v of (variance of draws along u_v) / n_v.

    u_v = (m_v - r)/|m_v - r|.
    """
    means = one.means(base)
    away = np.linalg.norm(settled(means - target, means), axis=1)
    variance = float((residuals(away[:, None]) ** 2).sum() / (len(away) - 1))
    if run.deterministic:
        return CellValue(variance**0.5, (variance,))
    draws = one.draws(base)
    if min(map(len, draws)) < 2:
        return CellValue(variance**0.5, reason="one draw: noise of draws and of wordings cannot be told apart")
    noise = []
    for table, mean, length in zip(draws, means, away, strict=True):
        along = residuals(table) @ ((mean - target) / length if length else np.zeros(len(target)))
        noise.append(float((along**2).sum()) / (len(table) - 1) / len(table))
    return CellValue(variance**0.5, (variance - float(np.mean(noise)),))


def _coverage(
    one: MeasuredConstruct,
    base: Sequence[ConstructVariant],
    ways: Mapping[str, ByPersona],
    run: SetRun,
) -> Iterator[tuple[Cell, CellValue]]:
    """The width of the neutral prompts (OW), that of their outputs, and how much wider those of personas and languages are.

    Published: the diameter of the nearest nine tenths of the points; corrected: the .9 quantile of distances.
    """
    prompts = findings.in_plane(one.means(base), run)
    if prompts.published.value is not None:
        value, lacking = prompts.estimate.value, prompts.estimate.reason
        yield ("coverage", "direct"), CellValue(prompts.published.value, plain=value, reason=lacking)
    outputs = {"paraphrase": np.concatenate(one.draws(base))}
    outputs |= {
        m: np.concatenate(one.draws([v for own in way.values() for v in own])) for m, way in ways.items() if way
    }
    wide = {method: findings.in_plane(points, run) for method, points in outputs.items()}
    neutral = wide["paraphrase"]
    for method, metric in wide.items():
        if neutral.estimate.value is None or metric.estimate.value is None:
            continue
        published, value = metric.published.value or 0.0, metric.estimate.value
        if method != "paraphrase":
            published, value = published - (neutral.published.value or 0.0), value - neutral.estimate.value
        yield ("coverage", method), CellValue(published, plain=value)


def _of(found: Sequence[MetricFinding], metric: ModuleType) -> list[MetricFinding]:
    return [finding for finding in found if finding.metric is metric]
