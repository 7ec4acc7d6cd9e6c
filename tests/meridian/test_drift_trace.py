"""The trace of an alarm: what counts as changed, who is named, gained and lost, and where it ends."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import regex

from meridian import drift_classes, drift_trace
from suites.bridge.pair import SuitePairs
from suites.drift import series_record
from suites.drift.corpus import Corpus, Prompt
from suites.drift.cross_checkpoint import Restored
from suites.log import chain
from tests.result_samples import completed
from tests.suites.test_drift_analysis import line, week

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


def test_the_half_that_confirms_has_no_part_in_naming() -> None:
    """Whatever heads restore on the other half, the same heads are named by the same intervals."""
    plain, other = Scripted(), Scripted()
    kept = np.array([drift_trace.corpus.kept_out(b"discovery", one, 0.5) for one in plain.clusters])
    assert all(len(set(kept[np.array(plain.clusters) == one])) == 1 for one in plain.clusters)
    other.effect[:, ~kept] = np.random.default_rng(1).normal(1.0, 0.5, (4, int((~kept).sum())))
    found = [drift_trace.named_and_confirmed(one, one.restored(), TRACE) for one in (plain, other)]
    named = [[(one["head"], one["discovery"], one["interval"]) for one in result["named"]] for result in found]
    assert named[0] == named[1] and found[0]["together"] != found[1]["together"]


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


# --- classes and the suite that holds them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("The capital of Japan is Tokyo.", "Tokyo", "right"),
        ("**Tokyo** is the capital.", "Tokyo", "right"),
        ("Plants take in Carbon\ndioxide from the air.", "carbon dioxide", "right"),
        ("Plants take in carbon from the air.", "carbon dioxide", "wrong: Plants"),
        ("A hexagon has 6 sides.", "six", "right"),
        ("A hexagon has sixty sides, or 16.", "six", "wrong: A"),
        ("The capital is Kyoto.", "Tokyo", "wrong: The"),
        ("I'm sorry, but I can't help with that. Tokyo.", "Tokyo", "refused"),
    ],
)
def test_a_fact_is_right_wherever_a_chat_model_states_it(text, answer, expected) -> None:
    assert drift_trace.class_of(text, answer, ()) == expected


SAID = (
    "It is quiet", "It is quiet.", "it is  quiet today", "It was blue", "It, too, is blue", "red", "Red and blue", "red, red",
    "", "the color is red", "I'm sorry, but I can't help with that.", "I cannot help with that.", "C++ is red", "(red)",
)  # fmt: skip


def passes(expect, text) -> bool:
    """As mode A3 judges a stripped output."""
    found = [[regex.search(one, text.strip()) for one in expect.get(key, ())] for key in ("must", "must_not")]
    return all(found[0]) and not any(found[1])


@pytest.mark.parametrize("answer", [None, "red", "dark red"])
@pytest.mark.parametrize("markers", [(), ("It is quiet",)])
def test_an_output_passes_a_suite_if_it_is_of_the_class_that_the_earlier_one_was(answer, markers) -> None:
    """Every output as the earlier and as the later one: what A3 says is whether the classes are equal."""
    refusal = drift_classes.refusal_pattern(SAID, markers)
    for before in SAID:
        expect = drift_classes.expectation(before, answer, markers, refusal)
        for after in SAID:
            alike = [drift_classes.class_of(one, answer, markers) for one in (before, after)]
            assert passes(expect, after) == (alike[0] == alike[1]), (before, after, expect)


def test_the_suite_asks_as_the_snapshot_did(tmp_path) -> None:
    """The policy of a prompt, whole outputs, the corpus' stops; "It was blue" is no refusal; a sibling has no known fact."""
    prompt = Prompt(
        "word-0", 1, "refusal-boundary", (("system", "Never say blue."), ("user", "Say it.")), answer="blue"
    )
    questions = Corpus("mine", "1", (prompt,), markers=("It is quiet",), stop=(".",), max_tokens=32)
    texts = [
        drift_trace.Change("Say it.", prompt.system, "word-0@1", "refused", "blue", ("It is quiet", "blue")),
        drift_trace.Change("Say this.", prompt.system, "word-0@1", "red", "refused", ("red sea", "It is quiet")),
    ]
    alarm = drift_trace.Alarm("c00000001-0123abcd", "refusal-boundary", "refusal")
    suite = drift_trace.write_suite(tmp_path / "suite", alarm, texts, questions)
    assert [one.system for one in suite.items] == ["Never say blue."] * 2
    assert [(leg.max_tokens, leg.stop, leg.temperature) for leg in suite.legs] == [(32, (".",), 0)]
    first, second = (one.expect for one in suite.items)
    assert [passes(first, text) for text in ("It is quiet", "It was blue", "blue")] == [True, False, False]
    assert [passes(second, text) for text in ("red sea", "red", "blue", "It is quiet")] == [True, True, False, False]


