"""19 Fresh prompts: the circuit alone on newly drawn prompts, for the published values of C16 and C30.

C16's text measures faithfulness with three prompt seeds, C30's on samples of a pool three times the evaluation size. Every draw
comes from the evaluation split, so it has no discovery and no held-out prompts. A prompt in several draws is run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from circuits import prompts as prompt_sets
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.study import Study, require_count
from circuits.tasks.example import Example
from results_io import UserError

NUMBER, ID = "19", "fresh_prompts"
SETTINGS = ("fresh_prompts",)
DEPENDS_ON_CIRCUIT = True
SPLIT = "evaluation"
POOL = "pool"


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for a pool of no samples."""
    require_count(settings, "fresh_prompts", "pool_factor")


def measure(study: Study) -> dict[str, Any]:
    """D and the logit difference of the circuit alone (mean per template and position) on every distinct fresh prompt.

    `draws` has the rows of each draw: one of `size` prompts for every seed, and the pool of `pool_factor` times as many.
    """
    examples, draws, unavailable = _drawn(study)
    size = study.prompts.splits.count(SPLIT)
    stored: dict[str, Any] = {"size": size, "draws": draws, "unavailable": unavailable}
    if not examples:
        return {**stored, "prompt_id": [], "clean": [], "circuit": []}
    fresh = prompt_sets.tokenize(study.task, examples, study.model.tokenizer, SPLIT)
    effects = study.run(Sweep((Variant("clean"), ablate(sorted(study.outside), Recipe("mean"), "circuit"))), fresh)
    return {**stored, "prompt_id": fresh.ids, "clean": effects.logit_diff[0], "circuit": effects.logit_diff[1]}


def pairs(study: Study) -> dict[str, int]:
    """The work that `run.py doctor` counts: two variants of every distinct fresh prompt."""
    return {"circuits": 2 * len(_drawn(study)[0])}


def _drawn(study: Study) -> tuple[list[Example], dict[str, list[int]], dict[str, str]]:
    """The distinct examples, the rows of each draw, and why a draw could not be made."""
    settings, size = study.settings["fresh_prompts"], study.prompts.splits.count(SPLIT)
    wanted = {str(seed): (size, seed) for seed in settings["seeds"]}
    wanted[POOL] = (settings["pool_factor"] * size, settings["pool_seed"])
    row_of: dict[str, int] = {}
    examples: list[Example] = []
    draws, unavailable = {}, {}
    for name, (n_prompts, seed) in wanted.items():
        try:
            drawn = _draw(study, n_prompts, seed)
        except UserError as reason:
            unavailable[name] = str(reason)
            continue
        for example in drawn:
            if row_of.setdefault(example.clean, len(examples)) == len(examples):
                examples.append(example)
        draws[name] = [row_of[example.clean] for example in drawn]
    return examples, draws, unavailable


def _draw(study: Study, n_prompts: int, seed: int) -> Sequence[Example]:
    """`n_prompts` distinct prompts. Raises UserError if the task cannot draw so many."""
    if study.task.given is not None:
        raise UserError(f"the prompts of task {study.task.name} are given, so none can be drawn anew")
    return prompt_sets.draw_examples(study.task, {SPLIT: n_prompts}, seed)[SPLIT]
