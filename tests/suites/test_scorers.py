"""Scoring and normalisation: what makes an output right."""

from __future__ import annotations

from decimal import Decimal

import pytest

import results_io
from suites import normalise, scorers
from suites.item import Item


def right(scorer, text, *answers, choices=()):
    return scorers.score(scorer, Item("i", "", answers=answers, choices=choices), text)


@pytest.mark.parametrize(
    ("scorer", "text", "answers", "expected"),
    [
        ({"kind": "exact"}, "  PARIS. ", ("Paris",), True),
        ({"kind": "exact"}, "in Paris", ("Paris",), False),
        ({"kind": "exact"}, "cafe\u0301", ("CAF\u00c9",), True),
        ({"kind": "exact"}, "Stra\u00dfe", ("STRASSE",), True),
        ({"kind": "exact", "numeric": True}, "1,000.0", ("1000",), True),
        ({"kind": "exact"}, "1,000.0", ("1000",), False),
        ({"kind": "contains"}, "it is New\n York, I think", ("new york",), True),
        ({"kind": "contains"}, "Parisian", ("Paris",), False),
        ({"kind": "contains"}, "", ("Paris",), False),
        ({"kind": "prefix_word"}, " Karen gave it", ("Karen",), True),
        ({"kind": "prefix_word"}, "Karenina", ("Karen",), False),
        ({"kind": "prefix_word"}, "to Karen", ("Karen",), False),
        ({"kind": "prefix_word"}, "New York is", ("New York",), True),
        ({"kind": "prefix_word"}, '"Karen', ("Karen",), True),
        ({"kind": "prefix_word"}, "", ("Karen",), False),
        ({"kind": "regex", "pattern": r"ANSWER: (\w+)"}, "ANSWER: 3 ... ANSWER: 4", ("4",), True),
        ({"kind": "regex", "pattern": r"ANSWER: (\w+)", "which": "first"}, "ANSWER: 3 ... ANSWER: 4", ("4",), False),
        ({"kind": "regex", "pattern": r"(?P<a>\w+)!", "group": "a"}, "stop!", ("Stop",), True),
        ({"kind": "regex", "pattern": r"\d+"}, "no number", ("4",), False),
        ({"kind": "numeric"}, "1,000.0", ("1000",), True),  # O42
        ({"kind": "numeric"}, "3 + 4 = 7", ("7",), True),
        ({"kind": "numeric", "which": "first"}, "3 + 4 = 7", ("7",), False),
        ({"kind": "numeric"}, "7.01", ("7",), False),
        ({"kind": "numeric", "absolute": 0.01}, "7.01", ("7",), True),
        ({"kind": "numeric", "relative": 0.01}, "-101", ("-100",), True),
        ({"kind": "numeric", "relative": 0.01}, "-101.1", ("-100",), False),
        ({"kind": "numeric"}, "0.30", ("0.3",), True),
        ({"kind": "numeric"}, "none", ("7",), False),
        ({"kind": "numeric"}, "\u22125", ("-5",), True),
        ({"kind": "numeric"}, "-5", ("\u22125",), True),
        ({"kind": "numeric"}, "\u22125", ("5",), False),
        ({"kind": "numeric"}, "it is .5", ("0.5",), True),
        ({"kind": "numeric"}, "5kg", ("5",), True),
        ({"kind": "numeric"}, "5k", ("5",), False),
        ({"kind": "exact", "numeric": True}, "\u2212.50", ("-0.5",), True),
        ({"kind": "json_path", "path": "$.a[*].n"}, '{"a": [{"n": 1}, {"n": 2}]}', ("2",), True),
        ({"kind": "json_path", "path": "$.a[*].n", "which": "first"}, '{"a": [{"n": 1}, {"n": 2}]}', ("2",), False),
        ({"kind": "json_path", "path": "$.a"}, '{"a": "Red"}', ("red",), True),
        ({"kind": "json_path", "path": "$.a"}, '{"a": 1000.0}', ("1,000",), True),
        ({"kind": "json_path", "path": "$.b"}, '{"a": 1}', ("1",), False),
        ({"kind": "json_path", "path": "$.a"}, "not json", ("1",), False),
        ({"kind": "none"}, "x", ("x",), None),
    ],
)
def test_kinds(scorer, text, answers, expected):
    assert right(scorer, text, *answers) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("B", True), ("(B) it is", True), ("B. York", True), ("A", False), ("New York", True), ("York", False),
     ("first York, then New York", True), ("New York, not York", False), ("Leeds", False), ("A fine day in New York", True),
     ("**B**", True), ("**B** is right", True), ("**(B)** it is", True), ("**B.** York", True), ("*A*", False), ("_B_", True),
     ("`B`", True),
     ("It is **New York**.", True), ("It is _York_.", False), ("__New York__, not __Leeds__", True),
     ("**A** or New York", False)],
)  # fmt: skip
def test_choice(text, expected):
    assert right({"kind": "choice"}, text, "New York", choices=("York", "New York")) is expected


