"""Pages with generated parts: the text between <!-- name --> and <!-- /name -->, and the tables to put there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError


def update(path: Path, parts: Mapping[str, str]) -> None:
    """Replace the named parts of a page. UserError unless each part's two markers occur once, in order."""
    text = path.read_text()
    for name, content in parts.items():
        before, after = _around(text, name, path)
        text = f"{before}\n{content}\n{after}"
    results_io.write_text(path, text)


Joined = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def update_with_result(path: Path, name: str, result: Path, content: Callable[[Mapping[str, Any]], str]) -> None:
    """Copy an experiment's result beside the page, to validation/, and replace the part `name` by `content` of its data."""
    update(path, {name: content(keep(path, result)["data"])})


def keep(page: Path, result: Path, joined: Joined | None = None) -> dict[str, Any]:
    """Copy an experiment's result beside the page, to validation/, and return the copy.

    With `joined`, a run of some parts only (its setting `only`) is merged into the kept result: `joined` is called with the kept
    result and the new one, both with their shared settings. UserError if they differ in any setting other than `only`.
    Without a result the process ends with one sentence and exit code 2: `python -m meridian.experiments.*` begins here.
    """
    if not result.is_file():
        print(f"{result} is not a file; run the experiment first, or give the folder with its result", file=sys.stderr)
        raise SystemExit(2)
    kept, found = page.parent / "validation" / result.name, results_io.read(result)
    if joined is not None and found["subject"]["settings"]["only"]:
        results_io.write(kept, joined(*_of_the_whole(results_io.read(kept), found)))
    else:
        results_io.write_text(kept, result.read_text())
    return results_io.read(kept)


def _of_the_whole(kept: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(kept result, new result), both with the settings as if all parts had been run. UserError if these settings differ."""
    before, now = ({**one["subject"]["settings"], "only": None} for one in (kept, found))
    if before != now:
        differs = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        raise UserError(
            f"the kept result has other settings ({', '.join(differs)}) than this run of some parts; run all of them"
        )
    old, new = ({**one, "subject": {**one["subject"], "settings": now}} for one in (kept, found))
    return old, new


def listed(sentences: Iterable[str], below: str) -> str:
    """Sentences as a markdown list, followed by the text `below`."""
    return "\n".join(f"- {line}" for line in sentences) + f"\n\n{below}"


def part(path: Path, name: str) -> str:
    """The current text between the markers."""
    text = path.read_text()
    before, after = _around(text, name, path)
    return text[len(before) : len(text) - len(after)].strip()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown; cells stay as they are given."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _around(text: str, name: str, path: Path) -> tuple[str, str]:
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise UserError(f"{path} needs the lines {start} and {end} once each, in this order; add them")
    return text[: text.index(start) + len(start)], text[text.index(end) :]
