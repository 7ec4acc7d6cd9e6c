"""Hanna, Liu and Variengien (2023) on greater-than: two statistics of the whole model, its circuit and the complement.

    probability difference   P(end year > YY) - P(end year <= YY)
    cutoff sharpness         P(end year = YY + 1) - P(end year = YY - 1)

The circuit consists of heads and MLPs, and of edges between them. Edges outside it carry what their writers write on the
twin prompt, whose start year is 01. The interventions are:

    circuit             the circuit's MLPs and the logits read only its heads and MLPs from the clean run; the inputs of its
                        heads are intact
    inputs to logits    as above, and its heads read only the embedding, the MLPs and each other: heads outside are replaced
    complement          the circuit's MLPs and the logits read everything except its heads and MLPs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits import hypothesis
from circuits.circuit import Circuit, Node, mlp
from circuits.edges import EMBEDDING, Graph
from circuits.interventions import Recipe, Sweep, Variant, patch_paths
from circuits.prompts import PADDING, PromptSet
from circuits.study import Study
from meridian.experiments import reproduction
from meridian.experiments.estimates import PromptSample
from meridian.experiments.reproduction import ReproducedRow, Reproduction

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "greater_than"
FROM_TWIN = Recipe("patch", source="corrupted")
MODEL, CIRCUIT, INPUTS, COMPLEMENT, TWIN = "model", "circuit", "inputs to logits", "complement", "start year 01"


def run(context: RunContext) -> None:
    """Measure the probabilities of years in five runs, and print the table."""
    work = Reproduction(context, TASK)
    work.claim()
    found = work.part("probabilities", probabilities)
    sample = reproduction.sample_of(work.settings, work.study.prompts)
    difference = np.array(found["difference"][MODEL])
    silent = "" if work.circuit.mlp_layers else "The circuit names no MLPs, so all of them are counted in."
    work.finish(
        rows(found, sample, work.settings),
        [
            *reproduction.absence(
                sample.mean(difference), float(np.mean(difference > 0)), work.identity.name, "greater-than"
            ),
            *([silent] * bool(silent)),
        ],
    )


# --- what is measured ------------------------------------------------------------------------------------------------


def probabilities(study: Study) -> dict[str, Any]:
    """{statistic: {run: [prompt]}}. The sharpness is None for a prompt without a candidate for the year before or after."""
    prompts, made = study.prompts, variants(study.claim, study.model.graph)
    years = candidate_years(study.model.tokenizer, prompts)
    after, before = (beside(prompts, years, step) for step in (1, -1))
    known = ((after != PADDING) & (before != PADDING)).all(1)
    neighbours = replace(  # a prompt without such a year gets any other one, and is left out below
        prompts,
        answers=after.where(after != PADDING, prompts.answers[:, :1]),
        wrong=before.where(before != PADDING, prompts.wrong[:, :1]),
    )
    return {
        "difference": by_run(made, margins(study, made, prompts)),
        "sharpness": by_run(made, margins(study, made, neighbours), known.numpy()),
    }


def margins(study: Study, made: Sequence[Variant], prompts: PromptSet) -> Float[np.ndarray, "variant prompt"]:
    """P(answers) - P(foils) of each prompt, in each run."""
    sweep = Sweep(tuple(made), probabilities=True)
    study.progress.expect(len(sweep) * len(prompts))
    effects = study.engine.run(sweep, prompts, study.progress.advance)
    answers, foils = effects.probabilities
    return answers.astype(float) - foils.astype(float)


def by_run(
    made: Sequence[Variant], values: Float[np.ndarray, "variant prompt"], known: np.ndarray | None = None
) -> dict[str, list[float | None]]:
    """{run: its values}, with None where `known` is False."""
    shown = np.ones(values.shape[1], bool) if known is None else known
    return {
        variant.name: [float(x) if there else None for x, there in zip(row, shown, strict=True)]
        for variant, row in zip(made, values, strict=True)
    }


def candidate_years(tokenizer: Any, prompts: PromptSet) -> dict[int, int]:
    """{candidate token: its year}."""
    ids = sorted({*prompts.answers.flatten().tolist(), *prompts.wrong.flatten().tolist()} - {PADDING})
    return {one: int(tokenizer.decode([one]).strip()) for one in ids}


def beside(prompts: PromptSet, years: Mapping[int, int], step: int) -> Int[Tensor, "prompt 1"]:
    """The token of the year `step` after each prompt's start year YY, the last wrong year; padding if there is none."""
    found = []
    for later, others in zip(prompts.answers.tolist(), prompts.wrong.tolist(), strict=True):
        start = max(years[one] for one in others if one != PADDING)
        named = {years[one]: one for one in (*later, *others) if one != PADDING}
        found.append(named.get(start + step, PADDING))
    return torch.tensor(found)[:, None]


