"""The summary in the terminal: what fails, what says nothing and why, on 100 columns and in a pipe."""

import io

import pytest
from rich.console import Console

from suites import runner, summary
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


def printed(run, width=100, traceable=()):
    stream = io.StringIO()
    summary.show(run, Console(file=stream, width=width), traceable)
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


def test_the_reason_of_everything_that_says_nothing(run):
    text = " ".join(printed(run).split())
    assert "a01_chatty: not applicable: the model takes no system message and no chat turns" in text
    assert "a03_too_small: 40 judged cases, the suite asks for 60" in text
    assert "a10_padding: 1 of 60 cases rest on a failed call and are in no rate" in text


def test_coverage(run):
    assert "2 of 15 failure modes have a live suite; nothing is known about A1, A2, A4, A5" in printed(run)


def test_examples_of_failures(run):
    text = printed(run)
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("a10_padding  Padding sensitivity: 3 failed"))
    assert lines[start + 1].strip() == "well then question 0"
    assert lines[start + 2].strip() == "expected yes0  got no"
    assert "got forbidden ⏎ again" in text  # on one line


def test_variants_of_one_original_are_shown_once(tmp_path):
    suite = scripted.padded({f"question {k}": f"yes{k}" for k in range(30)}, ["well ", "oh "])
    script = {item.prompt: item.answers[0] if item.variant is None else "no" for item in suite.items}
    found = runner.run([suite], ScriptedModel(script), tmp_path, say=lambda line: None)
    shown = [line for line in printed(found).splitlines() if line.strip().startswith(("well ", "oh "))]
    assert len({line.split()[-1] for line in shown}) == len(shown) == summary.EXAMPLES


def test_the_lines_of_the_bridge(run):
    lines = ["a10_padding: 3 of 3 failures traceable [bold]", "  leads to head 2.1"]
    text = printed(run, traceable=lines)
    assert all(line in text for line in lines)
    assert "Traceable" not in printed(run)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(run, width):
    for line in printed(run, width).splitlines():
        assert len(line) <= width or line.startswith("Record ")  # a path stays whole, to be copied


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
