"""Findings: every metric of every construct and over constructs, with a status and its reason where it does not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from results_io import UserError
from suites.estimate import Estimate, Status, missing
from suites.geometry import (
    coverage,
    framing,
    languages,
    lint,
    over_constructs,
    paraphrase,
    position,
    reasoning,
    relabelling,
    turns,
    width,
)
from suites.geometry.construct import Construct, ConstructVariant
from suites.geometry.coordinates import EMBEDDED
from suites.geometry.measure import MOST_MISSING, MeasuredConstruct, SetRun
from suites.geometry.metric import SQUARED, Metric, PublishedScore

METRICS: tuple[ModuleType, ...] = (position, paraphrase, framing, turns, languages, reasoning, width, coverage)
ENGLISH_ONLY = (
    "the embedder reads English alone, so distances between languages would be its own; declare choices or scale"
)
NO_PLANE = (
    "an embedding has no declared axes, and no plane is fixed on a reference run; run once with geometry.fix_scale=rms, or "
    "declare choices, scale or anchors"
)
EVERY_PROMPT = "all constructs together"  # the label of the width of a set
NO_NEUTRAL = "the construct has no neutral wordings"
FOLLOWS = 0.8  # smallest share of outputs with reasoning that must match the declared pattern
PAIRED_FROM = relabelling.FEWEST_PAIRS  # shared wordings of two methods for a paired test of their means


@dataclass(frozen=True)
class MetricFinding:
    """One metric of one set, for a construct (None: over all constructs), with a label if there are several (a persona)."""

    metric: ModuleType
    set: str
    construct: str | None
    label: str | None
    found: Metric

    @property
    def identifier(self) -> str:
        """The identifier of the metric in results, for example G.pss.pocket.about_dog.teller_glad."""
        return ".".join(part for part in (self.metric.ID, self.set, self.construct, self.label) if part)


def of(run: SetRun, seed: int) -> list[MetricFinding]:
    """Every finding of a set, construct by construct and then over constructs."""
    name = run.constructs.name
    if run.reason is not None:
        return [MetricFinding(m, name, None, None, absent(m, "not_applicable", run.reason)) for m in METRICS]
    found = [finding for one in run.measured for finding in _of_construct(one, run, seed)]
    return [*found, *_over_constructs(found, run, seed)]


def absent(metric: ModuleType, status: Status, reason: str) -> Metric:
    """The metric without a number (never 0), and the reason why."""
    return Metric(PublishedScore(None, metric.FORMULA, reason), missing(status, reason, metric.UNIT))


def _of_construct(one: MeasuredConstruct, run: SetRun, seed: int) -> Iterator[MetricFinding]:
    name = run.constructs.name
    if one.reason is not None:
        for metric in METRICS:
            if metric not in (reasoning, coverage):
                yield MetricFinding(metric, name, one.construct.id, None, absent(metric, "not_applicable", one.reason))
        return
    base = wordings(one.construct)
    makers: Mapping[ModuleType, Callable[[], Iterator[tuple[str | None, Metric]]]] = {
        position: lambda: _position(one, base, run, seed),
        paraphrase: lambda: _paraphrase(one, base, run, seed),
        framing: lambda: _framing(one, base, seed),
        turns: lambda: _turns(one, base, run, seed),
        languages: lambda: _languages(one, base, run, seed),
        width: lambda: _width(one, base, run, seed),
    }
    for metric, make in makers.items():
        for label, found in make():
            yield MetricFinding(metric, name, one.construct.id, label, found)


def wordings(one: Construct) -> tuple[ConstructVariant, ...]:
    """The neutral variants of the question: paraphrases, or else the direct ones."""
    return one.of("paraphrase") or one.of("direct")


def languages_off(run: SetRun) -> str | None:
    """Why answers in several languages cannot be compared in these coordinates; None if they can."""
    embedded = run.coordinates is not None and run.coordinates.kind in EMBEDDED
    return ENGLISH_ONLY if embedded else None


def _guarded(
    one: MeasuredConstruct, metric: ModuleType, used: Sequence[ConstructVariant], make: Callable[[], Metric]
) -> Metric:
    """The metric, or an absent one if these variants are missing or lack outputs."""
    if not used:
        return absent(metric, "not_applicable", NO_NEUTRAL)
    reason = one.usable(used)
    return make() if reason is None else absent(metric, "insufficient_data", reason)


def _position(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, seed: int
) -> Iterator[tuple[str | None, Metric]]:
    reference = run.reference(one.construct)
    if reference is None:
        known = one.construct.reference is not None
        why = "the reference is in coordinates of another kind" if known else "the construct declares no reference"
        yield None, absent(position, "not_applicable", why)
        return
    variance = run.reference_variance(one.construct)
    yield (
        None,
        _guarded(
            one,
            position,
            base,
            lambda: position.ods(one.means(base), reference, reference_variance=variance, seed=seed),
        ),
    )


def _paraphrase(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, seed: int
) -> Iterator[tuple[str | None, Metric]]:
    fixed = run.deterministic
    yield None, _guarded(one, paraphrase, base, lambda: paraphrase.pis(one.draws(base), deterministic=fixed, seed=seed))


def pairs(
    base: Sequence[ConstructVariant], framed: Sequence[ConstructVariant]
) -> list[tuple[ConstructVariant, ConstructVariant]]:
    """Pairs of variants with the same wording, without and with a framing before it."""
    known = {variant.wording: variant for variant in base if variant.wording}
    return [(known[variant.wording], variant) for variant in framed if variant.wording in known]


def _framing(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], seed: int
) -> Iterator[tuple[str | None, Metric]]:
    if not base and one.construct.of("persona"):
        yield None, absent(framing, "not_applicable", NO_NEUTRAL)
        return
    personas = list(dict.fromkeys(variant.persona for variant in one.construct.of("persona")))
    if not personas:
        yield None, absent(framing, "not_applicable", one.left_out or "the construct has no personas")
    for persona in personas:
        framed = one.construct.of("persona", persona=persona)
        yield persona, _guarded(one, framing, [*base, *framed], lambda framed=framed: _pss(one, base, framed, seed))


def _pss(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], framed: Sequence[ConstructVariant], seed: int
) -> Metric:
    both = pairs(base, framed)
    if len(both) >= PAIRED_FROM:
        first, second = (one.means([pair[k] for pair in both]) for k in (0, 1))
        drawn = np.concatenate(one.draws([pair[0] for pair in both]))
        return framing.pss(first, second, paired=True, outputs=drawn, seed=seed)
    if len(both) > 1:
        first, second = in_step([[one.outputs[pair[k].id].points for pair in both] for k in (0, 1)])
        return _of_these_words(framing.pss(first, second, paired=True, seed=seed), len(both))
    if len(both) == 1 or len(base) == len(framed) == 1:
        plain, other = both[0] if both else (base[0], framed[0])
        return _of_these_words(framing.pss(one.outputs[plain.id].points, one.outputs[other.id].points, seed=seed), 1)
    drawn = np.concatenate(one.draws(base))
    return framing.pss(one.means(base), one.means(framed), outputs=drawn, seed=seed)  # other wordings: each is one


def in_step(ways: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Draws [draw, axis] of the same few wordings under several ways of asking, with the same wording in each row.

    Draws depend on their wording, so they are compared within it. Of each wording, every way keeps as many draws as the way with
    the fewest.
    """
    counts = [min(len(draws) for draws in same) for same in zip(*ways, strict=True)]
    return [np.concatenate([draws[:n] for draws, n in zip(way, counts, strict=True)]) for way in ways]


