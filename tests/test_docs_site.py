"""The documentation site: it builds without a warning and says what code, configurations and measured rates say."""

from __future__ import annotations

import ast
import functools
import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import registries
from calibrations.registry import CALIBRATIONS
from circuits.measurements import MEASUREMENTS
from scripts.docs import (
    calibrations,
    literature,
    markdown,
    measurements,
    messages,
    settings,
    site,
    source,
    suites,
    troubleshooting,
    validation,
)

# myst-parser reads an attribute that Sphinx 11 will not have
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs" / "calibration"
PUBLISHED = (
    "C11",
    "C12",
    "C13",
    "C14",
    "C16",
    "C17",
    "C23",
    "C30",
    "C36",
    "F59",
    "S1",
    "S3",
    "M93",
    "M98",
    "E1b",
    "M3b",
)
MEASURED = [f"{number:02}" for number in (*range(1, 11), *range(20, 23), *range(24, 29))]
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
    """The registry, which imports the modules, and the site, which reads them, know the same ones."""
    assert {c.identifier: c.stem for c in calibrations.found()} == {
        i: registries.name_of(m) for i, m in CALIBRATIONS.items()
    }
    for identifier, module in CALIBRATIONS.items():
        page = pages[f"calibrations/{registries.name_of(module)}.html"]
        assert f"{identifier} {module.TITLE}" in page.text
        for section in ("Thresholds", "What it decides", "How often it is right", "How it fails"):
            assert section in page.text, (identifier, section)
        for number in module.INPUTS:
            assert any(f"measurements/{number}_" in link for link in page.links), (identifier, number)


def test_notes_and_works_are_on_the_pages(pages: dict[str, Page]) -> None:
    """Hand-written notes of all published calibrations; one that a user adds does without."""
    notes = sorted(calibrations.NOTES.glob("*.md"))
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
        name = registries.name_of(module)
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
    tiers = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))["tiers"]
    asked = {
        (tier, metric)
        for tier, kinds in tiers.items()
        for kind in ("all", "any", "not_fail")
        for metric in kinds.get(kind, [])
    }
    shown = {
        (tier, m)
        for i in (*CALIBRATIONS, "P")
        for tier, m, meaning in calibrations.gates(i)
        if "held-out" not in meaning
    }
    assert shown == asked
    assert (
        "4 certified C13.measurement_invariance must pass" in pages["calibrations/c13_measurement_invariance.html"].text
    )


def test_the_index_lists_the_tiers_that_ask_for_each(built: Path) -> None:
    tiers = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))["tiers"]
    shown = {title.split()[0]: tier for title, _, tier in _table(built / "calibrations" / "index.html", "calibration")}
    for identifier in CALIBRATIONS:
        asking = {str(t) for t, kinds in tiers.items() if re.search(rf"'{identifier}\.", str(kinds))}
        assert shown[identifier] == (", ".join(sorted(asking)) or "–"), identifier
    assert len(set(shown.values())) > 3


def _measured() -> dict:
    return json.loads((validation.FOLDER / "V1_error_rates.json").read_text(encoding="utf-8"))["data"]


def _page_of(identifier: str) -> str:
    return f"calibrations/{registries.name_of(CALIBRATIONS[identifier]) if identifier != 'P' else 'preconditions'}.html"


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
        metric = validation.decisive(cell["row"])
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


def test_every_measurement_has_its_page(pages: dict[str, Page]) -> None:
    files = {p.stem for p in (ROOT / "circuits" / "measurements").glob("*.py")} - {"__init__"}
    assert {m.path.stem for m in measurements.found()} == files
    for measurement in measurements.found():
        page = pages[measurement.page.replace(".md", ".html")]
        assert "Data" in page.text and "Read by" in page.text
        for reader in measurement.readers:
            assert any(link.endswith(f"{reader.stem}.html") for link in page.links)
    assert "denoising [P][H]" in pages["measurements/02_activation_patching.html"].text
    unread = pages["measurements/04_logit_lens.html"].text
    assert "No calibration, so no verdict rests on it." in unread and "in the report" not in unread
    readers = {c.identifier for m in measurements.found() if m.number == "27" for c in m.readers}
    assert readers == {i for i, module in CALIBRATIONS.items() if "27" in module.INPUTS} >= {"C17"}


