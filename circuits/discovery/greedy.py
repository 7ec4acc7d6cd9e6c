"""ACDC-greedy: heads are removed one after the other, the least harmful first, down to one.

On the discovery split only, under mean ablation per template and position:

1. start from all heads, where the faithfulness theta = (sum D(kept intact) - F_0) / (sum D - F_0) is 1 by definition. D is the
   task's metric (logit difference, or difference of probabilities), F_0 its sum with every head ablated. Subtracting F_0
   matters: on greater-than the means alone keep 0.6 of the logit difference, so by the plain ratio a circuit without heads
   would look good;
2. of the heads still kept, remove the one whose removal keeps theta closest to 1;
3. go on until one head is left, whatever theta becomes. The later a head is removed, the more it matters.

The circuit is then the smallest on the path whose theta is within the tolerance of 1, as for every other method; no
threshold stops the pruning (ACDC has one).

Pruning towards 1 rather than towards the largest theta keeps heads that work against the answer in the circuit if they
contribute to the model's metric. It takes about heads^2 / 2 variants. Like ACDC (Conmy et al. 2023) it judges by running the
pruned model, but it prunes heads, the least harmful first, whereas ACDC prunes edges from the logits down.
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
RESAMPLES = "greedy_resamples"  # each resample prunes anew
RECIPE = Recipe("mean")


class ExpectedWork:
    """A Progress that ignores further announcements, because all pairs were announced in advance."""

    def __init__(self, progress: Progress) -> None:
        self.advance = progress.advance

    def expect(self, pairs: int) -> None:
        """Does nothing: the pairs were announced in advance."""


def pairs(heads: int, prompts: int, settings: Mapping[str, Any]) -> int:
    """Largest number of (variant, prompt) pairs of a search: on all prompts, on each half of them and for every resample.

    Pruning n heads takes 2 variants for its limits and n, n - 1, ... 2 for its steps. `settings` are those of discovery.
    """
    resamples = int(settings["stability"][RESAMPLES])
    prunings = 2 + (resamples if resamples > 1 else 0)
    return prunings * (heads * (heads + 1) // 2 + 1) * prompts


def rank(study: Study, prompts: PromptSet) -> HeadRanking:
    """Nodes in reverse order of their pruning, without scores. It announces the progress of all prunings of a search."""
    heads = searched(study)
    study.progress.expect(pairs(len(heads), len(prompts), study.settings["discovery"]))
    announced = replace(study, progress=ExpectedWork(study.progress))

    def order(weights: Weights) -> Int[np.ndarray, " head"]:
        path = [kept for kept, _ in prune(announced, prompts, weights)]
        left_out = [set(before) - set(after) for before, after in zip(path, [*path[1:], ()], strict=True)]
        return np.array([heads.index(node) for (node,) in reversed(left_out)])

    return (HeadRanking if heads == study.model.heads else NodeRanking)(heads, order)


def prune(study: Study, prompts: PromptSet, weights: Weights | None = None) -> Iterator[tuple[tuple[Node, ...], float]]:
    """(kept nodes, normalised faithfulness) after each step, from all searched nodes down to one.

    Each prompt counts `weights` times; prompts with weight 0 are not run. A sweep that an earlier pruning ran on the same
    prompts is not run again.
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
