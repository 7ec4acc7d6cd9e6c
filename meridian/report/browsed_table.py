"""A table of results that a reader sorts and filters: rows with the worst first, every number with the field it stands in."""

from __future__ import annotations

from dataclasses import dataclass

from calibrations.number_format import interval_text, three_digits
from meridian.report.sources import FieldSource
from result_types import StoredValue

Number = float | int | None
DECIMALS = 8  # of a stored number that are not rounding


@dataclass(frozen=True)
class TableCell:
    """What a cell says, the number that it is sorted by (None: by its text), and where that stands. `note` is set below it."""

    text: str
    value: Number = None
    source: FieldSource | None = None
    note: str = ""
    verdict: bool = False  # of a cell that has a verdict's sign before it


@dataclass(frozen=True)
class BrowsedTable:
    """Rows under `columns`, from the worst; `filters` are the columns whose words a reader may choose one of."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """ValueError for a row of another width, or a filter that is no column."""
        if any(len(row) != len(self.columns) for row in self.rows) or not set(self.filters) <= set(self.columns):
            raise ValueError(f"the table {self.name} has rows or filters that do not fit {self.columns}; mend them")


def estimate(record: StoredValue, source: FieldSource) -> TableCell:
    """The value of a record with its interval: "0.12 [0.08, 0.16]"; its status in words where it has none."""
    value, ci = record["value"], record["ci"]
    if value is None:
        return TableCell(record["status"].replace("_", " "), note=record["reason"])
    return TableCell(_shown(value) + interval_text(ci and ci["low"], ci and ci["high"], _shown), value, source)


def plain(value: Number, source: FieldSource | None = None) -> TableCell:
    """A number alone, counts in full; a dash for a missing one."""
    if value is None:
        return TableCell("–")
    return TableCell(str(value) if isinstance(value, int) else _shown(value), value, source)


def _shown(value: float) -> str:
    """Three digits; what rounding alone keeps from 0 is 0."""
    return three_digits(round(value, DECIMALS) + 0.0)
