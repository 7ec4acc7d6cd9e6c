"""Works that the project rests on: docs/literature.yaml, each with the pages that cite it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import yaml

from scripts.docs import source

FILE = source.ROOT / "docs" / "literature.yaml"


@dataclass(frozen=True)
class Work:
    """`text` is the reference, `note` what is taken from it, `cited_by` IDs of calibrations and numbers of measurements."""

    text: str
    note: str
    cited_by: tuple[str, ...]


@functools.cache
def works() -> tuple[Work, ...]:
    """All works, sorted by their text."""
    given = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(sorted((Work(w["text"], w["note"], tuple(map(str, w["for"]))) for w in given), key=lambda w: w.text))


def section(subject: str) -> str:
    """The works that `subject` cites, as a section; empty if it cites none."""
    found = [f"- {work.text} {work.note}" for work in works() if subject in work.cited_by]
    return "\n".join(["## Literature", "", *found, ""]) if found else ""


def page() -> str:
    """All works on one page."""
    lines = [f"- {work.text} {work.note} *({', '.join(work.cited_by)})*" for work in works()]
    return "\n".join(
        ["# Literature", "", "In brackets: the calibrations and measurements that use a work.", "", *lines, ""]
    )
