"""The report in a real browser: it draws, asks the network for nothing, fits phones and paper, and works by keyboard."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from meridian import report
from meridian.run_folder import RunFolder
from tests.meridian.judged import judged

webdriver = pytest.importorskip("selenium.webdriver")
ui = pytest.importorskip("selenium.webdriver.support.ui")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver is installed"),
]

DESKTOP, PHONE = (1440, 900), (390, 844)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
DRAWN_IN = "return document.querySelector('#heads [data-drawn]').dataset.scheme"
OVERLAPS = """
const texts = [...document.querySelectorAll(arguments[0])].filter(e => e.textContent.trim() && e.getClientRects().length)
  .map(e => [e.textContent.trim(), e.getBoundingClientRect()]);
const bad = [];
for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
  const [a, p] = texts[i], [b, q] = texts[j];
  const x = Math.min(p.right, q.right) - Math.max(p.left, q.left), y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
  if (x > 2 && y > 3) bad.push([a, b]);
}
return bad;
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    return report.write(RunFolder.open(judged(finished, folder / "run")), folder)


def show(browser, path: Path, size: tuple[int, int]) -> None:
    """Open the report in a window of `size` and wait until the library is unpacked."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages said
    browser.get(path.as_uri())
    wait(lambda: browser.execute_script("return document.documentElement.dataset.ready") == "yes", "the library")


def wait(done, what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} was not there after {seconds} s"
        time.sleep(0.05)


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
    assert len(figures) > 30
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
    assert cut == [] and count == 25 + 17


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
    assert browser.execute_script(OVERLAPS, ".top p, .tier, .about, .blocks h2, .blocks li") == []
    for name in browser.execute_script(
        "return [...document.querySelectorAll('[data-drawn]')].map(e => e.dataset.figure)"
    ):
        inside = f"[data-figure='{name}'] "
        selector = ", ".join(inside + s for s in (".legendtext", ".xtitle", ".ytitle", ".annotation-text", ".cbtitle"))
        assert browser.execute_script(OVERLAPS, selector) == [], name


def test_every_axis_of_a_figure_has_a_title_or_names(shown) -> None:
    bare = shown[0].execute_script(
        "return [...document.querySelectorAll('[data-drawn]')].filter(e => !e.querySelector('.xtitle, .annotation-text')"
        " && e.dataset.figure !== 'circuit').map(e => e.dataset.figure)"
    )
    assert bare == []


def test_choosing_a_head_draws_its_pattern(shown) -> None:
    browser = shown[0]
    choice = browser.find_element("id", "chosen-head")
    heads = [option.get_attribute("value") for option in choice.find_elements("css selector", "option")]
    before = browser.find_element("id", "chosen-title").text
    ui.Select(choice).select_by_value(heads[-1])
    place = browser.find_element("css selector", "[data-chosen]")
    wait(lambda: place.get_attribute("data-drawn").endswith(heads[-1]), heads[-1])
    assert heads[-1] in browser.find_element("id", "chosen-title").text != before


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


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two CSS colours."""
    lights = sorted(map(luminance, (first, second)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
    for _ in range(250):
        browser.switch_to.active_element.send_keys("\ue004")
        seen.append(
            browser.execute_script(
                "const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"
            )
        )
        if seen[-1] == "chosen-head":
            break
    assert seen[:3] == ["#certificate", "#certificate", "#forest"]  # the skip link, then the sections
    assert seen[-2:] == ["chosen-prompt", "chosen-head"]
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
