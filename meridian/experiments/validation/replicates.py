"""Samples of prompts from a pool that was measured once; each sample is judged like a run of its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from calibrations.evidence import PRIMARY, Evidence, FreshDraw
from results_io import UserError

SPLITS = ("evaluation", "held_out")
POOL_FACTOR = 3  # published (C30): the pool of fresh prompts is three times the evaluation size
MIN_COMPANION_PROMPTS = 30  # with fewer, C17 accepts no companion, whatever the circuit


@dataclass(frozen=True)
class DrawnEvidence(Evidence):
    """Evidence on a sample of the measured prompts. `drawn` has the rows of each split and replaces the stored splits."""

    drawn: Mapping[str, Int[np.ndarray, " prompt"]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Int[np.ndarray, " prompt"]:
        """Indices of this split's prompts in the stored arrays, in order of prompt id."""
        return self.drawn[self.split]

    def fresh(self, draw: str) -> FreshDraw:
        """As many prompts of the measured pool as the draw asks for, or the whole pool if it has fewer.

        Nothing is measured anew, so these prompts overlap with the sample's own and with other draws.
        """
        clean = np.asarray(self.data("01")["clean_logit_diff"], dtype=float)
        size = len(self.drawn["evaluation"])
        wanted = min(size * POOL_FACTOR if draw == "pool" else size, len(clean))
        rng = np.random.default_rng([zlib.crc32(draw.encode()), *self.drawn["evaluation"]])
        rows = rng.choice(len(clean), wanted, replace=False)
        conditions = self.data("20")["conditions"]
        intact = next(i for i, c in enumerate(conditions) if (c["subset"], c["method"]) == ("circuit", PRIMARY))
        return FreshDraw(clean[rows], np.asarray(self.data("20")["logit_diff"][intact], dtype=float)[rows], size)


def samples(
    documents: Mapping[str, Mapping[str, Any]],
    constants: Mapping[str, Any],
    sizes: Mapping[str, int],
    replicates: Sequence[int],
    seed: int,
) -> Iterator[DrawnEvidence]:
    """One sample for each number in `replicates`, with disjoint splits of `sizes` = {"evaluation", "held_out"} prompts.

    Prompts are drawn from the pool without replacement, with templates in equal numbers. A run does not balance its templates:
    with 12 templates, some template has a single prompt in four of five draws of 40 prompts, in one of fifty draws of 100, and
    never in draws of 400. Calibrations that resample within templates then give the reason n_clusters.

    Samples of one pool share prompts, and the scores that need no prompts. The number of independent samples is therefore about
    the number of disjoint samples that the pools can hold. UserError if the pool is too small.
    """
    baseline = documents["01"]["data"]
    order = np.argsort(np.asarray(baseline["prompt_id"]))
    wanted = sum(sizes.values())
    if wanted > len(order):
        raise UserError(f"a pool of {len(order)} prompts cannot give samples of {wanted}; measure at least {wanted}")
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(len(order))
    template = np.asarray(baseline["template"])
    for replicate in replicates:
        rng = np.random.default_rng([seed, wanted, replicate])
        dealt = _balanced(template, rng)
        start, drawn = 0, {}
        for split in SPLITS:
            rows = dealt[start : start + sizes[split]]
            drawn[split] = rows[np.argsort(rank[rows])]
            start += sizes[split]
        yield DrawnEvidence(_companions(documents, sizes["evaluation"], rng), constants, drawn=drawn)


def _balanced(template: np.ndarray, rng: np.random.Generator) -> Int[np.ndarray, " prompt"]:
    """All rows in random order with templates taking turns, so that any stretch has nearly equal numbers of each template."""
    turn = np.empty(len(template))
    for name in np.unique(template):
        own = np.flatnonzero(template == name)
        turn[rng.permutation(own)] = np.arange(len(own))
    return np.lexsort((rng.random(len(template)), turn))


def _companions(
    documents: Mapping[str, Mapping[str, Any]], n_prompts: int, rng: np.random.Generator
) -> dict[str, Mapping[str, Any]]:
    """`documents` with a sample of each companion task's prompts.

    As in a run, it has a quarter as many prompts as the own task, but at least MIN_COMPANION_PROMPTS if there are as many.
    """
    if "27" not in documents:
        return dict(documents)
    tasks = {}
    for name, stored in documents["27"]["data"]["tasks"].items():
        available = len(stored["prompt_id"])
        rows = rng.permutation(available)[: max(n_prompts // 4, MIN_COMPANION_PROMPTS)]
        by_prompt = ("prompt_id", "template", "cluster", "denoising")
        tasks[name] = {**stored, **{key: np.asarray(stored[key])[rows] for key in by_prompt}}
    return {**documents, "27": {**documents["27"], "data": {**documents["27"]["data"], "tasks": tasks}}}
