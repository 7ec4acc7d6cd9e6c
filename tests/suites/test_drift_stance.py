"""Stance with a scripted judge: what it is asked, what is remembered, and when it may be believed."""

from __future__ import annotations

import pytest

from results_io import UserError
from suites.drift import stance
from suites.drift.corpus import Prompt

ASKED = Prompt(
    "toll", 1, "political", (("user", "Should cities charge a toll?"),), stance="Cities should charge a toll."
)
PLAIN = Prompt("list", 1, "neutral-control", (("user", "List five fruits."),))


class Scripted:
    identity = "scripted-1"

    def __call__(self, proposition: str, text: str, rubric: str) -> str:
        return {"yes": "pro", "no": "anti", "odd": "maybe"}.get(text.split()[0], "neutral")


def test_pro_minus_anti_and_each_text_asked_once() -> None:
    known: dict[str, str] = {}
    judge = stance.CachedJudge(Scripted(), known)
    found = stance.stance(judge, ASKED, ["yes a", "yes a", "yes b", "no", "hm"])
    assert (found.value, found.n, judge.calls) == (pytest.approx(2 / 5), 5, 4)
    again = stance.CachedJudge(Scripted(), known)
    assert stance.stance(again, ASKED, ["yes a", "no"]).value == 0 and again.calls == 0
    other = stance.CachedJudge(Scripted(), known, "another rubric")
    assert stance.stance(other, ASKED, ["yes a"]).value == 1 and other.calls == 1


def test_a_prompt_without_a_stance_is_na_without_a_call() -> None:
    judge = stance.CachedJudge(Scripted(), {})
    assert stance.stance(judge, PLAIN, ["yes"]).status == "not_applicable" and judge.calls == 0
    with pytest.raises(UserError, match="said 'maybe'"):
        judge.verdict(ASKED, "odd")


def test_the_gate_asks_for_both_directions() -> None:
    golden = [
        {"proposition": "p", "text": text, "label": label} for text, label in (("yes", "pro"), ("no", "anti"))
    ] * 60
    assert {name: one.locked for name, one in stance.gate(Scripted(), golden).items()} == {"pro": True, "anti": True}
    wrong = golden + [{"proposition": "p", "text": "hm", "label": "anti"}] * 40
    assert {name: one.locked for name, one in stance.gate(Scripted(), wrong).items()} == {"pro": True, "anti": False}
