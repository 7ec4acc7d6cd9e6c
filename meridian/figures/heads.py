"""Heat maps by layer and head: one for every measurement that says something about each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from calibrations.evidence import Evidence
from meridian.figures.estimates import LEVEL, Column, cells, clustered_means, interval_words, number
from meridian.figures.values import Cells, HeatMap
from meridian.run_folder import RunFolder

EFFECT = "{metric}"  # the unit of an effect of an intervention: that of the task's metric
REPEATED = "mean attention weight on random tokens said twice, not on the task's prompts"


@dataclass(frozen=True)
class Measure:
    """One quantity per head: where it is stored, what it is called, and how it is measured.

    `field` is a path in the data of result `number`, parts separated by a dot. `per_prompt` values are [P][H] and are
    averaged over the evaluation prompts; the others are [H], with the standard errors that stand at `error`, if any.
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
    Measure("02", "denoising", "Activation patching, denoising",
            "what the head's clean output adds to the corrupted run", EFFECT, True),
    Measure("02", "noising", "Activation patching, noising",
            "what the head's corrupted output takes from the clean run", EFFECT, True),
    Measure("03", "attribution", "Direct logit attribution",
            "what the head writes into the logit difference itself", "nats", True),
    Measure("05", "natural_indirect", "Mediation, natural indirect effect",
            "the part of the corruption's effect that passes through the head", EFFECT, True),
    Measure("05", "natural_direct", "Mediation, natural direct effect",
            "the part of the corruption's effect that stays if the head keeps its clean value", EFFECT, True),
    Measure("05", "interaction", "Mediation, interaction",
            "total effect less direct and indirect effect", EFFECT, True),
    Measure("07", "score", "Optimal causation entropy",
            "information about the logit difference that the selected heads do not hold", "nats", diverging=False),
    Measure("08", "effect", "Attribution patching",
            "first-order estimate of the denoising effect", EFFECT, True),
    Measure("08", "effect_graddrop", "Attribution patching, AtP*",
            "mean size of the estimate with the gradient dropped in one layer at a time", EFFECT, True, diverging=False),
    Measure("09", "ov_norm", "Weights: output along the answer",
            "norm of W_V W_O u, u the direction of the answer", "norm", diverging=False),
    Measure("09", "copying", "Weights: copying",
            "sum of the eigenvalues of W_E W_V W_O W_U over the sum of their sizes", "-1 to 1"),
    Measure("10", "score", "Local learning coefficient",
            "of the task's loss in the head's own parameters", "coefficient", error="standard_error", diverging=False),
    Measure("21", "effect", "Knock-out",
            "what is lost when the head alone is mean-ablated", EFFECT, True),
    Measure("25", "entropy", "Attention entropy",
            "mean over {attention} prompts and their queries; 0: one key, 1: all keys alike", "share of log keys",
            diverging=False),
    Measure("25", "previous_token", "Attention to the previous token",
            REPEATED, "weight", diverging=False),
    Measure("25", "duplicate_token", "Attention to an earlier occurrence",
            f"{REPEATED}, on the same token, earlier", "weight", diverging=False),
    Measure("25", "induction", "Attention to the token after an earlier occurrence",
            REPEATED, "weight", diverging=False),
    Measure("26", "output_norm", "Output norm",
            "norm of the head's output in the residual stream at the last position", "norm", True, diverging=False),
    Measure("26", "prediction_error_ratio", "Output not predicted by the stream",
            "share of the variance of the head's output that a ridge regression on its input misses", "share",
            diverging=False),
)  # fmt: skip


def build(run: RunFolder) -> Iterator[HeatMap]:
    """A heat map of every measure that the folder holds. [layer][head], the circuit's heads marked."""
    evidence, stored, counts = run.evidence, {}, {"attention": _attention_prompts(run)}
    for measure in MEASURES:
        if measure.number not in stored:
            stored = {measure.number: run.data(measure.number)}  # one file in memory at a time
        values = _lookup(stored[measure.number], measure.field)
        if values is not None:
            yield _heat_map(measure, values, stored[measure.number], evidence, measure.what.format(**counts))


def _lookup(data: Mapping[str, Any] | None, field: str) -> Any:
    for part in field.split("."):
        data = None if data is None else data.get(part)
    return data


def _attention_prompts(run: RunFolder) -> str:
    """How many prompts 25 read its entropy on: the setting, or all where there are fewer."""
    document = run.document("25")
    asked = None if document is None else document["subject"]["settings"].get("attention_prompts")
    return "the task's" if asked is None else f"{min(asked, run.data('01')['split'].count('evaluation'))} of the task's"


def _heat_map(measure: Measure, values: Any, data: Mapping[str, Any], evidence: Evidence, what: str) -> HeatMap:
    if measure.per_prompt:
        sample = np.asarray(values, dtype=float)[evidence.rows]
        means, low, high = clustered_means(sample, evidence.clusters, evidence.templates)
        basis = (
            f"Mean over {len(sample)} evaluation prompts in {len(np.unique(evidence.clusters))} clusters, "
            f"{interval_words(low)}"
        )
    else:
        means = [number(value) for value in values]
        low, high = _stored_interval(means, _lookup(data, measure.error) if measure.error else None)
        given = any(end is not None for end in low)
        basis = f"{LEVEL:.0%} interval from the stored standard error" if given else "One number per head, no interval"
    unit = measure.unit.format(metric=_unit(evidence))
    gaps = sum(mean is None for mean in means)
    missing = f" {gaps} heads have no value." if gaps else ""
    return HeatMap(
        name=f"heads_{measure.number}_{measure.field}",
        title=measure.title,
        caption=f"{what[0].upper()}{what[1:]} ({unit}). {basis}; circuit heads framed.{missing} "
        f"Result {measure.number}.",
        x_label="head",
        y_label="layer",
        x=tuple(str(head) for head in range(_width(evidence))),
        y=tuple(str(layer) for layer in range(evidence.n_layers)),
        values=grid(means, evidence),
        unit=unit,
        low=grid(low, evidence),
        high=grid(high, evidence),
        level=LEVEL,
        diverging=measure.diverging,
        marked=tuple(evidence.circuit_heads),
    )


def _unit(evidence: Evidence) -> str:
    """The unit of effects on the task's metric: nats for logits, none for probabilities."""
    return "nats" if evidence.metric == "logit difference" else evidence.metric


def _width(evidence: Evidence) -> int:
    return 1 + max(head for _, head in evidence.heads)


def _stored_interval(means: Column, errors: list[float | None] | None) -> tuple[Column, Column]:
    if errors is None:
        return [None] * len(means), [None] * len(means)
    half = [None if e is None else float(stats.norm.ppf((1 + LEVEL) / 2)) * e for e in errors]
    known = [(m, h) if m is not None and h is not None else None for m, h in zip(means, half, strict=True)]
    return [k and k[0] - k[1] for k in known], [k and k[0] + k[1] for k in known]


def grid(column: Column, evidence: Evidence) -> Cells:
    """One value per head [H] as [layer][head]; None where the model has no such head."""
    table: list[list[float | None]] = [[None] * _width(evidence) for _ in range(evidence.n_layers)]
    for (layer, head), value in zip(evidence.heads, column, strict=True):
        table[layer][head] = value
    return cells(table)
