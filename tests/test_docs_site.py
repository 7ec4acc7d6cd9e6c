"""The documentation site: it builds without a warning and says what code, configurations and measured rates say."""

from __future__ import annotations

import functools
import html
import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from calibrations.registry import CALIBRATIONS
from circuits.measurements import MEASUREMENTS
from registries import name_of
from scripts.docs import api, calibrations, site, tiers, validation
from suites.modes import EVERY
from tests.meridian import in_browser

# myst-parser reads an attribute that Sphinx 11 will not have
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs" / "calibration"
WITHOUT_REASON = {  # settings whose configuration gives none; a new one has to
    "C12.reliability_seed",
    "C16.split_seed",
    "C36.minimum_prompts",
    "M98.minimum_prompts",
    "E1b.minimum_prompts",
    "M3b.minimum_prompts",
    "M3b.minimum_heads",
}


class Page(HTMLParser):
    """Links, anchors, loaded resources and text of one HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.anchors, self.loaded, self.words = [], set(), [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("href"):
            self.loaded.append(given["href"])

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once with warnings as errors."""
    work = tmp_path_factory.mktemp("docs")
    assert site.build(work / "html", work) == 0, "Sphinx warned; the captured error stream says of what"
    return work / "html"


@pytest.fixture(scope="session")
def pages(built: Path) -> dict[str, Page]:
    """Every page by its path below the site."""
    return {p.relative_to(built).as_posix(): Page(p.read_text(encoding="utf-8")) for p in built.rglob("*.html")}


def test_every_link_leads_somewhere(built: Path, pages: dict[str, Page]) -> None:
    followed, broken = 0, []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            followed += 1
            target = (built / name).parent / unquote(parts.path) if parts.path else built / name
            file = target.resolve()
            if not file.exists():
                broken.append((name, link))
            elif parts.fragment and file.suffix == ".html":
                anchors = pages[file.relative_to(built.resolve()).as_posix()].anchors
                broken += [(name, link)] if unquote(parts.fragment) not in anchors else []
    assert not broken
    assert followed > 5000


@pytest.mark.skipif(not (in_browser.CHROMIUM and in_browser.DRIVER), reason="no Chromium with its driver is installed")
@pytest.mark.parametrize("word", ["faithfulness", "completeness", "noising", "recipe", "circuit"])
def test_the_search_finds_the_glossary_s_entry_first_and_the_python_reference_last(
    built: Path, browser: Any, word: str
) -> None:
    browser.get(f"{(built / 'search.html').as_uri()}?q={word.replace(' ', '+')}")
    said = "return document.getElementById('search-results').textContent"
    in_browser.wait(lambda: "Search finished" in browser.execute_script(said), "the results")
    links = "return [...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
    first, second, *others = browser.execute_script(links)
    assert first.partition("?")[0] == f"glossary.html#term-{word.replace(' ', '-')}" and second.startswith(
        "glossary.html"
    )
    reference = [other.startswith("api/") for other in others]
    assert len(others) > 3 and reference == sorted(reference)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from in_browser.chromium()


def test_nothing_is_loaded_from_elsewhere(built: Path, pages: dict[str, Page]) -> None:
    loaded = [(name, address) for name, page in pages.items() for address in page.loaded]
    assert len(loaded) > len(pages)
    assert [pair for pair in loaded if re.match(r"(https?:)?//", pair[1])] == []
    styles = [p.read_text(encoding="utf-8") for p in built.rglob("*.css")]
    assert styles and not any(re.search(r"url\(['\"]?(https?:)?//|@import", text) for text in styles)


