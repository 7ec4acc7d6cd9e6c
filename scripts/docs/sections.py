"""Parts of hand-written pages: sections by heading, and rows of their tables."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from scripts.docs import source

CALIBRATIONS = source.ROOT / "docs" / "calibrations" / "index.md"
RESULTS = source.ROOT / "results" / "README.md"
CELLS = re.compile(r"(?<!\\)\|")


@functools.cache
def sections(path: Path) -> dict[str, str]:
    """{second-level heading: the text below it}; the text before the first heading is under ""."""
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def section(path: Path, heading: str) -> str:
    """One section. KeyError with the heading if it is gone, so that the build fails instead of showing a wrong page."""
    return sections(path)[heading].strip() + "\n"


def rows(text: str) -> list[list[str]]:
    """Body rows of the first pipe table in `text`."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in CELLS.split(line.strip().strip("|"))] for line in lines[2:]]


def data_fields(number: str) -> str:
    """The description of a measurement's data in results/README.md; empty if it has no row, as when it was just added."""
    found = [row for row in rows(section(RESULTS, "Measurements")) if row[0] == number]
    return " | ".join(found[0][2:]) if found else ""  # a bar inside code splits a cell, so the cells are joined again
