"""What leaves a run: no spreadsheet runs a cell, no terminal or page obeys a text, no form of a key is written."""

from __future__ import annotations

import base64
import csv
import io
import string
import urllib.parse

import jinja2
import pandas as pd
import pytest
from rich.console import Console

import shown_text
from meridian import aggregate, commandline, report, tables
from meridian.figures import geometry_csv
from meridian.figures.values import EstimateMark, Forest
from meridian.reporter import Reporter
from suites.models.api_key import HIDDEN, ApiKey

FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    "＝1+1",
    "－2+3",
    '=HYPERLINK("x")',
]
HARMLESS = ["", "L2H1", "[-0.1, 0.2]", "-0.5", "+3", "1,234", "-1.5e-07", "5 %", "a=b", "when_went/ABBA", "it's"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text_with_an_apostrophe(text) -> None:
    found = shown_text.cell(text)
    assert found.startswith("'") and found[1:] == shown_text.visible(text, kept="\n")


@pytest.mark.parametrize("value", [*HARMLESS, 0, -1.5, None, True])
def test_everything_else_stays_as_it_is(value) -> None:
    assert shown_text.cell(value) is value or shown_text.cell(value) == value


def cells(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]


def test_no_table_has_a_formula() -> None:
    frame = pd.DataFrame({"=name": FORMULAS, "n": range(len(FORMULAS)), "x": [None, *[-0.5] * (len(FORMULAS) - 1)]})
    written = tables.csv(tables.Table("t", "c", frame)).decode()
    assert not [one for one in cells(written) if shown_text.FORMULA.match(one) and not shown_text.NUMBER.fullmatch(one)]
    assert pd.read_csv(io.StringIO(written))["x"].tolist()[1:] == [-0.5] * (len(FORMULAS) - 1)
    row = dict.fromkeys((*aggregate.ABOUT, *aggregate.JUDGED), "=1") | {"seed": -1}
    assert set(cells(aggregate.to_csv([row]))) - {*row, *aggregate.CALIBRATIONS} == {"'=1", "-1", ""}
    assert "'=1" in cells(geometry_csv.of(forest("=1"))) and "=1" not in cells(geometry_csv.of(forest("=1")))


def forest(label: str) -> Forest:
    row = EstimateMark(label, -1.0, -2.0, 0.0, group=label)
    return Forest(name="f", title="t", caption="c", x_label="x", rows=(row,))


ACTING = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x00",
    "\x7f",
    "\x9b31m",
    "a\u202eb",
    "\u2066x",
    "\ud800",
    "line\u2028",
    "\x08\x08",
]


PRINTED = set(string.printable) - set("\x0b\x0c")


@pytest.mark.parametrize("text", ACTING)
def test_a_text_that_a_terminal_or_page_would_obey_is_written_out(text, capsys) -> None:
    assert shown_text.visible(text) == "".join(c if c in PRINTED else f"\\u{ord(c):04x}" for c in text)
    said = io.StringIO()
    Reporter(Console(file=said, width=200)).say(f"model {text} here")
    made = report.environment([]).from_string("{{ text }}").render(text=f"<b>{text}")
    commandline.guarded(refusing(text))
    for shown in (said.getvalue(), made, capsys.readouterr().err):
        assert not set(shown) & (set(text) - PRINTED), shown
    assert made.startswith("&lt;b&gt;")


def refusing(text: str):
    from results_io import UserError

    def main() -> None:
        raise UserError(f"the name {text} is wrong")

    return main


def test_plain_text_and_what_pages_are_made_of_stay(capsys) -> None:
    assert shown_text.visible("Zürich 日本 🙂\n\tx") == "Zürich 日本 🙂\n\tx"
    made = report.environment([]).from_string("{{ text }}")
    assert made.render(text=jinja2.filters.Markup("<i>\x0b</i>")) == "<i>\x0b</i>"  # the page's own


KEY = "sk-Very+Secret/Key=0123456789"


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "user:", "ab"])
@pytest.mark.parametrize("after", ["", ":", "@host", "zz"])
def test_a_key_is_masked_in_every_writing(before, after) -> None:
    key = ApiKey(KEY)
    whole = f"{before}{KEY}{after}".encode()
    for written in (
        KEY,
        KEY.upper(),
        KEY.lower(),
        KEY.swapcase(),
        urllib.parse.quote(KEY, safe=""),
        urllib.parse.quote(KEY.upper(), safe="").lower(),
        whole.hex(),
        whole.hex().upper(),
        base64.b64encode(whole).decode(),
        base64.urlsafe_b64encode(whole).decode(),
        urllib.parse.quote(base64.b64encode(whole).decode(), safe=""),
    ):
        cleaned = key.clean(f"said {written}.")
        assert HIDDEN in cleaned and len(cleaned.replace(HIDDEN, "")) < len(before) * 2 + len(after) * 2 + 16, written


def test_a_word_that_stands_for_no_key_is_cut_as_it_is_alone() -> None:
    assert ApiKey("EMPTY").clean("EMPTY empty RU1QVFk=") == f"{HIDDEN} empty RU1QVFk="


@pytest.mark.parametrize(
    ("names", "most", "shown"),
    [
        ([], 2, ""),
        (["a"], 2, "a"),
        (["a", "b"], 2, "a, b"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (list("abcdef"), 3, "a, b, c and 3 more"),
    ],
)
def test_a_long_list_is_cut_and_counted(names: list[str], most: int, shown: str) -> None:
    assert shown_text.first_of(names, most) == shown


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_a_word_without_a_place_to_break_is_broken_at_the_width_and_a_path_is_not(letter) -> None:
    folded = shown_text.folded(f"a server said {letter * 230} in /tmp/{letter * 120}/y")
    *broken, last = folded.split("\n")
    assert "".join(folded.split()) == f"aserversaid{letter * 230}in/tmp/{letter * 120}/y"
    assert len(broken) >= 3 and not any(shown_text.is_too_wide(line) for line in (*broken, last))
    assert f"/tmp/{letter * 120}/y" in last
