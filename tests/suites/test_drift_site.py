"""The site of a series: the same bytes from the same data wherever it is built, lines that break at gaps, nothing held out."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pandas as pd
import pytest

import results_io
from results_io import UserError
from suites.drift import analysis, series_record, site, status
from suites.drift.site import charts, downloads
from tests.suites.test_drift_endpoint import ANALYSED, START, hashed, questions, server, week

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from suites.drift import series_record, site
from suites.drift.site import downloads
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
manifests = [downloads.read_manifest(p.read_text(encoding="utf-8"), str(p)) for p in sorted(folder.glob("manifest-*.json"))]
series = series_record.read(folder / series_record.NAME)
heads = {one.id: series_record.head(series, one.id) for one in series.finished}
site.build(site.SiteSource(folder.name, manifests, heads, "0123456789ab"), out, datetime.now(UTC))
"""
__all__ = ["questions", "server"]  # fixtures

pytestmark = pytest.mark.slow  # eight weeks are asked and three sites built; `test_drift_command` builds a small one


@pytest.fixture(scope="module")
def folder(server, questions, tmp_path_factory):
    """Seven weeks, the last of which is down, and an eighth."""
    own = tmp_path_factory.mktemp("site") / "prod"
    for number in (1, 2, 3, 6, 7, 8):
        week(server, number, questions, own)
    analysis.analyse(own, {**ANALYSED, "prompt_level": True}, vectors=hashed)
    return own


