"""report.html: complete, self-contained, escaped, the same bytes for the same run."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import results_io
from calibrations.certificate_row import MetricRow
from calibrations.number_format import number as format_number
from calibrations.rules import Standing
from calibrations.tier_words import tier_text
from calibrations.worst_groups import WorstGroups
from meridian import figures, report, worst_recipe
from meridian.figures import colours
from meridian.figures.values import Distribution, HeatMap
from meridian.report import bundle, figure_numbers
from meridian.report.certificate_section import gate_name, view, words
from meridian.run_folder import RunFolder
from suites.geometry import measure, results
from tests.meridian.judged import judged
from tests.suites import test_geometry_measure

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\n\u202eabc"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory) -> RunFolder:
    return RunFolder.open(judged(finished, tmp_path_factory.mktemp("judged") / "run"))


@pytest.fixture(scope="module")
def written(run, tmp_path_factory) -> str:
    return report.write(run, tmp_path_factory.mktemp("report")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page(written)


def changed(run: RunFolder, target: Path, number: str, change) -> RunFolder:
    """A copy of the run in which `change` has altered the document of `number` (or "certificate")."""
    if not target.exists():
        shutil.copytree(run.path, target)
    path = target / "certificate.json" if number == "certificate" else results_io.find(target, number)
    document = results_io.read(path)
    change(document)
    results_io.write(path, document)
    return RunFolder.open(target)


def specifications(text: str) -> dict:
    packed = re.search(r'id="figures">([A-Za-z0-9+/=]*)</script>', text).group(1)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_it_lies_beside_the_certificate_and_is_small(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = report.write(RunFolder.open(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    assert path.stat().st_size < 5_000_000
    assert not list(path.parent.glob(".*partial"))


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_anywhere_and_at_any_time(run, written, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "elsewhere" / "run")
    for path in (tmp_path / "elsewhere" / "run").iterdir():
        os.utime(path, (time.time() + 1e6,) * 2)
    assert report.render(RunFolder.open(tmp_path / "elsewhere" / "run")) == written
    assert str(run.path) not in written and str(Path.home()) + "/" not in written


@pytest.mark.slow
def test_it_is_drawn_anew_if_a_result_or_a_word_of_it_has_changed_and_only_then(run, tmp_path, monkeypatch) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path, drawn = report.write(RunFolder.open(tmp_path / "run")), []
    first, render = path.read_text(encoding="utf-8"), report.render
    monkeypatch.setattr(report, "render", lambda found: drawn.append(found) or render(found))
    report.write(RunFolder.open(tmp_path / "run"))
    assert not drawn and path.read_text(encoding="utf-8") == first
    path.write_text(first.replace("</h1>", "!</h1>", 1), encoding="utf-8")  # an edit
    assert report.write(RunFolder.open(tmp_path / "run")).read_text(encoding="utf-8") == first and len(drawn) == 1
    baseline = next(path.parent.glob("01_*.json"))
    baseline.write_bytes(baseline.read_bytes() + b" ")  # the same data from another file
    report.write(RunFolder.open(tmp_path / "run"))
    assert len(drawn) == 2 and path.read_text(encoding="utf-8") != first
    monkeypatch.setattr(report, "version", lambda package: "another")
    report.write(RunFolder.open(tmp_path / "run"))
    assert len(drawn) == 3


def test_it_is_well_formed_and_asks_for_nothing(page, written) -> None:
    assert page.wrong == [] and page.open == []
    addresses = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "default-src 'none'" in written and "connect-src" not in written
    assert "url(" not in written.partition("<style>")[2].partition("</style>")[0]


def test_every_link_has_its_target_and_every_id_is_one(page) -> None:
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    links = {attributes["href"][1:] for tag, attributes in page.elements if tag == "a"}
    assert {link for link in links if not link.startswith(("head=", "json="))} <= set(names)


def test_headings_never_skip_a_level(page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_certificate_says_all_that_it_holds(run, page) -> None:
    stored = run.certificate
    assert tier_text(stored) in page.text
    assert "rules: changed" in page.text and "prompts.evaluation: 40 (released: 400)" in page.text
    for row in stored["rows"]:
        assert f"{row['id']} " in page.text
        for record in row["records"]:
            for reason in record["reasons"]:
                assert " ".join(words(reason).split()) in page.text  # in full, not cut
            if record["published_label"] is None and record["published_rule"]:
                assert " ".join(record["published_rule"].split()) in page.text
    assert (
        sum(attributes.get("class") == "cards" for _, attributes in page.elements) == 3
    )  # open, passed, gating nothing


def lines_of(text: str) -> list[dict[str, str]]:
    """The certificate's lines as the page shows them: text by heading of the column."""
    tables = "".join(re.findall(r'<table class="cards">.*?</table>', text, re.DOTALL))
    cells = re.compile(r'data-label="([^"]+)"[^>]*>(.*?)</t[hd]>')
    rows = [cells.findall(row) for row in re.findall(r"<tr>(.*?)</tr>", tables, re.DOTALL)]
    return [{name: Page(f"<p>{cell}</p>").text for name, cell in row} for row in rows if row]


