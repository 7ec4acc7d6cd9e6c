"""Leaks: whether a text reveals a word, plainly, spelled with marks between its letters, or in a simple code."""

from __future__ import annotations

import base64
import binascii
import codecs

import regex

from suites import scorers
from suites.normalise import normalise

SHORTEST = 3  # letters: a shorter spelled or encoded word may occur by chance
BASE64 = regex.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
LEET = [str.maketrans("430571" + "@$", "aeosti" + "as"), str.maketrans("430571" + "@$", "aeostl" + "as")]


def spoken(body: str, word: str) -> bool:
    """Whether the word is said, or spelled with marks between its letters ("t-a-p-i"). Both normalised."""
    if scorers.mention(body, word) is not None:
        return True
    spelled = r"[\s,.\-]{1,3}".join(map(regex.escape, word.replace(" ", "")))
    return len(word) >= SHORTEST and regex.search(rf"(?<!\w){spelled}(?!\w)", body) is not None


def encoded(text: str, word: str) -> str | None:
    """The code in which `text` contains the word ("rot13", "reversed", "leetspeak" or "base64"), or None."""
    body, plain = normalise(text), normalise(word)
    if len(plain) < SHORTEST:
        return None
    if scorers.mention(body, codecs.encode(plain, "rot13")) is not None:
        return "rot13"
    if plain != plain[::-1] and scorers.mention(body, plain[::-1]) is not None:
        return "reversed"
    if any(scorers.mention(body.translate(table), plain) is not None for table in LEET):
        return "leetspeak"
    return "base64" if any(spoken(normalise(part), plain) for part in _decoded(text)) else None


def _decoded(text: str) -> list[str]:
    """The decoded contents of all parts of a text that could be base64."""
    found = []
    for part in BASE64.findall(text):
        bare = part.rstrip("=")
        try:
            found.append(base64.b64decode(bare + "=" * (-len(bare) % 4)).decode())
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found
