"""A13: the model answers with the wrong answer that the prompt offers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import results_io
from suites import schema, scorers
from suites.estimate import Estimate
from suites.item import Item, Suite
from suites.modes import rates
from suites.normalise import normalise
from suites.outcome import Case, Detection

ID = "A13"
NAME = "distractor"
TITLE = "Distractor capture"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = (
    "The roles or the order of gold and distractor swapped at equal length: the gold value against the distractor's."
)
PARAMETERS = schema.object_of(
    scorer={
        "type": "object",
        "description": "how a distractor is found in an output; default: what is named first in it",
    }
)
MINIMUM = 20  # items


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the output is the distractor's answer. A wrong answer that no distractor offers is not a capture.

    `detail.wrong` says whether it is wrong at all. If the suite has no scorer, the first answer or distractor that the output
    names counts (as whole words, normalised).
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    text = case.first.text
    named = _captured(case.item, parameters, text)
    right = case.first.correct
    if right is None and not case.item.answers:
        return rates.unjudged("not_applicable", "the item has no answer to compare with", "verified")
    captured = named is not None and not right
    if right is None:
        right = _first_named(text, case.item.answers, case.item.distractors) in case.item.answers
    detail = {"wrong": not right, "distractor": named if captured else None}
    if not captured:
        return Detection(False, "verified", subtype="" if right else "other_wrong", detail=detail)
    evidence = f"{named!r} is the distractor's answer"
    return Detection(True, "verified", subtype="captured", span=(0, len(text)), evidence=evidence, detail=detail)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Capture rate = distractor answers / all, share captured among the wrong, and accuracy. Fewer than 20 items:
    insufficient.
    """
    decided = rates.decided(judged)
    captured, wrong = sum(bool(seen.failed) for seen in decided), sum(seen.detail["wrong"] for seen in decided)
    return {
        "failure_rate": rates.failure_rate(judged, "items", MINIMUM),
        "share_of_wrong": rates.proportion(captured, wrong, "wrong answers"),
        "accuracy": rates.proportion(len(decided) - wrong, len(decided), "items", left_out=rates.excluded(judged)),
    }


def check(suite: Suite) -> None:
    """UserError if an item has no distractor, or one that is also an answer."""
    for item in suite.items:
        answers = {normalise(answer) for answer in item.answers}
        same = [text for text in item.distractors if normalise(text) in answers]
        if same or not item.distractors or not answers:
            found = f"the distractor {same[0]!r} is an answer too" if same else "it lacks answers or distractors"
            raise results_io.UserError(f"{suite.id}: {item.id}: {found}; give both, different once normalised")
    if "scorer" in suite.parameters:
        scorers.check(suite.parameters["scorer"], f"{suite.id}: parameters")


def _captured(item: Item, parameters: Mapping[str, Any], text: str) -> str | None:
    """The distractor that the output answers with, or None."""
    if "scorer" not in parameters:
        named = _first_named(text, item.answers, item.distractors)
        return named if named in item.distractors else None
    for distractor in item.distractors:
        if scorers.score(parameters["scorer"], dataclasses.replace(item, answers=(distractor,)), text):
            return distractor
    return None


def _first_named(text: str, answers: Sequence[str], distractors: Sequence[str]) -> str | None:
    """The answer or distractor that the text names first; of two that begin at the same place, the longer."""
    body = normalise(text)
    places = {one: scorers.mention(body, normalise(one)) for one in (*answers, *distractors)}
    named = [one for one, place in places.items() if place is not None]
    return min(named, key=lambda one: (places[one], -len(one)), default=None)
