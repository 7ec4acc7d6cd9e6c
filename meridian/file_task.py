"""Tasks made of the rows of a file or a data set (task=file): for a run, and for a check without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_io
from results_io import UserError

if TYPE_CHECKING:
    from circuits.models import Identity, TextReader
    from circuits.tasks import Task, Vocabulary
    from circuits.tasks.file import Examined, Options
    from circuits.tasks.file.rows import PairRow, Unread

PREFIX = "file-"  # of the names of such tasks, which circuits.tasks.file gives
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")  # a companion with such a name counts as a file, even a missing one


@dataclass(frozen=True)
class Given:
    """The rows that the settings name, their file or data set, and the unreadable rows by number."""

    rows: Sequence[PairRow]
    where: str
    unread: Mapping[int, Unread]

    @property
    def identity(self) -> str:
        """Two digests: of the rows' content, which results hold, and of the file, which also depends on its formatting."""
        from circuits.tasks.file import rows_sha256

        path = Path(self.where)
        file = f", SHA-256 {results_io.file_digest(path)}" if path.is_file() else ""
        return f"{self.where}{file}; its rows {rows_sha256(self.rows)}, whatever format they are written in"


def is_one(task: str) -> bool:
    """Whether `task` is the name of a task that was made of rows."""
    return task.startswith(PREFIX)


def options_of(asked: Mapping[str, Any]) -> Options:
    """How the section `task` of the settings reads rows."""
    from circuits.tasks.file import Options

    return Options.of(asked)


def given(asked: Mapping[str, Any], every: bool = False) -> Given:
    """The rows of task.path or task.dataset. UserError unless exactly one of them is given, and if it cannot be read.

    `every`: for a check, unreadable rows of a file are listed in `unread` and raise no error.
    """
    from circuits.tasks.file import dataset, read

    path, name, options = asked.get("path"), asked.get("dataset"), options_of(asked)
    if bool(path) == bool(name):
        both = "and not both" if path else "such as task.path=mine.csv"
        raise UserError(f"task=file needs task.path, a CSV or JSONL file, or task.dataset, {both}")
    if path:
        unread: dict[int, Unread] | None = {} if every else None
        return Given(read(str(path), options, unread), str(path), unread or {})
    rows, unread = dataset.read(str(name), asked.get("subset"), str(asked.get("part")), options.columns)
    return Given(rows, str(name), unread)


def build(
    asked: Mapping[str, Any],
    model_settings: Mapping[str, Any],
    identity: Identity,
    text_reader: TextReader,
    vocabulary: Vocabulary | None,
) -> Task:
    """The task of the rows that the settings name, with its companions. UserError if no run on it is possible."""
    from circuits import foils
    from circuits.tasks import file

    found, options = given(asked), options_of(asked)
    chooser = foils.corrupted_top(model_settings, identity) if options.foil == "corrupted_top" else None
    reading = {"vocabulary": vocabulary, "foils": chooser, "longest": text_reader.longest}
    others = {}
    names = []
    for name in companions_of(asked, vocabulary):
        if isinstance(name, Path):
            task = file.load(name, text_reader.tokenizer, options=options_of(_of_companion(asked)), **reading)
            if task.name in others:
                raise UserError(
                    f"task.companions names {name}, which has the rows of another companion; name them once"
                )
            others[task.name] = task
            name = task.name
        names.append(name)
    made = file.load(
        found.rows,
        text_reader.tokenizer,
        options=options,
        companions=names,
        others=others,
        unread=found.unread,
        **reading,
    )
    if made.name in names:
        raise UserError(
            f"{found.where} is named as its own companion; a circuit matters for its own task, so leave it out"
        )
    return made


def _of_companion(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for reading a companion's rows: those of the task, except for its columns and the shares of its splits."""
    from circuits.tasks import file

    return {**asked, "columns": None, "shares": dict(file.COMPANION_SHARES)}


def companions_of(asked: Mapping[str, Any], vocabulary: Vocabulary | None) -> list[str | Path]:
    """The companions that the settings name, files as paths. UserError for one that is neither a task nor a file."""
    from circuits import tasks

    named = asked.get("companions") or []
    if not isinstance(named, list):
        raise UserError(
            f"task.companions={named} is not a list; write for example task.companions=[other.csv,induction]"
        )
    known, found = tasks.names(vocabulary), []
    for name in map(str, named):
        if name not in known and not Path(name).is_file() and not name.lower().endswith(ENDINGS):
            raise UserError(f"task.companions names {name!r}, which is neither a file nor one of {', '.join(known)}")
        found.append(name if name in known else Path(name))
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"task.companions names {twice} twice; name it once")
    return found


def examine(found: Given, asked: Mapping[str, Any], text_reader: TextReader) -> Examined:
    """How a tokenizer reads the rows. No foils are chosen, because that needs the model."""
    from circuits.tasks import file

    reader = file.PromptTokenizer(text_reader.tokenizer, options_of(asked), text_reader.longest)
    return file.examine(found.rows, reader, unread=found.unread)


def of_companions(
    companions: Sequence[str | Path],
    found: Given,
    asked: Mapping[str, Any],
    text_reader: TextReader,
    vocabulary: Vocabulary | None,
) -> tuple[list[str], int]:
    """(sentences, number of usable companions): the companions of C17, and why any of them cannot serve.

    A file cannot serve if it has the same rows as `found` or as another companion, whatever its name.
    """
    from circuits import tasks
    from circuits.tasks import file

    if not companions:
        return ["companions: none, so C17 says nothing; task.companions names other tasks or files"], 0
    said = [f"companions: {', '.join(map(str, companions))}"]
    taken = {file.rows_sha256(found.rows): "the task itself, for which its circuit matters"}
    for name in companions:
        try:
            if isinstance(name, Path):
                own = _of_companion(asked)
                rows = given({**own, "path": name, "dataset": None})
                digest = file.rows_sha256(rows.rows)
                if digest in taken:
                    raise UserError(f"its rows are those of {taken[digest]}; leave it out")
                taken[digest] = str(name)
                if lacking := examine(rows, own, text_reader).lacking:
                    raise UserError(lacking)
            else:
                tasks.get(name, vocabulary)
        except UserError as reason:
            said.append(f"companion {name} cannot serve: {reason}")
    return said, len(companions) - (len(said) - 1)
