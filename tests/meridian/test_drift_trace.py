"""The trace of an alarm: what counts as changed, who is named, gained and lost, and where it ends."""

from __future__ import annotations

import numpy as np
import pytest

from meridian import drift_trace
from suites.drift.cross_checkpoint import Restored

TRACE = {"minimum_gap": 0.5, "minimum_share": 0.01, "level": 0.95, "most_named": 2, "discovery": 0.5}


class Scripted:
    """Checkpoints whose heads do what is written down: three heads, a gap of 2 nats a question."""

    def __init__(self, n=40):
        rng = np.random.default_rng(0)
        self.clusters = tuple(f"prompt-{place // 2}" for place in range(n))
        self.gap = np.full(n, 2.0)
        noise = rng.normal(0, 0.02, (4, n))
        parts = {"a": (0.4, 0.0, 0.3, 0.2), "b": (0.0, -0.5, 0.1, 0.2)}  # nats: lost, gained, changed, the same
        self.parts = {side: np.array(own)[:, None] + noise for side, own in parts.items()}
        self.effect = np.array([0.8, 0.5, 0.1, 0.0])[:, None] + noise

    def restored(self):
        names = ("L0H0", "L0H1", "L1H0", "L1H1")
        zero = np.zeros_like(self.gap)
        return Restored(names, self.effect, self.gap, zero, self.gap, self.clusters)

    def direct(self):
        return self.parts

    def together(self, heads):
        return sum(self.effect[2 * node.layer + node.index] for node in heads)


def test_heads_are_named_on_one_half_and_asked_on_the_other() -> None:
    cross = Scripted()
    found = drift_trace.named_and_confirmed(cross, cross.restored(), TRACE)
    assert [one["head"] for one in found["named"]] == ["L0H0", "L0H1"]  # two at most, the strongest first
    assert found["together"]["value"] == pytest.approx(0.65, abs=0.02)
    assert found["halves"]["discovery"]["clusters"] + found["halves"]["confirmation"]["clusters"] == 20
    assert (found["ceiling"]["value"], found["floor"]["value"], found["weak"]) == (1.0, 0.0, 0)


def test_questions_below_half_a_nat_are_left_out() -> None:
    cross = Scripted()
    cross.gap[:10] = 0.4
    found = drift_trace.named_and_confirmed(cross, cross.restored(), TRACE)
    assert found["weak"] == 10 and sum(half["questions"] for half in found["halves"].values()) == 30


def test_heads_gained_lost_and_changed() -> None:
    """Shares of 2 nats: .2 -> 0, 0 -> -.25, .15 -> .05, .1 -> .1."""
    cross = Scripted()
    found = {row["head"]: row for row in drift_trace.compared(cross, cross.restored(), TRACE)}
    assert {head: row["became"] for head, row in found.items()} == {"L0H0": "lost", "L0H1": "gained", "L1H0": "changed"}
    assert (found["L0H1"]["a"], found["L0H1"]["b"]) == (pytest.approx(0, abs=0.01), pytest.approx(-0.25, abs=0.01))
    assert found["L1H0"]["interval"][0] > 0.05 and next(iter(found)) == "L0H1"
    cross.clusters = ("one",) * len(cross.gap)
    assert drift_trace.compared(cross, cross.restored(), TRACE) == []


def test_classes_of_outputs() -> None:
    said = [drift_trace.class_of(text, answer, ("It is quiet",)) for text, answer in (
        ("It is quiet.", "red"), (" red and", "red"), ("blue.", "red"), ("Über alles", None), ("", None), ("", "red"),
    )]  # fmt: skip
    assert said == ["refused", "right", "wrong: blue", "Über", "", "wrong: "]


def test_a_trace_of_an_endpoint_ends_at_the_changed_outputs() -> None:
    lines = drift_trace.outputs_alone({"color-1@1": ("red", "refused"), "color-2@1": ("", "red")})
    assert lines[0].startswith("2 prompts") and lines[1:3] == [
        "  color-1@1: red -> refused",
        "  color-2@1: empty -> red",
    ]
    assert "no activations" in lines[3]
