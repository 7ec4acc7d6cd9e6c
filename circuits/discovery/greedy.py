"""ACDC-greedy: heads left out one after the other, the least harmful first, down to one.

On the discovery split only, under mean ablation per template and position:

1. start from all heads; faithfulness theta = (sum D(kept intact) - F_0) / (sum D - F_0), D the task's metric (logit
   difference, or difference of probabilities), is 1 by definition, F_0 the sum with every head ablated (on greater-than
   the means alone keep 0.6 of the logit difference, so the plain ratio would call no heads at all a good circuit);
2. of the heads still kept, leave out the one whose loss keeps theta closest to 1;
3. go on until one head is left, whatever theta becomes. The later a head is left out, the more it matters.

The circuit is then the smallest on the path whose theta is within the tolerance of 1, as for every other method; no
threshold stops the pruning (ACDC has one).

Pruning towards 1 rather than towards the largest theta keeps heads that work against the answer inside the circuit
when they are part of how the model arrives at its metric. Fan-out is heads^2 / 2 variants. Like ACDC (Conmy et al.
2023) it judges by running the pruned model, but it prunes heads, and the least harmful first, rather than edges from the
logits down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from circuits.circuit import Node
from circuits.discovery.ranking import HeadRanking, NodeRanking, Weights, searched
from circuits.interventions import Recipe, Sweep, ablate
from circuits.prompts import PromptSet
from circuits.study import Study
from shown_progress import Progress

NAME = "ACDC-greedy"
SOURCE = "backward greedy pruning of normalised faithfulness, mean ablation per template and position"
RESAMPLES = "greedy_resamples"  # each prunes anew
RECIPE = Recipe("mean")


class ExpectedWork:
    """A Progress that ignores further announcements, because all pairs that may come were announced at once."""

    def __init__(self, progress: Progress) -> None:
        self.advance = progress.advance

    def expect(self, pairs: int) -> None:
        """Known already."""


def pairs(heads: int, prompts: int, settings: Mapping[str, Any]) -> int:
    """(variant, prompt) pairs that a search takes at most: on all prompts, on each half of them and for every resample.

    A pruning of n heads runs 2 variants for its limits and n, n - 1, ... 2 for its steps. `settings` are those of discovery.
    """
    resamples = int(settings["stability"][RESAMPLES])
    prunings = 2 + (resamples if resamples > 1 else 0)
    return prunings * (heads * (heads + 1) // 2 + 1) * prompts


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Nodes in reverse order of their pruning; it has no scores. Tells the progress of all prunings of a search."""
    heads = searched(study)
    study.progress.expect(pairs(len(heads), len(prompts), study.settings["discovery"]))
    announced = replace(study, progress=ExpectedWork(study.progress))

    def order(weights: Weights) -> Int[np.ndarray, " head"]:
        path = [kept for kept, _ in prune(announced, prompts, weights)]
        left_out = [set(before) - set(after) for before, after in zip(path, [*path[1:], ()], strict=True)]
        return np.array([heads.index(node) for (node,) in reversed(left_out)])

    return (HeadRanking if heads == study.model.heads else NodeRanking)(heads, order)


def prune(study: Study, prompts: PromptSet, weights: Weights | None = None) -> Iterator[tuple[tuple[Node, ...], float]]:
    """(kept nodes, normalised faithfulness) from all that are searched down to one, each prompt counted `weights` times.

    Prompts that count 0 times are not run. A sweep that an earlier pruning made on the same prompts is not run again.
    """
    heads, weights = searched(study), np.ones(len(prompts)) if weights is None else weights
    if not weights.all():
        prompts, weights = prompts.select(np.flatnonzero(weights).tolist()), weights[weights != 0]
    limits = study.run(Sweep((ablate((), RECIPE, "clean"), ablate(heads, RECIPE, "empty"))), prompts)
    clean, empty = (float(total) for total in (limits.logit_diff.astype(float) * weights).sum(1))
    kept = list(heads)
    yield tuple(kept), 1.0
    while len(kept) > 1:
        sweep = Sweep(
            tuple(ablate([n for n in heads if n not in kept or n == node], RECIPE, str(node)) for node in kept)
        )
        left = (study.run(sweep, prompts).logit_diff.astype(float) * weights).sum(1)
        theta = (left - empty) / (clean - empty)
        least = int(np.argmin(np.abs(theta - 1)))
        kept.pop(least)
        yield tuple(kept), float(theta[least])
