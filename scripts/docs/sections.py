"""Hand-written pages as parts: sections by heading, rows of their tables."""

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
    """Text below every second-level heading; what stands before the first one under ""."""
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def section(path: Path, heading: str) -> str:
    """One section. KeyError names the heading if it is gone, so that the site fails and not the reader."""
    return sections(path)[heading].strip() + "\n"


def rows(text: str) -> list[list[str]]:
    """Body rows of the first pipe table in `text`."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in CELLS.split(line.strip().strip("|"))] for line in lines[2:]]


def data_fields(number: str) -> str:
    """What results/README.md says of a measurement's data; empty if it has no row, as for one that was just added."""
    found = [row for row in rows(section(RESULTS, "Measurements")) if row[0] == number]
    return " | ".join(found[0][2:]) if found else ""  # a bar inside code splits cells, and belongs to the text