@pytest.fixture(scope="module")
def built(folder, tmp_path_factory):
    """The site, built in three folders, time zones, locales, umasks and hash seeds."""
    base, found = tmp_path_factory.mktemp("built"), []
    for number, (zone, locale, mask) in enumerate(
        (("UTC", "C", 0o022), ("Asia/Tokyo", "C.UTF-8", 0o077), ("EST5EDT", "POSIX", 0o002))
    ):
        out = base / str(number) / "a folder"
        environment = {
            **os.environ,
            "TZ": zone,
            "LC_ALL": locale,
            "PYTHONHASHSEED": str(number),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", BUILD, str(folder), str(out)]
        subprocess.run(command, check=True, env=environment, preexec_fn=lambda mask=mask: os.umask(mask), cwd=base)
        found.append(out)
    return found


def content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_builds_are_equal_byte_for_byte_but_for_the_time(built) -> None:
    first, *others = (content(out) for out in built)
    assert len(first) > 40
    for other in others:
        assert first.keys() == other.keys()
        assert [name for name in first if first[name] != other[name]] in ([], [site.BUILD])
    made = json.loads(first[site.BUILD])
    assert list(made) == ["built", "files"] and {*made["files"], site.BUILD} == first.keys()


def test_a_build_over_another_one_is_the_same_as_into_an_empty_folder(built, folder, tmp_path) -> None:
    """What the earlier site had and this one has not goes; what was never of a site stays, and nothing outside is touched."""
    manifest, out = results_io.read(folder / "manifest-2026-W29.json"), tmp_path / "site"
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    site.build(
        site.SiteSource("prod", [results_io.read(folder / "manifest-2026-W22.json"), manifest], {}, "x"), out, START
    )
    listed = json.loads((out / site.BUILD).read_text())
    (out / site.BUILD).write_text(
        json.dumps({**listed, "files": [*listed["files"], "axis-old.html", "../outside.txt"]})
    )
    (out / "axis-old.html").write_text("an axis of another corpus")
    (out / "mine.txt").write_text("mine")
    for target in (out, tmp_path / "empty"):
        site.build(site.SiteSource("prod", [manifest], {}, "x"), target, START)
    first, second = content(out), content(tmp_path / "empty")
    assert first.pop("mine.txt") == b"mine" and outside.read_text() == "mine"
    assert first == second and not any("2026-W22" in name for name in first)


def test_the_site_is_made_again_from_public_data_alone(built, folder, tmp_path) -> None:
    public = built[0] / "data" / "2026-W29"
    manifest = downloads.read_manifest((public / "manifest.json").read_text(), "manifest.json")
    head = json.loads((public / "head.json").read_text())
    site.build(
        site.SiteSource("prod", [manifest], {"2026-W29": head}, "0123456789ab"), tmp_path / "site", datetime.now(UTC)
    )
    first, again = content(built[0]), content(tmp_path / "site")
    assert set(again) == {name for name in first if not name.startswith("data/") or "2026-W29" in name}
    assert [name for name in again if again[name] != first[name]] in ([], [site.BUILD])


class Links(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("href", "src")]


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(built) -> None:
    pages = list(built[0].glob("*.html"))
    assert {page.stem for page in pages} >= {"index", "status", "gaps", "methodology", "axis-neutral-control"}
    for page in pages:
        for link in Links(page.read_text()).found:
            assert link.startswith("data:,") or (built[0] / link).is_file(), (page.name, link)


def test_lines_break_at_gaps(built) -> None:
    text = (built[0] / "axis-neutral-control.html").read_text()
    # weeks 1 to 3, then 6, then 8: the weeks 4, 5 and 7 are missing, so three lines a chart
    assert [len(re.findall("<polyline", svg)) for svg in re.findall("<svg.*?</svg>", text)] == [3, 3, 3]
    assert [len(re.findall('class="gap"', svg)) for svg in re.findall("<svg.*?</svg>", text)] == [3, 3, 3]
    assert "2026-W28" in (built[0] / "gaps.html").read_text()


def test_numbers_of_the_methodology_are_those_of_the_configuration(folder, tmp_path) -> None:
    settings = {**ANALYSED, "alpha": 0.0423, "minimum_prompts": 11, "prompt_level": False, "default_samples": 99}
    analysis.analyse(folder, settings, vectors=hashed)
    refused, manifest = (results_io.read(folder / f"manifest-2026-W{week}.json") for week in (29, 27))
    texts = [
        site.pages(site.SiteSource("prod", [one], {}, "x"))["methodology.html"].decode() for one in (manifest, refused)
    ]
    text = texts[0]
    assert "and 2 times at temperature 0" in text and "not at temperature 0, which the endpoint refuses" in texts[1]
    assert "at 0.0423" in text and "At least 11 prompts" in text and "asked 6 times" in text
    assert "more than 20.0 % are cut" in text and "a chance of 0.8" in text and "penalty 3.0 ln T" in text
    analysis.analyse(folder, {**ANALYSED, "prompt_level": True}, vectors=hashed)


def test_downloads_open_in_pandas_and_say_the_same(built) -> None:
    folder = built[0] / "data" / "2026-W24"
    tables = [pd.read_csv(folder / "metrics.csv"), pd.DataFrame(json.loads((folder / "metrics.json").read_text()))]
    tables.append(pd.read_parquet(folder / "metrics.parquet"))
    assert {len(table) for table in tables} == {len(tables[0])} and len(tables[0]) > 20
    for name in ("difference", "p", "adjusted_p"):
        columns = [table[name].astype(float) for table in tables]
        assert columns[0].equals(columns[1].astype(float)) or (columns[0] - columns[1]).abs().max() < 1e-12
        assert (columns[0] - columns[2]).abs().max() < 1e-12
    refusal = tables[2].query("name == 'refusal' and axis == 'refusal-boundary' and level == 'axis'").iloc[0]
    assert refusal.flag == "alarm" and refusal.difference > 0.4


def test_a_held_out_text_is_never_published(folder, tmp_path) -> None:
    manifest = results_io.read(folder / "manifest-2026-W24.json")
    source, when = site.SiteSource("prod", [manifest], {}, "x"), datetime.now(UTC)
    with pytest.raises(UserError, match="would publish a held-out prompt; nothing was written"):
        site.build(source, tmp_path / "site", when, ["control question 3"])
    assert not (tmp_path / "site").exists()
    site.build(source, tmp_path / "site", when, ["a text that is nowhere"])
    for said in ('Is "A" < B & c\u00e9?', "Isn't it?", "plain"):
        written = jinja2.Environment(autoescape=True).from_string("<p>{{ said }}</p>").render(said=said)
        rows = io.StringIO()
        csv.writer(rows).writerow(["x", said, "y"])
        for name, text in (("b.json", json.dumps({"text": said})), ("c.html", written), ("d.csv", rows.getvalue())):
            with pytest.raises(UserError, match=f"{name} would publish"):
                site.require_kept_out({"a.html": b"x", name: text.encode()}, [said])


def test_a_metric_without_rows_is_off_whatever_the_settings_say(folder) -> None:
    rows = results_io.read(folder / "manifest-2026-W24.json")["records"]
    before = {one["metric"]: one["status"] for one in status.table(rows)}
    for number in ("161", "163", "166", "167"):
        left = [row for row in rows if row["metric"] != number]
        after = {one["metric"]: one["status"] for one in status.table(left)}
        assert before[number] != "off" and after == {**before, number: "off"}
    assert {one["status"] for one in status.table([])} == {"off"}


def test_a_chart_of_nothing_is_none_and_of_one_point_is_a_dot() -> None:
    empty = {"snapshot": "2026-W22", "value": None, "low": None, "high": None}
    assert charts.line([empty]) == "" and charts.line([]) == ""
    one = charts.line([{**empty, "value": 0.0}])
    assert one.count("<circle") == 1 and "nan" not in one and "inf" not in one


def test_a_site_without_a_manifest_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="has no manifest"):
        site.build(site.SiteSource("prod", [], {}, "x"), tmp_path, datetime.now(UTC))
    for text in ("{", "[]", '{"id": "other"}'):
        with pytest.raises(UserError, match="manifest=x is n"):
            downloads.read_manifest(text, "x")
    with pytest.raises(UserError, match=r"manifest=x: it lacks alarms; give manifest\.json"):
        downloads.read_manifest('{"id": "drift_manifest", "series": "prod"}', "x")
    for text in (b"{", b"[1]", b'{"hash": "a"}', b"\xff"):
        (tmp_path / "head.json").write_bytes(text)
        with pytest.raises(UserError, match=r"head\.json is no head of a snapshot"):
            downloads.read_head(tmp_path / "head.json")


def test_the_head_of_each_snapshot_stands_on_its_site(built, folder) -> None:
    series = series_record.read(folder / series_record.NAME)
    text = (built[0] / "index.html").read_text()
    assert series_record.head(series, "2026-W29")["hash"] in text and "0123456789ab" in text
