"""Answers: a run's outputs for the items of a suite, and the pairs from two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from suites import lock
from suites.item import Item, Suite
from suites.log import generations
from suites.log.generations import RecordedRun

FAILED = "failed call"


@dataclass(frozen=True)
class Asked:
    """An item as a judge reads it: its question with all turns, its hash, and its sampling unit."""

    text: str
    hash: str
    cluster: str


@dataclass(frozen=True)
class Answers:
    """The first output of one model for every item of one suite. An item whose call failed is in `asked` but has no text."""

    name: str
    identity: Mapping[str, Any]
    suite: str
    suite_hash: str
    asked: Mapping[str, Asked]
    texts: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Hash of the outputs, the model's identity and the suite."""
        return digest(self.identity, self.suite_hash, self.texts)


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one item, `a` and `b`. `authors`: the names of their authors, if known."""

    id: str
    asked: Asked
    a: str
    b: str
    authors: tuple[str, str] | None = None


def of_run(folder: Path, suite: Suite) -> Answers:
    """The answers of the last run of `suite` in results/<model>/suites. UserError if there is none, or an incomplete one."""
    path = Path(folder) / generations.NAME
    if not path.is_file():
        raise UserError(f"{folder} has no {generations.NAME}; give the folder of a finished run of {suite.id}")
    run = generations.latest(path, suite)
    if run.not_applicable is not None:
        raise UserError(
            f"{suite.id} does not apply to the model of {folder} ({run.not_applicable}); judge another suite"
        )
    asked = {item.id: asked_of(suite, item) for item in suite.items}
    return Answers(run.started["model"], run.started["identity"], suite.id, suite.sha256, asked, texts_of(run))


def texts_of(run: RecordedRun) -> dict[str, str]:
    """The first output of the first leg for every item whose call did not fail."""
    first = (run.started["legs"][0]["name"], 0)
    said = {slot.item: line for slot, line in run.generations.items() if (slot.leg, slot.sample) == first}
    return {item: line["response_text"] for item, line in said.items() if line["error"] is None}


def digest(identity: Mapping[str, Any], suite_hash: str, texts: Mapping[str, str]) -> str:
    """Hash of the outputs, the model's identity and the suite, which identifies a run."""
    return results_io.sha256({"identity": identity, "suite": suite_hash, "texts": texts})


@dataclass(frozen=True)
class Finished:
    """What a finished run said: its model's identity, its first outputs by item, and the hash of all."""

    identity: Mapping[str, Any]
    texts: Mapping[str, str]
    sha256: str


def finished(folder: Path) -> dict[str, Finished]:
    """The last finished run of every suite on record in `folder`, by suite id; empty without a record."""
    path = Path(folder) / generations.NAME
    runs = [run for run in generations.read(path).values() if run.finished is not None] if path.is_file() else []
    found = {}
    for run in runs:
        identity, texts = run.started["identity"], texts_of(run)
        found[run.started["suite_id"]] = Finished(identity, texts, digest(identity, run.started["suite_hash"], texts))
    return found


def pairs(one: Answers, other: Answers) -> tuple[list[AnswerPair], dict[str, int]]:
    """(a pair for every item that both answered, number of the others by reason). UserError for two different suites."""
    if one.suite_hash != other.suite_hash:
        raise UserError(
            f"{one.name} answered {one.suite} and {other.name} another version or suite, {other.suite}; run the same on both"
        )
    both = [item for item in one.asked if item in one.texts and item in other.texts]
    lost = len(one.asked.keys() | other.asked.keys()) - len(both)
    found = [AnswerPair(item, one.asked[item], one.texts[item], other.texts[item]) for item in both]
    return found, ({FAILED: lost} if lost else {})


def named_apart(runs: Sequence[Answers]) -> list[str]:
    """A name for each run: the model's, with a number if several have the same."""
    names = [run.name for run in runs]
    return [
        f"{name}#{names[:place].count(name) + 1}" if names.count(name) > 1 else name for place, name in enumerate(names)
    ]


def asked_of(suite: Suite, item: Item) -> Asked:
    """An item as a judge reads it."""
    parent = item
    while parent.variant is not None:
        parent = suite.by_id[parent.variant.parent]
    turns = [*([("system", item.system)] if item.system else []), *item.earlier, ("user", item.prompt)]
    text = item.prompt if len(turns) == 1 else "\n".join(f"{role}: {said}" for role, said in turns)
    return Asked(text, lock.item_hash(item, suite.scorer), item.cluster or parent.cluster or parent.id)