def as_shown(metric: MetricRow, quantity: str) -> dict[str, str]:
    """The cells of numbers and verdicts that a metric should have: sign and word, value, estimate and its quantity."""
    value = "" if metric.published_value is None else f" {format_number(metric.published_value)}"
    return {
        "published": f"{colours.MARKS[metric.published_verdict]}{metric.published_verdict}{value}",
        "estimate [90 %]": "–" if metric.estimate is None else f"{metric.estimate_text}{quantity}",
        "verdict": f"{colours.MARKS[metric.verdict]}{metric.verdict}",
    }


def test_every_metric_has_a_line_with_its_own_numbers_and_both_its_verdicts(run, written) -> None:
    shown, said = lines_of(written), view(run)
    stored = [r for row in run.certificate["rows"] for r in row["records"]] + run.certificate["preconditions"]
    quantities = {line.metric.metric: line.quantity for line in (*said["lines"], *said["others"])}
    assert len(shown) == len(quantities) == len(stored)
    for record in stored:
        expected = as_shown(worst_recipe.shown(run, MetricRow.read(record)), quantities[record["metric"]])
        found = [line for line in shown if line["ID"] == record["metric"].partition(".")[0]]
        assert expected in [{name: line[name] for name in expected} for line in found], record["metric"]
    split_half = next(line for line in shown if line["calibration"].endswith("split half"))
    assert split_half["published"].startswith("✕fail") and split_half["verdict"] == "●pass"  # as published, as judged
    assert quantities["C30.seed_variance"] == "CV of faithfulness"


def test_faithfulness_by_recipe_has_the_interval_that_was_judged(run, page) -> None:
    records = {record["metric"]: record for record in run.calibration("P")["records"]}
    recipes = {name: interval for name, _, interval, _ in view(run)["recipes"]}
    assert recipes["mean"] == " to ".join(map(format_number, records["P.faithfulness"]["ci90"]))
    reasons = records["P.faithfulness_every_recipe"]["reasons"]
    assert len(recipes) == 5 and len(reasons) >= 3
    for reason in reasons:
        name, low = re.fullmatch(r"not_faithful: (.+) reaches down to (.+), below 0.8", reason).groups()
        assert float(recipes[name].split(" to ")[0]) == pytest.approx(float(low), abs=0.006)
        assert float(recipes[name].split(" to ")[1]) > float(low)
        assert recipes[name] in page.text
    assert "by which P.faithfulness is judged" in page.text


def groups_of(text: str) -> list[list[list[str]]]:
    """The tables of what the claim leaves out: each a list of rows, a row the text of its cells."""
    tables = re.findall(r'<table class="groups">.*?</table>', text, re.DOTALL)
    rows = [re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.DOTALL) for table in tables]
    cells = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
    return [[[Page(f"<p>{cell}</p>").text for cell in cells.findall(row)] for row in table] for table in rows]


