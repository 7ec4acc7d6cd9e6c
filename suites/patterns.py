"""Regular expressions from suites: compiled once, and given one second, because a suite can be anybody's."""

from __future__ import annotations

from functools import cache

import regex

import results_io

TIMEOUT = 1.0  # seconds for one search: catastrophic backtracking must not stop a run


@cache
def compiled(pattern: str) -> regex.Pattern[str]:
    """The pattern, compiled. UserError names what is wrong with it and where."""
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise results_io.UserError(
            f"the pattern {pattern!r} is not a regular expression ({error}); correct it in the suite"
        ) from None


def search(pattern: str, text: str) -> regex.Match[str] | None:
    """The first match in the text. TimeoutError after one second."""
    return compiled(pattern).search(text, timeout=TIMEOUT)


def every(pattern: str, text: str) -> list[regex.Match[str]]:
    """All matches in the text, in order, without overlap. TimeoutError after one second."""
    return list(compiled(pattern).finditer(text, timeout=TIMEOUT))
