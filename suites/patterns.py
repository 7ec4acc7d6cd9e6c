"""Regular expressions from suites: compiled once within bounds, and given one second, because a suite can be anybody's."""

from __future__ import annotations

import math
from functools import cache

import regex

import results_io

TIMEOUT = 1.0  # seconds for one search: catastrophic backtracking must not stop a run
MOST_CHARACTERS = 2000  # of a pattern; one of 10,000 takes a tenth of a second
MOST_REPEATS = 10_000  # of all counted repeats multiplied: a{99999999} takes 8 GB and half a minute, a{10000} 4 ms
MOST_DIGITS = 9  # of a count
COUNTED = regex.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


@cache
def compiled(pattern: str) -> regex.Pattern[str]:
    """The pattern, compiled. UserError names what is wrong with it and where."""
    try:
        return bounded(pattern)
    except ValueError as error:
        raise results_io.UserError(
            f"the pattern {shown(pattern)} is not a regular expression ({error}); correct it in the suite"
        ) from None


def bounded(pattern: str) -> regex.Pattern[str]:
    """The pattern, compiled in a tenth of a second at most. ValueError, with the reason, for one that is none or too large."""
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(pattern)} characters, and {MOST_CHARACTERS} are allowed")
    if (repeats := _repeats(pattern)) > MOST_REPEATS:
        raise ValueError(f"it counts up to {repeats:.3g} repeats, and {MOST_REPEATS} are allowed")
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(str(error)) from None
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"it is nested too deep or counts too far: {error}") from None


def _repeats(pattern: str) -> float:
    """The largest counts of all {n}, {n,} and {n,m} multiplied: at least as many as there are if they are inside each other."""
    counts = (max(map(_count, found)) for found in COUNTED.findall(pattern))
    return math.prod(max(1.0, count) for count in counts)


def _count(digits: str) -> float:
    return math.inf if len(digits) > MOST_DIGITS else float(digits or 1)


def shown(pattern: str) -> str:
    """A pattern in a sentence."""
    return repr(pattern) if len(pattern) <= 80 else f"{pattern[:80]!r}..."


def search(pattern: str, text: str) -> regex.Match[str] | None:
    """The first match in the text. TimeoutError after one second."""
    return compiled(pattern).search(text, timeout=TIMEOUT)


def every(pattern: str, text: str) -> list[regex.Match[str]]:
    """All matches in the text, in order, without overlap. TimeoutError after one second."""
    return list(compiled(pattern).finditer(text, timeout=TIMEOUT))
