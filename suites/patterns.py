"""Regular expressions from suites, which are untrusted: compiled once within bounds, and searched for one second at most.

The compiler expands a{1000} a thousand times, and its time can grow with the square of that: (){10000} takes 1 to 10 seconds. A
pattern is therefore refused if it is too long or its counts are too large. One with large counts is first compiled in a separate
process with limits on memory and CPU time.

A search has no memory bound, but a time bound: a pattern that backtracks catastrophically, as (a+)+$ may, raises TimeoutError
after TIMEOUT seconds of CPU time per text. The caller decides what happens to that text: an output gets no judgement or no
coordinate, and a text that a redaction could not search is not recorded.
"""

from __future__ import annotations

import math
import string
import subprocess
import sys
from functools import cache

import regex

import results_io

TIMEOUT = 1.0  # CPU seconds for one search: catastrophic backtracking must not stop a run
MOST_CHARACTERS = 2000  # of a pattern; one of 10,000 takes a tenth of a second
MOST_REPEATS = 10_000  # product of all counts: a{99999999} takes 8 GB and half a minute, a{10000} 4 ms
MOST_DIGITS = 9  # of a count
TRIED_FROM = 2000  # characters with all repeats expanded: the length of the longest pattern without counts
TRIAL_SECONDS, TRIAL_MIB, TRIAL_WAIT = 1, 256, 30.0  # CPU seconds and address space to compile; wall-clock seconds
TRIAL = """
import sys
try:
    import resource
    seconds, size = int(sys.argv[1]), int(sys.argv[2]) << 20
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
except ImportError:  # not on Windows, where the wait is the only limit
    resource = None
import regex
pattern = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
if resource:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + seconds, int(used) + 2 + seconds))
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    regex.compile(pattern)
except (regex.error, ValueError, RecursionError, OverflowError):
    pass  # said where it is compiled for use
"""


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
    """The pattern, compiled in about a second at most. ValueError, with the reason, if it is invalid or too large."""
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(pattern)} characters, and {MOST_CHARACTERS} are allowed")
    if (repeats := _repeats(pattern)) > MOST_REPEATS:
        raise ValueError(f"it counts up to {repeats:.3g} repeats, and {MOST_REPEATS} are allowed")
    if repeats * len(pattern) > TRIED_FROM and not _can_be_compiled(pattern):
        raise ValueError(f"compiling it takes more than {TRIAL_SECONDS} s or {TRIAL_MIB} MiB; count to less")
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(str(error)) from None
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"it is nested too deep or counts too far: {error}") from None


def _can_be_compiled(pattern: str) -> bool:
    """Whether a process with limits finishes. It also finishes on an invalid pattern, whose error the caller then raises."""
    line = [sys.executable, "-I", "-c", TRIAL, str(TRIAL_SECONDS), str(TRIAL_MIB)]
    given = pattern.encode("utf-8", "surrogatepass")
    try:
        return subprocess.run(line, input=given, capture_output=True, timeout=TRIAL_WAIT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _repeats(pattern: str) -> float:
    """Product of the smaller counts of all {n}, {n,} and {n,m}: an upper bound on the copies that the compiler makes.

    Optional repeats are not expanded, so the larger counts cost nothing. Flags do not matter: white space and comments among the
    digits, which only (?x) allows, are always accepted. A brace that repeats nothing (in a comment or a set, or after a
    backslash) counts too.
    """
    return math.prod(_least(pattern, at + 1) for at, sign in enumerate(pattern) if sign == "{")


def _least(pattern: str, at: int) -> float:
    """The smaller count of a repeat whose digits begin at `at`, at least 1; 1 if there is no repeat."""
    numbers = [""]
    while at < len(pattern):
        sign = pattern[at]
        if sign == "#":
            at = pattern.find("\n", at)
            if at < 0:
                break
        elif sign in string.digits:
            numbers[-1] += sign
        elif sign == "," and len(numbers) == 1:
            numbers.append("")
        elif sign == "}":
            return max(1.0, math.inf if len(numbers[0].lstrip("0")) > MOST_DIGITS else float(numbers[0] or 1))
        elif not sign.isspace():
            break
        at += 1
    return 1.0


def shown(pattern: str) -> str:
    """A pattern as sentences quote it."""
    return repr(pattern) if len(pattern) <= 80 else f"{pattern[:80]!r}..."


def search(pattern: str, text: str) -> regex.Match[str] | None:
    """The first match in the text. TimeoutError after one CPU second."""
    return compiled(pattern).search(text, timeout=TIMEOUT)


def every(pattern: str, text: str) -> list[regex.Match[str]]:
    """All matches in the text, in order, without overlap. TimeoutError after one CPU second."""
    return list(compiled(pattern).finditer(text, timeout=TIMEOUT))
