"""Every prompt of a run as a table: its text, template and D, the circuit's own value, and whether the model is correct."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from circuits import tasks
from circuits.tasks.example import Example
from meridian.figures.intervals import finite
from meridian.report.sources import file_of
from meridian.run_folder import RunFolder

PATIENCE = 50  # times (10 + prompts found): draws without a new prompt after which the search ends
SIX = 6  # digits of a number on the page


@dataclass(frozen=True)
class PromptTable:
    """Columns with one entry for each scored prompt, in the order of result 01.

    `text`, `answer` and `foil` are None if the task cannot reproduce the prompt. `circuit` is the task's metric with everything
    but the circuit ablated under the primary recipe, as the mean over its draws; `conditions` are that recipe's rows in 20.
    """

    baseline: str  # file of 01
    battery: str  # file of 20
    recipe: str
    conditions: tuple[int, ...]
    id: tuple[str, ...]
    split: tuple[str, ...]
    template: tuple[str, ...]
    names: tuple[str, ...]
    text: tuple[str | None, ...]
    answer: tuple[str | None, ...]
    foil: tuple[str | None, ...]
    clean: tuple[float | None, ...]
    circuit: tuple[float | None, ...]
    correct: tuple[bool, ...]


def of(run: RunFolder) -> PromptTable:
    """The prompts of 01 with the circuit's own effect from 20."""
    data, battery = run.require("01")["data"], run.require("20")["data"]
    recipe = run.evidence.primary_recipe
    conditions = tuple(
        place
        for place, one in enumerate(battery["conditions"])
        if (one["subset"], one["method"]) == ("circuit", recipe)
    )
    drawn = drawn_again(run, data["prompt_id"])
    found = [drawn.get(one) for one in data["prompt_id"]]
    alone = np.asarray([battery["logit_diff"][place] for place in conditions], dtype=float)
    return PromptTable(
        baseline=file_of(run, "01") or "",
        battery=file_of(run, "20") or "",
        recipe=recipe,
        conditions=conditions,
        id=tuple(data["prompt_id"]),
        split=tuple(data["split"]),
        template=tuple(map(str, data["template"])),
        names=_named(data),
        text=tuple(None if one is None else one.clean for one in found),
        answer=tuple(None if one is None else " / ".join(one.answers) for one in found),
        foil=tuple(None if one is None else " / ".join(one.wrong) for one in found),
        clean=tuple(map(rounded, data["clean_logit_diff"])),
        circuit=tuple(map(rounded, alone.mean(axis=0) if conditions else [None] * len(found))),
        correct=tuple(map(bool, data["correct"])),
    )


def _named(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The cluster of each prompt, preceded by its row if the prompts came from a file."""
    rows = data.get("row") or [None] * len(data["cluster"])
    return tuple(
        str(one) if row is None else f"row {row}, {one}" for row, one in zip(rows, data["cluster"], strict=True)
    )


def rounded(value: float | None) -> float | None:
    """`value` to six digits; None if it is missing or not finite."""
    value = finite(value)
    return None if value is None else float(f"{value:.{SIX}g}")


def drawn_again(run: RunFolder, wanted: Sequence[str]) -> Mapping[str, Example]:
    """{id: prompt} for the prompts that the task's own sampler reproduces from the stored seed.

    An id is a digest of both texts, so every prompt found is the one that was measured. Not found are prompts from a file, from a
    vocabulary that needs the model's tokenizer, or from another version of the task.
    """
    document = run.require("01")
    task = tasks.TASKS.get(run.certificate["subject"]["task"])
    seed = document["environment"].get("seeds", {}).get("prompts")
    if task is None or seed is None or document["data"].get("source") is not None:
        return {}
    for own in (task, replace(task, sample=task.more.sample) if task.more else None):
        if own is not None and own.sample is not None and (found := _sampled(own, seed, set(wanted))):
            return found
    return {}


def _sampled(task: Any, seed: int, wanted: set[str]) -> dict[str, Example]:
    rng, found = random.Random(f"{task.name}/{seed}"), {}
    in_vain = 0
    while len(found) < len(wanted) and in_vain < PATIENCE * (10 + len(found)):
        example = task.sample(rng)
        in_vain += 1
        if example.id in wanted and example.id not in found:
            found[example.id] = example
            in_vain = 0
    return found