def test_the_worst_groups_stand_in_two_tables_with_both_losses(run, written, page) -> None:
    found = WorstGroups.read(run.certificate)
    first, others, outside, more = groups_of(written)
    assert (len(first), len(others), len(outside)) == (5, 20, 5) and len(found.outside) == 5 + len(more) == 17
    for place, (row, group) in enumerate(zip([*first, *others], found.claimed, strict=True), start=1):
        losses = (format_number(group.lost_by_circuit), format_number(group.lost_by_model))
        score = format_number(group.published_score)
        inc = group.incompleteness_text + "beyond the limit" * (abs(group.in_limits) > 1)
        assert row[0].startswith(f"{place}. {group.heads_text}") and row[0].endswith(
            f"; {group.gate.replace('_', ' ')}"
        )
        assert row[1:] == [group.recipe_text, *losses, inc, score]
    for row, group in zip([*outside, *more], found.outside, strict=True):
        assert group.heads_text in row[0] and group.name in row[0]
        assert row[1:] == [group.side_text, group.recipe_text, group.share_text, format_number(group.limit)]
    by_recipe = run.companions("P.completeness_every_recipe")["by_recipe"]
    assert found.normalisers == {name: table["normaliser"] for name, table in by_recipe.items()} and len(by_recipe) == 5
    assert found.template_text in page.text and "By template, inc of the first runs from" in found.template_text


@pytest.mark.slow
def test_without_groups_a_sentence_says_so(run, tmp_path) -> None:
    older = changed(run, tmp_path / "run", "certificate", lambda document: document.pop("worst_groups"))
    text = Page(report.render(older)).text
    assert "Claimed heads: no group was compared, see P.completeness below." in text
    assert "Heads outside the claim: none was judged, see P.outside below." in text
    assert groups_of(report.render(older)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("supported under mean per template and position", "Under this recipe and under resample"),
        ("triangulated, labels untested", "Every recipe"),
        ("certified", "It is also specific"),
    ],
)
def test_every_name_of_a_tier_is_whole_and_has_its_meaning(run, tmp_path, name, begins) -> None:
    rules = Standing("0.3", "x").to_dict()
    reached = {"tier": 2, "tier_name": name, "rules": rules}
    renamed = changed(run, tmp_path / "run", "certificate", lambda document: document.update(reached))
    assert view(renamed)["meaning"].startswith(begins)
    text = Page(report.render(renamed)).text
    assert f"Tier 2 of 4: {name}" in text and "rules: released 0.3" in text


@pytest.mark.slow
def test_a_tier_under_changed_rules_has_neither_name_nor_meaning(run, tmp_path) -> None:
    def older(document) -> None:
        document.update(tier=4, tier_name="certified")
        del document["rules"]

    reached = {"tier": 4, "tier_name": "under changed rules"}
    folders = [
        changed(run, tmp_path / "changed", "certificate", lambda document: document.update(reached)),
        changed(run, tmp_path / "older", "certificate", older),
    ]
    for word, folder in zip(("changed", "unknown"), folders, strict=True):
        text = Page(report.render(folder)).text
        assert f"Tier 4 of 4 under {word} rules" in text and f"rules: {word}" in text
        assert (
            "It was not reached under released rules" in text and "certified" not in text.partition("Faithfulness")[0]
        )


def test_outside_heads_with_large_effects_stand_beside_the_headline(finished) -> None:
    run = RunFolder.open(finished)
    said = run.certificate["headline"]["outside"]
    noising = run.evidence.head_effect("02", "noising").mean(axis=0)[run.evidence.heads.index((0, 2))]
    assert said.startswith(
        f"Outside the claim, effects above 0.1 of D in nats: L0H2 noising {noising:.2f} (1st of 32), "
    )
    assert said in Page(report.render(run)).text


def test_the_page_claims_no_more_of_its_intervals_than_holds(page) -> None:
    assert "intervals of the certificate are those of these draws" not in page.text
    assert "Each caption says how the certificate's interval was made" in page.text


def test_all_rows_carry_symbol_and_word(run, written) -> None:
    shown = lines_of(written)
    assert {line["ID"] for line in shown} == {"P", *(row["id"] for row in run.certificate["rows"])}
    marks = {line["verdict"][1:]: line["verdict"][0] for line in shown}
    assert len(set(marks.values())) == len(marks)


