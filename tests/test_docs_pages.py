"""What stands in docs/ by hand, checked against the sources without building the site."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from calibrations.registry import CALIBRATIONS
from calibrations.statistics.errors import INSUFFICIENT_REASONS
from circuits.measurements import MEASUREMENTS
from scripts.docs import api, literature, markdown, sections, settings, tiers
from scripts.docs import calibrations as calibration_pages

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("calibrations", "circuits", "kernels", "meridian", "suites")
PUBLISHED = {"C11", "C12", "C13", "C14", "C16", "C17", "C23", "C30", "C36"}
PUBLISHED |= {"F59", "S1", "S3", "M93", "M98", "E1b", "M3b"}
MEASURED = {f"{number:02}" for number in (*range(1, 11), *range(19, 23), *range(24, 29))}


@functools.cache
def literals() -> tuple[str, ...]:
    """Every text in the sources that is no docstring; of an f-string, the parts between its values."""
    found = []
    for path in [*ROOT.glob("*.py"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        found += [node.value for node in constants if isinstance(node.value, str)]
    return tuple(found)


def absent(message: str) -> list[str]:
    """The parts of a message, between what a run fills in and at its semicolons, that no text of the sources contains."""
    parts = [part.strip() for part in re.split(r"<[^<>]*>|; ", " ".join(message.split()))]
    return [part for part in parts if re.search("[a-z]{2}", part) and not any(part in text for text in literals())]


def test_every_message_of_the_troubleshooting_page_occurs_in_the_sources() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert len(messages) == 46
    assert {message: absent(message) for message in messages if absent(message)} == {}


def test_a_message_that_no_source_has_is_found() -> None:
    assert absent("<name>=<value> is not a sonnet; write one") == ["is not a sonnet"]
    assert absent("<setting> is not a setting; did you mean <setting>?") == []


def test_the_troubleshooting_page_explains_every_reason_of_insufficient() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(\w+)` \|", text.partition("\n## Insufficient\n")[2], re.MULTILINE)
    assert sorted(explained) == sorted(INSUFFICIENT_REASONS)


def test_every_entry_of_the_glossary_is_short_and_names_its_file() -> None:
    """The kinds of ablation are described under one file, that of `ablation`."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\{glossary\}\n(.*?)```", text, re.DOTALL)
    entries = [entry for block in blocks for entry in re.split(r"\n\n", block.strip())]
    assert len(entries) > 80
    for entry in entries:
        term, _, meaning = entry.partition("\n")
        assert re.search(r"`[\w/]+\.py`", meaning) or term.endswith(" ablation"), term
        assert len(meaning.split()) <= 55, term


def test_every_module_of_the_python_reference_exists() -> None:
    named = [module for *_, patterns in api.PAGES for module in patterns.split()]
    assert len(named) > 30
    assert [name for name in named if importlib.util.find_spec(name.removesuffix(".*")) is None] == []


