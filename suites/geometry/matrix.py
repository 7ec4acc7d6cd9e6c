"""The matrix of traits and methods (179) of one set: its cells, its largest full block, and the scores to correlate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import ModuleType

import numpy as np
from jaxtyping import Float

from suites.estimate import Status
from suites.geometry import cell_values, coverage, findings, framing, languages, mtmm, paraphrase, position, width
from suites.geometry.cell_values import Cell, CellValue
from suites.geometry.construct import SYMBOLIC_REASON, Construct, ConstructVariant
from suites.geometry.findings import MetricFinding
from suites.geometry.measure import MeasuredConstruct, SetRun
from suites.geometry.metric import centre as centre_of
from suites.geometry.metric import residuals, settled

SPLITS, FEWEST_TO_SPLIT = 10, 4  # random halvings averaged in a reliability; wordings that a method needs for them
BY_METHOD = {"direct": paraphrase, "paraphrase": paraphrase, "language": languages, "persona": framing}
OF_ISSUES = ("coverage", "direct")  # the cell that the paper calls baseline PS and OW
RATIOS = {("stability", "language"): languages.NUMBER, ("stability", "persona"): framing.NUMBER}


@dataclass(frozen=True)
class MatrixCell:
    """A cell of the paper's figure 12 over constructs, with status and reason; an absent value is never 0.

    `published`: the mean of the paper's formula, a distance that includes noise. `value`: the same without the noise of draws and
    wordings. Both are in scaled distance. `ratio`: the paper's own number if that is a ratio (PSS, LDS). `share`: PS with its own
    status and reason, in the cell that the paper gives to PS and OW.
    """

    trait: str
    method: str
    name: str
    value: float | None
    status: Status
    reason: str
    published: float | None = None
    ratio: float | None = None
    share: float | None = None
    share_status: Status | None = None
    share_reason: str = ""


def cells(run: SetRun, found: Sequence[MetricFinding]) -> list[MatrixCell]:
    """The cells of table 179 for one set, from its findings."""
    by_cell = cell_values.by_construct(run, found)
    made = [_cell(cell, list(by_cell.get(cell, {}).values()), run, found) for cell in mtmm.NAMES]
    (issues,) = [one.found.estimate for one in found if one.metric is coverage]
    share = {"share": issues.value, "share_status": issues.status, "share_reason": issues.reason}
    return [replace(one, **share) if (one.trait, one.method) == OF_ISSUES else one for one in made]


def _cell(cell: Cell, values: Sequence[CellValue], run: SetRun, found: Sequence[MetricFinding]) -> MatrixCell:
    known = [one for one in values if one.correctable]
    published = float(np.mean([one.published for one in values])) if values else None
    if known:
        value, ratio = cell_values.corrected(known), _ratio(cell, found)
        return MatrixCell(*cell, mtmm.NAMES[cell], value, "ok", "", published, ratio)
    if values:
        return MatrixCell(*cell, mtmm.NAMES[cell], None, "insufficient_data", values[0].reason, published)
    return MatrixCell(*cell, mtmm.NAMES[cell], None, *_why_empty(*cell, run, found))


def block(
    run: SetRun, found: Sequence[MetricFinding], published: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """(traits, methods, [trait, method, construct]) of the largest full block of the table; constructs are the replicates.

    The values are the corrected ones, with a negative square replaced by 0 before the root, or, if `published`, the paper's.
    """
    by_cell = {}
    for cell, own in cell_values.by_construct(run, found).items():
        values = {
            name: one.published if published else cell_values.corrected([one])
            for name, one in own.items() if published or one.correctable
        }  # fmt: skip
        if values:
            by_cell[cell] = values
    best: tuple[tuple[str, ...], tuple[str, ...], np.ndarray] = ((), (), np.zeros((0, 0, 0)))
    for traits in (mtmm.TRAITS, *combinations(mtmm.TRAITS, 2)):
        methods = tuple(m for m in mtmm.METHODS if all((t, m) in by_cell for t in traits))
        shared = [set(by_cell[t, m]) for t in traits for m in methods]
        ids = sorted(set.intersection(*shared)) if shared else []
        table = np.array([[[by_cell[t, m][i] for i in ids] for m in methods] for t in traits], dtype=float)
        if len(methods) > 1 and table.size > best[2].size:
            best = traits, methods, table
    return best


def scores(run: SetRun) -> tuple[tuple[str, ...], tuple[str, ...], Float[np.ndarray, "construct trait method"]]:
    """(traits, methods, scores) to correlate over constructs. Each score measures a trait on the outputs of one method alone.

    A method is a way of asking that every construct has with the same number of variants: the neutral wordings, a persona, a
    turn, or a language. Position is the distance of their centre from the reference. Stability is the mean distance of the
    wordings from their centre (the paper's PIS). Coverage is the .9 quantile of distances between outputs. No two methods share
    an output and no score is divided by another, so only traits of the same method share data.
    """
    live, traits, names = _crossed(run)
    table = [
        [[_score(trait, one, _ways(one.construct, run)[name], run) for name in names] for trait in traits]
        for one in live
    ]
    return traits, names, np.array(table, dtype=float).reshape(len(live), len(traits), len(names))


def halves(run: SetRun, seed: int = 0) -> Float[np.ndarray, "split half construct trait method"] | None:
    """`scores` of random halves of each method's wordings; None without scores or if a method has fewer than four wordings."""
    live, traits, names = _crossed(run)
    if not live or not traits or not names:
        return None
    by_construct = [_ways(one.construct, run) for one in live]
    counts = {name: len(by_construct[0][name]) for name in names}
    if min(counts.values()) < FEWEST_TO_SPLIT:
        return None
    rng, found = np.random.default_rng(seed), []
    for _ in range(SPLITS):
        orders = {name: rng.permutation(count) for name, count in counts.items()}
        for start in (0, 1):
            chosen = {name: order[start : len(order) // 2 * 2 : 2] for name, order in orders.items()}
            found.append([
                [[_score(t, one, [ways[n][k] for k in chosen[n]], run) for n in names] for t in traits]
                for one, ways in zip(live, by_construct, strict=True)
            ])  # fmt: skip
    return np.array(found, dtype=float).reshape(SPLITS, 2, len(live), len(traits), len(names))


def _crossed(run: SetRun) -> tuple[list[MeasuredConstruct], tuple[str, ...], tuple[str, ...]]:
    """(constructs, traits, methods) of which every score can be had."""
    asked = [(one, _ways(one.construct, run)) for one in run.measured if one.reason is None]
    whole = [(one, ways) for one, ways in asked if one.usable([v for used in ways.values() for v in used]) is None]
    live, sizes = [one for one, _ in whole], [{name: len(used) for name, used in ways.items()} for _, ways in whole]
    names = [name for name in (sizes[0] if sizes else {}) if len({own.get(name) for own in sizes}) == 1]
    placed = all(run.reference(one.construct) is not None for one in live)
    traits = mtmm.TRAITS if placed else tuple(t for t in mtmm.TRAITS if t != "position")
    flat = run.coordinates is not None and (bool(run.coordinates.axes) or run.plane is not None)
    traits = traits if flat else tuple(t for t in traits if t != "coverage")
    return live, traits, tuple(names)


def _ways(one: Construct, run: SetRun) -> dict[str, tuple[ConstructVariant, ...]]:
    """The variants by way of asking; no language where these coordinates cannot compare languages."""
    found = {"paraphrase": findings.wordings(one)}
    for variant in one.variants:
        if variant.method == "language" and findings.languages_off(run) is not None:
            continue
        turn = None if variant.turn is None else f"turn {variant.turn}"
        if (way := variant.persona or variant.language or turn) is not None:
            found[way] = (*found.get(way, ()), variant)
    return {name: used for name, used in found.items() if len(used) > 1}


def _score(trait: str, one: MeasuredConstruct, used: Sequence[ConstructVariant], run: SetRun) -> float:
    means = one.means(used)
    if trait == "position":
        return _length(centre_of(means) - np.array(run.reference(one.construct)), means)
    if trait == "stability":
        return float(np.linalg.norm(residuals(means), axis=1).mean())
    return _width(np.concatenate(one.draws(used)), run)


def _length(difference: np.ndarray, points: np.ndarray) -> float:
    return float(np.linalg.norm(settled(difference, points)))


def _width(points: np.ndarray, run: SetRun) -> float:
    return findings.in_plane(points, run, fewest=2).estimate.number


def _ratio(cell: Cell, found: Sequence[MetricFinding]) -> float | None:
    """The paper's own ratio of a cell (a distance / the baseline's spread), the mean over constructs; None if it has none."""
    own = [f.found.published.value for f in found if f.construct is None and RATIOS.get(cell) == f.metric.NUMBER]
    known = [value for value in own if value is not None]
    return float(np.mean(known)) if known else None


def _why_empty(trait: str, method: str, run: SetRun, found: Sequence[MetricFinding]) -> tuple[Status, str]:
    if run.reason is not None:
        return "not_applicable", run.reason
    if all(one.reason == SYMBOLIC_REASON for one in run.measured):
        return "not_applicable", SYMBOLIC_REASON
    if method == "language" and (off := [f for f in _own(found, languages) if f.found.estimate.status == "off"]):
        return "off", off[0].found.estimate.reason
    if trait == "coverage" and run.coordinates is not None and not run.coordinates.axes and run.plane is None:
        return "off", findings.NO_PLANE
    if trait == "position" and all(run.reference(one.construct) is None for one in run.measured):
        return "not_applicable", "no construct declares a reference in these coordinates"
    if (trait, method) == ("stability", "direct") and run.deterministic:
        return "not_applicable", "outputs are exact, so that there is no noise of draws"
    if not any(one.construct.of(method) for one in run.measured) and method in ("language", "persona"):
        return "not_applicable", f"no construct is asked by the method {method}"
    return _what_lacks(trait, method, run, found)


def _what_lacks(trait: str, method: str, run: SetRun, found: Sequence[MetricFinding]) -> tuple[Status, str]:
    """Why no construct has a value of this trait by this method: outputs that are missing, or what its own metric says."""
    for one in run.measured:
        used = () if one.reason else (*findings.wordings(one.construct), *one.construct.of(method))
        if (reason := one.usable(used)) is not None:
            return "insufficient_data", reason
    if trait == "coverage":
        few = f"fewer than {width.FEWEST} outputs by this method, or by the neutral wordings that it is compared with"
        return "insufficient_data", few
    metric = position if trait == "position" else BY_METHOD[method]
    own = [f.found.estimate for f in _own(found, metric) if f.found.estimate.status != "ok"]
    if not own:
        return "insufficient_data", "no construct has enough outputs"
    nearest = min(own, key=lambda estimate: findings.NEARNESS.index(estimate.status))
    return nearest.status, nearest.reason


def _own(found: Sequence[MetricFinding], metric: ModuleType) -> list[MetricFinding]:
    """A metric's findings of single constructs."""
    return [one for one in found if one.metric is metric and one.construct is not None]