def test_what_blocks_the_next_tier_comes_before_the_table(run, written) -> None:
    stored, text = run.certificate, Page(written.partition('<table class="cards">')[0]).text
    gates = stored["blocking"].get(str((stored["tier"] or 0) + 1), []) if stored["tier"] is not None else []
    assert gates  # this small run cannot reach tier 4
    for gate in gates:
        assert " ".join(words(gate["reason"]).split()) in text
        if gate["needs"]:
            assert f"needs {gate['needs']}" in text


def test_every_figure_is_there_with_its_numbers(run, page, written) -> None:
    wanted = {
        name for name in figures.of(run) if not name.startswith("pattern_")
    }  # attention is drawn from its own data
    assert set(specifications(written)) == wanted - {"circuit"}
    places = {attributes["data-figure"] for _, attributes in page.elements if "data-figure" in attributes}
    maps = {name for name in wanted if name.startswith("heads_")}
    assert len(places & maps) == 5 and places - maps == wanted - maps - {"circuit"}  # four maps and one of the others
    assert [a["data-graph"] for _, a in page.elements if "data-graph" in a] == ["small", "large"]
    labels = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert all(label["aria-label"] for label in labels)
    assert sum(attributes.get("aria-label", "").startswith("Numbers of ") for _, attributes in page.elements) == len(
        wanted
    )


@pytest.mark.slow
def test_geometry_of_the_same_weights_has_its_maps_and_that_of_others_a_sentence(run, tmp_path) -> None:
    copy = RunFolder.open(shutil.copytree(run.path, tmp_path / "model" / "task"))
    absent = "No results of geometry of these weights lie beside this run"
    assert absent in Page(report.render(copy)).text
    own = test_geometry_measure.written(
        tmp_path / "mine",
        [
            test_geometry_measure.question("q", reference=[5, 5], personas={"cook": "As a cook,"}, turns=["It rained."])
            | {"title": "<b>tea & cake"}
        ],
    )
    rng = np.random.default_rng(0)
    for weights, there in (("another", False), (copy.certificate["subject"]["model_sha256"], True)):
        shutil.rmtree(tmp_path / "model" / "geometry", ignore_errors=True)
        model = test_geometry_measure.Rater(
            lambda *_: test_geometry_measure.says(*rng.normal(5, 1, 2)), identity={"weights": weights}
        )
        done = measure.run([own], model, tmp_path / "model" / "geometry", test_geometry_measure.SETTINGS)
        results.write(tmp_path / "model" / "geometry", done)
        text = report.render(RunFolder.open(copy.path))
        page, drawn = Page(text), specifications(text)
        assert (absent in page.text) is not there and ("map_mine_q" in drawn) is there
    assert {"map_mine_q", "turns_mine", "published_and_estimate_mine", "matrix_mine"} <= set(drawn)
    (centre,) = [t for t in drawn["map_mine_q"]["data"] if t["name"] == "their centre"]
    points = results_io.read(tmp_path / "model/geometry/171_position.json")["data"]["sets"]["mine"]["constructs"]["q"]
    means = [np.mean(points["variants"][f"w{k}"]["points"], axis=0) for k in range(1, 9)]
    assert (centre["x"][0], centre["y"][0]) == pytest.approx(tuple(np.mean(means, axis=0)))
    assert "<b>tea" not in text and "&lt;b&gt;tea &amp; cake" in text
    assert "centre of the neutral wordings" in page.text and "not applicable" in page.text


