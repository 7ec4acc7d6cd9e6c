"""The report in a real browser: it draws, asks the network for nothing, fits phones and paper, and works by keyboard."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meridian import report
from meridian.run_folder import RunFolder
from tests.meridian.in_browser import DESKTOP, NEEDS_CHROMIUM, OVERLAPS, PHONE, chromium, contrast, show, wait
from tests.meridian.judged import judged

pytest.importorskip("selenium.webdriver")
ui = pytest.importorskip("selenium.webdriver.support.ui")
pytestmark = NEEDS_CHROMIUM

DRAWN_IN = "return document.querySelector('#heads [data-drawn]').dataset.scheme"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    return report.write(RunFolder.open(judged(finished, folder / "run")), folder)


def scroll_through(browser) -> None:
    """Bring every figure near the view, as a reader does, and wait for each."""
    for place in browser.find_elements("css selector", "[data-figure]"):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
        wait(lambda place=place: place.get_attribute("data-drawn"), place.get_attribute("data-figure"))


@pytest.fixture(scope="module", params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def shown(request, browser, written):
    """The report, open and read to its end: (browser, size, errors on the console, addresses asked for)."""
    show(browser, written, request.param)
    scroll_through(browser)
    errors = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    return browser, request.param, errors, asked


def test_the_console_is_silent(shown) -> None:
    assert shown[2] == []


def test_nothing_but_the_file_is_asked_for(shown, written) -> None:
    assert {address for address in shown[3] if not address.startswith("data:")} == {written.as_uri()}


def test_every_figure_is_drawn_and_none_is_empty(shown) -> None:
    browser = shown[0]
    figures = browser.execute_script(
        "return [...document.querySelectorAll('[data-figure]')].map(e =>"
        " [e.dataset.figure, e.querySelectorAll('svg.main-svg').length, e.querySelectorAll(arguments[0]).length])",
        ".hm image, path.point, path.js-line, .points path, .bars path, path.js-fill",
    )
    assert len(figures) > 25
    assert [name for name, drawings, _ in figures if not drawings] == []
    assert [name for name, _, marks in figures if not marks] == []


def test_the_page_never_scrolls_sideways(shown) -> None:
    browser, (width, _), *_ = shown
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = false)")
    assert found == [width, width]


def test_name_of_the_tier_and_worst_groups_are_whole(shown) -> None:
    """Nothing of them is cut, hidden or beyond the edge, on a desk or on a phone 390 pixels wide."""
    browser = shown[0]
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    cut = browser.execute_script(
        "return [...document.querySelectorAll('.tier, table.groups tbody th, table.groups tbody td')].filter(e => "
        "{const r = e.getBoundingClientRect(); return e.scrollWidth > e.clientWidth + 1 && e.clientWidth || r.right > innerWidth "
        "|| !r.width}).map(e => e.textContent)"
    )
    count = browser.execute_script("return document.querySelectorAll('table.groups tbody tr').length")
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = false)")
    disputed = browser.execute_script("return document.querySelectorAll('table.disputed tbody tr').length")
    prompts = browser.execute_script("return document.querySelectorAll('table.prompts tbody tr').length")
    assert cut == [] and count == 25 + 17 + disputed + prompts


def test_verdict_and_what_blocks_are_seen_without_scrolling(shown) -> None:
    browser, (_, height), *_ = shown
    browser.execute_script("scrollTo(0, 0)")
    bottoms = browser.execute_script(
        "return ['.tier', '.meaning', '.blocks h2', '.blocks li:first-child']"
        ".map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < height
    assert bottoms[0] < height / 3  # the verdict itself is in the top third


def test_no_two_texts_of_header_table_and_legends_overlap(shown) -> None:
    browser = shown[0]
    browser.execute_script("scrollTo(0, 0)")
    assert (
        browser.execute_script(
            OVERLAPS,
            ".stand p, .tier, .about, .blocks h2, .blocks li, .example .token, .example .answer, .example .foil",
        )
        == []
    )
    for name in browser.execute_script(
        "return [...document.querySelectorAll('[data-drawn]')].map(e => e.dataset.figure)"
    ):
        inside = f"[data-figure='{name}'] "
        selector = ", ".join(inside + s for s in (".legendtext", ".xtitle", ".ytitle", ".annotation-text", ".cbtitle"))
        assert browser.execute_script(OVERLAPS, selector) == [], name


def test_every_axis_of_a_figure_has_a_title_or_names(shown) -> None:
    bare = shown[0].execute_script(
        "return [...document.querySelectorAll('[data-drawn]')].filter(e => !e.querySelector('.xtitle, .annotation-text')"
        ").map(e => e.dataset.figure)"
    )
    assert bare == []


def test_four_maps_are_drawn_and_another_is_chosen(shown) -> None:
    browser = shown[0]
    maps = browser.execute_script(
        "return [...document.querySelectorAll('#heads [data-figure]')].map(e => e.dataset.figure)"
    )
    assert maps[:4] == ["heads_02_denoising", "heads_02_noising", "heads_03_attribution", "heads_21_effect"]
    choice = browser.find_element("id", "chosen-map")
    names = [option.get_attribute("value") for option in choice.find_elements("css selector", "option")]
    assert len(maps) == 5 and maps[4] == names[0] and len(names) == 15 and not set(names) & set(maps[:4])
    ui.Select(choice).select_by_value("heads_09_copying")
    place = browser.find_element("css selector", "[data-chosen]")
    wait(lambda: place.get_attribute("data-drawn") == "heads_09_copying", "the chosen map")
    assert browser.find_element("id", "chosen-title").text == "Weights: copying"
    assert "eigenvalues" in browser.find_element("id", "chosen-caption").text


def test_dark_and_light_are_legible(shown) -> None:
    browser = shown[0]
    inks = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        wait(lambda scheme=scheme: browser.execute_script(DRAWN_IN) == scheme, scheme)
        inks[scheme] = browser.execute_script(
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor,"
            " getComputedStyle(document.querySelector('#heads .xtitle')).fill]"
        )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    for ink, ground, label in inks.values():
        assert contrast(ink, ground) > 7
        assert contrast(label, ground) > 7


def test_on_paper_every_figure_is_drawn_and_fits(browser, written) -> None:
    show(browser, written, DESKTOP)  # nothing scrolled: printing draws what was not seen yet
    browser.execute_script(
        "addEventListener('beforeprint', () => { window.printed = [...document.querySelectorAll('[data-figure]')].map(e =>"
        " [e.dataset.figure, e.querySelectorAll('svg.main-svg').length, e.querySelector('.svg-container').offsetHeight]) })"
    )
    answer = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    document = base64.b64decode(answer["data"])
    printed = browser.execute_script("return window.printed")
    assert [name for name, drawings, _ in printed if not drawings] == []
    assert [name for name, _, height in printed if height > 1000] == []  # an A4 page holds 1017 pixels
    pages = re.findall(rb"/Type\s*/Page\b(?!s)", document)
    assert len(pages) > 3
    assert (b"/MediaBox [0 0 594" in document or b"/MediaBox [0 0 595" in document) and len(
        zlib.compress(document)
    ) > 50_000


def test_the_tab_key_reaches_links_selects_and_tables_in_order(browser, written) -> None:
    show(browser, written, DESKTOP)
    seen = []
    for _ in range(600):
        browser.switch_to.active_element.send_keys("\ue004")
        seen.append(
            browser.execute_script(
                "const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"
            )
        )
        if seen[-1] == "chosen-map":
            break
    assert seen[:3] == ["#certificate", "#certificate", "#forest"]  # the skip link, then the sections
    assert "any-head" in seen and "edge-threshold" in seen and seen[-1] == "chosen-map"
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
