"""Imported runs: the requests and outputs of another harness, stored as a suite with a record and judged like any other.

The folder then has suite.yaml, items and lock, generations.jsonl with the other harness's hashes, and the results. Nothing is
asked again. The model is known only from the file, so the identity contains the file's hash as well.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex
import yaml

import results_io
from results_io import UserError
from suites import declaration, judgement, lock, results
from suites.item import FILE, Item, Suite
from suites.likelihood import ChoiceScores
from suites.log import cache, generations
from suites.log.generations import GenerationLog, Slot
from suites.models.base import Generation, Request
from suites.patterns import MOST_CHARACTERS

LEG = "imported"
SOMETHING = r"\S"
NO_ID = re.compile(r"[^A-Za-z0-9._/-]+")
Outputs = Sequence[str | None]


@dataclass(frozen=True)
class ImportedItem:
    """An item with the model's `outputs` (one per repeat; None for a failed call) or the log-likelihood of each choice (nats),
    and the hashes from the file. `expect`: what the judging mode needs, if it is not A3. `scored`: whether each output is right
    by each scorer of the other harness; None where its value does not say so."""

    item: Item
    outputs: tuple[str | None, ...]
    logprobs: tuple[float, ...]
    foreign: Mapping[str, str]
    expect: Mapping[str, Any] | None = None
    scored: Mapping[str, tuple[bool | None, ...]] = field(default_factory=dict)

    @property
    def said(self) -> Outputs:
        """The outputs; for log-likelihoods, the choice with the largest one, the first of equal ones."""
        if not self.logprobs:
            return self.outputs
        return (self.item.choices[max(range(len(self.logprobs)), key=lambda place: self.logprobs[place])],)


@dataclass(frozen=True)
class Imported:
    """A run of another harness. `source`: harness, task, model and the file's hash; `mode`: our mode that judges it.

    `temperature`: of the outputs; None if the file does not say.
    """

    items: tuple[ImportedItem, ...]
    source: Mapping[str, str]
    mode: str = "A3"
    left_out: Mapping[str, int] = field(default_factory=dict)
    temperature: float | None = 0.0


def write(found: Imported, folder: Path) -> Path:
    """Write suite, record, scores and results to `folder`; returns it. Importing the same file again changes nothing.

    UserError for a folder with another suite, and for runs whose items have different numbers of repeats.
    """
    folder = Path(folder)
    if repeats := {len(one.said) for one in found.items} - {len(found.items[0].said)}:
        raise UserError(
            f"items have {sorted({len(found.items[0].said), *repeats})} repeats; import a run with as many of each"
        )
    _try_out(found, folder)
    suite = _suite(found, folder)
    identity = {"kind": "imported", **found.source}
    name = found.source["model"]
    with GenerationLog(folder / generations.NAME, identity, name, 0) as log:
        _record(log, suite, found)
    (judged,) = judgement.derive(folder / generations.NAME, [suite])
    judgement.write(folder / judgement.NAME, [judged])
    results.write(folder, [judged], results.TestedModel(name, identity, 0))
    return folder


def _try_out(found: Imported, folder: Path) -> None:
    """Write the suite to a temporary folder, so that a refusal comes before anything is written to `folder`."""
    with tempfile.TemporaryDirectory(prefix="meridian-import-") as trial:
        try:
            _suite(found, Path(trial))
        except UserError as error:
            raise UserError(str(error).replace(trial, str(folder))) from error


def judged_otherwise(found: Imported, folder: Path) -> dict[str, tuple[int, int]]:
    """{scorer of the other harness: (outputs that it judges otherwise than the written run, outputs that both judge)}."""
    (judged,) = judgement.derive(folder / generations.NAME, [declaration.load(folder)])
    ours = {case.item.id: [outcome.correct for outcome in case.outcomes] for case, _ in judged.cases}
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for one in found.items:
        for scorer, theirs in one.scored.items():
            both = zip(theirs, ours[one.item.id], strict=True)
            pairs.setdefault(scorer, []).extend((a, b) for a, b in both if a is not None and b is not None)
    return {scorer: (sum(a != b for a, b in both), len(both)) for scorer, both in pairs.items()}


def identifier(text: str) -> str:
    """A text as an item's name: characters other than letters, digits and some punctuation become a hyphen."""
    return NO_ID.sub("-", text).strip("-./") or "item"


