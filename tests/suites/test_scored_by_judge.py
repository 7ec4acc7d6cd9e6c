"""Suites whose scorer is a judge: its grades make outputs right or wrong, and decide only once it is validated."""

from __future__ import annotations

import json

import pytest

from results_io import UserError
from suites import gate, judgement, results, runner, scorers
from suites.judging import judge, rubric, scoring
from suites.judging.judgement_record import JudgementRecord
from suites.models.base import Generation
from tests.suites.scripted import ScriptedModel, padded

SUITE = padded(
    {f"Question {k}?": "good" for k in range(30)},
    ["Well. "],
    scorer={"kind": "judge", "rubric": "correctness"},
    gate={"failure_rate": 0.5, "reason": "a test"},
)
# every third padded question is answered badly; the judge has nothing to say of one of the others
SCRIPT = {item.prompt: "bad" if item.variant and k % 3 == 0 else "good" for k, item in enumerate(SUITE.items)}
SCRIPT |= {"Well. Question 1?": "mumble"}


class Reader:
    name, capabilities, identity = "reader", frozenset({"generation"}), {"weights": "reader"}

    def generate(self, requests, done):
        return [Generation(self.said(one.prompt), "stop") for one in requests]

    def said(self, prompt):
        if "mumble" in prompt:
            return "hm"
        return "Verdict: pass" if ">\ngood\n" in prompt else "Verdict: fail"


class Bar:
    def expect(self, pairs):
        pass

    def advance(self, pairs):
        pass


def run(folder, doubt=None, graded=True):
    said = []

    def grader(suite, recorded):
        one = scoring.with_rubric(judge.open_judge(Reader(), rubric.load("helpfulness"), "text", 16), suite)
        with JudgementRecord(folder / "judgements.jsonl") as kept:
            return scoring.grade(one, suite, recorded, kept, Bar(), doubt)

    made = runner.run([SUITE], ScriptedModel(SCRIPT), folder, say=said.append, grader=grader if graded else None)
    return made.suites[0], said


def test_a_judge_s_grades_make_outputs_right_or_wrong(tmp_path):
    judged, _ = run(tmp_path)
    bad = sum(text == "bad" for text in SCRIPT.values())
    assert judged.counts == {"failed": bad, "passed": 29 - bad, "unknown": 31, "error": 0}
    assert judged.grades.rubric == rubric.load("correctness").sha256 and results.distrust(judged) is None
    lines = [json.loads(line) for line in (tmp_path / judgement.NAME).read_text().splitlines()]
    assert {line["judge"]["judge"] for line in lines} == {judged.grades.judge}
    scored = gate.read(tmp_path).suites["padding"]
    assert sum(item.outcomes["accuracy"] is True for item in scored.values()) == 60 - bad - 1


def test_a_judge_that_was_not_validated_passes_and_fails_no_gate(tmp_path):
    judged, _ = run(tmp_path, doubt="judge not validated")
    assert judged.estimates["failure_rate"].value is not None
    assert results.gate(judged) is None and results.distrust(judged) == "judge not validated"
    assert {value for item in gate.read(tmp_path).suites["padding"].values() for value in item.outcomes.values()} == {
        None
    }


def test_without_a_judge_nothing_is_right_or_wrong_and_it_is_said(tmp_path):
    judged, said = run(tmp_path, graded=False)
    assert judged.counts["unknown"] == 60 and judged.grades is None
    assert said == [
        "padding is scored by a judge; give one, judge=endpoint or judge=local, or nothing is right or wrong"
    ]


def test_the_scorer_names_a_rubric_of_grades():
    scorers.check({"kind": "judge", "rubric": "helpfulness"}, "suite.yaml")
    for scorer, sentence in (
        ({"kind": "judge"}, "'rubric' is a required property"),
        ({"kind": "judge", "rubric": "preference"}, "scorer.rubric is preference, one of pairs"),
        ({"kind": "judge", "rubric": "nosuch"}, "is no rubric"),
    ):
        with pytest.raises(UserError, match=sentence):
            scorers.check(scorer, "suite.yaml")
