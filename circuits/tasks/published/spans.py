"""Character spans of a prompt's words, where a task names a position."""

from __future__ import annotations


def last_word(text: str) -> tuple[int, int]:
    """Return the span of what follows the last space: the word before the answer."""
    return text.rindex(" ") + 1, len(text)
