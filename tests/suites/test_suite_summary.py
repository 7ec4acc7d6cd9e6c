"""The summary in the terminal: what fails, what says nothing and why, on 100 columns and in a pipe."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from suites import runner, summary
from suites.bridge.pair import SuitePairs, TracePair
from suites.item import Item
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

GATES = {"low": 0.05, "middle": 0.25, "high": 0.6}


def suites():
    items = [
        Item(f"i{k}", f"a prompt of several words, number {k}, that ends in", answers=(f"word{k}",)) for k in range(40)
    ]
    gated = [
        scripted.suite(items, id=f"a03_gate_{name}", gate={"failure_rate": limit, "reason": "a test"})
        for name, limit in GATES.items()
    ]
    return [
        *gated,
        scripted.suite(items, id="a03_without_a_gate"),
        scripted.suite(items, id="a03_too_small", minimum=60),
        scripted.suite(items[:20], id="a01_chatty", mode="A1", parameters={}, requires=("chat",)),
        scripted.padded({f"question {k}": f"yes{k}" for k in range(30)}, ["well then "], id="a10_padding"),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    script = {}
    for suite in (suites()[0], suites()[-1]):
        for place, item in enumerate(suite.items):
            script[item.prompt] = "forbidden\nagain" if place % 4 == 0 and suite.mode == "A3" else item.answers[0]
    script |= {f"well then question {k}": "no" for k in range(3)}
    del script["question 29"]
    return runner.run(suites(), ScriptedModel(script), tmp_path_factory.mktemp("run"), say=lambda line: None)


def group(suite, mode, failures, pairs, **rejected):
    pair = TracePair("a", "b", "twin", "t", "c", "x", "y", " p", " q", "", (0, 1), {}, 1.0, -1.0)
    reasons = {name.replace("_", " "): count for name, count in rejected.items()}
    return SuitePairs(suite, mode, "title", failures, (pair,) * pairs, (), reasons)


def printed(run, width=100, groups=(), notes=()):
    stream = io.StringIO()
    summary.show(run, Console(file=stream, width=width), groups, notes)
    return stream.getvalue()


def row(text, suite):
    return next(line for line in text.splitlines() if f" {suite} " in line)


def test_one_row_a_suite_with_rate_interval_and_verdict(run):
    text = printed(run)
    # 10 of 40: Wilson [14.2, 40.2] %
    for name, verdict in (("low", "FAIL"), ("middle", "inconclusive"), ("high", "pass")):
        shown = row(text, f"a03_gate_{name}")
        assert "25.0 % [14.2, 40.2]" in shown and verdict in shown and f"{100 * GATES[name]:.0f} %" in shown
        assert "verified" in shown and shown.startswith("A3")
    assert "no gate" in row(text, "a03_without_a_gate")
    assert "insufficient data" in row(text, "a03_too_small")
    assert "not applicable" in row(text, "a01_chatty")


def test_the_reason_of_everything_that_says_nothing_on_a_line_each(run):
    lines = printed(run).splitlines()
    for name, reason in (
        ("a01_chatty", "not applicable: the model takes no system message and no chat turns"),
        ("a03_too_small", "40 judged cases, the suite asks for 60"),
        ("a10_padding", "1 of 60 cases rest on a failed call and are in no rate"),
    ):
        assert [line.split() for line in lines if reason in line] == [[name, *reason.split()]]


def test_coverage(run):
    assert "2 of 16 failure modes have a live suite; nothing is known about A1, A2, A4, A5" in printed(run)


def test_examples_of_failures(run):
    lines = [line.rstrip() for line in printed(run).splitlines()]
    start = next(k for k, line in enumerate(lines) if line.startswith("a10_padding  Padding sensitivity: 3 failed"))
    assert lines[start + 1] == f"  {'well then question 0':56}  {'yes0':18}  no"
    assert lines[start + 2] == "    added 'well then'"
    assert any(line.endswith("forbidden ⏎ again") for line in lines)  # on one line


def test_columns_of_examples_stand_below_each_other(run):
    lines = printed(run).splitlines()
    header = next(line for line in lines if line.startswith("  prompt's end"))
    expected, got = header.index("expected"), header.index("got")
    rows = [line for line in lines if "⏎" in line or line.startswith("  well then question")]
    assert len(rows) == 2 * summary.EXAMPLES
    for line in rows:
        assert line[expected - 1] == line[got - 1] == " " and line[expected] != " " and line[got] != " "


@pytest.mark.parametrize(
    ("original", "changed", "said"),
    [
        ("the guitar is pink", "the gutiar is pink", "changed 'guitar' to 'gutiar'"),
        ("the guitar is pink", "Well, the guitar is pink", "added 'Well,'"),
        ("the guitar is pink", "the guitar pink", "left out 'is'"),
        ("a a", "a a a", "added 'a'"),  # what both begin with is not counted again as what they end with
        ("one two", "three", "changed 'one two' to 'three'"),
        ("the guitar", "the  guitar", "changed in its white space"),
    ],
)
def test_what_was_changed(original, changed, said):
    assert summary._change(original, changed, 40) == said


@pytest.mark.parametrize("text", ["a prompt " * 40, "词" * 200, "é" * 200, "x"])
def test_the_end_of_a_prompt_fills_its_columns(text):
    shown = summary._end(text, 50)
    assert shown == text if len(text) < 50 else 48 <= cell_len(shown) <= 50
    assert text.rstrip().endswith(shown[-10:])


def test_variants_of_one_original_are_shown_once(tmp_path):
    suite = scripted.padded({f"question {k}": f"yes{k}" for k in range(30)}, ["well ", "oh "])
    script = {item.prompt: item.answers[0] if item.variant is None else "no" for item in suite.items}
    found = runner.run([suite], ScriptedModel(script), tmp_path, say=lambda line: None)
    shown = [line for line in printed(found).splitlines() if line.strip().startswith(("well ", "oh "))]
    assert len({line.split()[2] for line in shown}) == len(shown) == summary.EXAMPLES


def test_what_can_be_traced_is_a_table(run):
    groups = [
        group("a03_gate_low", "A3", 40, 0, without_a_passing_twin=40),
        group("a10_padding", "A10", 60, 20, weak=30, aligned=10),
        group("a03_gate_high", "A3", 9, 1),
    ]
    text = printed(run, groups=groups, notes=["Next: python run.py task=failures [bold]"])
    lines = [line.split(maxsplit=4) for line in text.splitlines()]
    start = next(k for k, line in enumerate(lines) if line[:1] == ["Traceable"])
    assert [[cell.strip() for cell in line] for line in lines[start + 2 : start + 5]] == [
        ["a10_padding", "A10", "60", "20", "30 weak"],  # the reason of most
        ["a03_gate_high", "A3", "9", "1*"],
        ["a03_gate_low", "A3", "40", "0", "40 without a passing twin"],
    ]
    assert summary.ANECDOTE in text and "Next: python run.py task=failures [bold]" in text
    assert summary.ANECDOTE not in printed(run, groups=groups[:2])
    assert "Traceable" not in printed(run)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(run, width):
    groups = [group("a10_padding_ioi_one_sentence", "A10", 1440, 177, **{"x" * 120: 9})]
    for line in printed(run, width, groups).splitlines():
        assert len(line) <= min(width, 100) or line.startswith("Record ")  # a path stays whole, to be copied


def test_a_pipe_gets_no_control_characters(run):
    assert "\x1b" not in printed(run)


def test_long_names_stay_readable_at_100_columns(tmp_path):
    name = "a10_padding_ioi_one_sentence_x"
    suite = scripted.padded({f"question {k}": f"yes{k}" for k in range(30)}, ["well "], id=name)
    gated = scripted.suite(
        suite.items,
        id=name,
        mode="A10",
        parameters={},
        scorer={"kind": "exact"},
        gate={"failure_rate": 0.1, "reason": ""},
    )
    script = {item.prompt: item.answers[0] if item.variant is None else "no" for item in suite.items}
    text = printed(runner.run([gated], ScriptedModel(script), tmp_path, say=lambda line: None))
    shown = row(text, name)
    assert "100.0 % [88.6, 100.0]" in shown and "FAIL" in shown and "verified" in shown


def test_variants_are_worth_fewer_cases(tmp_path):
    suite = scripted.padded({f"question {k}": f"yes{k}" for k in range(30)}, ["well ", "oh ", "so ", "now "])
    script = {item.prompt: item.answers[0] for item in suite.items}
    script |= {item.prompt: "no" for item in suite.items if item.variant and int(item.id.split("-")[1]) < 15}
    cells = row(printed(runner.run([suite], ScriptedModel(script), tmp_path, say=lambda line: None)), "padding").split()
    assert cells[2:4] == ["120", "30"]
    assert "50.0 % [33.2, 66.8]" in " ".join(cells)  # Wilson 15/30 by hand; of 60/120 it would be [41.2, 58.8]