def _of_these_words(found: Metric, count: int) -> Metric:
    """The metric with the assumption that it holds for these few wordings only."""
    said = f"of {'this one wording' if count == 1 else f'these {count} wordings'} alone: others may be moved otherwise"
    estimate = replace(found.estimate, assumptions=(*found.estimate.assumptions, said))
    return replace(found, estimate=estimate)


def _turns(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, seed: int
) -> Iterator[tuple[str | None, Metric]]:
    numbers = sorted({variant.turn for variant in one.construct.of("turns") if variant.turn is not None})
    if not numbers or not base:
        yield (
            None,
            absent(turns, "not_applicable", NO_NEUTRAL if numbers else one.left_out or "the construct has no turns"),
        )
        return
    by_turn = [one.construct.of("turns", turn=number) for number in numbers]
    shared = set.intersection(*({variant.wording for variant in turn} for turn in by_turn))
    first = [variant for variant in base if variant.wording in shared]
    ordered = [first, *([v for f in first for v in turn if v.wording == f.wording] for turn in by_turn)]
    used = [variant for turn in ordered for variant in turn]
    many = len(first) >= PAIRED_FROM

    def found() -> Metric:
        draws = [one.draws(turn) for turn in ordered]
        tables = [one.means(turn) for turn in ordered] if many else in_step(draws)
        after = [0, *numbers]
        metric = turns.ds(
            tables, paired=len(first) > 1, repeats=draws, numbers=after, exact=run.deterministic, seed=seed
        )
        return metric if many else _of_these_words(metric, len(first))

    yield None, _guarded(one, turns, used, found)


