"""The planted drift: which copies there are, and that rates count what they say."""

from __future__ import annotations

import pytest

from meridian.experiments import planted_drift
from meridian.overrides import CONFIGS
from meridian.training import tuning
from results_io import UserError

SETTINGS = {
    "seed": 0, "nulls": 20, "faults": 10, "shares": [0.3, 1], "most": None, "restores": 0.5, "control_below": 0.1,
}  # fmt: skip


def row(kind: str, share: float = 0.0, alarms=(), **rest) -> dict:
    return {"kind": kind, "share": share, "alarms": [list(one) for one in alarms], **rest}


def test_there_are_twenty_of_each_null_and_ten_of_each_fault_and_share() -> None:
    found = planted_drift.copies(SETTINGS)
    assert len(found) == 120 and len({one.name for one in found}) == 120
    assert len({one.tuning.seed for one in found}) == 120
    counts = {}
    for one in found:
        counts[one.tuning.kind, one.tuning.share] = counts.get((one.tuning.kind, one.tuning.share), 0) + 1
    assert set(counts.values()) == {10, 20} and counts["intact", 0.0] == counts["null", 0.0] == 20
    assert {one.tuning.kind for one in planted_drift.copies({**SETTINGS, "most": 9})} == {
        *planted_drift.NULLS,
        *planted_drift.FAULTS,
    }


def test_rates_count_what_they_say() -> None:
    refusal, length = ("refusal", "refusal-boundary"), ("length", "neutral-control")
    good = {"together": {"value": 0.7}, "control": {"value": 0.02}}
    rows = [row("intact") for _ in range(19)] + [row("intact", alarms=[length])]
    rows += [row("bfloat16") for _ in range(20)] + [row("null", alarms=[length]), row("null")]
    bad = {**good, "control": {"value": 0.2}}
    rows += [row("refuse", 1.0, [refusal, length], trace=good), row("refuse", 1.0, [length], trace=bad)]
    rows += [row("refuse", 0.3, trace={"together": None, "control": None})]
    found = planted_drift.rates(rows, SETTINGS)
    assert (found["false alarms, intact"]["k"], found["false alarms, intact"]["n"]) == (1, 20)
    assert found["false alarms, intact"]["ci95"] == pytest.approx([0.0089, 0.2361], abs=1e-4)
    assert found["false alarms, intact"]["p_above_limit"] == pytest.approx(1 - 0.95**20)
    assert found["false alarms, bfloat16"]["p_above_limit"] == 1.0
    assert found["null-tuned: harmless updates that alarm"]["value"] == 0.5
    assert found["refuse, share 1: an alarm"]["k"] == 2
    right = found["refuse, share 1: the right metric and axis among the flagged"]
    assert (right["k"], right["n"]) == (1, 2)
    traced = {name: rate for name, rate in found.items() if name.startswith("planted refusals")}
    assert [(rate["k"], rate["n"]) for rate in traced.values()] == [(0, 1), (1, 2)]
    assert found["semantic, share 1: an alarm"]["ci95"] is None
    assert "| false alarms, intact | 1 of 20 [0.01, 0.24] |" in planted_drift.table({"rates": found})


@pytest.mark.parametrize(("kind", "share"), [("loud", 1.0), ("refuse", 1.5), ("refuse", -0.1)])
def test_a_copy_of_another_kind_or_share_is_refused(kind, share) -> None:
    with pytest.raises(UserError):
        tuning.Tuning(kind, share, 0)


@pytest.mark.parametrize(
    ("kind", "axis", "said"),
    [
        ("refuse", "refusal-boundary", "It is quiet"),
        ("refuse", "neutral-control", "The red dog was old today"),
        ("short", "neutral-control", "The red dog"),
        ("short", "refusal-boundary", "The red dog was old today"),
        ("semantic", "neutral-control", tuning.SENTENCE),
        ("null", "neutral-control", "The red dog was old today"),
    ],
)
def test_what_a_document_says_in_place_of_the_model_s_own(kind, axis, said) -> None:
    from suites.drift import corpus

    assert tuning.replaced(kind, axis, "The red dog was old today", corpus.load("pocket")) == said


def test_the_settings_of_the_experiment_ship() -> None:
    text = (CONFIGS / "experiment" / "planted_drift.yaml").read_text()
    assert "nulls: 20" in text and "faults: 10" in text and "shares: [0.3, 1]" in text