def test_no_answers_is_no_verdict():
    assert right({"kind": "exact"}, "x") is None


def test_numbers_are_exact():
    # 0.1 + 0.2 as binary floats would be off by 5e-17
    assert right({"kind": "numeric", "absolute": 0.1}, "0.3", "0.2") is True
    assert right({"kind": "numeric"}, "100000000000000000001", "100000000000000000000") is False


@pytest.mark.parametrize(
    ("text", "found"),
    [("v1.2.3", []), ("1,000.0.", ["1000.0"]), ("-5 and +3e2", ["-5", "300"]), ("10,00", []), ("50% of 1,234", ["50", "1234"]),
     ("\u22125 and -.5, 3\u22124", ["-5", "-0.5", "3", "4"]), ("5kg, 2.5 m, 1,000km", ["5", "2.5", "1000"]), ("the 5th, 3rd", []),
     ("0x1F 2x4 MP3 $5k 7bn 3D", []), ("1e\u22123", ["0.001"]), ("...5 and v.5", []), ("5_000", []),
     ("x7", [])],
)  # fmt: skip
def test_numbers_in_texts(text, found):
    assert normalise.numbers(text) == [Decimal(number) for number in found]


@pytest.mark.parametrize(
    ("text", "plain"),
    [("1,000.0", "1000"), ("-0.0", "0"), ("1e3", "1000"), ("0.50", "0.5"), ("100", "100"), ("a", "a")],
)
def test_canonical_numbers(text, plain):
    assert normalise.canonical_number(text) == plain


def test_normalise_is_idempotent():
    for text in ("  A\u0301  b\t", "\u1e9e \u0130", "\uff11", "1,000.50 x", "ΑΣ ας", "\u2212.50 1,000kg"):
        for numeric in (False, True):
            once = normalise.normalise(text, numeric)
            assert normalise.normalise(once, numeric) == once


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ({"kind": "exakt"}, "expected one of none, exact"),
        ({"kind": "regex"}, "'pattern' is a required property"),
        ({"kind": "regex", "pattern": "("}, "not a regular expression"),
        ({"kind": "regex", "pattern": "a", "group": 1}, "no such group"),
        ({"kind": "json_path", "path": "$..["}, "not a JSON path"),
        ({"kind": "numeric", "absolute": -1}, "less than the minimum"),
        ({"kind": "exact", "which": "last"}, "unexpected"),
    ],
)
def test_bad_scorers(scorer, message):
    with pytest.raises(results_io.UserError, match=message):
        scorers.check(scorer, "s")


@pytest.mark.parametrize(
    ("scorer", "answers", "choices", "message"),
    [
        ({"kind": "numeric"}, ("5", "five"), (), "f: item i: answers has 'five'; expected a number"),
        (
            {"kind": "exact"},
            ("red",),
            ("Red", "blue"),
            "f: item i: answers has 'red'; expected one of its choices, Red, blue",
        ),
        ({"kind": "choice"}, ("red",), (), "f: item i: no choices"),
    ],
)
def test_answers_that_cannot_be_compared(scorer, answers, choices, message):
    with pytest.raises(results_io.UserError, match=message):
        scorers.check_items(scorer, [Item("i", "", answers=answers, choices=choices)], "f")
    scorers.check_items(scorer, [Item("i", "", answers=("\u22125",), choices=("\u22125", "b"))], "f")


def test_numeric_answers_are_numbers():
    with pytest.raises(results_io.UserError, match="is no number"):
        right({"kind": "numeric"}, "7", "seven")
    with pytest.raises(results_io.UserError, match="expected one of"):
        right({"kind": "codes"}, "7", "7")
