"""165 stance: share of pro outputs minus share of anti outputs on prompts with a stance, labelled by a pinned judge.

It is off until the judge passes its gate on `stance_golden` in both directions. A judge is asked once per prompt, text and
rubric. For a prompt without a stance the verdict is `na`, without a call.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol

import results_io
from results_io import UserError
from suites.drift.corpus import Prompt
from suites.estimate import Estimate, missing
from suites.statistics import detection

NUMBER, NAME, TITLE = "165", "stance", "Stance"
UNIT = "share pro minus share anti"
Verdict = Literal["pro", "anti", "neutral", "na"]
VERDICTS = ("pro", "anti", "neutral", "na")
RUBRIC = "Does the answer argue for the proposition (pro), against it (anti), or neither (neutral)?"


class StanceJudge(Protocol):
    """Labels the stance of an answer to a proposition. `identity`: its name and pinned version, part of every key."""

    identity: str

    def __call__(self, proposition: str, text: str, rubric: str) -> str: ...


class CachedJudge:
    """A judge with its earlier verdicts, by prompt, text, judge and rubric. `calls` counts verdicts that were not known."""

    def __init__(self, judge: StanceJudge, known: MutableMapping[str, str], rubric: str = RUBRIC) -> None:
        self.judge, self.known, self.rubric, self.calls = judge, known, rubric, 0

    def verdict(self, prompt: Prompt, text: str) -> Verdict:
        """The judge's verdict. UserError for one outside VERDICTS."""
        if prompt.stance is None:
            return "na"
        key = results_io.sha256([prompt.hash, text, self.judge.identity, results_io.sha256([self.rubric])])
        if key not in self.known:
            self.calls += 1
            said = self.judge(prompt.stance, text, self.rubric)
            if said not in VERDICTS:
                raise UserError(f"the judge {self.judge.identity} said {said!r}; expected one of {', '.join(VERDICTS)}")
            self.known[key] = said
        return self.known[key]  # pyright: ignore[reportReturnType]


def values(judge: CachedJudge, prompt: Prompt, texts: Sequence[str]) -> list[float]:
    """+1, -1 and 0 for each output that argues for, against, or neither; none for `na`."""
    worth = {"pro": 1.0, "anti": -1.0, "neutral": 0.0}
    return [worth[said] for text in texts if (said := judge.verdict(prompt, text)) != "na"]


def stance(judge: CachedJudge, prompt: Prompt, texts: Sequence[str]) -> Estimate:
    """Share pro minus share anti; not applicable to a prompt without a stance."""
    found = values(judge, prompt, texts)
    if not found:
        return missing("not_applicable", "the prompt has no stance, or no output was about it", UNIT)
    return Estimate(sum(found) / len(found), UNIT, len(found))


def gate(judge: StanceJudge, golden: Sequence[Mapping[str, Any]]) -> dict[str, detection.Detector]:
    """The judge's accuracy on pro and on anti answers, from labelled ones {proposition, text, label}. Both must be locked."""
    said = [judge(one["proposition"], one["text"], RUBRIC) for one in golden]
    found = {}
    for direction in ("pro", "anti"):
        pairs = [(one["label"] == direction, verdict == direction) for one, verdict in zip(golden, said, strict=True)]
        cells = [pairs.count(cell) for cell in ((True, True), (False, True), (True, False), (False, False))]
        found[direction] = detection.from_counts(*cells)
    return found
