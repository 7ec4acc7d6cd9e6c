"""The matrix of traits and methods (179) of one set: its cells, the block that is full, and the scores to correlate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from suites.estimate import Status
from suites.geometry import findings, framing, languages, mtmm, paraphrase, position, width
from suites.geometry.construct import SYMBOLIC_REASON, Construct, ConstructVariant
from suites.geometry.findings import MetricFinding
from suites.geometry.measure import MeasuredConstruct, SetRun
from suites.geometry.metric import centre as centre_of
from suites.geometry.metric import residuals, settled

SPLITS, FEWEST_TO_SPLIT = 10, 4  # random halvings that a reliability is averaged over; wordings of a way of asking
PUBLISHED = {  # cells whose name in the figure is that of a metric, by its number
    ("position", "direct"): position.NUMBER,
    ("coverage", "direct"): width.NUMBER,
    ("stability", "paraphrase"): paraphrase.NUMBER,
    ("stability", "language"): languages.NUMBER,
    ("stability", "persona"): framing.NUMBER,
}


@dataclass(frozen=True)
class MatrixCell:
    """A cell of the paper's figure 12: its mean over constructs in scaled distance, or its status and why. Never 0 for absent.

    `published`: the paper's own number where the cell is one of its metrics (PSS and LDS are ratios there).
    """

    trait: str
    method: str
    name: str
    value: float | None
    status: Status
    reason: str
    published: float | None = None


def cells(run: SetRun, found: Sequence[MetricFinding]) -> list[MatrixCell]:
    """The table of 179 for one set."""
    by_cell = _per_construct(run)
    table = []
    for (trait, method), name in mtmm.NAMES.items():
        values = list(by_cell.get((trait, method), {}).values())
        if values:
            table.append(
                MatrixCell(trait, method, name, float(np.mean(values)), "ok", "", _published(trait, method, found))
            )
            continue
        status, reason = _why_empty(trait, method, run, found)
        table.append(MatrixCell(trait, method, name, None, status, reason))
    return table


def block(run: SetRun) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """(traits, methods, [trait, method, construct]) of the largest full block of the table: constructs are the replicates."""
    by_cell = _per_construct(run)
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
    """(traits, methods, scores) to correlate over constructs: every trait measured on the outputs of one method alone.

    A method is a way of asking that every construct has with the same number of outputs: the neutral wordings, a persona, a turn,
    a language. Position is the distance of their centre from the reference, stability the mean distance of the wordings from it
    (the paper's PIS), coverage the .9 quantile of distances of outputs. No two methods share an output, and no score is divided
    by another, so that only traits of one method share data.
    """
    live, traits, names = _crossed(run)
    table = [
        [[_score(trait, one, _ways(one.construct)[name], run) for name in names] for trait in traits] for one in live
    ]
    return traits, names, np.array(table, dtype=float).reshape(len(live), len(traits), len(names))


def halves(run: SetRun, seed: int = 0) -> Float[np.ndarray, "split half construct trait method"] | None:
    """The same scores of halves of each method's outputs, split at random by wording; None if one has fewer than four."""
    live, traits, names = _crossed(run)
    if not live or not traits or not names:
        return None
    counts = {name: len(_ways(live[0].construct)[name]) for name in names}
    if min(counts.values()) < FEWEST_TO_SPLIT:
        return None
    rng, found = np.random.default_rng(seed), []
    for _ in range(SPLITS):
        orders = {name: rng.permutation(count) for name, count in counts.items()}
        for start in (0, 1):
            chosen = {name: order[start : len(order) // 2 * 2 : 2] for name, order in orders.items()}
            found.append([
                [[_score(t, one, [_ways(one.construct)[n][k] for k in chosen[n]], run) for n in names] for t in traits]
                for one in live
            ])  # fmt: skip
    return np.array(found, dtype=float).reshape(SPLITS, 2, len(live), len(traits), len(names))


def _crossed(run: SetRun) -> tuple[list[MeasuredConstruct], tuple[str, ...], tuple[str, ...]]:
    """(constructs, traits, methods) of which every score can be had."""
    live = [one for one in run.measured if one.reason is None and one.usable(one.construct.variants) is None]
    sizes = {one.construct.id: {name: len(used) for name, used in _ways(one.construct).items()} for one in live}
    names = [name for name in (_ways(live[0].construct) if live else {}) if _alike(name, sizes)]
    placed = all(run.reference(one.construct) is not None for one in live)
    traits = mtmm.TRAITS if placed else tuple(t for t in mtmm.TRAITS if t != "position")
    flat = run.coordinates is not None and (bool(run.coordinates.axes) or run.plane is not None)
    traits = traits if flat else tuple(t for t in traits if t != "coverage")
    return live, traits, tuple(names)


def _ways(one: Construct) -> dict[str, tuple[ConstructVariant, ...]]:
    """The variants by way of asking."""
    found = {"paraphrase": findings.wordings(one)}
    for variant in one.variants:
        turn = None if variant.turn is None else f"turn {variant.turn}"
        if (way := variant.persona or variant.language or turn) is not None:
            found[way] = (*found.get(way, ()), variant)
    return {name: used for name, used in found.items() if len(used) > 1}


def _alike(name: str, sizes: Mapping[str, Mapping[str, int]]) -> bool:
    return len({own.get(name) for own in sizes.values()}) == 1


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


def _published(trait: str, method: str, found: Sequence[MetricFinding]) -> float | None:
    number = PUBLISHED.get((trait, method))
    own = [f.found.published.value for f in found if number == f.metric.NUMBER and f.construct is None]
    known = [value for value in own if value is not None]
    return float(np.mean(known)) if known else None


def _per_construct(run: SetRun) -> dict[tuple[str, str], dict[str, float]]:
    """Values of position, width and stability by method and construct, all distances."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for one in run.measured:
        if one.reason is None and findings.wordings(one.construct) and one.usable(one.construct.variants) is None:
            for cell, value in _of_construct(one, run):
                found.setdefault(cell, {})[one.construct.id] = value
    return found


def _of_construct(one: MeasuredConstruct, run: SetRun) -> list[tuple[tuple[str, str], float]]:
    base, found = findings.wordings(one.construct), []
    means = one.means(base)
    centre, reference = centre_of(means), run.reference(one.construct)
    others = {name: used for name in ("persona", "language") if (used := one.construct.of(name))}
    moved = {name: centre_of(one.means(used)) for name, used in others.items()}
    if not run.deterministic and all(len(draws) > 1 for draws in one.draws(base)):
        noise = [float((residuals(d) ** 2).sum(1).mean() ** 0.5) for d in one.draws(base)]
        found.append((("stability", "direct"), float(np.mean(noise))))
    found.append((("stability", "paraphrase"), float(np.linalg.norm(residuals(means), axis=1).mean())))
    found += [(("stability", name), _length(at - centre, means)) for name, at in moved.items()]
    if reference is not None:
        target = np.array(reference)
        away, here = np.linalg.norm(means - target, axis=1), float(np.linalg.norm(centre - target))
        found.append((("position", "direct"), here))
        if len(away) > 1:
            found.append((("position", "paraphrase"), float(away.std(ddof=1))))
        found += [(("position", name), float(np.linalg.norm(at - target)) - here) for name, at in moved.items()]
    return [*found, *_widths(one, base, others, run)]


def _widths(
    one: MeasuredConstruct,
    base: Sequence[ConstructVariant],
    others: Mapping[str, Sequence[ConstructVariant]],
    run: SetRun,
) -> list[tuple[tuple[str, str], float]]:
    """Coverage: the width of all prompts, that of the neutral outputs, and how much wider those of the other methods are."""
    if run.coordinates is None or not (run.coordinates.axes or run.plane is not None):
        return []
    everything, found = one.means(one.construct.variants), []
    if len(everything) >= width.FEWEST:
        found.append((("coverage", "direct"), _width(everything, run)))
    neutral = np.concatenate(one.draws(base))
    if len(neutral) >= width.FEWEST:
        found.append((("coverage", "paraphrase"), _width(neutral, run)))
        for name, used in others.items():
            outputs = np.concatenate(one.draws(used))
            if len(outputs) >= width.FEWEST:
                found.append((("coverage", name), _width(outputs, run) - _width(neutral, run)))
    return found


def _why_empty(trait: str, method: str, run: SetRun, found: Sequence[MetricFinding]) -> tuple[Status, str]:
    if run.reason is not None:
        return "not_applicable", run.reason
    if all(one.reason == SYMBOLIC_REASON for one in run.measured):
        return "not_applicable", SYMBOLIC_REASON
    if trait == "coverage" and run.coordinates is not None and not run.coordinates.axes and run.plane is None:
        return "off", findings.NO_PLANE
    if trait == "position" and all(run.reference(one.construct) is None for one in run.measured):
        return "not_applicable", "no construct declares a reference in these coordinates"
    if (trait, method) == ("stability", "direct") and run.deterministic:
        return "not_applicable", "outputs are exact, so that there is no noise of draws"
    if (trait, method) == ("stability", "direct"):
        return "insufficient_data", "one draw: no two outputs of a wording to compare; draw at least twice"
    if not any(one.construct.of(method) for one in run.measured) and method in ("language", "persona"):
        return "not_applicable", f"no construct is asked by the method {method}"
    reasons = [f.found.estimate.reason for f in found if f.found.estimate.status == "insufficient_data"]
    if trait == "coverage":
        reasons = [
            f"fewer than {width.FEWEST} outputs by this method, or by the neutral wordings that it is compared with"
        ]
    return "insufficient_data", reasons[0] if reasons else "no construct has enough outputs"
