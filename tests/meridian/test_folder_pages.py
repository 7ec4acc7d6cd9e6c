"""The pages of suites, judging and drift: the worst first, every number with its field, text that is never markup."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import results_io
from meridian.figures import drift, judging
from meridian.report import browsed_table, drift_page, folder_page, pages, sources, suites_page
from meridian.report.browsed_table import BrowsedTable, TableCell
from meridian.report.folder_page import FolderPage
from meridian.report.sources import FieldSource
from results_io import DiskError
from tests.commandline import command
from tests.hardening.faults import refusing
from tests.meridian.in_browser import DESKTOP, NEEDS_CHROMIUM, OVERLAPS, PHONE, chromium, show, wait
from tests.result_samples import completed

HOSTILE = "</script><img src=x onerror=\"document.title='hit'\">"


class Tags(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.found.append((tag, dict(attributes)))


def in_chromium(test: Any) -> Any:
    for mark in NEEDS_CHROMIUM:
        test = mark(test)
    return test


# --- cells, tables, sources --------------------------------------------------------------------------------------------


def test_counts_are_whole_and_what_rounding_keeps_from_zero_is_zero() -> None:
    assert browsed_table.plain(1440).text == "1440" and browsed_table.plain(None).text == "–"
    record = {"value": 0.0, "ci": {"low": -1.05e-9, "high": 1.05e-9}}
    assert browsed_table.estimate(record, FieldSource("a.json", "x")).text == "0 [0, 0]"
    absent = browsed_table.estimate(
        {"value": None, "ci": None, "status": "not_applicable", "reason": "none"}, FieldSource("a", "x")
    )
    assert (absent.text, absent.note, absent.value) == ("not applicable", "none", None)


def test_a_table_whose_rows_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the table t has rows or filters that do not fit"):
        BrowsedTable("t", "t", "", ("a", "b"), ((TableCell("1"),),))
    with pytest.raises(ValueError, match="the table t has rows or filters that do not fit"):
        BrowsedTable("t", "t", "", ("a",), ((TableCell("1"),),), ("b",))


def test_a_caption_names_its_results_one_by_one_and_from_to() -> None:
    files = {"02": "02_a.json", "101": "101_b.json", "110": "110_c.json", "121": "121_d.json", "E1b": "E1b_e.json"}
    found = list(sources.of_caption("Something. Results 02, 101 to 116, E1b.", files))
    assert [one.file for one in found] == ["02_a.json", "101_b.json", "110_c.json", "E1b_e.json"]
    assert [one.field for one in found] == ["data", "records", "records", "records"]


# --- suites ------------------------------------------------------------------------------------------------------------


def rate(suite: str, value: float, low: float, high: float, passed: bool | None, gate: float | None = 0.1) -> dict:
    return {
        "metric_id": f"B.padding.{suite}.failure_rate", "suite": suite, "n": 1440, "value": value,
        "ci": {"low": low, "high": high}, "threshold": gate, "passed": passed,
    }  # fmt: skip


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    """Four suites of one mode: one passes, two fail, one has no gate; of one a failure is stored, one does not apply."""
    names = ("good", "bad", "worse", "free")
    stored = {name: {"applies": True, "title": name, "worst": [], "gate": {}} for name in names}
    stored["bad"]["worst"] = [{"item": "i1", "prompt": HOSTILE, "output": "said", "expected": ["a", "b"]}]
    stored["never"] = {"applies": False, "reason": "no such words", "title": "never", "worst": []}
    records = [
        rate("good", 0.0, 0.0, 0.05, True),
        rate("bad", 0.3, 0.2, 0.4, False),
        rate("worse", 0.8, 0.7, 0.9, False),
        rate("free", 0.9, 0.8, 1.0, None, None),
    ]
    data = {"mode": "A10", "title": "Padding sensitivity", "suites": stored}
    results_io.write(tmp_path / "110_padding.json", completed("110", data=data, records=records))
    return tmp_path


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([], "No suite has a gate."),
        (["fail"], "The suite fails its gate."),
        (["pass"], "The suite passes its gate."),
        (["inconclusive"], "The suite has a gate, of which nothing is decided."),
        (["fail", "pass", "insufficient"], "Of 3 suites with a gate 1 fails it and 1 pass; of 1 nothing is decided."),
        (["pass", "pass"], "Of 2 suites with a gate none fail it and 2 pass."),
    ],
)
def test_the_first_line_counts_the_gates(verdicts: list[str], sentence: str) -> None:
    assert suites_page._of_gates(verdicts) == sentence


def test_suites_that_fail_come_first_and_their_numbers_name_the_field(suites: Path) -> None:
    page = pages.of(suites, "suites")
    rates, failures, unfit = page.tables[:3]
    assert [row[0].text for row in rates.rows] == ["worse", "bad", "free", "good"]
    assert [row[4].text for row in rates.rows] == ["fail", "fail", "none", "pass"]
    assert rates.rows[0][2].source == FieldSource("110_padding.json", "records[2].value", "in brackets: ci, beside it")
    assert page.lines[0] == "Of 3 suites with a gate 2 fail it and 1 pass."
    assert page.lines[1] == "The worst is worse: 0.8 [0.7, 0.9] of its items fail, where 0.1 may."
    (failure,) = failures.rows
    assert (
        failure[0].source == FieldSource("110_padding.json", 'data.suites["bad"].worst[0]')
        and failure[4].text == "a or b"
    )
    assert [row[0].text for row in unfit.rows] == ["never"]
    assert [one.figure.name for one in page.figures] == ["failure_rates"]
    assert page.figures[0].sources == (FieldSource("110_padding.json", "records"),)


def test_a_page_is_one_file_that_asks_for_nothing_and_text_of_results_is_never_markup(suites: Path) -> None:
    page = replace(suites_page.of(suites, HOSTILE), figures=())  # packing the drawing library takes a while
    text = folder_page.render(page)
    tags = Tags(text).found
    assert "img" not in {tag for tag, _ in tags} and not [1 for _, own in tags for name in own if name.startswith("on")]
    addresses = [own[name] or "" for _, own in tags for name in ("href", "src") if name in own]
    assert addresses and all(one.startswith(("#", "data:")) for one in addresses)
    assert text == folder_page.render(page)


# --- judging and drift -------------------------------------------------------------------------------------------------


def test_judges_wins_and_strengths_are_drawn_with_their_intervals() -> None:
    def record(name: str, value: float) -> dict[str, Any]:
        return {"metric_id": f"J.{name}", "value": value, "ci": {"low": value - 0.1, "high": value + 0.1}}

    agreements = {"fair/182_judge_agreement.json": {"deploy": True, "records": [record("judge_agreement.kappa", 0.9)]}}
    subject = {"a": {"name": "new"}, "b": {"name": "old"}}
    pairwise = {"fair/x/181_pairwise.json": {"subject": subject, "records": [record("pairwise.win_rate", 0.7)]}}
    rankings = {"fair/y/184_ranking.json": {"records": [record("ranking.elo.new", 64.0)]}}
    kappas, wins, strengths = judging.build(agreements, pairwise, rankings)
    assert (kappas.rows[0].label, kappas.rows[0].verdict, kappas.rows[0].low) == ("fair", "pass", pytest.approx(0.8))
    assert (wins.rows[0].label, wins.rows[0].group, wins.lines) == ("new against old", "fair", {"alike": 0.5})
    assert strengths.rows[0].label == "new" and list(judging.build({}, {}, {})) == []


def manifest(snapshot: str, previous: str | None, alarms: list[dict]) -> dict[str, Any]:
    point = {"axis": "neutral", "name": "length", "unit": "tokens", "low": None, "high": None}
    tested = {
        "name": "length", "axis": "neutral", "level": "axis", "before": 4.0, "after": 12.0, "difference": 8.0, "p": 0.0002,
        "detectable": 0.6, "flag": "alarm", "reason": "",
    }  # fmt: skip
    return completed("160", **{
        "snapshot": snapshot, "previous": previous, "alarms": alarms,
        "snapshots": ["s1", "s2", "s3"], "gaps": [{"snapshot": "s2", "whole": True, "cause": "no answer", "affected": {}}],
        "history": [{**point, "snapshot": "s1", "value": 4.0}, {**point, "snapshot": "s3", "value": 12.0}],
        "records": [{**tested, "adjusted_p": 0.4}, {**tested, "adjusted_p": 0.001}, {**tested, "adjusted_p": None}],
    })  # fmt: skip


def test_a_snapshot_that_is_missing_is_a_gap_in_the_curve() -> None:
    (curves,) = drift.build(manifest("s3", "s1", []))
    assert curves.x == ("s1", "s2", "s3") and curves.series[0].y == (4.0, None, 12.0)


def test_a_series_begins_with_its_latest_alarm_and_its_smallest_p(tmp_path: Path) -> None:
    alarm = {"name": "length", "axis": "neutral", "difference": 8.0, "adjusted_p": 0.001, "reason": ""}
    results_io.write(tmp_path / "manifest-s3.json", manifest("s3", "s1", [{**alarm, "adjusted_p": 0.01}, alarm]))
    results_io.write(tmp_path / "manifest-s1.json", manifest("s1", None, []))
    page = pages.of(tmp_path, "demo")
    alarms, tests, gaps = page.tables
    assert [row[4].text for row in alarms.rows] == ["0.001", "0.01"]
    assert alarms.rows[0][3].source == FieldSource("manifest-s3.json", "alarms[1].difference")
    assert [row[8].text for row in tests.rows] == ["0.001", "0.4"] and len(gaps.rows) == 1
    assert page.lines[0] == "1 of 2 snapshots have an alarm; the last, s3, compared with s1, has 2."
    assert drift_page.of(tmp_path, "demo") == page and pages.kind_of(tmp_path) == "drift"


def test_a_folder_without_such_results_has_no_page(tmp_path: Path) -> None:
    assert pages.kind_of(tmp_path) is None
    with pytest.raises(ValueError, match="has no page of its own"):
        pages.of(tmp_path, "nothing")


@pytest.mark.parametrize("name", ["fair/184_ranking.json", "101_padding.json", "171_position.json", "manifest-w1.json"])
def test_a_page_that_cannot_be_drawn_is_a_line_where_it_was_measured_and_a_refusal_for_figures(name, tmp_path) -> None:
    said: list[str] = []
    pages.write(tmp_path, said.append)
    assert said == [] and not list(tmp_path.iterdir())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{")
    pages.write(tmp_path, said.append)
    assert len(said) == 1 and said[0].startswith("No report: ") and Path(name).name in said[0]
    outcome = command("figures", f"from={tmp_path}")
    assert (outcome.code, outcome.errors.count("\n")) == (2, 1) and Path(name).name in outcome.errors
    assert not (tmp_path / "report.html").exists()


# --- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


def number(place: int) -> TableCell:
    return browsed_table.plain(place, FieldSource("a/b.json", f"x[{place}]"))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    rows = tuple(
        (TableCell(f"row {place}"), TableCell("even" if place % 2 == 0 else "odd"), number(place))
        for place in range(60)
    )  # fmt: skip
    table = BrowsedTable("many", "Many rows", "Sixty.", ("name", "kind", "number"), rows, ("kind",))
    return folder_page.write(FolderPage("Test", "a page", ("One sentence.",), (table,)), tmp_path)


def names(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('#many tbody th')].map(e => e.textContent)")


@in_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_table_sorts_filters_searches_and_grows(browser: Any, written: Path, size: tuple[int, int]) -> None:
    show(browser, written, size)
    assert names(browser) == [f"row {place}" for place in range(25)]  # the order of the results: the worst first
    browser.find_element("css selector", "#many th[data-key='2'] button").click()
    assert names(browser)[0] == "row 59"  # numbers from the largest, as numbers and not as text
    browser.find_element("css selector", "#many .more").click()
    assert len(names(browser)) == 50
    browser.execute_script(
        "const s = document.querySelector('#many select'); s.value = 'odd'; s.dispatchEvent(new Event('change'))"
    )
    assert "of 30 rows" in browser.find_element("css selector", "#many .counted").text
    browser.find_element("css selector", "#many input[type=search]").send_keys("row 41")
    assert names(browser) == ["row 41"]
    assert browser.execute_script("return document.documentElement.scrollWidth") == size[0]
    assert [one["message"] for one in browser.get_log("browser") if one["level"] in ("SEVERE", "WARNING")] == []


@in_chromium
def test_a_table_of_eight_columns_is_no_wider_than_the_page(browser: Any, tmp_path: Path) -> None:
    columns = ("runs", "judge", "better", "win rate [95 %]", "flips", "won / tied / lost", "unreadable")
    columns = (*columns, "what stands against it")
    numbers = ("0.683 [0.617, 0.75]", "0.0167 [0.00295, 0.0886]", "31 / 18 / 11", "0")
    row = (
        *(TableCell(text) for text in ("demo-strong against demo-weak", "demo-first", "no verdict")),
        *(TableCell(text, 0.0, FieldSource("a/b.json", "x")) for text in numbers),
        TableCell("exploratory: judge refused: kappa is -0.062, not above 0.7"),
    )
    table = BrowsedTable("wide", "Wide", "", columns, (row,), ())
    show(browser, folder_page.write(FolderPage("Test", "a page", (), (table,)), tmp_path), DESKTOP)
    ends = "return [...document.querySelectorAll('#wide, #wide table')].map(e => e.getBoundingClientRect().right)"
    section, right = browser.execute_script(ends)
    assert right <= section


@in_chromium
def test_a_number_says_where_it_stands_and_the_theme_changes(browser: Any, written: Path) -> None:
    show(browser, written, DESKTOP)
    browser.find_element("css selector", "#many td a.n").click()
    wait(lambda: browser.find_element("id", "source").is_displayed(), "the note")
    said = browser.find_element("id", "source").text
    assert "a/b.json" in said and "x[0]" in said and 'json.load(open("a/b.json"))["x"][0]' in said
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(ground)
    button = browser.find_element("id", "theme")
    button.click()
    button.click()
    assert button.text == "Theme: dark" and browser.execute_script(ground) != before


@in_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_figures_are_drawn_and_nothing_but_the_file_is_asked_for(
    browser: Any, suites: Path, size: tuple[int, int]
) -> None:
    path = folder_page.write(suites_page.of(suites, "suites"), suites)
    assert path.stat().st_size < 5_000_000
    show(browser, path, size)
    place = browser.find_element("css selector", "[data-figure=failure_rates]")
    browser.execute_script("arguments[0].scrollIntoView()", place)
    wait(lambda: place.get_attribute("data-drawn"), "the figure")
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"}
    assert {one for one in asked if not one.startswith("data:")} == {path.as_uri()}
    assert browser.execute_script("return document.documentElement.scrollWidth") == size[0]
    shown = ", ".join(("#rates tbody tr > *", "#failures tbody tr > *"))
    assert browser.execute_script(OVERLAPS, shown) == []


@in_chromium
def test_an_address_elsewhere_is_no_file_of_this_folder(browser: Any, written: Path) -> None:
    for address in ("javascript:alert(1).json", "https%3A//example.org/a.json", "../../../a.json", "a/../../b.json"):
        show(browser, written, DESKTOP, f"#json={address}&field=x")
        assert not browser.find_element("id", "source").is_displayed()


def test_a_page_that_the_disk_refuses_ends_the_command(tmp_path) -> None:
    results_io.write(tmp_path / "manifest-s1.json", manifest("s1", None, []))
    said: list[str] = []
    with refusing("replace", str(tmp_path), errno.ENOSPC), pytest.raises(DiskError, match="what was finished is kept"):
        pages.write(tmp_path, said.append)
    assert said == [] and [path.name for path in tmp_path.iterdir()] == ["manifest-s1.json"]