def test_every_page_has_one_title_and_navigation(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        if name not in ("genindex.html", "search.html", "py-modindex.html"):
            assert any(link.endswith("quick-start.html") or name == "quick-start.html" for link in page.links), name


def test_every_calibration_has_its_page(pages: dict[str, Page]) -> None:
    for identifier, module in CALIBRATIONS.items():
        page = pages[f"calibrations/{name_of(module)}.html"]
        assert f"{identifier} {module.TITLE}" in page.text
        for section in ("Thresholds", "What it decides", "How often it is right", "How it fails"):
            assert section in page.text, (identifier, section)
        for number in module.INPUTS:
            assert any(f"measurements/{number}_" in link for link in page.links), (identifier, number)


PUBLISHED = {  # the published table: criterion, requires
    "C11": ("M1 Reliability", "GPU, model"),
    "C12": ("C5 Convergent validity", "CPU, data-only"),
    "C13": ("M2 Invariance", "GPU, model"),
    "C14": ("M4 Sensitivity", "CPU, data-only"),
    "C16": ("M1 Reliability", "GPU, model"),
    "C17": ("M3 Baseline separation", "GPU, model"),
    "C23": ("C5 Convergent validity", "CPU, data-only"),
    "C30": ("M1 Reliability", "GPU, model"),
    "C36": ("C5 Convergent validity", "GPU, model"),
    "F59": ("M1 Reliability", "GPU, model"),
    "S1": ("S1 Distributional Characterization", "GPU, model"),
    "S3": ("S3 Distributional Stability", "GPU, model"),
    "M93": ("M5 Statistical Rigor", "CPU, data-only"),
    "M98": ("Method Robustness", "GPU, model"),
    "E1b": ("E1b Method Invariance", "GPU, model"),
    "M3b": ("Head-level stability", "GPU, model"),
}


@pytest.mark.parametrize("identifier", ["C12", "C14", "S1", "S3"])
def test_a_page_has_the_published_criterion_and_what_departs_from_the_text(identifier: str) -> None:
    """Criterion above what it computes; departures in a section of their own, below the reasons of `insufficient`."""
    text = calibrations.page(CALIBRATIONS[identifier])
    criterion, requires = PUBLISHED[identifier]
    place = [
        text.index(part)
        for part in (
            f"Criterion: {criterion}. Requires: {requires}.\n",
            "## What it computes",
            "## How it fails",
            "Of its own it says `insufficient`",
            "## Where it departs from the published text\n\n- ",
        )
    ]
    assert place == sorted(place) and text.count("Criterion: ") == 1


def test_notes_and_works_are_on_the_pages(pages: dict[str, Page]) -> None:
    """Hand-written notes of all published calibrations; one that a user adds does without."""
    notes = sorted(calibrations.NOTES.glob("*_*.md"))
    assert len(notes) == 16
    for file in notes:
        page = pages[f"calibrations/{file.stem}.html"]
        first = re.search(r"^- (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)[1]
        assert " ".join(re.sub(r"[`*]", "", first).split()[:4]) in page.text, file.name
        assert "Literature" in page.text, file.name


def test_thresholds_are_those_of_the_configuration(built: Path, pages: dict[str, Page]) -> None:
    """Every setting, read again with plain YAML, stands in a row of the page with its value and a reason."""
    counted, lacking = 0, set()
    for module in CALIBRATIONS.values():
        name = name_of(module)
        rows, text = _rows(built / "calibrations" / f"{name}.html"), pages[f"calibrations/{name}.html"].text
        own = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
        for key, value in own[module.ID.lower()].items():
            if isinstance(value, dict | list):  # opened in the table, or listed below it
                assert all(json.dumps(leaf) in text or str(leaf) in text for leaf in _leaves(value)), (name, key)
                continue
            assert rows[key][0] == json.dumps(value), (name, key)
            lacking |= set() if rows[key][1] else {f"{module.ID}.{key}"}
            counted += 1
    assert counted > 60
    assert lacking <= WITHOUT_REASON


def _leaves(value: object) -> list[object]:
    """The values at the ends of mappings and lists."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if below is None else [leaf for inner in below for leaf in _leaves(inner)]


def _tables(path: Path) -> list[list[list[str]]]:
    """Every table of a page: its rows, the header first, as the texts of their cells."""
    return [
        [
            [
                " ".join(html.unescape(re.sub(r"<[^>]+>", "", cell)).split())
                for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
            ]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
        ]
        for table in re.findall(r"<table[^>]*>(.*?)</table>", path.read_text(encoding="utf-8"), re.DOTALL)
    ]


def _rows(path: Path) -> dict[str, list[str]]:
    """Rows of all tables of a page by their first cell; the first of several."""
    found = {}
    for first, *rest in (row for table in _tables(path) for row in table):
        found.setdefault(first, rest)
    return found


def _table(path: Path, first: str) -> list[list[str]]:
    """The rows below the header of the table whose header begins with `first`; empty without one."""
    found = [table[1:] for table in _tables(path) if table[0][0] == first]
    assert len(found) <= 1
    return found[0] if found else []


def test_gates_are_those_of_the_tiers(pages: dict[str, Page]) -> None:
    declared = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))["tiers"]
    asked = {
        (tier, metric)
        for tier, kinds in declared.items()
        for kind in ("all", "any", "not_fail")
        for metric in kinds.get(kind, [])
    }
    shown = {
        (tier, m) for i in (*CALIBRATIONS, "P") for tier, m, meaning in tiers.gates(i) if "held-out" not in meaning
    }
    assert shown == asked
    assert (
        "3 triangulated C13.measurement_invariance must pass"
        in pages["calibrations/c13_measurement_invariance.html"].text
    )


def test_the_index_lists_the_tiers_that_ask_for_each(built: Path) -> None:
    declared = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))["tiers"]
    shown = {title.split()[0]: tier for title, _, tier in _table(built / "calibrations" / "index.html", "calibration")}
    for identifier in CALIBRATIONS:
        asking = {str(t) for t, kinds in declared.items() if re.search(rf"'{identifier}\.", str(kinds))}
        assert shown[identifier] == (", ".join(sorted(asking)) or "–"), identifier
    assert len(set(shown.values())) > 3


def _measured() -> dict:
    return json.loads((validation.FOLDER / "V1_error_rates.json").read_text(encoding="utf-8"))["data"]


def _page_of(identifier: str) -> str:
    return f"calibrations/{name_of(CALIBRATIONS[identifier]) if identifier != 'P' else 'preconditions'}.html"


def test_rates_are_the_measured_ones(pages: dict[str, Page]) -> None:
    """False passes and power of every calibration, counted again from the cells."""
    cells = _measured()["cells"]
    for identifier in (*CALIBRATIONS, "P"):
        text = pages[_page_of(identifier)].text
        for declared in ("pass", "not_pass"):
            own = [c for c in cells if (c["row"], c["expected"], c["prompts"]) == (identifier, declared, 400)]
            count, n = sum(c["verdict_pass"]["count"] for c in own), sum(c["verdict_pass"]["n"] for c in own)
            assert validation.totals(identifier, declared, 400) == (count, n)
            beside = sum(c["published_pass"]["count"] for c in own) if identifier != "C23" else _depth_passes(own)
            published = f"; the published threshold {beside} of {n}" if identifier != "P" else ""
            assert not n or f"the verdict passes {count} of {n} samples{published}." in text, (identifier, declared)
    assert "published threshold" not in pages[_page_of("P")].text


def _depth_passes(cells: list[dict]) -> int:
    """Of C23 the verdict is that of role depth, so the published rule beside it is too."""
    passes = _measured()["metric_passes"]
    return sum(passes[c["subject"]][str(c["prompts"])]["C23.role_depth_correlation"][0] for c in cells)


def test_published_and_verdict_are_of_the_same_record() -> None:
    """What is counted of one record agrees with the row's verdicts, and C23 is the only row that this changes."""
    changed, compared = set(), 0
    for cell in _measured()["cells"]:
        metric = tiers.deciding_metric(cell["row"])
        if metric:
            count, verdicts = _measured_passes(cell, metric)
            assert verdicts == cell["verdict_pass"]["count"]
            assert validation.published(cell)["count"] == count
            compared += 1
            changed |= {cell["row"]} if count != cell["published_pass"]["count"] else set()
    assert changed == {"C23"} and compared > 500
    sound = next(c for c in _measured()["cells"] if (c["row"], c["subject"], c["prompts"]) == ("C23", "sound", 400))
    assert validation.totals("C23", "pass", 400, "published_pass") == (150, 150)
    assert validation.published(sound)["ci95"] == pytest.approx(
        (0.9630, 1.0), abs=1e-4
    )  # 100 of 100, by hand: 1 - z2/(n + z2)


@functools.cache
def _all_passes() -> dict:
    return _measured()["metric_passes"]


def _measured_passes(cell: dict, metric: str) -> list[int]:
    return _all_passes()[cell["subject"]][str(cell["prompts"])][metric]


def test_cells_of_the_tables_of_rates_are_the_measured_ones(built: Path) -> None:
    """Every rate with its interval, by subject and number of prompts; published beside verdicts and not in their place."""
    cells, compared = _measured()["cells"], 0
    by_key = {(c["row"], c["subject"], c["prompts"]): c for c in cells}
    for identifier in (*CALIBRATIONS, "P"):
        declared = {c["subject"]: c["expected"] for c in cells if c["row"] == identifier and c["expected"] != "free"}
        rows = _table(built / _page_of(identifier), "subject")
        assert {row[0] for row in rows} == {name.replace("_", " ") for name in declared}
        for subject, said, *shown in rows:
            own = [by_key[identifier, subject.replace(" ", "_"), n] for n in (40, 100, 400)]
            assert said == {"pass": "must pass", "not_pass": "must not pass"}[declared[own[0]["subject"]]]
            assert shown[:3] == [_share(c["verdict_pass"]) for c in own], (identifier, subject)
            if identifier not in ("C23", "P"):
                assert shown[3] == _share(own[2]["published_pass"])
            compared += 1
    assert compared > 40


def _share(passes: dict) -> str:
    low, high = passes["ci95"]
    return f"{passes['rate']:.2f} [{max(low, 0):.2f}, {high:.2f}]"


def test_cells_of_the_tables_of_coverage_are_those_of_95_percent_intervals(built: Path) -> None:
    stored = json.loads((validation.FOLDER / "V2_coverage.json").read_text(encoding="utf-8"))["data"]["coverage"]
    share = {(c["metric"], c["heads"], c["n"]): c["share"] for c in stored if c["interval"] == "ci95"}
    other = {(c["metric"], c["heads"], c["n"]): c["share"] for c in stored if c["interval"] == "ci90"}
    compared = differ = 0
    for identifier in CALIBRATIONS:
        path = built / _page_of(identifier)
        tables = [table for table in _tables(path) if table[0][0] == "95 % interval of"]
        sizes = [int(re.search(r"\d+", cell)[0]) for table in tables for cell in table[0][2:]]
        for metric, heads, *shown in _table(path, "95 % interval of"):
            for n, cell in zip(sizes, shown, strict=True):
                value = share.get((metric, heads, n))
                assert cell == ("–" if value is None else f"{value:.3f}"), (metric, heads, n)
                compared += value is not None
                differ += value is not None and value != other.get((metric, heads, n))
        shown = {row[0] for row in _table(path, "95 % interval of")}
        assert shown == {m for (m, _, _), s in share.items() if m.startswith(f"{identifier}.") and s is not None}
    assert compared > 20 and differ > compared / 2


def _measurement_page(number: str) -> str:
    return f"measurements/{number}_{MEASUREMENTS[number].ID}.html"


def test_every_measurement_has_its_page(pages: dict[str, Page]) -> None:
    with_readers = 0
    for number in MEASUREMENTS:
        page = pages[_measurement_page(number)]
        assert "Data" in page.text and "Read by" in page.text
        linked = {Path(link).stem for link in page.links if "/calibrations/" in link}
        for module in CALIBRATIONS.values():
            if number in module.INPUTS:
                assert name_of(module) in linked, (number, module.ID)
                with_readers += 1
    assert with_readers > 30
    assert "denoising [P][H]" in pages["measurements/02_activation_patching.html"].text
    unread = pages["measurements/04_logit_lens.html"].text
    assert "No calibration, so no verdict rests on it." in unread and "in the report" not in unread


def test_a_measurement_s_page_lists_the_settings_that_it_reads_with_their_reasons(built: Path) -> None:
    own = yaml.safe_load((ROOT / "configs" / "measurement" / "all.yaml").read_text(encoding="utf-8"))
    with_table = 0
    for number, module in MEASUREMENTS.items():
        rows = _table(built / _measurement_page(number), "setting")
        assert {row[0].partition(".")[0] for row in rows} == set(module.SETTINGS) & set(own), number
        for name, value, reason in rows:
            held = own
            for key in name.split("."):
                held = held[key]
            assert value in (json.dumps(held), "listed below"), name
            assert len(reason.split()) > 1 and not re.search(r"(,| of| and| with| a| the)$", reason), (name, reason)
        with_table += bool(rows)
    assert with_table > 10


def test_every_suite_has_its_page(built: Path, pages: dict[str, Page]) -> None:
    folders = sorted(p.parent for p in (ROOT / "suites" / "catalogue").glob("*/suite.yaml"))
    assert len(folders) > 10
    for folder in folders:
        declared = yaml.safe_load((folder / "suite.yaml").read_text(encoding="utf-8"))
        lines = (folder / "suite.lock.jsonl").read_text(encoding="utf-8").splitlines()
        rows_text = pages[f"suites/{folder.name}.html"].text
        assert f"items {len(lines) - 1}" in rows_text
        kinds = Counter(json.loads(line)["item"].get("kind", "minimum_functionality") for line in lines[1:])
        counted = [
            row for table in _tables(built / "suites" / f"{folder.name}.html") for row in table if row[0] == "kind"
        ]
        assert {name: int(n) for _, name, n in counted} == kinds
        assert f"version {declared['version']}" in rows_text
        if declared.get("gate"):
            assert f"a failure rate of {declared['gate']['failure_rate']}" in rows_text
        assert EVERY[declared["mode"]].TITLE in rows_text


def test_the_python_reference_shows_signatures_fields_and_docstrings(pages: dict[str, Page]) -> None:
    """A function with its types, a dataclass with its fields and without the text that dataclass makes, an empty Protocol."""
    text = pages["api/circuits.html"].text
    assert "companion ( study : Study , name : str , size : int ) → Study" in text
    assert "A smaller study of another task on the same model" in text
    assert "class Identity ( name : str , kind : str , sha256 : str , n_layers : int" in text
    assert "Float [ Tensor , 'd_model vocabulary' ]" in text and "~circuits" not in text
    assert "(spec" not in text and "class Progress ¶" in pages["api/shown_progress.html"].text
    shown = {name.removeprefix("api/") for name in pages if name.startswith("api/")}
    assert shown == {"index.html", *(f"{title}.html" for title, *_ in api.PAGES)}