def test_which_prompts_are_asked_depends_on_no_answer(tmp_path) -> None:
    """All three on the axis that the snapshot asked, whether they changed or not; not the one of another axis or snapshot."""
    axes = {"a": "refusal-boundary", "b": "refusal-boundary", "c": "refusal-boundary", "d": "neutral-control"}
    prompts = tuple(Prompt(one, 1, axis, (("user", f"Say {one}."),)) for one, axis in axes.items())
    never = Prompt("e", 1, "refusal-boundary", (("user", "Say e."),))
    questions = Corpus("mine", "1", (*prompts, never), markers=("It is quiet",))
    found = []
    for number, said in enumerate((("red", "red", "red"), ("It is quiet", "red", ""))):
        folder = tmp_path / str(number)
        with chain.Writer(folder / series_record.NAME) as writer:
            rows = [
                line("2026-W22", one, 0, text, axis=axes[one]) for one, text in zip("abcd", (*said, "so"), strict=True)
            ]
            week(writer, "2026-W22", rows, n=len(rows))
        alarm = drift_trace.Alarm("2026-W22", "refusal-boundary", "refusal")
        found.append([prompt.id for prompt in drift_trace.asked_on(folder, alarm, questions)])
    assert found == [["a", "b", "c"]] * 2


@pytest.mark.parametrize(
    ("pairs", "said"), [(19, "needs 20, and none may be chosen by its answer"), (20, "certify it with")]
)
def test_too_few_pairs_are_said_with_what_gives_more(pairs, said, monkeypatch, tmp_path) -> None:
    group = SuitePairs("drift_x", "A3", "", 30, tuple(range(pairs)), (), {"weak (below 0.5 nats)": 30 - pairs})
    for module, name, value in (
        (drift_trace, "write_suite", lambda *given: SimpleNamespace(id="drift_x", sha256="0")),
        (drift_trace.runner, "run", lambda *given, **rest: SimpleNamespace(suites=[None])),
        (drift_trace.pairing, "group", lambda *given: group),
        (drift_trace.stored_pairs, "write", lambda *given: None),
        (drift_trace, "certifying", lambda *given: "certify it with: task=failures"),
    ):
        monkeypatch.setattr(module, name, value)
    model, context = SimpleNamespace(name="m", identity={}), SimpleNamespace(results=tmp_path, seed=0)
    alarm = drift_trace.Alarm("c00000001-0123abcd", "refusal-boundary", "refusal")
    sentence = drift_trace.failures(context, tmp_path, alarm, {"a": model, "b": model}, [], Corpus("mine", "1", ()))
    assert said in sentence and f"{pairs} of 30 failures traceable" in sentence


# --- confirmation and control -----------------------------------------------------------------------------------------


