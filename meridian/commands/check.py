"""`run.py check task=file`: how a model's tokenizer reads the rows of a file; the weights are not needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import results_io
from meridian.commandline import FILE
from meridian.context import RunContext
from results_io import UserError

IMPOSSIBLE = 2  # exit code
EACH = 10  # up to this many rows of one kind get a line each
FIRST = 5  # of more rows, how many are named
DETAILS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\d+""")  # the details in which reasons of one kind differ


class LeftOut(NamedTuple):
    """A row that is left out: its number, the line on which it begins (None: unknown), and why."""

    number: int
    line: int | None
    reason: str

    @property
    def where(self) -> str:
        return f"row {self.number}" if self.line is None else f"line {self.line} (row {self.number})"

    @property
    def kind(self) -> str:
        """The reason without the details of the row."""
        return DETAILS.sub("...", self.reason)


def sentences(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """A line for each row; if a kind has more than EACH rows, one line for all of them."""
    kinds: dict[str, list[LeftOut]] = {}
    for one in left_out:
        kinds.setdefault(one.kind, []).append(one)
    for rows in kinds.values():
        if len(rows) <= EACH:
            yield from (f"{one.where} left out: {one.reason}" for one in rows)
            continue
        named = ", ".join(one.where for one in rows[:FIRST])
        yield f"{named} and {len(rows) - FIRST:,} more left out: {rows[0].reason}, or alike"


def _unreadable(where: Sequence[str]) -> str | None:
    """Why a run refuses a file with unreadable rows, at these places; None without any."""
    if not where:
        return None
    rows, them = ("1 row", "it") if len(where) == 1 else (f"{len(where)} rows", "them")
    named = ", ".join(where[:FIRST]) + (", ..." if len(where) > FIRST else "")
    return f"{rows} cannot be read ({named}); correct {them}, or take {them} out"


def _require_not_read(out: Any, asked: Mapping[str, Any]) -> None:
    """UserError if the list of left-out rows would overwrite a file that is read."""
    companions = asked.get("companions")
    read = [asked.get("path"), *(companions if isinstance(companions, list) else [])]
    for name in (str(one) for one in read if out and one):
        if Path(name).resolve() == Path(str(out)).resolve():
            raise UserError(
                f"check.left_out={out} is {name}, which is read; name another file, as this one would be lost"
            )


def command(context: RunContext) -> int:
    """Print every row that is left out and why, what is chosen for the other rows, and which tiers these allow.

    Exit code 2 if no run on them is possible. The only file written is the one that check.left_out names.
    UserError for another task than `file`, for wrong options, and if check.left_out names a file that is read.
    """
    asked, say = context.settings["task"], context.reporter.say
    if asked["name"] != FILE:
        raise UserError(
            f"check is about rows of yours, and task={asked['name']} draws its own; run it with task={FILE}"
        )
    from meridian import file_task, tier_minimums

    file_task.options_of(asked)
    _require_not_read(context.settings["check"]["left_out"], asked)
    found = file_task.given(asked, every=True)
    from circuits import models, tasks

    reader = models.text_reader(context.model_settings)
    vocabulary = None if reader.knows == "embedded" else tasks.Vocabulary(reader.tokenizer)
    companions = file_task.companions_of(asked, vocabulary)
    examined = file_task.examine(found, asked, reader)
    say(found.identity)
    left_out = [
        *(LeftOut(number, *one) for number, one in found.unread.items()),
        *(LeftOut(one.row.number, one.row.line, one.reason) for one in examined.rejected),
    ]
    left_out.sort()
    for sentence in sentences(left_out):
        say(sentence)
    if path := context.settings["check"]["left_out"]:
        results_io.write_text(Path(str(path)), "".join(f"{one.where}: {one.reason}\n" for one in left_out))
        say(f"{path}: all {len(left_out):,} rows that are left out")
    for note in examined.notes:
        say(note)
    unreadable = [LeftOut(number, *one).where for number, one in sorted(found.unread.items())]
    lacking = examined.lacking or (_unreadable(unreadable) if asked.get("path") else None)
    if lacking:
        say(f"No run is possible: {lacking}")
        return IMPOSSIBLE
    about_them, usable = file_task.of_companions(companions, found, asked, reader, vocabulary)
    for sentence in about_them:
        say(sentence)
    if usable < len(companions):
        say("No run is possible: name companions that can serve, or none")
        return IMPOSSIBLE
    usable = min(usable, context.settings["measurement"]["companions"])
    have = tier_minimums.had(examined.dealt.examples, context.settings["prompts"], usable)
    shares, preset = examined.reader.options.shares, context.settings.get("preset")
    for sentence in tier_minimums.sentences(tier_minimums.needs(context.settings), have, shares, preset):
        say(sentence)
    return 0
