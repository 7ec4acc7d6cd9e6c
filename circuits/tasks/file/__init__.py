"""Tasks from a file: rows of prompt pairs, as CSV, as JSONL or in memory, for any tokenizer.

`examine` reports how a tokenizer reads the rows, `load` makes a Task of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from circuits.tasks.base import RowSource, Task
from circuits.tasks.file import described, pairs, reading, rows, splits
from circuits.tasks.file.options import SHARES, Options
from circuits.tasks.file.pairs import PromptTokenizer, Rejected, TokenPair
from circuits.tasks.file.rows import PairRow, Unread
from circuits.tasks.file.rows import sha256 as rows_sha256
from circuits.tasks.file.splits import Dealt
from circuits.tasks.published.vocabulary import Vocabulary
from results_io import UserError

__all__ = [
    "COMPANION_SHARES",
    "SHARES",
    "Examined",
    "Foils",
    "Options",
    "PromptTokenizer",
    "examine",
    "load",
    "named",
    "read",
    "rows_sha256",
]

PREFIX = "file-"  # prefix of such a task's name, before the digest of its rows
DIGITS = 12
COMPANION_SHARES = {"discovery": 0.05, "evaluation": 0.75, "held_out": 0.05, "reference": 0.15}

Foils = Callable[
    [Sequence[TokenPair]], Sequence[str | None]
]  # returns a foil for each pair without one; None if there is none


@dataclass(frozen=True)
class Examined:
    """Rows as one tokenizer reads them. `rejected` are in the order of the rows; `unread` has, by number, rows that could not be
    parsed; `notes` say what was chosen for the rest."""

    rows: tuple[PairRow, ...]
    pairs: tuple[TokenPair, ...]
    rejected: tuple[Rejected, ...]
    unread: Mapping[int, Unread]
    dealt: Dealt
    notes: tuple[str, ...]
    reader: PromptTokenizer

    @property
    def lacking(self) -> str | None:
        """Why no run is possible; None if one is."""
        if not self.pairs:
            first = self.rejected[0]
            return f"none of the {len(self.rows)} rows can be used; line {first.row.line} {first.reason}"
        empty = [name for name in splits.NEEDED if not self.dealt.examples[name]]
        if empty and self.pairs[0].row.split is not None:
            return f"none of the {len(self.pairs)} rows that can be used has the split {empty[0]}; give some of them that one"
        if empty:
            return (
                f"{len(self.pairs)} of the {len(self.rows)} rows can be used, too few for the {empty[0].replace('_', '-')} "
                "split; add rows"
            )
        return None


def read(
    given: str | Path | Iterable[Mapping[str, Any]],
    options: Options | None = None,
    unread: dict[int, Unread] | None = None,
) -> tuple[PairRow, ...]:
    """The rows of a file, or of records with the keys of a JSONL file. Raises UserError for what cannot be read.

    If `unread` is given, it collects rows of a file that cannot be read, and there is no error for them.
    """
    options = options or Options()
    if isinstance(given, (str, Path)):
        return reading.read(Path(given), options.columns, unread)
    return rows.of_records(given, "the rows")


def examine(
    found: Sequence[PairRow],
    reader: PromptTokenizer,
    foils: Foils | None = None,
    unread: Mapping[int, Unread] | None = None,
) -> Examined:
    """Rows as read by a tokenizer. `foils` chooses foils for rows without any; None leaves them without, as in a check.

    `unread`: {number: reason} of further rows that could not be read.
    """
    fit, rejected = pairs.read(found, reader)
    fit, unfoiled = _with_foils(fit, reader, foils)
    dealt = splits.deal(fit, reader.options.shares)
    out = sorted((*rejected, *unfoiled, *dealt.rejected), key=lambda one: one.row.number)
    lost = {one.row.number for one in out}
    kept = tuple(pair for pair in fit if pair.row.number not in lost)
    notes = described.notes(len(found) + len(unread or {}), kept, dealt, reader)
    return Examined(tuple(found), kept, tuple(out), dict(unread or {}), dealt, notes, reader)


def _with_foils(
    fit: Sequence[TokenPair], reader: PromptTokenizer, foils: Foils | None
) -> tuple[list[TokenPair], list[Rejected]]:
    """(pairs, each with a foil; pairs rejected because there is none for them)."""
    without = [pair for pair in fit if not pair.wrong]
    if not without or (foils is None and reader.options.foil != "none"):
        return list(fit), []
    if reader.options.foil == "none" or foils is None:
        return [pair for pair in fit if pair.wrong], [
            Rejected(pair.row, "has no foil, and task.foil=none chooses none; add a column wrong or corrupted_answer")
            for pair in without
        ]
    chosen = dict(zip((pair.row.number for pair in without), foils(without), strict=True))
    kept, rejected = [], []
    for pair in fit:
        foil = chosen.get(pair.row.number, "")
        if foil is None:
            rejected.append(
                Rejected(pair.row, "has no foil, and none of the model's likely words is one token after it")
            )
        else:
            kept.append(replace(pair, wrong=(foil,)) if foil else pair)
    return kept, rejected


def load(
    given: str | Path | Iterable[Mapping[str, Any] | PairRow],
    tokenizer: Any,
    vocabulary: Vocabulary | None = None,
    options: Options | None = None,
    foils: Foils | None = None,
    companions: Sequence[str] = (),
    others: Mapping[str, Task] | None = None,
    longest: int | None = None,
    unread: Mapping[int, Unread] | None = None,
) -> Task:
    """The task of a file, of records in memory or of rows already read; the same rows give the same task.

    `vocabulary`: None for the embedded models' words. `foils`: chooses foils for rows without any; if it is None, such rows are
    refused. `companions`: names of other tasks; `others` has those that are not registered. `longest`: the largest number of
    tokens that the model reads. `unread`: {number: reason} of further rows that could not be read.

    Raises UserError for rows that cannot be read, and if too few are left.
    """
    options = options or Options()
    found = _rows(given, options)
    reader = PromptTokenizer(tokenizer, options, longest)
    if foils is None:
        reader = PromptTokenizer(tokenizer, replace(options, foil="none"), longest)
    return task_of(examine(found, reader, foils, unread), vocabulary, companions, others)


def _rows(given: str | Path | Iterable[Mapping[str, Any] | PairRow], options: Options) -> tuple[PairRow, ...]:
    if not isinstance(given, list | tuple | Iterator):  # a file, or something that `read` refuses
        return read(cast("str | Path | Iterable[Mapping[str, Any]]", given), options)
    every = list(given)
    found = tuple(one for one in every if isinstance(one, PairRow))
    return found if found else read([one for one in every if not isinstance(one, PairRow)], options)


def task_of(
    examined: Examined,
    vocabulary: Vocabulary | None,
    companions: Sequence[str] = (),
    others: Mapping[str, Task] | None = None,
) -> Task:
    """The task of examined rows. Raises UserError if too few are left."""
    if examined.lacking:
        raise UserError(examined.lacking)
    digest, left_out = rows_sha256(examined.rows), {one.row.number: one.reason for one in examined.rejected}
    return Task(
        name=named(digest),
        title="Prompt pairs from a file",
        sample=None,
        roles=tuple(examined.dealt.examples["evaluation"][0].positions),
        companions=tuple(companions),
        bos=examined.reader.bos,
        vocabulary=vocabulary,
        metric=examined.reader.options.metric,
        several_tokens=any(pair.several for pair in examined.pairs),
        given=examined.dealt.examples,
        source=RowSource(
            digest,
            {pairs.example(pair).id: pair.row.number for pair in examined.pairs},
            {**left_out, **{number: one.reason for number, one in examined.unread.items()}},
            examined.notes,
            dict(examined.reader.options.shares),
        ),
        others=others,
    )


def named(digest: str) -> str:
    """The name of the task of rows with this digest."""
    return f"{PREFIX}{digest[:DIGITS]}"
