"""Perturbations: what changes, what stays, and that it is the same on every machine."""

import random
import re

import pytest

from suites import perturbations
from suites.perturbations import Edit, SpannedText, apply, pad, template_change, typo, whitespace

PROMPT = "When Mary and John went to the store, John gave a drink to"
NAMED = {"io": (5, 9), "s1": (14, 18), "s2": (38, 42), "end": (56, 58)}
SOURCE = SpannedText(PROMPT, NAMED)
SLIPS = [("swap", "char"), ("drop", "char"), ("double", "char"), ("neighbour", "char")]
SLIPS += [("swap", "word"), ("drop", "word"), ("double", "word")]


def named(text: SpannedText) -> dict[str, str]:
    return {name: text[name] for name in text.spans}


def twin(text: str, edits: list[Edit]) -> str:
    """The edits carried out one by one from the end, where earlier positions do not move."""
    for edit in sorted(edits, key=lambda each: -each.start):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def test_spans_hold_the_words_they_name():
    assert named(SOURCE) == {"io": "Mary", "s1": "John", "s2": "John", "end": "to"}


def test_apply_equals_edits_from_the_end_and_moves_every_span():
    rng = random.Random(0)
    free = [i for i in range(len(PROMPT)) if not any(start - 1 <= i <= end for start, end in NAMED.values())]
    for _ in range(300):
        starts = sorted(rng.sample(free, 4))
        edits = [Edit(start, start + rng.randrange(2), rng.choice(["", "x", "xyz"])) for start in starts]
        changed = apply(SOURCE, edits)
        assert changed.text == twin(PROMPT, edits)
        assert named(changed) == named(SOURCE)


@pytest.mark.parametrize("edit", [Edit(5, 6, "x"), Edit(4, 6, ""), Edit(7, 7, "x"), Edit(3, 12, "x")])
def test_an_edit_of_a_span_is_refused(edit):
    with pytest.raises(ValueError, match="'io', 'Mary'"):
        apply(SOURCE, [edit])


def test_an_insertion_beside_a_span_is_none_of_its_characters():
    assert apply(SOURCE, [Edit(5, 5, "x")]).spans["io"] == (6, 10)
    assert apply(SOURCE, [Edit(9, 9, "x")]).spans["io"] == (5, 9)


def test_overlapping_edits_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        apply(SOURCE, [Edit(0, 3, "a"), Edit(2, 4, "b")])


@pytest.mark.parametrize(("slip", "unit"), SLIPS)
def test_slips_change_the_text_and_nothing_that_is_named(slip, unit):
    for seed in range(50):
        changed = typo(SOURCE, slip, unit, 0.3, str(seed))
        assert changed.text != PROMPT
        assert named(changed) == named(SOURCE)
        assert changed.text.endswith(" to")
        assert changed == typo(SOURCE, slip, unit, 0.3, str(seed))


@pytest.mark.parametrize(
    ("slip", "letters", "words"), [("swap", 0, 0), ("drop", -1, 0), ("double", 1, 0), ("neighbour", 0, 0)]
)
def test_a_letter_slip_has_its_arithmetic(slip, letters, words):
    """At the smallest rate one word slips: by one letter more, one less, or as many."""
    changed = typo(SOURCE, slip, "char", 0.01, "0").text
    assert len(changed) - len(PROMPT) == letters
    assert len(changed.split()) - len(PROMPT.split()) == words
    assert sum(a != b for a, b in zip(changed.split(), PROMPT.split(), strict=True)) == 1


@pytest.mark.parametrize(("slip", "words"), [("swap", 0), ("drop", -1), ("double", 1)])
def test_a_word_slip_has_its_arithmetic(slip, words):
    changed = typo(SOURCE, slip, "word", 0.01, "0").text
    assert len(changed.split()) - len(PROMPT.split()) == words
    if slip == "swap":
        assert sorted(re.findall(r"\w+", changed)) == sorted(re.findall(r"\w+", PROMPT))


def test_the_rate_is_the_share_of_words_that_slip():
    """Ten words of eight letters, none named: rate r gives exactly 10 r words that differ."""
    text = " ".join(["abcdefgh", "bcdefghi", "cdefghij", "defghijk", "efghijkl"] * 2)
    for rate, expected in [(0.1, 1), (0.3, 3), (0.5, 5), (1.0, 10)]:
        changed = typo(SpannedText(text, {}), "swap", "char", rate, "0").text
        assert sum(a != b for a, b in zip(changed.split(), text.split(), strict=True)) == expected


def test_a_neighbour_is_a_key_beside_the_letter():
    assert perturbations._neighbours("a") == ["s", "q", "z"]
    assert perturbations._neighbours("g") == ["f", "h", "t", "b"]
    assert perturbations._neighbours("7") == []


def test_slips_that_no_word_can_take_are_refused():
    with pytest.raises(ValueError, match="no word"):
        typo(SpannedText("a to", {}), "swap", "char", 0.5, "0")
    with pytest.raises(ValueError, match="keyboard"):
        typo(SOURCE, "neighbour", "word", 0.5, "0")
    for rate in (0, 1.5):
        with pytest.raises(ValueError, match="share above 0"):
            typo(SOURCE, "drop", "char", rate, "0")


def test_only_the_protected_spans_are_protected():
    """With one word to slip and only it unprotected, the slip hits it; protected, nothing is left."""
    source = SpannedText("Mary saw it", {"name": (0, 4)})
    assert typo(source, "double", "char", 1, "0", protected=()).text != "Mary saw it"
    with pytest.raises(ValueError, match="no word"):
        typo(source, "double", "char", 1, "0")


def test_the_same_slip_on_every_machine():
    """Frozen values: a change of Python's random streams or of the hash seed would show here."""
    assert typo(SOURCE, "swap", "char", 0.3, "0").text == FROZEN_CHAR
    assert typo(SOURCE, "swap", "word", 0.3, "0").text == FROZEN_WORD


def test_padding_stands_where_it_should():
    filler = "It was a long meal in May."
    front, end = pad(SOURCE, filler, "front"), pad(SOURCE, filler, "end")
    assert front.text == f"{filler} {PROMPT}"
    assert end.text == f"{PROMPT} {filler}"
    two = pad(SpannedText("It is late. Go to", {"end": (15, 17)}), filler, "between")
    assert two.text == f"It is late. {filler} Go to"
    assert (two["end"], two["filler"]) == ("to", filler)
    for padded in (front, end):
        assert named(padded) == {**named(SOURCE), "filler": filler}
    with pytest.raises(ValueError, match="two of them"):
        pad(SOURCE, filler, "between")


@pytest.mark.parametrize("kind", sorted(perturbations.WHITESPACE))
@pytest.mark.parametrize("place", ["front", "between", "end"])
def test_white_space_leaves_the_words(kind, place):
    changed = whitespace(SOURCE, kind, place)
    assert changed.text != PROMPT
    assert changed.text.split() == PROMPT.split()
    assert named(changed) == named(SOURCE)


def test_another_template_has_the_same_words():
    words = {"first": "Mary", "second": "John", "end": "to"}
    roles = {"io": "first", "s1": "second", "end": "end", "absent": "nowhere"}
    changed = template_change("{second} met {first} and spoke {end}", words, roles)
    assert changed.text == "John met Mary and spoke to"
    assert named(changed) == {"io": "Mary", "s1": "John", "end": "to"}


FROZEN_CHAR = "When Mary and John ewnt to the store, John gaev a drink to"
FROZEN_WORD = "When Mary and John to went the store, John a gave drink to"
