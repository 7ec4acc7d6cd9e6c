"""Verdicts from intervals, the worst of several records, and a record from its two independent halves."""

import json

import pytest

from calibrations.record import Published, Record, decide_above, decide_below, judge, overall, worst_of
from calibrations.statistics import Insufficient

RULE = "above 0.5"


def record(verdict, gating=True):
    return Record("X.m", 1.0, RULE, "pass", verdict, gating=gating)


@pytest.mark.parametrize(
    ("interval", "threshold", "verdict"),
    [
        ((0.6, 0.9), 0.5, "pass"),
        ((0.1, 0.4), 0.5, "fail"),
        ((0.4, 0.6), 0.5, "inconclusive"),
        ((0.5, 0.6), 0.5, "inconclusive"),  # touching the threshold decides nothing
        ((0.4, 0.5), 0.5, "inconclusive"),
        ((-0.2, -0.1), -0.3, "pass"),
        ((0.5, 0.5), 0.5, "inconclusive"),
        ((0.7, 0.7), 0.5, "pass"),
    ],
)
def test_above_from_an_interval(interval, threshold, verdict):
    assert decide_above(interval, threshold) == verdict


@pytest.mark.parametrize(
    ("interval", "threshold", "verdict"),
    [
        ((0.0, 0.05), 0.1, "pass"),
        ((0.2, 0.3), 0.1, "fail"),
        ((0.05, 0.2), 0.1, "inconclusive"),
        ((0.0, 0.1), 0.1, "inconclusive"),
    ],
)
def test_below_from_an_interval(interval, threshold, verdict):
    assert decide_below(interval, threshold) == verdict


@pytest.mark.parametrize("interval", [(0.1, 0.3), (0.1, 0.7), (0.6, 0.7), (0.5, 0.6), (0.2, 0.5)])
def test_below_is_the_mirror_image_of_above(interval):
    low, high = interval
    opposite = {"pass": "fail", "fail": "pass", "inconclusive": "inconclusive"}
    assert decide_below(interval, 0.5) == opposite[decide_above(interval, 0.5)] == decide_above((-high, -low), -0.5)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "inconclusive"], "inconclusive"),
        (["inconclusive", "insufficient", "pass"], "insufficient"),
        (["insufficient", "fail", "inconclusive"], "fail"),
    ],
)
def test_the_worst_gating_record_is_the_verdict(verdicts, expected):
    records = [record(verdict) for verdict in verdicts]
    assert overall(records) == overall(records[::-1]) == expected


def test_records_that_gate_nothing_count_only_among_themselves():
    assert overall([record("pass"), record("fail", gating=False)]) == "pass"
    assert overall([record("pass", gating=False), record("fail", gating=False)]) == "fail"


def test_both_halves_make_one_record():
    made = judge(
        "X.m",
        lambda: Published(0.7, RULE, "pass", "good"),
        lambda: {
            "verdict": "inconclusive",
            "estimate": 0.69,
            "ci90": (0.4, 0.9),
            "reasons": ("wide",),
            "n": {"prompts": 3},
        },
        rule=RULE,
        n={"prompts": 9},
        gating=False,
    )
    assert (made.published_value, made.published_verdict, made.published_label) == (0.7, "pass", "good")
    assert (made.verdict, made.estimate, made.ci90, made.reasons) == ("inconclusive", 0.69, (0.4, 0.9), ("wide",))
    assert (made.n, made.gating, made.p, made.needs) == ({"prompts": 3}, False, None, None)
    assert json.loads(json.dumps(made.to_dict()))["ci90"] == [0.4, 0.9]


def insufficient(reason, detail, needs=None):
    def half():
        raise Insufficient(reason, detail, needs)

    return half


def test_a_published_value_that_does_not_exist_leaves_the_sound_half_alone():
    made = judge("X.m", insufficient("ratio_undefined", "0/0"), lambda: {"verdict": "pass", "estimate": 1.0}, rule=RULE)
    assert (made.published_value, made.published_verdict, made.published_label) == (
        None,
        "none",
        "ratio_undefined: 0/0",
    )
    assert (made.published_rule, made.verdict, made.estimate, made.reasons) == (RULE, "pass", 1.0, ())


def test_what_the_data_cannot_say_is_insufficient_with_reason_and_remedy():
    made = judge(
        "X.m",
        lambda: Published(0.7, RULE, "pass"),
        insufficient("n_prompts", "20 prompts", "about 90 prompts"),
        rule=RULE,
        n={"prompts": 20},
    )
    assert (made.published_value, made.published_verdict) == (0.7, "pass")
    assert (made.verdict, made.estimate, made.p) == ("insufficient", None, None)
    assert (made.reasons, made.needs, made.n) == (("n_prompts: 20 prompts",), "about 90 prompts", {"prompts": 20})


@pytest.mark.parametrize("half", ["published", "decide"])
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), ValueError("x"), KeyError("x")])
def test_a_bug_never_becomes_a_verdict(half, error):
    def broken():
        raise error

    halves = {"published": lambda: Published(1.0, RULE, "pass"), "decide": lambda: {"verdict": "pass"}, half: broken}
    with pytest.raises(type(error)):
        judge("X.m", halves["published"], halves["decide"], rule=RULE)


def test_worst_of():
    assert worst_of("pass", "inconclusive", "fail") == "fail"
    assert worst_of("pass", "inconclusive") == "inconclusive"
    assert worst_of("pass", "pass") == "pass"
