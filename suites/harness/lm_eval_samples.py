"""lm-evaluation-harness's samples files (`--log_samples`) as items with the answers that were recorded for them."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_io import UserError
from suites.item import Item

HASHES = ("doc_hash", "prompt_hash", "target_hash")


@dataclass(frozen=True)
class ImportedItem:
    """An item, what the model said (`outputs`, one of each repeat) or the log-likelihood of each choice (nats), and the hashes
    that lm-eval gave them. lm-eval does not record which model it was."""

    item: Item
    outputs: tuple[str, ...]
    logprobs: tuple[float, ...]
    foreign: Mapping[str, str]


def read(path: Path) -> list[ImportedItem]:
    """Every document of a samples file once, in order; where several filters read the same outputs, the first.

    Items are `lm_eval/<doc_id>`; choices are what was scored after the prompt, without the white space before them. UserError,
    with the line, for a file of another kind and for a prompt that does not match its hash.
    """
    found: dict[str, ImportedItem] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            sample = json.loads(line)
            imported = _imported(sample)
        except (json.JSONDecodeError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}, line {number}, is no sample of lm-eval ({type(error).__name__} {error}); give a file that "
                "--log_samples wrote"
            ) from error
        found.setdefault(imported.item.id, imported)
    if not found:
        raise UserError(f"{path} has no samples; give a file that --log_samples wrote")
    return list(found.values())


def _imported(sample: Mapping[str, Any]) -> ImportedItem:
    arguments = sample["arguments"]
    own = [arguments[f"gen_args_{place}"] for place in range(len(arguments))]
    asked = [
        (one["arg_0"], one["arg_1"]) for one in own
    ]  # (context, continuation or generation settings) of each request
    prompt, name = asked[0][0], f"lm_eval/{sample['doc_id']}"
    if hashlib.sha256(prompt.encode()).hexdigest() != sample["prompt_hash"]:
        raise ValueError("the prompt is not the one that prompt_hash is of")
    foreign = {key: str(sample[key]) for key in HASHES}
    if isinstance(asked[0][1], str):
        if any(context != prompt for context, _ in asked):
            raise ValueError("choices after different prompts, which items have not")
        choices = tuple(continuation.strip() for _, continuation in asked)
        right = tuple(choices[index] for index in _indices(sample["target"], choices))
        logprobs = tuple(float(pair[0]) for pair in sample["filtered_resps"])
        if len(logprobs) != len(choices):
            raise ValueError(f"{len(logprobs)} log-likelihoods of {len(choices)} choices")
        return ImportedItem(Item(name, prompt, answers=right, choices=choices), (), logprobs, foreign)
    outputs = tuple(str(text) for text in sample["resps"][0])
    return ImportedItem(Item(name, prompt, answers=(str(sample["target"]),)), outputs, (), foreign)


def _indices(target: str, choices: tuple[str, ...]) -> list[int]:
    """Of the right choices: lm-eval writes an index, a list of them, or the choice's text."""
    if target.strip() in choices:
        return [choices.index(target.strip())]
    value = ast.literal_eval(target)
    return [int(index) for index in (value if isinstance(value, list) else [value])]
