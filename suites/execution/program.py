"""From an output to a program: a fenced block, the output itself, or the continuation of the prompt."""

from __future__ import annotations

import re

OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
BLANK_LINES = re.compile(r"\A(?:[ \t\f]*\r?\n)+")
# what hides a line of Python from the rules below: comments, texts, a line that goes on after a backslash
HIDING = r"""
    \#[^\n]*
    | (?P<quote>\"{3}|'{3}) (?:\\.|(?!(?P=quote)).)* (?:(?P=quote)|\Z)
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | \\.
"""
PIECES = re.compile(
    rf"{HIDING} | (?P<open>[(\[{{]) | (?P<close>[)\]}}]) | (?P<column_0>\n(?=[^\s#]))", re.DOTALL | re.VERBOSE
)


def of_output(prompt: str, text: str, entry: str) -> str:
    """The program of an output: the last fenced block that defines `entry`, else the output if it does, else prompt + output.

    The last case is for a base model, which continues the function header. What it writes after the function is left out. An
    output whose first line that is not blank is indented is such a continuation, even if it defines `entry` again further down.
    """
    defines = re.compile(rf"^(?:async )?def {re.escape(entry)}\b|^{re.escape(entry)}\s*=(?!=)", re.MULTILINE)
    blocks = _fenced(text)
    for block in reversed(blocks):
        if defines.search(block):
            return block
    first = BLANK_LINES.sub("", text)
    if first[:1] in (" ", "\t") and not OPENING.match(first):
        return _continued(prompt, text)
    if defines.search(text):
        return text
    return _continued(prompt, blocks[-1] if blocks else text)


def _fenced(text: str) -> list[str]:
    """The blocks between fences, without the indentation of their fence; a block without an end goes on to the end of the text.

    A block ends at a fence of the same indentation outside of Python's texts; if there is none, at the first fence.
    """
    blocks, place = [], 0
    while opening := OPENING.search(text, place):
        indent, fence = re.escape(opening["indent"]), opening["fence"]
        ends = rf"(?P<end>^{indent}{fence}{fence[0]}*[ \t\r]*$)"
        pieces = re.compile(rf"{ends} | {HIDING}", re.DOTALL | re.VERBOSE | re.MULTILINE)
        closing = next((piece for piece in pieces.finditer(text, opening.end()) if piece["end"] is not None), None)
        closing = closing or re.compile(rf"^[ \t]*{fence}", re.MULTILINE).search(text, opening.end())
        end, place = (closing.start(), closing.end()) if closing else (len(text), len(text))
        blocks.append(re.sub(rf"^{indent}", "", text[opening.end() : end], flags=re.MULTILINE))
    return blocks


def _continued(prompt: str, text: str) -> str:
    """The prompt and its continuation, up to the first line of code in column 0 after the first line that is not empty.

    A line inside a text or brackets, and a comment, end nothing.
    """
    program, depth = prompt + text, 0
    start = len(program) - len(text.lstrip())
    for piece in PIECES.finditer(program):
        depth = max(0, depth + (piece["open"] is not None) - (piece["close"] is not None))
        if piece["column_0"] is not None and depth == 0 and piece.start() >= start:
            return program[: piece.end()]
    return program
