"""A model's accuracy in its latest run of a suite, on items that occur in a corpus and on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suites import gate, lock
from suites.contamination.overlap import CleanAndDirty, Overlap, clean_and_dirty
from suites.item import Suite
from suites.judging import answers
from suites.log import generations


@dataclass(frozen=True)
class Scored:
    """One suite of a run: whether each item was right, by id (None: not judged), and the run. Changed items are left out."""

    correct: Mapping[str, bool | None]
    run_id: str
    finished: str
    folder: Path


def latest(model_folder: Path, suite: Suite) -> Scored | None:
    """The last finished run of `suite` below results/<model>/suites, with items matched by hash; None without one.

    A suite that is run alone has its own folder, so there may be two runs. UserError for scores that cannot be read.
    """
    found = [
        one for place in (gate.FOLDER, f"{gate.FOLDER}/{suite.id}") if (one := _scored(model_folder / place, suite))
    ]
    return max(found, key=lambda one: one.finished, default=None)


def _scored(folder: Path, suite: Suite) -> Scored | None:
    record = folder / generations.NAME
    if not record.is_file() or not (folder / gate.SCORES).is_file():
        return None
    runs = [run for run in generations.read(record).values() if run.started["suite_id"] == suite.id and run.finished]
    scores = gate.read(folder).suites.get(suite.id, {})
    if not runs or not scores:
        return None
    own = {item.id: lock.item_hash(item, suite.scorer) for item in suite.items}
    correct = {
        name: one.outcomes["accuracy"] for name, one in scores.items() if one.hash.split(" ")[0] == own.get(name)
    }
    finished = runs[-1].finished
    return Scored(correct, runs[-1].run_id, "" if finished is None else finished["ts"], folder)


def compared(suite: Suite, items: Sequence[Overlap], scored: Scored) -> CleanAndDirty:
    """Accuracy on flagged and on other items of the suite, with intervals that allow for clusters of items."""
    clusters = {item.id: answers.asked_of(suite, item).cluster for item in suite.items}
    return clean_and_dirty(items, scored.correct, clusters)
