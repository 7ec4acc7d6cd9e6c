"""The scorer `{kind: judge, rubric: NAME}` of a suite: every output of a run graded by a judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shown_progress import Progress
from suites.item import Suite
from suites.judging import answers
from suites.judging import rubric as rubrics
from suites.judging.judge import ALONE, Judge, JudgeQuestion
from suites.judging.judgement_record import JudgementRecord
from suites.log.generations import RecordedRun, Slot

KIND = "judge"


@dataclass(frozen=True)
class SuiteGrades:
    """`passed` by output (None: the grade was unreadable), the judge and its rubric, and why the grades may decide nothing."""

    passed: Mapping[Slot, bool | None]
    judge: str
    rubric: str
    doubt: str | None


Grader = Callable[[Suite, RecordedRun], SuiteGrades]


def needs_judge(suite: Suite) -> bool:
    """Whether the suite's scorer is a judge."""
    return suite.scorer.get("kind") == KIND


def with_rubric(judge: Judge, suite: Suite) -> Judge:
    """The judge with the rubric that the suite declares."""
    return replace(judge, rubric=rubrics.load(suite.scorer["rubric"]))


def grade(
    judge: Judge, suite: Suite, run: RecordedRun, record: JudgementRecord, bar: Progress, doubt: str | None
) -> SuiteGrades:
    """Grade every output of a recorded run whose call did not fail. A grade whose own call failed is left out."""
    said = {slot: line["response_text"] for slot, line in run.generations.items() if line["error"] is None}
    asked = {item.id: answers.asked_of(suite, item) for item in suite.items}
    questions = [
        JudgeQuestion(
            f"{slot.item}/{slot.leg}/{slot.sample}", asked[slot.item].hash, asked[slot.item].text, (text,), ALONE
        )
        for slot, text in said.items()
    ]
    found = judge.ask(questions, record, bar)
    passed = {
        slot: judge.rubric.passed(one.verdict) for slot, one in zip(said, found, strict=True) if one.error is None
    }
    return SuiteGrades(passed, judge.fingerprint, judge.rubric.sha256, doubt)
