"""Pages with generated parts: what stands between <!-- name --> and <!-- /name -->, and tables to put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError


def update(path: Path, parts: Mapping[str, str]) -> None:
    """Replace the named parts of a page. UserError unless each part's two markers are there once, in order."""
    text = path.read_text()
    for name, content in parts.items():
        before, after = _around(text, name, path)
        text = f"{before}\n{content}\n{after}"
    results_io.write_text(path, text)


def update_with_result(path: Path, name: str, result: Path, content: Callable[[Mapping[str, Any]], str]) -> None:
    """Keep a result of an experiment beside the page, in validation/, and replace the part `name` by what it says."""
    kept = path.parent / "validation" / result.name
    results_io.write_text(kept, result.read_text())
    update(path, {name: content(results_io.read(kept)["data"])})


def listed(sentences: Iterable[str], below: str) -> str:
    """Sentences as a list in markdown, and what stands below it."""
    return "\n".join(f"- {line}" for line in sentences) + f"\n\n{below}"


def part(path: Path, name: str) -> str:
    """What stands between the markers now."""
    text = path.read_text()
    before, after = _around(text, name, path)
    return text[len(before) : len(text) - len(after)].strip()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown; numbers stay as they are given."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _around(text: str, name: str, path: Path) -> tuple[str, str]:
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise UserError(f"{path} needs the lines {start} and {end} once each, in this order; add them")
    return text[: text.index(start) + len(start)], text[text.index(end) :]