def _languages(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, seed: int
) -> Iterator[tuple[str | None, Metric]]:
    others = list(dict.fromkeys(v.language for v in one.construct.of("language") if v.language is not None))
    if not others or not base:
        why = NO_NEUTRAL if others else "the construct is put in one language"
        yield None, absent(languages, "not_applicable", why)
        return
    if (reason := languages_off(run)) is not None:
        yield None, absent(languages, "off", reason)
        return
    groups = {"base": tuple(base)} | {name: one.construct.of("language", language=name) for name in others}
    used = [variant for group in groups.values() for variant in group]
    yield (
        None,
        _guarded(one, languages, used, lambda: languages.lds({k: one.means(v) for k, v in groups.items()}, seed=seed)),
    )


def _width(
    one: MeasuredConstruct, base: Sequence[ConstructVariant], run: SetRun, seed: int
) -> Iterator[tuple[str | None, Metric]]:
    """Of the neutral wordings alone: a persona that answers otherwise is PSS's to find, and would widen all prompts together."""
    if run.coordinates is not None and not run.coordinates.axes and run.plane is None:
        yield None, absent(width, "off", NO_PLANE)
        return
    yield None, _guarded(one, width, base, lambda: in_plane(one.means(base), run, draws=one.draws(base), seed=seed))


def in_plane(
    means: np.ndarray,
    run: SetRun,
    *,
    topics: Sequence[str] | None = None,
    draws: Sequence[np.ndarray] = (),
    seed: int = 0,
    fewest: int = width.FEWEST,
) -> Metric:
    """OW in the declared axes, or else in the two principal axes of the reference run, with their variance shares in `detail`."""
    if run.plane is None:
        return width.ow(means, topics=topics, draws=draws, seed=seed, fewest=fewest)
    drawn = [table @ run.plane.T for table in draws]
    found = width.ow(means @ run.plane.T, topics=topics, draws=drawn, seed=seed, fewest=fewest)
    plane = {"plane": run.scale.get("run"), "shares": list(run.scale["plane"]["shares"])}
    return replace(found, estimate=replace(found.estimate, detail={**found.estimate.detail, **plane}))


NEARNESS: tuple[Status, ...] = ("ok", "undefined", "insufficient_data", "error", "off", "not_applicable")  # to a value


# --- over constructs --------------------------------------------------------------------------------------------------

SUMMED = {
    position: "squared",
    paraphrase: None,
    framing: "squared",
    turns: "squared",
    languages: "squared",
    width: None,
}


