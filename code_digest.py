"""A digest of source files that changes with their tokens, not with comments or docstrings.

Every stored result has the digest of the code that it depends on, so a result of other code is stale.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from results_io import VERSION

QUOTED: Final = r"""(?: '{3} (?:[^\\]|\\.)*? '{3} | \"{3} (?:[^\\]|\\.)*? \"{3}
                     | ' (?:[^'\\\n]|\\.)* ' | \" (?:[^\"\\\n]|\\.)* \" )"""
TOKEN: Final = re.compile(
    rf"(?P<string> [rRuU]? {QUOTED} ) | (?P<no_docstring> [rbfRBF]{{1,2}} {QUOTED} )"  # the latter: bytes and f-strings
    r"""
  | (?P<omitted> \#[^\n]* | \\\n | [ \t\f]+ )
  | (?P<newline> \n[ \t]* )
  | (?P<open> [(\[{] )
  | (?P<close> [)\]}] )
  | (?P<other> \w+ | -> | [-+*/%&|@^=!<>:]=? | \S )
    """,
    re.VERBOSE | re.DOTALL,
)


ROOT: Final = Path(__file__).parent
CODE: Final = {  # {kind of stored result: the project's files that it depends on}
    "measurements": ("circuits/**/*.py", "kernels/*.py", "node_names.py", "results_io.py"),
    "verdicts": ("calibrations/**/*.py", "node_names.py", "results_io.py"),
    "headlines": ("meridian/headline.py", "meridian/outside_effects.py"),  # besides the rules
    "suites": ("suites/**/*.py", "calibrations/statistics/*.py", "results_io.py"),
    "optimised suffixes": ("suites/suffix/*.py", "suites/models/encoding.py", "suites/models/local.py"),
    "traces of failures": ("suites/bridge/*.py", "calibrations/statistics/ratio.py"),
    "error rates": ("meridian/experiments/validate_calibrations.py", "meridian/experiments/validation/*.py"),
    "geometric cells": (
        *(
            f"suites/geometry/{name}.py"
            for name in (
                *(
                    "coverage",
                    "displacement",
                    "framing",
                    "judge_bias",
                    "languages",
                    "metric",
                    "mtmm",
                    "paraphrase",
                    "position",
                ),
                *("reasoning", "relabelling", "spread", "turns", "width"),
            )
        ),
        "meridian/experiments/geometry_cells.py",
    ),
    "geometric means": (
        "suites/geometry/over_constructs.py",
        "suites/geometry/paraphrase.py",
        "meridian/experiments/geometry_means.py",
    ),
    "planted geometry": ("suites/geometry/*.py", "meridian/experiments/geometry_plants.py"),
    "planted faults": (
        "circuits/**/*.py",
        "calibrations/**/*.py",
        "suites/**/*.py",
        "kernels/*.py",
        "meridian/experiments/planted_faults.py",
        "meridian/experiments/captured_head.py",
        "node_names.py",
        "results_io.py",
    ),
    "planted drift": (
        "suites/drift/**/*.py",
        "suites/statistics/*.py",
        "calibrations/statistics/*.py",
        "meridian/training/tuning.py",
        "meridian/experiments/planted_drift.py",
        "meridian/drift_classes.py",
        "meridian/drift_trace.py",
        "results_io.py",
    ),
    "planted contamination": (
        "suites/contamination/canary.py",
        "suites/contamination/loss_gap.py",
        "suites/contamination/overlap.py",
        "suites/models/local.py",
        "suites/statistics/*.py",
        "calibrations/statistics/*.py",
        "meridian/training/corpus.py",
        "meridian/training/repeated.py",
        "meridian/experiments/planted_contamination.py",
        "results_io.py",
    ),
    "rules": (  # of a certificate; code that proposes or plants claims, or makes figures, is no rule
        "calibrations/**/*.py",
        "circuits/*.py",
        "circuits/engine/*.py",
        "circuits/estimators/*.py",
        "circuits/measurements/*.py",
        "circuits/tasks/**/*.py",
        "kernels/*.py",
        "suites/bridge/confirmation.py",
        "node_names.py",
        "results_io.py",
    ),
}  # elsewhere: a planted model's weights (circuits/models.py), a reproduction (meridian/experiments/reproduction.py)


def files(stored: str, root: Path = ROOT) -> list[Path]:
    """The source files behind the results `stored` (a key of CODE), sorted by name.

    The doctor, training, the report, figures and docs are in no list, since no stored number comes from them.
    """
    return sorted({path for pattern in CODE[stored] for path in root.glob(pattern)})


@cache
def version_of(stored: str) -> str:
    """Version of Meridian and the digest of the code behind the results `stored` (a key of CODE): "0.1.0+3f2a90c1d2e4"."""
    return code_version(files(stored))


@cache
def of_each(stored: str) -> Mapping[str, str]:
    """{file, relative to the project's root: its digest in 12 hex digits} of the code behind the results `stored`."""
    return {path.relative_to(ROOT).as_posix(): code_digest([path])[:12] for path in files(stored)}


def code_version(paths: Iterable[Path]) -> str:
    """Version of Meridian and the digest of source files, as results store it: "0.1.0+3f2a90c1d2e4"."""
    return f"{VERSION}+{code_digest(paths)[:12]}"


def code_digest(paths: Iterable[Path]) -> str:
    """SHA-256, in hex digits, of the tokens of Python source files in the order of `paths`; file names do not count.

    Every Python from 3.11 on gives the same digest. Raises SyntaxError for a file with unbalanced brackets.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(_encoded(path.read_text(encoding="utf-8")))
    return digest.hexdigest()


@cache
def _encoded(source: str) -> bytes:
    """The tokens as bytes, each ended by a zero byte, which no source contains; cached, since several digests read a file."""
    return "\0".join((*tokens(source), "<end of file>", "")).encode()


def tokens(source: str) -> Iterator[str]:
    """The tokens of a source text without comments, docstrings, blank lines and line breaks inside a statement.

    It uses one regular expression, because `tokenize` is ten times slower, which every run would pay, and splits f-strings from
    Python 3.12 on. A docstring that shares its line with other code counts as code.
    Raises SyntaxError for unbalanced brackets.
    """
    levels, width, depth = [0], 0, 0
    statement: list[str] = []
    only_strings = True  # only strings and parentheses so far
    documented = True  # a docstring is possible here: first statement of a module, a class or a function
    for match in TOKEN.finditer(f"{source}\n"):
        kind, text = match.lastgroup, match.group()
        if kind == "newline" and not depth:
            if statement:
                yield from _change_of_level(levels, width)
                if not (documented and only_strings):
                    yield from (*statement, "<newline>")
                documented = statement[-1] == ":" and (
                    statement[0] in ("def", "class") or statement[:2] == ["async", "def"]
                )
            statement, only_strings, width = [], True, len(text) - 1
        elif kind not in ("omitted", "newline"):
            depth += (kind == "open") - (kind == "close")
            only_strings = only_strings and (kind == "string" or text in "()")
            statement.append(text)
    if depth:
        raise SyntaxError(
            f"{abs(depth)} brackets more are {'opened' if depth > 0 else 'closed'} than the other way round"
        )
    yield from _change_of_level(levels, 0)


def _change_of_level(levels: list[int], width: int) -> Iterator[str]:
    """Yield the indent or dedent marks from `levels[-1]` (a width of indentation) to `width`, updating `levels`."""
    if width > levels[-1]:
        levels.append(width)
        yield "<indent>"
    while width < levels[-1]:
        levels.pop()
        yield "<dedent>"
