"""Perturbations of prompts: typing slips (A9), padding (A10), another template (A11), with the spans moved along.

Except for new templates, each is a list of edits that `apply` carries out. All are pure functions: the same text, spans,
parameters and seed give the same result on every machine (`random.Random` seeds from the sha512 of a text).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from circuits.tasks.example import fill

Spans = Mapping[str, tuple[int, int]]
Slip = Literal["swap", "drop", "double", "neighbour"]
Unit = Literal["char", "word"]
Place = Literal["front", "between", "end"]

WORD = re.compile(r"\w+(?:['’-]\w+)*")
SENTENCE_GAP = re.compile(r"(?<=[.!?:]) +")
MINIMUM_LETTERS = 4  # of a word that gets a slip: a slip in a shorter one often gives another word
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
WHITESPACE = {"spaces": "   ", "newlines": "\n\n", "tabs": "\t"}


@dataclass(frozen=True)
class Edit:
    """Characters [start, end) of a text become `new`; `start == end` inserts."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class SpannedText:
    """A text with its named character spans."""

    text: str
    spans: Spans

    def __getitem__(self, name: str) -> str:
        start, end = self.spans[name]
        return self.text[start:end]


def apply(source: SpannedText, edits: Iterable[Edit]) -> SpannedText:
    """The text after all edits; every span still covers the same characters.

    ValueError for edits that overlap each other or change a character of a span.
    """
    edits = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for first, second in itertools.pairwise(edits):
        if second.start < first.end:
            raise ValueError(f"the edits {first} and {second} overlap")
    for edit in edits:
        for name, (start, end) in source.spans.items():
            if (edit.start < end and start < edit.end) or start < edit.start < end:
                raise ValueError(f"{edit} changes the span {name!r}, {source[name]!r}")
    text, at = "", 0
    for edit in edits:
        text += source.text[at : edit.start] + edit.new
        at = edit.end
    moved = {
        name: (start + _shift(edits, start), end + _shift(edits, start)) for name, (start, end) in source.spans.items()
    }
    return SpannedText(text + source.text[at:], moved)


def typo(
    source: SpannedText, slip: Slip, unit: Unit, rate: float, seed: str, protected: Sequence[str] | None = None
) -> SpannedText:
    """`source` with typing slips in a share `rate` of its words (at least one), outside the protected spans.

    Unit "char", in words of four letters and more: two neighbours swapped, a letter dropped, doubled, or replaced by its
    neighbour on a US keyboard. Unit "word": two words swapped, one dropped or doubled. `protected` names spans; None: all.
    ValueError if no word can take the slip, for unit "word" with slip "neighbour", and for a rate outside (0, 1].
    """
    if unit == "word" and slip == "neighbour":
        raise ValueError("a word has no neighbour on the keyboard; expected swap, drop or double")
    if not 0 < rate <= 1:
        raise ValueError(f"the rate is {rate}; expected a share above 0 and at most 1")
    rng = random.Random(f"{slip}/{unit}/{rate}/{seed}/{source.text}")
    spans = {name: span for name, span in source.spans.items() if protected is None or name in protected}
    places = _char_edits(source.text, spans, slip, rng) if unit == "char" else _word_edits(source.text, spans, slip)
    if not places:
        raise ValueError(f"no word of {source.text!r} outside of the protected spans can take a {slip} of a {unit}")
    count = max(1, round(rate * len(places)))
    chosen: list[Edit] = []
    for edit in rng.sample(places, len(places)):
        if len(chosen) < count and all(edit.end <= other.start or other.end <= edit.start for other in chosen):
            chosen.append(edit)
    return apply(SpannedText(source.text, spans), chosen)


def pad(source: SpannedText, filler: str, place: Place = "front") -> SpannedText:
    """`source` with filler sentences in front, in its first gap between sentences, or at its end; they are the span "filler".

    ValueError for "between" if the text has a single sentence or the gap lies inside a span.
    """
    if place == "front":
        edit, at = Edit(0, 0, f"{filler} "), 0
    elif place == "end":
        edit, at = Edit(len(source.text), len(source.text), f" {filler}"), len(source.text) + 1
    else:
        gap = SENTENCE_GAP.search(source.text)
        if gap is None:
            raise ValueError(f"{source.text!r} has no gap between sentences; expected two of them, or another place")
        edit, at = Edit(gap.end(), gap.end(), f"{filler} "), gap.end()
    padded = apply(source, [edit])
    return SpannedText(padded.text, {**padded.spans, "filler": (at, at + len(filler))})