def _over_constructs(found: Sequence[MetricFinding], run: SetRun, seed: int) -> Iterator[MetricFinding]:
    name, topics = run.constructs.name, {one.id: one.topic for one in run.constructs.constructs}
    for metric, part in SUMMED.items():
        own = [one for one in found if one.metric is metric]
        labels = list(dict.fromkeys(one.label for one in own))
        for label in [
            one for one in labels if one is not None
        ] or labels:  # unlabelled: has no personas, or does not apply
            yield MetricFinding(
                metric, name, None, label, _mean([one for one in own if one.label == label], part, topics, seed)
            )
    if any(one.reason is None for one in run.measured):
        yield MetricFinding(width, name, None, EVERY_PROMPT, _width_of_set(run, seed))
    yield MetricFinding(reasoning, name, None, None, _reasoning(run, seed))
    yield MetricFinding(coverage, name, None, None, _coverage(run, seed))


def _mean(own: Sequence[MetricFinding], part: str | None, topics: Mapping[str, str], seed: int) -> Metric:
    """Mean over constructs of the unbiased quantity (a squared one), bootstrapped over topics.

    A ratio with denominator 0 is undefined, but its squared distance still counts. Without any value, the result has the status
    and reason of the construct that comes nearest to a value (NEARNESS).
    """
    metric = own[0].metric
    live = [one for one in own if one.construct is not None and _has(one.found.estimate, part)]
    if not live:
        nearest = min((one.found.estimate for one in own), key=lambda estimate: NEARNESS.index(estimate.status))
        note = f"no construct has a value: {nearest.reason}"
        unit = SQUARED if part else nearest.unit
        return Metric(PublishedScore(None, metric.FORMULA, note), missing(nearest.status, note, unit, len(own)))
    found = [one.found.estimate for one in live]
    values = [estimate.detail[part] if part else estimate.number for estimate in found]
    own_topics = [topics[str(one.construct)] for one in live]
    estimate = over_constructs.mean(values, own_topics, seed=seed, unit=found[0].unit)
    left_out = {"no estimate": len(own) - len(live)} if len(live) < len(own) else {}
    published = [one.found.published.value for one in live if one.found.published.value is not None]
    return Metric(
        PublishedScore(float(np.mean(published)) if published else None, metric.FORMULA, "mean over constructs"),
        replace(
            estimate,
            unit=SQUARED if part else estimate.unit,
            excluded=left_out,
            detail={**estimate.detail, "mean": float(np.mean(values)), "of": part or "value"},
        ),
    )


def _has(estimate: Estimate, part: str | None) -> bool:
    return estimate.status == "ok" or (estimate.status == "undefined" and part in estimate.detail)


def _width_of_set(run: SetRun, seed: int) -> Metric:
    """OW of the neutral wordings of all constructs together, with an interval over topics."""
    if run.coordinates is not None and not run.coordinates.axes and run.plane is None:
        return absent(width, "off", NO_PLANE)
    asked = [(one, wordings(one.construct)) for one in run.measured if one.reason is None]
    if not any(base for _, base in asked):
        return absent(width, "not_applicable", "no construct has neutral wordings")
    live = [(one, base) for one, base in asked if base and one.usable(base) is None]
    if not live:
        return absent(width, "insufficient_data", "no construct has neutral wordings with enough outputs")
    means = np.concatenate([one.means(base) for one, base in live])
    draws = [table for one, base in live for table in one.draws(base)]
    topics = [one.construct.topic for one, base in live for _ in base]
    found = in_plane(means, run, topics=topics, draws=draws, seed=seed)
    lost = {"no coordinates": len(asked) - len(live)} if len(live) < len(asked) else {}
    return replace(found, estimate=replace(found.estimate, excluded=lost))