def right_or_wrong(answers: Sequence[str], whole: bool) -> dict[str, Any]:
    """The `expect` of A3 for a right output: it is an answer (`whole`), or contains one as whole words."""
    words = "|".join(map(regex.escape, answers))
    pattern = rf"^(?:{words})$" if whole else rf"(?i)(?<!\w)(?:{words})(?!\w)"
    return {"must": [pattern if answers and len(pattern) <= MOST_CHARACTERS else SOMETHING]}


def _suite(found: Imported, folder: Path) -> Suite:
    """Write the suite of these items beside the record; returns it."""
    choices = all(one.item.choices for one in found.items)
    items = []
    for one in found.items:
        expect = one.expect if one.expect is not None else right_or_wrong(one.item.answers, bool(one.logprobs))
        items.append({**lock.plain_item(one.item), "expect": dict(expect)})
    declared = {
        "id": f"imported_{re.sub('[^a-z0-9]+', '_', found.source['task'].lower()).strip('_')}",
        "version": "1.0.0",
        "title": f"{found.source['task']}, imported from {found.source['harness']}",
        "description": f"What {found.source['harness']} asked and got back; the items' hashes are in the facts of the record.",
        "mode": found.mode,
        "contexts": ["question_answering"],
        "requires": ["generation"],
        "scorer": {"kind": "choice" if choices else "contains"},
        "legs": [{"name": LEG, "temperature": found.temperature, "samples": len(found.items[0].said), "max_tokens": 1}],
        "trace": {"strategy": "none", "reason": "imported: the model is not at hand"},
        "minimum": 1,
        "gate": None,
    }
    text = "".join(f"{json.dumps(item, ensure_ascii=False, sort_keys=True)}\n" for item in items)
    written = {lock.ITEMS_FILE: text, FILE: yaml.safe_dump(declared, sort_keys=False, allow_unicode=True)}
    for name, content in written.items():
        if (path := folder / name).is_file() and path.read_text(encoding="utf-8") != content:
            raise UserError(f"{folder} has the items of another import; give a folder of its own")
    for name, content in written.items():
        results_io.write_text(folder / name, content)
    results_io.write_text(folder / lock.FILE, lock.freeze(declaration.read(folder)))
    return declaration.load(folder)


def _record(log: GenerationLog, suite: Suite, found: Imported) -> None:
    """Write the lines of the run, with the foreign hashes in its facts; nothing if the record already has the complete run."""
    scored = {one.item.id: one for one in found.items if one.logprobs}
    hashes = {one.item.id: dict(one.foreign) for one in found.items}
    facts = {"imported": {**found.source, "hashes": hashes, "left_out": dict(found.left_out)}}
    run = log.begin(suite, sum(len(one.said) for one in found.items), facts, len(scored))
    if run.finished is not None:
        return
    lines = []
    for one in found.items:
        item = suite.by_id[one.item.id]
        for sample, text in enumerate(one.said):
            request = Request(item.prompt, item.system, 1, found.temperature, sample=sample, earlier=item.earlier)
            output = Generation(text, "stop") if text is not None else Generation("", "error", error="failed there")
            slot = Slot(item.id, LEG, sample)
            lines.append(log.generation(suite, slot, request, output, cache.key(log.identity, request), cached=False))
    for name, one in scored.items():
        right = frozenset(place for place, choice in enumerate(one.item.choices) if choice in one.item.answers)
        words = tuple(
            max(1, len(choice.split())) for choice in one.item.choices
        )  # the file does not say how many tokens
        lines.append(log.likelihood(suite, name, ChoiceScores(one.item.choices, one.logprobs, words, right)))
    log.add(lines)
    log.finish(run)
