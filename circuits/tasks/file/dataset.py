"""Rows from Hugging Face `datasets`: from a folder, or by name from the hub if it can be reached."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from circuits.tasks.file import columns
from circuits.tasks.file.rows import PairRow, RowError, Unread, of_cells, require_alike, require_columns
from results_io import UserError

SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder
INSTALL = "pip install -e '.[datasets]'"


def read(
    name: str, subset: str | None, part: str, chosen: Mapping[str, str] | None = None
) -> tuple[tuple[PairRow, ...], dict[int, Unread]]:
    """(rows of one split of a data set, {number of a row that cannot be read: reason}).

    `name`: a folder with files that `datasets` reads or that its save_to_disk wrote, otherwise a name on the hub; `subset` and
    `part`: its configuration and its split; `chosen`: {our column: its place in the data set}. Raises UserError if the data set
    cannot be loaded.
    """
    where = f"task.dataset={name}"
    rows, unread = [], {}
    with _records(name, subset, part) as records:
        for number, record in enumerate(records, 1):
            if number == 1 and not chosen:
                require_columns([key for key in record if record[key] is not None], where)
            try:
                place = f"{where}, row {number}"
                cells = columns.picked(record, chosen, place) if chosen else record
                rows.append(of_cells(cells, number, number, place, text=False))
            except RowError as error:
                unread[number] = Unread(None, error.reason)
    if not rows and unread:
        raise UserError(f"{where}: none of its {len(unread)} rows can be read; row 1 {unread[min(unread)].reason}")
    require_alike(rows, where)
    return tuple(rows), unread


@contextlib.contextmanager
def _records(name: str, subset: str | None, part: str) -> Iterator[Iterable[Mapping[str, Any]]]:
    """Context with the records of one split. The converted copy of a folder's files is deleted afterwards."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"task.dataset={name} needs the package datasets; {INSTALL}") from error
    folder = Path(name)
    with tempfile.TemporaryDirectory() as scratch, _quiet(datasets):
        try:
            if any((folder / saved).is_file() for saved in SAVED):
                found = datasets.load_from_disk(str(folder))
            else:
                found = datasets.load_dataset(name, subset, cache_dir=scratch if folder.is_dir() else None)
        except Exception as error:  # whatever the package and its clients raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(
                f"task.dataset={name} cannot be loaded ({reason}); give a folder of datasets, or a name on the hub with "
                "task.subset where it has several configurations and a network"
            ) from error
        if isinstance(found, Mapping):
            if part not in found:
                raise UserError(f"task.part={part} is no split of {name}; use {', '.join(map(str, found))}")
            found = found[part]
        yield (cast("Mapping[str, Any]", record) for record in found)


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Context without the package's progress bars; the previous setting is restored."""
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