def _reasoning(run: SetRun, seed: int) -> Metric:
    used = [one for one in run.measured if one.reason is None and one.construct.of("reasoning")]
    if not used:
        return absent(reasoning, "not_applicable", "no construct asks for reasoning before the answer")
    if run.coordinates is not None and run.coordinates.exact:
        return absent(
            reasoning, "not_applicable", "coordinates of choices are read without an output, so nothing is reasoned"
        )
    outputs = [one.outputs[variant.id] for one in used for variant in one.construct.of("reasoning")]
    asked = sum(len(one.points) + sum(one.without.values()) for one in outputs)
    followed = sum(len(one.points) for one in outputs)
    if followed < FOLLOWS * asked:
        share = f"{followed} of {asked} outputs have the declared answer pattern"
        return absent(reasoning, "not_applicable", f"{share}; at least {FOLLOWS:.0%} are needed")
    both, left_out = [], 0
    for one in used:
        with_, without = one.construct.of("reasoning"), wordings(one.construct)
        if one.usable([*with_, *without]) is None:
            found = [paraphrase.pis(one.draws(v), deterministic=run.deterministic, seed=seed) for v in (with_, without)]
            if all(metric.estimate.value is not None for metric in found):
                both.append(found)
                continue
        left_out += 1
    published = [[pair[k].published.value or 0.0 for pair in both] for k in (0, 1)]
    values = [[pair[k].estimate.number for pair in both] for k in (0, 1)]
    metric = reasoning.rss(values[0], values[1], published=(published[0], published[1]), seed=seed)
    lost = {"no tau^2": left_out} if left_out else {}
    return replace(metric, estimate=replace(metric.estimate, excluded={**metric.estimate.excluded, **lost}))


def _coverage(run: SetRun, seed: int) -> Metric:
    declared = [one for one in run.measured if one.reason is None and one.construct.regions is not None]
    used = [one for one in declared if all(one.construct.of(f"side_{side}") for side in "ab")]
    if run.coordinates is None or (declared and not used):
        return absent(coverage, "not_applicable", "no construct with regions is asked for both of its sides")
    issues, ceilings, lost = [], [], 0
    for one in used:
        try:
            regions = lint.regions(one.construct, run.coordinates, run.scale)
        except UserError as error:  # in coordinates of another kind than declared, where regions cannot be made
            return absent(coverage, "not_applicable", str(error))
        if (issue := _issue(one, regions)) is None:
            lost += 1
            continue
        issues.append(issue)
        anchors = lint.anchors_of(one.construct, run.coordinates, run.scale)
        ceilings.append(tuple(coverage.ceiling(anchors[side]) for side in "ab"))
    if used and not issues:
        reason = f"{lost} issues, of which each has a side with over {MOST_MISSING:.0%} of its outputs unreadable"
        return absent(coverage, "insufficient_data", reason)
    found = coverage.ps(issues, seed=seed)
    if not issues:
        return found
    detail = {
        **found.estimate.detail,
        "anchors_covered": float(np.mean(ceilings)),
        "ceiling": float(np.mean([min(pair) > coverage.COVERED for pair in ceilings])),
    }
    without = {key: count for key, count in (("unreadable", lost), ("one side", len(declared) - len(used))) if count}
    return replace(found, estimate=replace(found.estimate, detail=detail, excluded=without))


def _issue(one: MeasuredConstruct, regions: tuple[coverage.Ball, coverage.Ball]) -> coverage.Issue | None:
    """The outputs for both sides; None if a side has none, or over a fifth of them lack a coordinate without being refusals."""
    sides, refused = [], []
    for side in "ab":
        outputs = [one.outputs[variant.id] for variant in one.construct.of(f"side_{side}")]
        declined = sum(output.without.get("refused", 0) for output in outputs)
        total = sum(len(output.points) + sum(output.without.values()) for output in outputs)
        points = np.concatenate([output.points for output in outputs])
        if total - declined - len(points) > MOST_MISSING * total or total == 0:
            return None
        sides.append(points)
        refused.append(declined)
    return coverage.Issue(one.construct.topic, (sides[0], sides[1]), regions, (refused[0], refused[1]))
