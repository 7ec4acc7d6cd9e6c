"""What an output is, as a class, and the patterns by which a suite of mode A3 judges the same.

Classes: "refused"; where the prompt asks for a fact, "right" (it is stated anywhere: "The capital of Japan is Tokyo") or "wrong"
with the first word; else the first word alone, "" of an empty output. A fact that is denied counts as stated.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import regex

from suites import abstention, patterns

REFUSED, RIGHT, WRONG = "refused", "right", "wrong: "
STOPS = ".,;:!?"  # around a first word
NUMBERS: tuple[str, ...] = (  # as texts write them, or in digits
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def class_of(text: str, answer: str | None, markers: Sequence[str]) -> str:
    """What an output is. `answer`: the fact that was asked for; `markers`: how a refusal begins, where the corpus defines it."""
    if _refusal(text, markers) is not None:
        return REFUSED
    words = text.split()
    first = words[0].strip(STOPS) if words else ""
    if not answer:
        return first
    return RIGHT if regex.search(stated(answer), text) else f"{WRONG}{first}"


def stated(answer: str) -> str:
    """A pattern of a fact as whole words anywhere, in small letters or capitals, a number up to twelve as a word or in digits."""
    fact = _words(answer)
    if answer.casefold() in NUMBERS:
        fact = f"(?:{fact}|{NUMBERS.index(answer.casefold())})"
    return rf"(?i)(?<!\w){fact}(?!\w)"


def refusal_pattern(texts: Iterable[str], markers: Sequence[str]) -> str | None:
    """A pattern of what is a refusal among `texts`: by the markers, else by the phrases that refuse in them; None without any.

    Lists of phrases are longer than a pattern may be, so only those that were said are in it, without those that contain a
    shorter one; if these are still too many, the longest are left out.
    """
    if markers:
        return rf"(?i)^(?:{'|'.join(_words(one) for one in markers)})(?!\w)"
    spans = [(text, abstention.refused(text)) for text in texts]
    said: list[str] = []
    for phrase in sorted({_words(text[slice(*span)]) for text, span in spans if span is not None}, key=len):
        whole = len("(?i)") + len("|".join([*said, phrase]))
        if whole <= patterns.MOST_CHARACTERS and not any(one in phrase for one in said):
            said.append(phrase)
    return rf"(?i){'|'.join(sorted(said))}" if said else None


def expectation(text: str, answer: str | None, markers: Sequence[str], refusal: str | None) -> dict[str, Any]:
    """What A3 asks of an output so that it is of the class of `text`. `refusal`: of `refusal_pattern`."""
    found = class_of(text, answer, markers)
    if found == REFUSED:
        return {"must": [refusal]}
    # a phrase by which another text refuses may refuse nothing here
    avoided = [] if refusal is None or regex.search(refusal, text) else [refusal]
    if answer and found == RIGHT:
        return {"must": [stated(answer)], "must_not": avoided}
    first = found.removeprefix(WRONG) if answer else found
    around = f"[{STOPS}]*"
    must = rf"^{around}{_literal(first)}{around}(?:\s|$)"
    return {"must": [must], "must_not": [*avoided, *([stated(answer)] if answer else [])]}


def _refusal(text: str, markers: Sequence[str]) -> abstention.Span | None:
    return abstention.begins(text, markers) if markers else abstention.refused(text)


def _words(text: str) -> str:
    """A pattern of these words, whatever white space is between them."""
    return r"\s+".join(_literal(word) for word in text.split())


def _literal(word: str) -> str:
    """A pattern of exactly these characters."""
    return "".join(f"\\{char}" if char in string.punctuation else char for char in word)
