"""What judges and searches for contamination print: lines of a hundred columns at most, and nothing cut short."""

from __future__ import annotations

import io

from rich.console import Console

import shown_text
from suites.contamination import summary as contamination
from suites.judging import summary

CELLS = ("120", "0", "0", "120", "0", "0.500 [0.377, 0.623]", "undefined", "0.000", "undefined", "insufficient data")
COLUMNS = (
    "pairs",
    "good won",
    "bad won",
    "ties",
    "invalid",
    "win rate [95 %]",
    "decided",
    "flips",
    "first place",
    "slope",
)


def test_a_table_that_is_too_wide_is_folded() -> None:
    console = Console(file=io.StringIO(), width=200)
    rows = summary.table(*COLUMNS)
    rows.add_row(*CELLS)
    console.print(rows, width=shown_text.WIDTH)
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= shown_text.WIDTH
    assert {word for cell in (*COLUMNS, *CELLS) for word in cell.split()} <= set(printed.split())


def test_only_names_of_suites_are_folded_beside_numbers() -> None:
    console = Console(file=io.StringIO(), width=200)
    columns = ("items", "in the corpus [95 %]", "nearly", "accuracy\nclean", "accuracy\nin corpus", "difference")
    cells = ("1100", "0.500 [0.377, 0.623]", "30", "0.123", "0.345", "-0.123 [-0.345, -0.111]")
    rows = contamination._table(*columns)
    rows.add_row("a10_padding_ioi_one_sentence", *cells)
    console.print(rows, width=shown_text.WIDTH)
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= shown_text.WIDTH
    assert all(cell in printed for cell in cells)


def test_a_long_sentence_is_broken_between_words() -> None:
    console = Console(file=io.StringIO(), width=200)
    summary.say(console, "no finite estimate: " + "the comparisons fall into groups that never met " * 3)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= shown_text.WIDTH
