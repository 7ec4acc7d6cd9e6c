"""lm-evaluation-harness's samples files (`--log_samples`) as items with their recorded answers.

Tasks are recognised by the keys of their documents. `bbq` becomes a suite of bias (S4): lm-eval records one right index, but for
an open question any of its ten ways to say "unknown" is right (0.4.13, `tasks/bbq/utils.py`). Answers of `truthfulqa_mc1` and of
all other tasks are right or wrong.
"""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from suites import bounded_text
from suites.harness.imported import Imported, ImportedItem
from suites.item import Item

HASHES = ("doc_hash", "prompt_hash", "target_hash")
BBQ = {"context_condition", "question_polarity", "biased_answers", "ans0", "ans1", "ans2"}
CONDITIONS = {"ambig": "ambiguous", "disambig": "disambiguated"}
GROUPS = 2  # of bbq's choices, the first two name the groups, the rest say "unknown"
BIAS = "S4"
NO_PREJUDICE = "without one biased answer"


def read(path: Path) -> list[ImportedItem]:
    """Every document of a samples file once, in order; if several filters read the same outputs, the first one counts.

    Items are `lm_eval/<doc_id>`; choices are the continuations that were scored, without leading white space. UserError, with the
    line, for a file of another kind, for a prompt that does not match its hash, and for a log-likelihood that is not finite,
    which no record holds.
    """
    found: dict[str, ImportedItem] = {}
    text = bounded_text.given(Path(path), "give a file that --log_samples wrote")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):  # outputs may hold U+2028
        try:
            sample = bounded_text.value(line)
            imported = _imported(sample)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}, is not a sample of lm-eval ({type(error).__name__} {error}); give a file that "
                "--log_samples wrote"
            ) from error
        if unfit := [value for value in imported.logprobs if not math.isfinite(value)]:
            raise UserError(
                f"{path}, line {number}, has the log-likelihood {unfit[0]} of a choice, expected a finite number; run lm-eval "
                "again, with float32 for instance"
            )
        found.setdefault(imported.item.id, imported)
    if not found:
        raise UserError(f"{path} has no samples; give a file that --log_samples wrote")
    return list(found.values())


def run_of(path: Path) -> Imported:
    """The run in a samples file. `bbq` documents without exactly one biased answer are left out and counted.

    The file is called samples_<task>_<time>.jsonl; its folder is named after the model.
    """
    items = read(path)
    name = path.stem.removeprefix("samples_").partition("_20")[0]
    source = {"harness": "lm-eval", "task": name, "model": path.resolve().parent.name}
    source |= {"file_sha256": results_io.file_digest(path)}
    conditions = {one.expect["condition"] for one in items if one.expect}
    if not all(one.expect is not None for one in items) or len(conditions) == 1:  # bbq_ambig is a separate task
        return Imported(tuple(replace(one, expect=None) for one in items), source)
    kept = tuple(one for one in items if one.expect)
    lost = len(items) - len(kept)
    if not kept:
        raise UserError(f"{path}: no document of bbq has exactly one biased answer; import it from a whole run")
    return Imported(kept, source, BIAS, {NO_PREJUDICE: lost} if lost else {})


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
        item = Item(name, prompt, answers=right, choices=choices)
        if isinstance(sample["doc"], dict) and sample["doc"].keys() >= BBQ:
            return _bbq(ImportedItem(item, (), logprobs, foreign), sample["doc"])
        return ImportedItem(item, (), logprobs, foreign)
    outputs = tuple(str(text) for text in sample["resps"][0])
    return ImportedItem(Item(name, prompt, answers=(str(sample["target"]),)), outputs, (), foreign)


def _bbq(one: ImportedItem, doc: Mapping[str, Any]) -> ImportedItem:
    """A document of bbq. If one "unknown" is right, all are. `expect` has the group that a prejudice would name; it is {} if the
    prejudice names none or both. Questions of one `question_index` of a category form a cluster."""
    item, groups = one.item, one.item.choices[:GROUPS]
    unknown = item.choices[GROUPS:]
    answers = unknown if item.answers[0] in unknown else item.answers
    named = [group for group in groups if group in doc["biased_answers"]]
    expect: dict[str, Any] = {}
    if len(named) == 1 and doc["context_condition"] in CONDITIONS:
        (counter,) = (group for group in groups if group not in named)
        condition = CONDITIONS[doc["context_condition"]]
        expect = {"condition": condition, "biased": named[0], "counter": counter}
    cluster = f"{doc.get('category', '')} {doc.get('question_index', item.id)}".strip()
    factors = {"question": str(doc["question_polarity"]), "category": str(doc.get("category", ""))}
    return replace(one, item=replace(item, answers=answers, cluster=cluster, factors=factors), expect=expect)


def _indices(target: str, choices: tuple[str, ...]) -> list[int]:
    """Indices of the right choices; lm-eval writes an index, a list of indices, or the choice's text."""
    if target.strip() in choices:
        return [choices.index(target.strip())]
    try:
        value = ast.literal_eval(target)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"the target {target[:80]!r} is no index and no choice") from None
    found = value if isinstance(value, list) else [value]
    if any(type(index) is not int or index < 0 for index in found):  # a bool is an int
        raise ValueError(f"the target {target[:80]!r} is no whole number from 0 on, and no list of such")
    return found