def test_a_measurement_s_page_lists_the_settings_that_it_reads_with_their_reasons(built: Path) -> None:
    own = yaml.safe_load(measurements.CONFIG.read_text(encoding="utf-8"))
    with_table = 0
    for measurement in measurements.found():
        module = MEASUREMENTS[measurement.number]
        rows = _table(built / measurement.page.replace(".md", ".html"), "setting")
        assert {row[0].partition(".")[0] for row in rows} == set(module.SETTINGS) & set(own), measurement.number
        for name, value, reason in rows:
            held = own
            for key in name.split("."):
                held = held[key]
            assert value in (json.dumps(held), "listed below"), name
            assert len(reason.split()) > 1 and not re.search(r"(,| of| and| with| a| the)$", reason), (name, reason)
        with_table += bool(rows)
    assert with_table > 10


def test_every_calibration_s_page_says_formula_published_rule_and_verdict() -> None:
    """In the docstring of `calibrate`, which the page shows."""
    for identifier in PUBLISHED:
        said = CALIBRATIONS[identifier].calibrate.__doc__
        assert re.search(r"Published: \w", said) and re.search(r"Verdicts?: \w", said), identifier


def test_every_suite_has_its_page(built: Path, pages: dict[str, Page]) -> None:
    folders = sorted(p.parent for p in (ROOT / "suites" / "catalogue").glob("*/suite.yaml"))
    assert [s.identifier for s in suites.found()] == [folder.name for folder in folders]
    for folder in folders:
        declared = yaml.safe_load((folder / "suite.yaml").read_text(encoding="utf-8"))
        lines = (folder / "suite.lock.jsonl").read_text(encoding="utf-8").splitlines()
        rows_text = pages[f"suites/{folder.name}.html"].text
        assert f"items {len(lines) - 1}" in rows_text
        kinds = Counter(json.loads(line)["item"].get("kind", "original") for line in lines[1:])
        counted = [
            row for table in _tables(built / "suites" / f"{folder.name}.html") for row in table if row[0] == "kind"
        ]
        assert {name: int(n) for _, name, n in counted} == kinds
        assert f"version {declared['version']}" in rows_text
        if declared.get("gate"):
            assert f"a failure rate of {declared['gate']['failure_rate']}" in rows_text
        assert suites.modes()[declared["mode"]].title in rows_text


def test_every_error_message_is_on_a_page(pages: dict[str, Page]) -> None:
    """Twin: raise sites counted without the scanner's logic; each function that raises a UserError is named on a page.

    Those that hand on the text of another error have no words of their own.
    """
    shown = " ".join(page.text for name, page in pages.items() if name.startswith("troubleshooting/"))
    sites = 0
    for path in source.files():
        for function, node in _raises(ast.parse(path.read_text(encoding="utf-8"))):
            if ast.unparse(node.func).rpartition(".")[2] in messages.user_errors() and node.args:
                sites += 1
                where = f"{source.dotted(path)}.{function}" if function else source.dotted(path)
                hands_on = not any(
                    isinstance(n, ast.Constant) and re.search(r"[a-z]{2}", str(n.value)) for n in ast.walk(node.args[0])
                )
                assert where in shown or hands_on, f"{where} raises a message that no page has"
    assert sites > 350
    for message in messages.messages():
        assert " ".join(message.template.split()) in shown, message


def _raises(tree: ast.Module, function: str = "") -> list[tuple[str, ast.Call]]:
    """(innermost function, call) of every call in the tree."""
    found = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Call):
            found.append((function, child))
        inner = child.name if isinstance(child, ast.FunctionDef) else function
        found += _raises(child, inner)
    return found


def test_a_module_in_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"elsewhere\.module are in no group"):
        troubleshooting.group_of("elsewhere.module")
    assert troubleshooting.group_of("suites.models.endpoint").slug == "endpoints"  # the longest beginning wins
    assert troubleshooting.group_of("suites.modelling").slug == "suites"


