"""The works cited by the project, from docs/literature.yaml, with the pages that cite them."""

from __future__ import annotations

import functools

import yaml

from scripts.docs import source


@functools.cache
def works() -> list[dict]:
    """All works, sorted. `text`: the reference. `note`: what is taken from it. `for`: the IDs and numbers that cite it."""
    given = yaml.safe_load((source.ROOT / "docs" / "literature.yaml").read_text(encoding="utf-8"))
    return sorted(
        ({**work, "for": [str(name) for name in work["for"]]} for work in given), key=lambda work: work["text"]
    )


def section(subject: str) -> str:
    """The works that `subject` cites, as a section; empty if it cites none."""
    found = [f"- {work['text']} {work['note']}" for work in works() if subject in work["for"]]
    return "\n".join(["## Literature", "", *found, ""]) if found else ""


def page() -> str:
    """All works on one page."""
    lines = [f"- {work['text']} {work['note']} *({', '.join(work['for'])})*" for work in works()]
    return "\n".join(
        ["# Literature\n", "In brackets: the calibrations and measurements that use a work.\n", *lines, ""]
    )