def whitespace(source: SpannedText, kind: str, place: Place) -> SpannedText:
    """`source` with a run of spaces, empty lines or a tab: in front, at the end, or in each gap of words outside the spans."""
    run = WHITESPACE[kind]
    if place == "front":
        return apply(source, [Edit(0, 0, run)])
    if place == "end":
        return apply(source, [Edit(len(source.text), len(source.text), run)])
    gaps = [match.span() for match in re.finditer(r"(?<=\S) (?=\S)", source.text)]
    outside = [gap for gap in gaps if not _touches(gap, source.spans)]
    return apply(source, [Edit(start, end, run) for start, end in outside])


def template_change(frame: str, words: Mapping[str, str], roles: Mapping[str, str]) -> SpannedText:
    """The same words in another frame; `roles` names the slots that become spans: {span: slot}."""
    text, spans = fill(frame, **words)
    return SpannedText(text, {role: spans[slot] for role, slot in roles.items() if slot in spans})


def _shift(edits: Sequence[Edit], position: int) -> int:
    return sum(len(edit.new) - (edit.end - edit.start) for edit in edits if edit.end <= position)


def _touches(span: tuple[int, int], spans: Spans) -> bool:
    return any(span[0] < end and start < span[1] for start, end in spans.values())


def _char_edits(text: str, spans: Spans, slip: Slip, rng: random.Random) -> list[Edit]:
    """One slip for every word that is long enough and outside the spans, if it changes the word."""
    edits = []
    for word in WORD.finditer(text):
        if len(word.group()) < MINIMUM_LETTERS or _touches(word.span(), spans):
            continue
        options = [edit for place in range(*word.span()) if (edit := _char_edit(text, place, word.end(), slip, rng))]
        if options:
            edits.append(rng.choice(options))
    return edits


def _char_edit(text: str, place: int, end: int, slip: Slip, rng: random.Random) -> Edit | None:
    letter = text[place]
    if slip == "drop":
        return Edit(place, place + 1, "")
    if slip == "double":
        return Edit(place, place + 1, letter * 2)
    if slip == "swap":
        if place + 1 < end and text[place + 1] != letter:
            return Edit(place, place + 2, text[place + 1] + letter)
        return None
    near = _neighbours(letter.lower())
    if not near:
        return None
    new = rng.choice(near)
    return Edit(place, place + 1, new.upper() if letter.isupper() else new)


def _neighbours(letter: str) -> list[str]:
    """Keys beside a letter on its row of a US keyboard, and the nearest on the rows above and below."""
    for row, keys in enumerate(KEYBOARD):
        column = keys.find(letter)
        if column >= 0:
            around = [(row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column)]
            return [KEYBOARD[r][c] for r, c in around if 0 <= r < len(KEYBOARD) and 0 <= c < len(KEYBOARD[r])]
    return []


def _word_edits(text: str, spans: Spans, slip: Slip) -> list[Edit]:
    """Every slip of a whole word outside the spans; the last word stays, because the answer continues it."""
    words = list(WORD.finditer(text))[:-1]
    free = [not _touches(word.span(), spans) for word in words]
    edits = []
    for place, word in enumerate(words):
        if not free[place]:
            continue
        if slip == "double":
            edits.append(Edit(word.start(), word.end(), f"{word.group()} {word.group()}"))
        elif slip == "drop" and text[word.end() : word.end() + 1] == " ":
            edits.append(Edit(word.start(), word.end() + 1, ""))
        elif slip == "swap" and place + 1 < len(words) and free[place + 1]:
            after = words[place + 1]
            if text[word.end() : after.start()] == " " and word.group() != after.group():
                edits.append(Edit(word.start(), after.end(), f"{after.group()} {word.group()}"))
    return edits