def variants(circuit: Circuit, graph: Graph) -> list[Variant]:
    """The five runs: whole model, circuit with its heads' inputs intact, circuit from inputs to logits, complement, twin."""
    inside, reading = members(circuit, graph)
    lower = {edge for edge in graph.edges if edge.reader in reading and edge.writer not in inside}
    upper = {edge for edge in graph.edges if edge.reader in reading and edge.writer in inside - {EMBEDDING}}
    outside = {edge for edge in graph.edges if edge.writer.kind == "head" and edge.writer not in circuit.heads}
    relevant = set(graph.edges) - lower - outside
    return [
        Variant(MODEL),
        patch_paths(sorted(lower), FROM_TWIN, CIRCUIT),
        hypothesis.scrub(relevant, graph, FROM_TWIN, INPUTS),
        patch_paths(sorted(upper), FROM_TWIN, COMPLEMENT),
        Variant(TWIN, base="corrupted"),
    ]


def members(circuit: Circuit, graph: Graph) -> tuple[set[Node], set[Any]]:
    """(the circuit's writers, the readers that see only these: its MLPs and the logits).

    If a circuit names no MLPs, all MLPs and the embedding count as part of it.
    """
    named = circuit.mlp_layers
    layers = named or range(graph.n_layers)
    inside = {*circuit.heads, *map(mlp, layers), *(() if named else (EMBEDDING,))}
    reading = {reader for reader in graph.readers if reader.kind == "mlp" and reader.layer in layers}
    return inside, reading | {graph.logits}


# --- the table -------------------------------------------------------------------------------------------------------


def rows(found: Mapping[str, Any], sample: PromptSample, settings: Mapping[str, Any]) -> Iterator[ReproducedRow]:
    """Probability differences and cutoff sharpness of the whole model, the circuit and the complement."""
    paper, gap = settings["paper"], settings["recipe_differences"]
    difference = {name: np.array(values, float) for name, values in found["difference"].items()}
    sharpness = {name: np.array(values, float) for name, values in found["sharpness"].items()}
    whole = difference[MODEL]

    def probability_difference(name: str, number: float | None, remark: str) -> ReproducedRow:
        return ReproducedRow(f"probability difference, {name}", sample.mean(difference[name]), number, True, remark)

    yield probability_difference(MODEL, paper["model"], gap["prompts"])
    yield ReproducedRow(
        "its standard deviation over prompts", sample.spread(whole), paper["deviation"], True, gap["prompts"]
    )
    yield ReproducedRow(
        "cutoff sharpness, model", sample.mean(sharpness[MODEL]), paper["sharpness"], True, gap["sharpness"]
    )
    yield probability_difference(TWIN, None, gap["twin"])
    yield probability_difference(CIRCUIT, paper["circuit"], gap["circuit"])
    kept = sample.ratio(difference[CIRCUIT], whole)
    yield ReproducedRow("circuit / model", kept, paper["kept"], True, gap["circuit"])
    yield ReproducedRow(
        "cutoff sharpness, circuit", sample.mean(sharpness[CIRCUIT]), paper["circuit_sharpness"], True, gap["sharpness"]
    )
    yield probability_difference(INPUTS, paper["inputs"], gap["inputs"])
    yield probability_difference(COMPLEMENT, paper["complement"], gap["complement"])
