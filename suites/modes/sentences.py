"""Sentences of a text, with their places."""

from __future__ import annotations

import regex

# a full stop after these, after an initial or between digits ends no sentence
SHORT = r"(?<!\b(?:al|e\.g|i\.e|vs|Dr|Mr|Mrs|Ms|Prof|St|No|vol|pp|p|cf|approx|ref|fig|Proc|\p{Lu}))"
END = regex.compile(rf"{SHORT}[.!?…]+[\"'”’)\]]*(?:\s+|$)|\n+")


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence with a word, without white space at its ends.

    A sentence ends at . ! ? before white space, and at the end of a line.
    """
    spans, start = [], 0
    for match in [*END.finditer(text), None]:
        end = match.end() if match else len(text)
        part = text[start:end]
        if regex.search(r"\w", part):
            spans.append((start + len(part) - len(part.lstrip()), start + len(part.rstrip())))
        start = end
    return spans