def test_every_source_file_that_a_page_names_exists() -> None:
    """Where a page tells what to write, its folder exists: in `NAME.py`, and in the examples of docs/extending.md."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("**/README.md")]
    absent, counted = [], 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for file in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|sh))`", text):
            example = f"`{file}`\n\n```python" in text or re.search(r"NAME|ID_|aNN|sNN", file)
            exists = (ROOT / file).parent.is_dir() if example else (ROOT / file).is_file()
            absent += [] if exists else [(page.name, file)]
            counted += 1
    assert absent == [] and counted > 100


def test_every_work_is_cited_by_what_exists() -> None:
    cited = {subject for work in literature.works() for subject in work["for"]}
    assert cited <= {*CALIBRATIONS, *MEASUREMENTS, "discovery"}
    assert cited >= PUBLISHED | MEASURED | {"discovery"}


def test_every_calibration_s_page_says_formula_published_rule_and_verdict() -> None:
    """In the docstring of `calibrate`, which the page shows."""
    for identifier in PUBLISHED:
        said = CALIBRATIONS[identifier].calibrate.__doc__
        assert re.search(r"Published: \w", said) and re.search(r"Verdicts?: \w", said), identifier


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
    pages = {"docs/a.md": "a.md", "README.md": "index.md"}
    text = "[one](../README.md#x) [two](../README.md) [three](../configs/c.yaml) [four](https://e.org) [five](#here)"
    assert markdown.relinked(text, "docs/a.md", pages) == (
        "[one](index.md#x) [two](index.md) three (`configs/c.yaml`) [four](https://e.org) [five](#here)"
    )


def test_docstrings_keep_what_they_say_in_markdown() -> None:
    assert markdown.prose("f[a](b) of <x> and `a[b]` {k}\n\n    x = y[0] * 2") == (
        "f\\[a](b) of \\<x> and `a[b]` \\{k}\n\n    x = y[0] * 2\n".replace("](b)", "\\](b)")
    )
    assert markdown.literal("run `x`") == "`` run `x` ``"


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("|x| of a_i * b in F(C \\ K)", r"\|x\| of a\_i \* b in F(C \\ K)"),
        ("the `key` of\n`a\nb`", "the \\ ``key``\\  of\n\\ ``a b``\\ "),
        ("Then:\n    x = y_0 * 2\nand so on", "Then:\n\n::\n\n    x = y_0 * 2\n\nand so on"),
        ("Two:\n- a\n- b", "Two:\n\n- a\n- b"),
    ],
)
def test_docstrings_keep_what_they_say_in_restructured_text(docstring: str, shown: str) -> None:
    assert api.restructured(docstring) == shown


CRITERIA = {  # of the published table
    "c11": "M1 Reliability. Requires: GPU, model.",
    "c13": "M2 Invariance. Requires: GPU, model.",
    "c16": "M1 Reliability. Requires: GPU, model.",
    "c17": "M3 Baseline separation. Requires: GPU, model.",
    "c23": "C5 Convergent validity. Requires: CPU, data-only.",
    "c30": "M1 Reliability. Requires: GPU, model.",
    "c36": "C5 Convergent validity. Requires: GPU, model.",
    "f59": "M1 Reliability. Requires: GPU, model.",
    "m93": "M5 Statistical Rigor. Requires: CPU, data-only.",
    "m98": "Method Robustness. Requires: GPU, model.",
    "e1b": "E1b Method Invariance. Requires: GPU, model.",
    "m3b": "Head-level stability. Requires: GPU, model.",
}


@pytest.mark.parametrize("identifier", CRITERIA)
def test_a_calibration_s_page_has_its_criterion_and_where_it_departs(identifier: str) -> None:
    """At the top and at the end of the notes; on the page the criterion once, and no note of departures among the failures."""
    module = CALIBRATIONS[{"e1b": "E1b", "m3b": "M3b"}.get(identifier, identifier.upper())]
    page = calibration_pages.page(module)
    assert page.count(f"Criterion: {CRITERIA[identifier]}") == 1
    fails, departs = page.index("## How it fails"), page.index(calibration_pages.DEPARTS)
    assert page.index("Criterion: ") < page.index("## Thresholds") < fails < departs
    assert "\n- " in page[departs:] or "\nNowhere." in page[departs:]
    assert "Of its own it says" not in page[departs:]


def test_the_table_of_calibrations_has_the_tiers_of_the_rules() -> None:
    """docs/calibrations/index.md, by hand: every calibration once, its page, and every tier that asks for it."""
    text = (ROOT / "docs" / "calibrations" / "index.md").read_text(encoding="utf-8")
    told = {}
    for names, _, asked in sections.rows(text):
        for identifier, page in re.findall(r"\[(\w+)\]\(([^)]+)\)", names):
            assert (ROOT / "docs" / "calibrations" / page).is_file() and page.startswith(identifier.lower())
            told[identifier] = {int(tier) for tier in re.findall(r"\b[1-4]\b", asked)}
    assert told == {identifier: {tier for tier, *_ in tiers.gates(identifier)} for identifier in PUBLISHED}


def test_the_table_of_tiers_has_the_names_of_the_rules() -> None:
    rules = yaml.safe_load((ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("| tier | what it says |")[2]
    told = re.findall(r"^\| (\d) ([^|]+) \|", text.partition("\n\n")[0], re.MULTILINE)
    assert [int(level) for level, _ in told] == [0, 1, 2, 3, 4]
    for (_, name), rule in zip(told, rules["names"], strict=True):
        assert name.startswith(rule.partition("{")[0].strip())


IN_WORDS = {  # words of the table of tiers in docs/concepts.md, each with the gate that it stands for
    **{"the circuit beats random circuits": "P.random_circuits", "leaves little out": "P.completeness"},
    **{"better than a naive baseline": "C36.incremental_validity", "reliably measured": "C16.test_retest"},
    **{
        "complete under every recipe": "P.completeness_every_recipe",
        "other wordings agree": "C13.measurement_invariance",
    },
    **{"every head is shown to count": "M3b.no_idle_heads", "specific": "C17.discriminant_validity"},
    **{"stable": "S3.distributional_stability", "significant as a whole": "M93.multiple_comparisons"},
}


def test_the_tables_of_tiers_put_each_gate_where_the_rules_do() -> None:
    """docs/concepts.md, in words, and the metrics that docs/certificate.md names in the row of a tier."""
    asked = {str(tier): {*one["all"], *one.get("any", ())} for tier, one in tiers.read()["tiers"].items()}
    pages = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("concepts", "certificate")}
    rows = {name: re.findall(r"^\| ([1-4]) (.*)\|$", text, re.MULTILINE) for name, text in pages.items()}
    found = {words: {tier for tier, row in rows["concepts"] if re.search(rf"\b{words}\b", row)} for words in IN_WORDS}
    assert found == {words: {tier for tier in asked if gate in asked[tier]} for words, gate in IN_WORDS.items()}
    gates = {gate for every in asked.values() for gate in every}
    named = [(tier, gate) for tier, row in rows["certificate"] for gate in re.findall(r"\b[A-Z]\w*\.[a-z_]+", row)]
    assert len(named) > 8
    assert [(tier, gate) for tier, gate in named if gate in gates and gate not in asked[tier]] == []


def test_no_interval_is_named_that_nothing_computes() -> None:
    """No statistic of the project has a bias-corrected and accelerated interval, so no page and no source speaks of one."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")]
    texts = {str(path): path.read_text(encoding="utf-8") for path in pages} | {"sources": "\n".join(literals())}
    assert len(texts) > 30
    assert [name for name, text in texts.items() if re.search(r"\bBCa\b|bias-corrected and accelerated", text)] == []
