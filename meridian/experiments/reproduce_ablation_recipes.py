"""Miller, Chughtai and Saunders (2024): how far the faithfulness of one circuit depends on the recipe that measures it.

faithfulness = F(C) / F(M), the ratio of means over prompts. The axes that are varied here:

    granularity   heads at all positions; (head, position); edges (the circuit's pathways, at all positions)
    value         mean over ABC prompts (few or many of each template), mean over clean prompts, resampled ABC prompts, the
                  prompt's own ABC twin, zero
    direction     everything outside replaced in the clean run, or the circuit restored in the corrupted run
    set           prompts of either order, ABBA and BABA
    average       ratio of means, mean of ratios
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from circuits import hypothesis
from circuits.engine import LensEngine
from circuits.engine.sources import MINIMUM_REFERENCE_PROMPTS
from circuits.interventions import Recipe, Sweep, Variant
from circuits.models import UnsupportedArchitectureError
from circuits.study import Study
from meridian.experiments import head_positions, reproduction
from meridian.experiments.estimates import PromptEstimate, PromptSample, undefined
from meridian.experiments.reproduction import ReproducedRow, Reproduction, positive
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "ioi"
ALL, PLACED, EDGES = "heads at all positions", "(head, position)", "edges"
REPLACE, RESTORE = "outside replaced", "circuit restored"
CLEAN_MEAN, RESAMPLED, TWIN, ZERO = "mean over clean prompts", "resampled ABC prompts", "own ABC twin", "zero"

Found = Mapping[str, Float[np.ndarray, " prompt"]]  # F(C) of every prompt by recipe


@dataclass(frozen=True)
class AblationWay:
    """One way to measure faithfulness: its values on the three axes that change a run."""

    granularity: str
    value: str
    direction: str = REPLACE

    def __str__(self) -> str:
        return f"{self.granularity}, {self.value}, {self.direction}"


def run(context: RunContext) -> None:
    """Measure F(C) in every way; print the faithfulness of each and the published statements about the axes."""
    work = Reproduction(context, TASK)
    work.claim()
    settings = work.settings
    check(settings)
    work.part("model", lambda study: {"logit_diff": behaviour(study)})
    notes = []
    for value in values(settings):
        try:
            work.part(value, lambda study, value=value: measured(study, value, settings))
        except UnsupportedArchitectureError as reason:
            notes.append(f"{value} left out: {reason}")
    prompts, sample = work.study.prompts, reproduction.sample_of(settings, work.study.prompts)
    d = np.array(work.data["model"]["logit_diff"], float)
    found = {name: np.array(row, float) for value in values(settings) for name, row in work.data.get(value, {}).items()}
    notes += reproduction.absence(sample.mean(d), float((d > 0).mean()), work.identity.name, TASK)
    notes += head_positions.unplaced(work.circuit, settings["positions"])
    work.finish(rows(found, d, prompts.factors.get("order", ()), sample, settings), notes)


def check(settings: Mapping[str, Any]) -> None:
    """UserError if the numbers of ABC prompts are too small for a mean, or are not a smaller and a larger one to compare."""
    sizes = settings["abc_per_template"]
    if len(sizes) != 2 or not MINIMUM_REFERENCE_PROMPTS <= sizes[0] < sizes[1]:
        raise UserError(
            f"experiment.abc_per_template={sizes} are no two sizes; give a small and a large one, from "
            f"{MINIMUM_REFERENCE_PROMPTS} on"
        )


# --- what is measured ------------------------------------------------------------------------------------------------


def behaviour(study: Study) -> Float[np.ndarray, " prompt"]:
    """F(M) of every prompt, nats."""
    return study.run(Sweep((Variant("model"),)), in_logits=True).logit_diff[0]


def mean_over(size: int) -> str:
    """The name of the value "mean over `size` ABC prompts of each template"."""
    return f"mean over {size} ABC prompts"


def values(settings: Mapping[str, Any]) -> list[str]:
    return [*map(mean_over, settings["abc_per_template"]), CLEAN_MEAN, RESAMPLED, TWIN, ZERO]


def ways(value: str) -> list[AblationWay]:
    """The ways with this value. Restoring starts from the corrupted run, so it exists only for the prompt's own twin."""
    found = [AblationWay(granularity, value) for granularity in (ALL, PLACED, EDGES)]
    if value == TWIN:
        found += [AblationWay(granularity, value, RESTORE) for granularity in (ALL, PLACED)]
    return found


