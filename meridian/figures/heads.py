"""Heat maps by layer and head, one for every measurement that has a value per head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrations.evidence import Head
from meridian.figures.intervals import LEVEL, Column, cells, clustered_means, finite, interval_words, normal_interval
from meridian.figures.values import Cells, HeatMap
from meridian.run_folder import RunFolder

EFFECT = "{metric}"  # the unit of an intervention's effect, which is that of the task's metric
REPEATED = "mean attention weight on random tokens said twice, not on the task's prompts"


@dataclass(frozen=True)
class HeadQuantity:
    """One quantity per head: where it is stored, what it is called, and how it is measured.

    `field` is a path in the data of result `number`, with parts separated by dots. `per_prompt` values are [P][H] and are
    averaged over the evaluation prompts; others are [H], with standard errors at the path `error`, if any.
    """

    number: str
    field: str
    title: str
    what: str
    unit: str
    per_prompt: bool = False
    error: str | None = None
    diverging: bool = True


MEASURES = (
    HeadQuantity("02", "denoising", "Activation patching, denoising",
            "what the head's clean output adds to the corrupted run", EFFECT, True),
    HeadQuantity("02", "noising", "Activation patching, noising",
            "what the head's corrupted output takes from the clean run", EFFECT, True),
    HeadQuantity("03", "attribution", "Direct logit attribution",
            "what the head writes into the logit difference itself", "nats", True),
    HeadQuantity("05", "natural_indirect", "Mediation, natural indirect effect",
            "the part of the corruption's effect that passes through the head", EFFECT, True),
    HeadQuantity("05", "natural_direct", "Mediation, natural direct effect",
            "the part of the corruption's effect that stays if the head keeps its clean value", EFFECT, True),
    HeadQuantity("05", "interaction", "Mediation, interaction",
            "total effect less direct and indirect effect", EFFECT, True),
    HeadQuantity("07", "score", "Optimal causation entropy",
            "information about the logit difference that the selected heads do not hold", "nats", diverging=False),
    HeadQuantity("08", "effect", "Attribution patching",
            "first-order estimate of the denoising effect", EFFECT, True),
    HeadQuantity("08", "effect_graddrop", "Attribution patching, AtP*",
            "mean size of the estimate with the gradient dropped in one layer at a time", EFFECT, True, diverging=False),
    HeadQuantity("09", "ov_norm", "Weights: output along the answer",
            "norm of W_V W_O u, u the direction of the answer", "norm", diverging=False),
    HeadQuantity("09", "copying", "Weights: copying",
            "sum of the eigenvalues of W_E W_V W_O W_U over the sum of their sizes", "-1 to 1"),
    HeadQuantity("10", "score", "Local learning coefficient",
            "of the task's loss in the head's own parameters", "coefficient", error="standard_error", diverging=False),
    HeadQuantity("21", "effect", "Knock-out",
            "what is lost when the head alone is mean-ablated", EFFECT, True),
    HeadQuantity("25", "entropy", "Attention entropy",
            "mean over {attention} prompts and their queries; 0: one key, 1: all keys alike", "share of log keys",
            diverging=False),
    HeadQuantity("25", "previous_token", "Attention to the previous token",
            REPEATED, "weight", diverging=False),
    HeadQuantity("25", "duplicate_token", "Attention to an earlier occurrence",
            f"{REPEATED}, on the same token, earlier", "weight", diverging=False),
    HeadQuantity("25", "induction", "Attention to the token after an earlier occurrence",
            REPEATED, "weight", diverging=False),
    HeadQuantity("26", "output_norm", "Output norm",
            "norm of the head's output in the residual stream at the last position", "norm", True, diverging=False),
    HeadQuantity("26", "prediction_error_ratio", "Output not predicted by the stream",
            "share of the variance of the head's output that a ridge regression on its input misses", "share",
            diverging=False),
)  # fmt: skip


def build(run: RunFolder) -> Iterator[HeatMap]:
    """A heat map [layer][head] of every measure that the folder holds, with the circuit's heads marked."""
    number, data = None, None
    for measure in MEASURES:
        if measure.number != number:
            number, data = measure.number, run.data(measure.number)  # one file in memory at a time
        values = _field(data, measure.field)
        if values is not None:
            yield _measured(measure, values, _field(data, measure.error), run)


def _field(data: Mapping[str, Any] | None, field: str | None) -> Any:
    """The value at the path `field` in the data of a result; None if there is none."""
    for part in field.split(".") if field else ():
        data = None if data is None else data.get(part)
    return data if field else None


def _measured(measure: HeadQuantity, values: Any, errors: Column | None, run: RunFolder) -> HeatMap:
    evidence = run.evidence
    if measure.per_prompt:
        sample = np.asarray(values, dtype=float)[evidence.rows]
        means, low, high = clustered_means(sample, evidence.clusters, evidence.templates)
        basis = (
            f"Mean over {len(sample)} evaluation prompts in {len(np.unique(evidence.clusters))} clusters, "
            f"{interval_words(low)}"
        )
    else:
        means = [finite(value) for value in values]
        ends = [normal_interval(*pair) for pair in zip(means, errors or [None] * len(means), strict=True)]
        low, high = [low for low, _ in ends], [high for _, high in ends]
        given = any(end is not None for end in low)
        basis = f"{LEVEL:.0%} interval from the stored standard error" if given else "One number per head, no interval"
    unit = measure.unit.format(metric=evidence.unit)
    gaps = sum(mean is None for mean in means)
    missing = f" {gaps} heads have no value." if gaps else ""
    what = measure.what.format(attention=_attention_prompts(run)) if measure.number == "25" else measure.what
    return layer_head_map(
        evidence.heads,
        means,
        low,
        high,
        name=f"heads_{measure.number}_{measure.field}",
        title=measure.title,
        caption=f"{what[0].upper()}{what[1:]} ({unit}). {basis}; circuit heads framed.{missing} Result {measure.number}.",
        unit=unit,
        diverging=measure.diverging,
        marked=tuple(evidence.circuit_heads),
    )


def _attention_prompts(run: RunFolder) -> str:
    """How many prompts 25 measured the entropy on: the number set, or all prompts if there are fewer."""
    asked = run.require("25")["subject"]["settings"].get("attention_prompts")
    prompts = run.require("01")["data"]["split"].count("evaluation")
    return "the task's" if asked is None else f"{min(asked, prompts)} of the task's"


def layer_head_map(
    heads: Sequence[Head],
    values: Iterable[float | None],
    low: Iterable[float | None] | None = None,
    high: Iterable[float | None] | None = None,
    **figure: Any,
) -> HeatMap:
    """One value for each head, with the ends of its interval, as a heat map [layer][head]; missing heads are gaps.

    `figure`: the other fields of `HeatMap`.
    """
    layers, width = 1 + max(layer for layer, _ in heads), 1 + max(head for _, head in heads)

    def by_layer(column: Iterable[float | None]) -> Cells:
        found = dict(zip(heads, column, strict=True))
        return cells([[found.get((layer, head)) for head in range(width)] for layer in range(layers)])

    return HeatMap(
        x_label="head",
        y_label="layer",
        upwards=True,
        x=tuple(map(str, range(width))),
        y=tuple(map(str, range(layers))),
        values=by_layer(values),
        low=None if low is None else by_layer(low),
        high=None if high is None else by_layer(high),
        level=None if low is None else LEVEL,
        **figure,
    )
