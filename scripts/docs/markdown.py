"""Markdown: tables, literals, docstrings as prose, and links for pages moved out of docs/."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")
CODE_SPAN = re.compile(r"(`+[^`]+`+)")
HAZARDS = re.compile(r"([\[\]<{*])")  # would read as links, HTML, roles or emphasis


def literal(text: str) -> str:
    """`text` as a code span, whatever characters it has."""
    flat = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def cell(text: str) -> str:
    """`text` inside a table: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A pipe table; cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell(str(entry)) for entry in line) + " |" for line in lines) + "\n"


def block(text: str, language: str = "text") -> str:
    """A code block with a fence that `text` cannot close."""
    fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: code spans, lists and indented formulas stay; accidental markup is escaped."""
    return "\n".join(_line(line) for line in (docstring or "").splitlines()) + "\n"


def _line(line: str) -> str:
    if line.startswith("    "):  # a formula
        return line
    bullet, text = re.match(r"(\s*[-*] )?(.*)", line).groups()
    parts = CODE_SPAN.split(text)
    return (bullet or "") + "".join(
        part if place % 2 else HAZARDS.sub(r"\\\1", part) for place, part in enumerate(parts)
    )


def relinked(text: str, here: str, pages: Mapping[str, str]) -> str:
    """`text` of the repository's file `here`, with its links adapted to the site.

    `pages`: {file of the repository: page of the site}; it must have `here`. A link to a file that is not a page becomes the
    link's text and the file's name.
    """
    folder = PurePosixPath(here).parent

    def replace(found: re.Match[str]) -> str:
        text, target = found["text"], found["target"]
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        file, _, anchor = target.partition("#")
        file = os.path.normpath(folder / file)
        if file in pages:
            return f"[{text}]({between(pages[here], pages[file])}{'#' + anchor if anchor else ''})"
        return f"{text} ({literal(file)})" if text != file else literal(file)

    return LINK.sub(replace, text)


def between(page: str, other: str) -> str:
    """The link from one page of the site to another, both relative to its root."""
    return Path(os.path.relpath(other, PurePosixPath(page).parent)).as_posix()


def toctree(entries: Iterable[str]) -> str:
    """The navigation below a page; it appears in the sidebar only."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", ":hidden:", "", *entries, "```", ""])