def test_sentences_that_are_explained_exist() -> None:
    """Every quoted sentence of the hand-written part is what some message would say."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [" ".join(block.split()) for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    assert len(quoted) >= 20
    for sentence in quoted:
        assert any(m.matches(sentence) for m in messages.messages() if messages.is_user_error(m)), sentence


def test_a_template_without_words_explains_nothing() -> None:
    sentence = "suites/mine/suite.yaml: pigs have learnt to fly over the fence"
    for template in ("<where>: <error>", "<error>", "<declaration.file>: <sentence(errors[0], prefix)>"):
        said = messages.Message("m", "f", "UserError", template)
        assert not said.matches(sentence) and not said.speaks
        assert template not in {m.template for m in messages.messages()}
    assert messages.Message("m", "f", "UserError", "<where>: pigs have learnt to <verb> over the fence").matches(
        sentence
    )
    assert not messages.Message("m", "f", "UserError", "<where>: pigs have <what>").matches(
        sentence
    )  # 12 of 62 characters


def test_message_templates(tmp_path: Path) -> None:
    """A small module with every way to say something: literals, values, choices, variables, helpers, tables."""
    file = tmp_path / "shop.py"
    file.write_text(
        "from results_io import UserError\n"
        "SAID = {'a': 'no apples are left; ask for pears'}\n"
        "def buy(kind, known, n):\n"
        "    if n < 0: raise UserError(f'{n} is below 0; use one of {\", \".join(known)}')\n"
        "    what = 'all of it' if n else 'none of it'\n"
        "    if kind: raise UserError(SAID.get(kind))\n"
        "    raise UserError('sold: ' + what)\n"
        "def _damaged(where): return UserError(f'{where} is damaged; buy another')\n"
        "def look(): raise _damaged('the box at the back')\n",
        encoding="utf-8",
    )
    module = messages._Module.__new__(messages._Module)
    module.name, module.tree = "shop", ast.parse(file.read_text(encoding="utf-8"))
    module.parents = {c: p for p in ast.walk(module.tree) for c in ast.iter_child_nodes(p)}
    assert sorted(m.template for m in module.messages()) == [
        "<n> is below 0; use one of <known>",
        "no apples are left; ask for pears",
        "sold: all of it",
        "sold: none of it",
        "the box at the back is damaged; buy another",
    ]


def test_every_work_is_cited_by_what_exists() -> None:
    known = {*CALIBRATIONS, *(m.number for m in measurements.found()), "discovery"}
    cited = {subject for work in literature.works() for subject in work.cited_by}
    assert cited <= known
    assert cited >= {*PUBLISHED, *MEASURED, "discovery"}


def test_settings_keep_values_and_reasons(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "# about the file\nc99:\n  limit: 0.5  # a reason\n"
        "  # above it\n  names: [a, b]\n"
        "  inner:  # of a section\n    deep: null  # why not\n    other: 1\n",
        encoding="utf-8",
    )
    assert settings.read(file) == [
        settings.Setting("c99.limit", 0.5, "a reason"),
        settings.Setting("c99.names", ["a", "b"], "above it"),
        settings.Setting("c99.inner.deep", None, "why not"),
        settings.Setting("c99.inner.other", 1, "of a section"),
    ]


def test_links_of_moved_pages() -> None:
    pages, moved = {"docs/a.md": "a.md", "README.md": "index.md"}, {"README.md#x": "deep/x.md"}
    text = "[one](../README.md#x) [two](../README.md) [three](../configs/c.yaml) [four](https://e.org) [five](#here)"
    assert markdown.relinked(text, "docs/a.md", pages, moved) == (
        "[one](deep/x.md) [two](index.md) three (`configs/c.yaml`) [four](https://e.org) [five](#here)"
    )


def test_docstrings_keep_what_they_say() -> None:
    assert markdown.prose("f[a](b) of <x> and `a[b]` {k}\n\n    x = y[0] * 2") == (
        "f\\[a](b) of \\<x> and `a[b]` \\{k}\n\n    x = y[0] * 2\n".replace("](b)", "\\](b)")
    )
    assert markdown.literal("run `x`") == "`` run `x` ``"
    assert markdown.prose("It holds (spec C13). Source: spec A10.") == "It holds.\n"