def test_a_hostile_token_stays_text(run, tmp_path) -> None:
    def change(document) -> None:
        document["data"]["examples"][0]["clean"][1] = HOSTILE
        document["data"]["examples"][0]["answers"] = [HOSTILE]

    def pattern(document) -> None:
        document["data"]["examples"][0]["tokens"][1] = HOSTILE

    spoilt = changed(run, tmp_path / "run", "01", change)
    spoilt = changed(run, tmp_path / "run", "25", pattern)
    spoilt = changed(run, tmp_path / "run", "certificate", lambda document: document["subject"].update(model=HOSTILE))
    text = report.render(spoilt)
    page = Page(text)
    assert page.wrong == [] and "img" not in {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "</script><img src=x onerror=alert(1)>" in "".join(page.texts)  # shown as text
    assert "<img src=x" not in json.dumps(specifications(text))
    assert "⏎" in "".join(page.texts) and "\\u202e" in "".join(page.texts)


@pytest.mark.slow
def test_a_missing_measurement_is_a_sentence(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for number in ("28", "10", "06", "25"):
        results_io.find(tmp_path / "run", number).unlink()

    older = changed(run, tmp_path / "run", "certificate", lambda document: document.pop("headline"))
    text = Page(report.render(older)).text
    for number in ("28", "10", "06", "25"):
        assert f"result {number} is not in this folder" in text


def test_results_of_an_older_version_are_refused_by_the_reader(run, tmp_path) -> None:
    """A result 04 that lacks the lens by position is not drawn without it: its reader says what is wrong."""
    for number, field in (("04", "by_position"), ("25", "examples")):
        older = changed(run, tmp_path / number, number, lambda document, field=field: document["data"].pop(field))
        with pytest.raises(results_io.ResultError, match=rf"has not the form of a result {number}: data lacks {field}"):
            report.render(older)


def test_a_result_without_example_prompts_says_so(run, tmp_path) -> None:
    for number in ("04", "25"):
        spoilt = changed(run, tmp_path / "run", number, lambda document: document["data"].update(examples=[]))
    text = Page(report.render(spoilt)).text
    assert "The lens on example prompts: result 04 has no example prompt." in text
    assert "Attention patterns: result 25 has no example prompt." in text


@pytest.mark.slow
def test_a_model_that_does_not_do_the_task_has_a_report_without_a_tier(run, tmp_path) -> None:
    def change(document) -> None:
        document.update(tier=None, tier_name="the behaviour is absent")
        document["preconditions"][0].update(verdict="insufficient", reasons=["behaviour_absent: mean -1.2"])

    text = Page(report.render(changed(run, tmp_path / "run", "certificate", change))).text
    assert "No tier: the behaviour is absent" in text
    assert "behaviour absent: mean -1.2" in text.partition("The 16 calibrations")[0]


def test_packing_is_undone_by_gzip_and_has_no_time_stamp(monkeypatch) -> None:
    before = bundle.pack("a token: ␣ <>&")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert bundle.pack("a token: ␣ <>&") == before
    assert gzip.decompress(base64.b64decode(before)).decode() == "a token: ␣ <>&"
    assert len(bundle.library()) < 2_500_000


def test_numbers_of_a_heat_map_and_of_a_distribution() -> None:
    shared = {"name": "n", "title": "t", "caption": "c"}
    heat = HeatMap(
        **shared, x_label="head", y_label="layer", x=("0", "1"), y=("3",), values=((0.12345, None),), unit="nats",
        low=((0.1, None),), high=((0.2, None),), level=0.95,
    )  # fmt: skip
    table = figure_numbers.numbers_of(heat)
    assert table.header == ("layer \\ head", "0", "1") and table.rows == (("3", "0.123 [0.1, 0.2]", "–"),)
    draws = Distribution(
        **shared, x_label="x", samples={"null": tuple(float(i) for i in range(101))}, lines={"limit": 7.0}
    )
    rows = figure_numbers.numbers_of(draws).rows
    assert rows[0] == ("null", "101", "0", "5", "25", "50", "75", "95", "100") and rows[1][:3] == (
        "limit",
        "line at",
        "7",
    )


def test_words_of_reasons() -> None:
    assert (
        words("not_faithful: zero reaches 0.3; over_faithful: x") == "not faithful: zero reaches 0.3; over faithful: x"
    )
    assert words("as well: greater_than, induction") == "as well: greater than, induction"
    assert words("follows from: C13.measurement_invariance, P.completeness_every_recipe") == (
        "follows from: C13 measurement invariance, P completeness every recipe"
    )
    typed = "write calibration.c13.min_prompts=90 beside 01_baseline.json"  # to be typed as it stands
    assert words(typed) == typed
    assert words("n_prompts: 58 prompts; at least 90") == "too few prompts: 58 prompts; at least 90"
    titles = {"C12": "convergent validity", "C11": "bootstrap stability"}
    assert gate_name("C12.convergent_validity", titles) == "C12 convergent validity"
    assert gate_name("C11.bootstrap_completeness", titles) == "C11 bootstrap stability: bootstrap completeness"