def test_a_head_whose_other_half_covers_nothing_is_not_confirmed() -> None:
    """L0H1 restores .25 where it was named and nothing, or as much the other way, elsewhere; L0H0 restores .4 on both."""
    cross = Scripted()
    kept = [drift_trace.corpus.kept_out(b"discovery", one, 0.5) for one in cross.clusters]
    other = np.flatnonzero(~np.array(kept))
    cross.effect[1, other] = np.where(np.arange(len(other)) // 2 % 2, 1.0, -1.0)
    found = drift_trace.named_and_confirmed(cross, cross.restored(), TRACE)
    assert [(one["head"], one["verdict"]) for one in found["named"]] == [
        ("L0H0", "confirmed"),
        ("L0H1", "not confirmed"),
    ]
    low, high = found["named"][1]["confirmation"]["interval"]
    assert low < 0 < high
    document = completed("170", **found, control=None, control_reason="there is a reason")
    lines = drift_trace.sentences(document)
    assert lines[1].startswith("  L0H0 restores 0.4") and lines[1].endswith("on the other half: confirmed")
    assert lines[2].endswith("on the other half: not confirmed")


def test_intervals_of_the_other_half_hold_all_named_heads_at_once() -> None:
    """With twice as many named heads each has half of the error: a wider interval around the same share."""
    cross, widths = Scripted(), {}
    for most in (1, 2):
        found = drift_trace.named_and_confirmed(cross, cross.restored(), {**TRACE, "most_named": most})
        low, high = found["named"][0]["confirmation"]["interval"]
        assert found["named"][0]["confirmation"]["value"] == pytest.approx(0.4, abs=0.01) and low < 0.4 < high
        widths[most] = high - low
    assert widths[2] / widths[1] > 1.1


def test_why_there_is_no_control_is_said(monkeypatch) -> None:
    for knows, named, said in (
        ("natural language", [{"head": "L0H0"}], "of the embedded model alone"),
        ("embedded", [], "no head is named"),
        ("embedded", [{"head": "L0H0"}], ""),
    ):
        monkeypatch.setattr(drift_trace.models, "identify", lambda _, knows=knows: SimpleNamespace(knows=knows))
        found = drift_trace.control_lacks({}, {"named": named})
        assert said in found and bool(found) == bool(said)
    share = {"value": 0.5, "interval": None}
    head = {"head": "L0H0", "discovery": 0.5, "interval": [0.4, 0.6], "confirmation": share, "verdict": "confirmed"}
    parts = {"named": [head], "together": share, "control_status": "not_applicable", "control_reason": "it is no copy"}
    lines = drift_trace.sentences(completed("170", **parts, control=None))
    assert "  the same heads of a null-tuned copy: none, since it is no copy" in lines
    lines = drift_trace.sentences(completed("170", **parts, control=share))
    assert "  the same heads of a null-tuned copy: 0.50" in lines


@pytest.mark.parametrize("backend", ["lens", "fused"])
def test_the_control_runs_in_the_backend_that_was_asked_for(backend, monkeypatch, tmp_path) -> None:
    """Forty questions with a gap of 2 nats each, of which the heads of the control restore .1."""
    asked = [SimpleNamespace(cluster=f"prompt-{n}") for n in range(40)]
    seen = []

    def opened(a, b, questions, engine="auto"):
        seen.append(engine)
        return SimpleNamespace(together=lambda heads: np.full(len(questions), 0.2))

    for name, value in (
        ("identify", lambda _: SimpleNamespace(knows="embedded")), ("load", lambda settings: settings),
    ):  # fmt: skip
        monkeypatch.setattr(drift_trace.models, name, value)
    monkeypatch.setattr(drift_trace.tuning, "checkpoint", lambda *given: {})
    monkeypatch.setattr(drift_trace, "asked_of", lambda *given: asked)
    monkeypatch.setattr(drift_trace, "gap_of", lambda *given: np.full(40, 2.0))
    monkeypatch.setattr(drift_trace, "CrossCheckpoint", opened)
    model = SimpleNamespace(identity={"weights": "0" * 64})
    found = {"named": [{"head": "L0H0"}]}
    settings = {"trace": TRACE, "tuning": {}}
    share = drift_trace.null_control(tmp_path, {}, found, settings, {"b": model}, [], Corpus("mine", "1", ()), backend)
    assert share is not None and share["value"] == pytest.approx(0.1) and seen == [backend]
