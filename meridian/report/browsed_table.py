"""A table of results that readers can sort and filter. The worst rows come first, and every number has its source field."""

from __future__ import annotations

from dataclasses import dataclass

from calibrations.number_format import interval_text, rounded, three_digits
from meridian.report.sources import FieldSource
from result_types import StoredValue

Number = float | int | None
DECIMALS = 8  # decimals of a stored number beyond which there is only rounding


@dataclass(frozen=True)
class TableCell:
    """A cell: its text, the number to sort by (None: sort by text), and the source of that number. `note` appears below it."""

    text: str
    value: Number = None
    source: FieldSource | None = None
    note: str = ""
    verdict: bool = False  # whether the text is a verdict, to be shown with its sign


@dataclass(frozen=True)
class BrowsedTable:
    """Rows under `columns`, the worst first. `filters`: the columns that readers can filter by one of their words."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """ValueError if a row has the wrong width, or a filter is not a column."""
        if any(len(row) != len(self.columns) for row in self.rows) or not set(self.filters) <= set(self.columns):
            raise ValueError(f"the table {self.name} has rows or filters that do not fit {self.columns}; mend them")


def estimate(record: StoredValue, source: FieldSource) -> TableCell:
    """The value of a record with its interval, "0.12 [0.08, 0.16]"; without a value, its status in words."""
    value, ci = record["value"], record["ci"]
    if value is None:
        return TableCell(record["status"].replace("_", " "), note=record["reason"])
    return TableCell(_shown(value) + interval_text(ci and ci["low"], ci and ci["high"], _shown), value, source)


def plain(value: Number, source: FieldSource | None = None) -> TableCell:
    """A number without an interval, with integers in full; a dash if it is missing."""
    if value is None:
        return TableCell("–")
    return TableCell(str(value) if isinstance(value, int) else _shown(value), value, source)


def _shown(value: float) -> str:
    """Three digits; a value that differs from 0 only by rounding is 0."""
    return three_digits(rounded(value, DECIMALS))
