"""A digest of source files that changes with what their code does, and not with their comments and docstrings.

Whoever stores a result stores with it the digest of the code that the result depends on: a result of other code is stale.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from results_io import VERSION

LAYOUT: Final = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>", tokenize.NEWLINE: "<newline>"}
LEFT_OUT: Final = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
Position = tuple[int, int]  # line from 1, column from 0, in characters


def code_version(paths: Iterable[Path]) -> str:
    """Version of Meridian and the digest of source files, as results store it: "0.1.0+3f2a90c1d2e4"."""
    return f"{VERSION}+{code_digest(paths)[:12]}"


def code_digest(paths: Iterable[Path]) -> str:
    """SHA-256, in hex digits, of the tokens of Python source files in the order of `paths`; names of files do not count.

    Every Python from 3.11 on gives the same digest. Raises SyntaxError for a file that is not Python.
    """
    digest = hashlib.sha256()
    for path in paths:
        for token in (*tokens(path.read_text(encoding="utf-8")), "<end of file>"):
            digest.update(token.encode() + b"\0")  # no source holds a zero byte
    return digest.hexdigest()


def tokens(source: str) -> Iterator[str]:
    """The tokens of a source text without comments, docstrings, blank lines and line breaks inside a statement.

    An f-string is one token, as it is written: Python 3.11 reads it so, later versions read it in parts.
    """
    lines = io.StringIO(source).readlines()
    docstrings = dict(_docstrings(source, lines))
    skipped_to: Position = (0, 0)
    opened: list[Position] = []  # where the f-strings start that are not closed yet
    previous = LAYOUT[tokenize.NEWLINE]
    for kind, text, start, end, _ in tokenize.generate_tokens(io.StringIO(source).readline):
        skipped_to = docstrings.get(start, skipped_to)
        if tokenize.tok_name[kind] == "FSTRING_START":
            opened.append(start)
        elif tokenize.tok_name[kind] == "FSTRING_END":
            start = opened.pop()
            text = _between(lines, start, end)
        if opened or kind in LEFT_OUT or start < skipped_to:
            continue
        token = LAYOUT.get(kind, text)
        if token == LAYOUT[tokenize.NEWLINE] and previous in LAYOUT.values():
            continue  # the end of a docstring's line
        yield token
        previous = token


def _docstrings(source: str, lines: list[str]) -> Iterator[tuple[Position, Position]]:
    """Start and end of every docstring of a module, a class or a function."""

    def characters(line: int, column: int) -> Position:  # the syntax tree counts columns in bytes
        return line, len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert statement.end_lineno and statement.end_col_offset is not None
            start = characters(statement.lineno, statement.col_offset)
            yield start, characters(statement.end_lineno, statement.end_col_offset)


def _between(lines: list[str], start: Position, end: Position) -> str:
    first, last = start[0] - 1, end[0] - 1
    if first == last:
        return lines[first][start[1] : end[1]]
    return "".join([lines[first][start[1] :], *lines[first + 1 : last], lines[last][: end[1]]])