def measured(study: Study, value: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """F(C) of every prompt, in all ways with this value."""
    sweep = Sweep(tuple(variant(way, study, settings) for way in ways(value)))
    study.progress.expect(len(sweep) * len(study.prompts))
    # not through the study, which would keep the engine and its reference activations in memory
    effects = engine_for(study, value, settings).run(sweep, study.prompts, study.progress.advance)
    return dict(zip(effects.names, effects.logit_diff, strict=True))


def engine_for(study: Study, value: str, settings: Mapping[str, Any]) -> LensEngine:
    """The engine whose reference prompts supply this value."""
    small, large = settings["abc_per_template"]
    if value in (CLEAN_MEAN, TWIN, ZERO):
        return study.engine
    return reproduction.corrupted_reference(study, small if value == mean_over(small) else large)


def variant(way: AblationWay, study: Study, settings: Mapping[str, Any]) -> Variant:
    """The run that measures one way."""
    recipe, heads = recipe_of(way.value, settings), study.model.heads
    placed = head_positions.nodes_of(study.claim, settings["positions"])
    nodes = placed if way.granularity == PLACED else head_positions.everywhere(placed)
    if way.direction == RESTORE:
        return head_positions.restored(nodes, str(way))
    if way.granularity == EDGES:
        graph = study.model.graph
        return hypothesis.scrub(hypothesis.hypothesis_edges(study.claim, graph), graph, recipe, str(way))
    return head_positions.only(nodes, heads, recipe, str(way))


def recipe_of(value: str, settings: Mapping[str, Any]) -> Recipe:
    """The recipe that replaces activations by this value."""
    if value == TWIN:
        return Recipe("patch", source="corrupted")
    if value == RESAMPLED:
        return Recipe("resample", seed=int(settings["seed"]))
    return Recipe("zero") if value == ZERO else Recipe("mean")


# --- the table -------------------------------------------------------------------------------------------------------


def rows(
    found: Found,
    d: Float[np.ndarray, " prompt"],
    orders: Sequence[str],
    sample: PromptSample,
    settings: Mapping[str, Any],
) -> list[ReproducedRow]:
    """The faithfulness of every way, their spread, and the published statements about each axis."""
    paper, gap = settings["paper"], settings["recipe_differences"]
    small, large = settings["abc_per_template"]
    published = {str(AblationWay(PLACED, mean_over(small))): paper["faithfulness"]}
    ratios = {name: sample.ratio(f, d) for name, f in found.items()}
    every = [
        ReproducedRow(name, ratio, published.get(name), True, f"F(C) {found[name].mean():.2f} of F(M) {d.mean():.2f}")
        for name, ratio in ratios.items()
    ]
    return [*every, *spread(ratios, paper, gap), *statements(found, d, orders, sample, (small, large), paper, gap)]


def spread(
    ratios: Mapping[str, PromptEstimate], paper: Mapping[str, Any], gap: Mapping[str, str]
) -> Iterator[ReproducedRow]:
    """The lowest and the highest faithfulness of all ways; they differ in nothing but the recipe.

    They are chosen on the same prompts that give their intervals.
    """
    known = {name: one.value for name, one in ratios.items() if one.value is not None}
    for end, choose, bound, sign in (("lowest", min, 0, 1), ("highest", max, 1, -1)):
        if not known:
            reason = next(one.reason for one in ratios.values())
            yield ReproducedRow(f"{end} of all ways", undefined(reason), paper[end], True, gap["spread"])
            continue
        way = choose(known, key=known.__getitem__)
        holds = ratios[way].less_from(bound).sign == sign
        yield ReproducedRow(
            f"{end} of {len(known)} ways: {way}", ratios[way], paper[end], True, gap["spread"], holds=holds
        )


def statements(
    found: Found,
    d: Float[np.ndarray, " prompt"],
    orders: Sequence[str],
    sample: PromptSample,
    sizes: tuple[int, int],
    paper: Mapping[str, Any],
    gap: Mapping[str, str],
) -> Iterator[ReproducedRow]:
    """The published statement about each axis, as a difference of faithfulness that should be positive."""
    small, large = map(mean_over, sizes)

    def less(quantity: str, one: AblationWay, other: AblationWay, remark: str) -> ReproducedRow:
        if str(one) not in found or str(other) not in found:
            return positive(quantity, undefined("a way is missing"), paper[remark], gap=gap[remark])
        ours = sample.ratio(found[str(one)] - found[str(other)], d)
        return positive(quantity, ours, paper[remark], percent=True, gap=gap[remark])

    yield less(
        "edges minus heads at all positions",
        AblationWay(EDGES, large),
        AblationWay(ALL, large),
        "granularity",
    )
    yield less(
        "(head, position) minus heads at all positions",
        AblationWay(PLACED, large),
        AblationWay(ALL, large),
        "positions",
    )
    yield less(f"{large} minus {small}", AblationWay(PLACED, large), AblationWay(PLACED, small), "set_size")
    yield less(
        "mean minus resampled, (head, position)",
        AblationWay(PLACED, large),
        AblationWay(PLACED, RESAMPLED),
        "value",
    )
    base = found.get(str(AblationWay(PLACED, large)))
    if base is None:
        return
    ours = by_order(base, d, orders, sample)
    yield positive("BABA minus ABBA, (head, position)", ours, paper["order"], percent=True, gap=gap["order"])
    yield positive(
        "mean of ratios minus ratio of means",
        averages(base, d, sample),
        paper["average"],
        percent=True,
        gap=gap["average"],
    )


def by_order(
    f: Float[np.ndarray, " prompt"], d: Float[np.ndarray, " prompt"], orders: Sequence[str], sample: PromptSample
) -> PromptEstimate:
    """Faithfulness on prompts with the order BABA minus that on the others."""
    is_baba = np.array([order == "BABA" for order in orders], bool)
    if not is_baba.any() or is_baba.all():
        return undefined("prompts of one order")
    return sample.difference_of_ratios(f, d, is_baba)


def averages(f: Float[np.ndarray, " prompt"], d: Float[np.ndarray, " prompt"], sample: PromptSample) -> PromptEstimate:
    """mean_p F_p / D_p - mean F / mean D, over prompts whose D is not 0."""
    ratio = sample.ratio(f, d)
    if ratio.value is None:
        return ratio
    known = d != 0
    each = np.divide(f, d, out=np.zeros(len(f)), where=known)
    return sample.of(lambda weights: (weights @ each) / (weights @ known.astype(float)) - (weights @ f) / (weights @ d))
