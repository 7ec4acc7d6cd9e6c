"""`run.py serve`: what is listed and opened, what is refused, one question answered live, and all of it in a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import uvicorn
from starlette.testclient import TestClient

import meridian
import results_io
from calibrations.tier_words import tier_text
from meridian import report, run_comparison
from meridian.commands import serve
from meridian.report import prompt_table
from meridian.run_folder import RunFolder
from meridian.serve import application, trial
from meridian.serve.shelf import Shelf
from results_io import UserError
from tests.commandline import ROOT, command
from tests.meridian.in_browser import DESKTOP, NEEDS_CHROMIUM, PHONE, chromium, wait
from tests.meridian.judged import judged
from tests.result_samples import completed

TOKEN = "t0ken"


@pytest.fixture(scope="module")
def shelf(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with two runs, a drift site and something that is no run."""
    results = tmp_path_factory.mktemp("serve") / "results"
    shutil.copytree(judged(finished, results / "pocket" / "ioi"), results / "pocket" / "again")
    site = results / "drift" / "demo" / "site"
    site.mkdir(parents=True)
    (site / "index.html").write_text("<!doctype html><title>Drift of demo</title><p>site")
    (results / "secret.txt").write_text("not to be read")
    (results / "broken").mkdir()
    (results / "broken" / "certificate.json").write_text("{")
    return results


@pytest.fixture(scope="module")
def client(shelf: Path) -> TestClient:
    return TestClient(application.application(shelf, TOKEN), base_url="http://127.0.0.1")


def question(results: Path, **changed: str) -> dict[str, str]:
    one = Shelf(results).runs()[0]
    asked = {"run": one.name, "kind": "ablate", "prompt": one.prompt, "answer": one.answer, "foil": one.foil}
    return {**asked, "heads": "L2H1", "recipe": "zero", **changed}


@pytest.mark.parametrize(
    ("typed", "groups"),
    [
        ("", []),
        (" , ", []),
        ("every head", [["every head"]]),
        ("answer promoter, l2h1", [["answer promoter"], ["L2H1"]]),
        ("L2H1 m3@end L0H0+l1h1", [["L2H1"], ["M3@end"], ["L0H0", "L1H1"]]),
        ("answer promoter + L2H1", [["answer promoter", "L2H1"]]),
        ("+", []),
    ],
)
def test_names_are_read_as_they_are_typed(typed, groups) -> None:
    assert trial.groups_in(typed) == groups


# --- what is listed and opened ---------------------------------------------------------------------------------------


def test_the_first_page_lists_the_runs_that_can_be_read_and_the_sites(client, shelf) -> None:
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200 and page.text.count('/report.html">') == 2
    assert 'href="report/pocket/again/report.html"' in page.text and "ioi on pocket" in page.text
    assert tier_text(RunFolder.open(shelf / "pocket" / "ioi").certificate) in page.text
    assert 'href="drift/demo/index.html"' in page.text
    assert "broken" not in page.text


def test_the_prompt_stands_in_the_form_as_the_report_writes_it(shelf, tmp_path) -> None:
    """Where the task gives it again; else, and where its tokens are others, it is made of its tokens."""
    run = RunFolder.open(shelf / "pocket" / "ioi")
    data = run.require("01")["data"]
    (text,) = prompt_table.drawn_again(run, data["prompt_id"][:1]).values()
    assert Shelf(shelf).runs()[0].prompt == text.clean and " ," not in text.clean
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "01")
    document = results_io.read(path)
    document["data"]["examples"][0]["clean"] = [data["examples"][0]["bos"], "other", "words", ","]
    results_io.write(path, document)
    assert Shelf(tmp_path).runs()[0].prompt == "other words ,"


def test_names_of_folders_are_quoted_in_addresses(shelf, tmp_path) -> None:
    for name in ("a#b", "a%41 b?c", "<i>"):
        shutil.copytree(shelf / "pocket" / "ioi", tmp_path / "results" / "pocket" / name)
    opened = TestClient(application.application(tmp_path / "results", TOKEN), base_url="http://127.0.0.1")
    links = re.findall(r'<a href="(report/[^"]*)"', opened.get(f"/{TOKEN}/").text)
    assert sorted(links) == [f"report/pocket/{one}/report.html" for one in ("%3Ci%3E", "a%23b", "a%2541%20b%3Fc")]
    for link in links:
        if "%25" in link:
            continue  # the test's client decodes such an address twice, a browser and the server do not
        assert "Circuit certificate" in opened.get(f"/{TOKEN}/{link}").text


def test_differences_by_rounding_alone_are_0() -> None:
    frame = pd.DataFrame({"difference": [-1e-15, -0.0004, 0.12345]})
    assert re.findall("<td>(.*?)</td>", application._html(frame)) == ["0", "0.000", "0.123"]


def test_a_long_note_of_a_comparison_is_folded(client, shelf, monkeypatch) -> None:
    """The names of 25 changed settings, for example."""
    notes = ["Short.", f"Settings differ in {', '.join(f'C{place}' for place in range(99))}."]
    monkeypatch.setattr(run_comparison.RunComparison, "notes", lambda self: iter(notes))
    monkeypatch.setattr(application, "_drawn", lambda figures: [])
    shown = client.get(f"/{TOKEN}/compare?a=pocket/ioi&b=pocket/again").text
    assert '<p class="note">Short.</p>' in shown
    assert re.search(r'<details class="note"><summary>Settings differ in C0, .{,80}\.\.\.</summary><p>', shown)
    assert f"<p>{notes[1]}</p></details>" in shown


def test_verdicts_that_changed_are_named_in_words(client, shelf, monkeypatch) -> None:
    changed = {"metric": "C12.convergent_validity", "verdict": ("pass", "fail"), "change": "lost"}
    kept = {"metric": "C14.d_prime", "verdict": ("pass", "pass"), "change": ""}
    monkeypatch.setattr(run_comparison.RunComparison, "verdicts", [changed, kept])
    monkeypatch.setattr(run_comparison.RunComparison, "sentence", lambda self: "")
    monkeypatch.setattr(application, "_drawn", lambda figures: [])
    shown = client.get(f"/{TOKEN}/compare?a=pocket/ioi&b=pocket/again").text
    (row,) = re.findall(r'<th scope="row">(.*?)</tr>', shown)
    assert row == 'C12 convergent validity</th><td class="pass">pass</td><td class="fail">fail</td><td>lost</td>'


@pytest.mark.slow
def test_reports_results_and_comparisons_are_opened(client, shelf) -> None:
    shown = client.get(f"/{TOKEN}/report/pocket/ioi/report.html")
    assert shown.text == (shelf / "pocket" / "ioi" / report.NAME).read_text()
    stored = client.get(f"/{TOKEN}/report/pocket/ioi/certificate.json").json()
    assert stored == json.loads((shelf / "pocket" / "ioi" / "certificate.json").read_text())
    found = client.get(f"/{TOKEN}/compare?a=pocket/ioi&b=pocket/again")
    expected = meridian.compare(shelf / "pocket" / "ioi", shelf / "pocket" / "again")
    assert expected.sentence() in found.text
    assert len(expected.figures()) == 4  # the run is compared with its copy, so nothing differs on the three maps
    assert found.text.count("data:image/svg+xml;base64,") == 1 and "comparison.json" not in found.text
    assert client.get(f"/{TOKEN}/drift/demo/index.html").text.endswith("site")


@pytest.mark.parametrize(
    "address",
    [
        "/", "/wrong/", "/wrong/report/pocket/ioi/report.html",
        f"/{TOKEN}/report/secret.txt", f"/{TOKEN}/report/pocket/ioi/%2e%2e/%2e%2e/secret.txt",
        f"/{TOKEN}/report/broken/report.html", f"/{TOKEN}/report/pocket/ioi/21_knockouts.txt",
        f"/{TOKEN}/drift/demo/%2e%2e/%2e%2e/%2e%2e/secret.txt", f"/{TOKEN}/drift/other/index.html",
        f"/{TOKEN}/compare?a=pocket/ioi&b=nothing", f"/{TOKEN}/compare?a=pocket/ioi&b=pocket/ioi",
        f"/{TOKEN}/folder/pocket/suites/report.html", f"/{TOKEN}/folder/pocket/geometry/report.html",
        f"/{TOKEN}/folder/pocket/ioi/report.html", f"/{TOKEN}/folder/secret.txt",
        f"/{TOKEN}/drift/demo/%00", f"/{TOKEN}/drift/x/%00", f"/{TOKEN}/drift/demo/{'n' * 300}",
        f"/{TOKEN}/drift/demo/{'a/' * 3000}b",
        f"/{TOKEN}/drift/{'x' * 300}/index.html", f"/{TOKEN}/report/pocket/ioi/{'n' * 300}.json",
    ],
)  # fmt: skip
def test_nothing_else_is_opened(client, address) -> None:
    answer = client.get(address)
    assert answer.status_code == 404 and "not to be read" not in answer.text


def test_a_single_suite_and_a_set_of_one_s_own_are_listed(tmp_path) -> None:
    model, elsewhere = tmp_path / "results" / "pocket", tmp_path / "elsewhere"
    for folder in (model / "suites" / "a10_padding", elsewhere):
        results_io.write(folder / "110_padding.json", completed("110"))
    results_io.write(model / "geometry" / "mine" / "171_position.json", completed("171"))
    (model / "suites" / "out").symlink_to(elsewhere)
    (model / "suites" / "round").symlink_to("round")
    (model / "suites" / "cut").mkdir()
    (model / "suites" / "cut" / "101_padding.json").write_text("{")
    results_io.write(tmp_path / "results" / "judging" / "fair" / "182_judge_agreement.json", completed("182"))
    suites = ["pocket/suites/a10_padding", "pocket/suites/cut"]
    found = {"Suites": suites, "Geometry": ["pocket/geometry/mine"], "Judging": ["judging"]}
    assert Shelf(tmp_path / "results").pages() == found
    client = TestClient(application.application(tmp_path / "results", TOKEN), base_url="http://127.0.0.1")
    assert client.get(f"/{TOKEN}/").text.count("/report.html") == 4
    answer = client.get(f"/{TOKEN}/folder/pocket/suites/cut/report.html")
    assert answer.status_code == 404 and "101_padding.json" in answer.text
    with mock.patch.object(Path, "iterdir", side_effect=PermissionError(13, "denied")):
        assert "Suites" not in Shelf(tmp_path / "results").pages()


def test_links_that_lead_out_pipes_and_folders_are_not_opened(tmp_path) -> None:
    """In a folder of drift, whose address any file below it has, and in its site; a link inside of the folder is followed."""
    series = tmp_path / "results" / "drift" / "demo"
    results_io.write(series / "manifest-s1.json", completed("160", snapshots=["s1"], snapshot="s1"))
    (series / "site").mkdir()
    (series / "site" / "index.html").write_text("site")
    (tmp_path / "secret.json").write_text('"not to be read"')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "index.html").write_text("not to be read")
    (tmp_path / "results" / "drift" / "other").mkdir()
    (tmp_path / "results" / "drift" / "other" / "site").symlink_to(tmp_path / "elsewhere")
    for folder in (series, series / "site"):
        (folder / "evil.json").symlink_to(tmp_path / "secret.json")
        (folder / "round.json").symlink_to(folder / "round.json")
        (folder / "dir.json").mkdir()
        os.mkfifo(folder / "fifo.json")
    (series / "again.json").symlink_to(series / "manifest-s1.json")
    client = TestClient(application.application(tmp_path / "results", TOKEN), base_url="http://127.0.0.1")
    for name in ("evil", "round", "dir", "fifo"):
        for address in (f"folder/drift/demo/{name}.json", f"drift/demo/{name}.json"):
            answer = client.get(f"/{TOKEN}/{address}")
            assert answer.status_code == 404 and list(answer.json()) == ["refused"], address
            read = client.get(f"/{TOKEN}/{address}", headers={"accept": "text/html,*/*;q=0.8"})
            assert read.status_code == 404 and answer.json()["refused"] in html.unescape(read.text), address
            assert re.search(rf'<a href="/{TOKEN}/">results</a>', read.text), address  # the way back
            style = re.search(r'<link rel="stylesheet" href="([^"]+)">', read.text)
            assert style and client.get(style[1]).headers["content-type"].startswith("text/css"), address
    assert client.get(f"/{TOKEN}/folder/drift/demo/again.json").json()["snapshot"] == "s1"
    assert client.get(f"/{TOKEN}/drift/other/index.html").status_code == 404
    assert "drift/other/index.html" not in client.get(f"/{TOKEN}/").text


def test_of_a_run_only_files_of_its_own_folder_are_opened(client, shelf, tmp_path) -> None:
    (tmp_path / "secret.json").write_text('"not to be read"')
    run = shelf / "pocket" / "again"
    (run / "evil.json").symlink_to(tmp_path / "secret.json")
    (run / "dir.json").mkdir()
    os.mkfifo(run / "fifo.json")
    (run / "large.json").write_text('"large"')
    try:
        for name in ("evil", "dir", "fifo"):
            answer = client.get(f"/{TOKEN}/report/pocket/again/{name}.json")
            assert answer.status_code == 404 and f"'{name}.json' in the run pocket/again" in answer.json()["refused"]
        assert client.get(f"/{TOKEN}/report/pocket/again/large.json").json() == "large"
        with (run / "large.json").open("ab") as stream:
            stream.truncate(results_io.MOST_BYTES + 1)  # sparse
        assert client.get(f"/{TOKEN}/report/pocket/again/large.json").status_code == 404
    finally:
        for name in ("evil", "fifo", "large"):
            (run / f"{name}.json").unlink()
        (run / "dir.json").rmdir()


def test_a_folder_of_drift_has_its_page_and_its_results_alone(tmp_path) -> None:
    series = tmp_path / "drift" / "demo"
    results_io.write(series / "manifest-s1.json", completed("160", snapshots=["s1"], snapshot="s1"))
    (series / "held-out.yaml").write_text("not to be read")
    client = TestClient(application.application(tmp_path, TOKEN), base_url="http://127.0.0.1")
    assert 'href="folder/drift/demo/report.html"' in client.get(f"/{TOKEN}/").text
    assert "0 of 1 snapshots have an alarm" in client.get(f"/{TOKEN}/folder/drift/demo/report.html").text
    assert client.get(f"/{TOKEN}/folder/drift/demo/manifest-s1.json").json()["snapshot"] == "s1"
    for other in ("held-out.yaml", "%2e%2e/demo/manifest-s1.json", "manifest-s2.json"):
        answer = client.get(f"/{TOKEN}/folder/drift/demo/{other}")
        assert answer.status_code == 404 and "not to be read" not in answer.text


@pytest.mark.slow
def test_another_host_is_refused_and_no_page_may_ask_elsewhere(client) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": "example.org"}).status_code == 400
    for address in ("", "compare?a=pocket/ioi&b=pocket/again", "report/pocket/ioi/report.html"):
        policy = client.get(f"/{TOKEN}/{address}").headers["content-security-policy"]
        assert "http" not in policy and "*" not in policy and policy.startswith("default-src ")


# --- a question ------------------------------------------------------------------------------------------------------


def told(client: TestClient, asked: dict[str, str]) -> list[dict[str, Any]]:
    answer = client.post(f"/{TOKEN}/ask", json=asked)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.slow
def test_an_answer_is_that_of_the_lab_and_its_progress_is_told(client, shelf) -> None:
    asked = question(shelf, corrupted="")
    lab = meridian.explore("ioi", "pocket", prompts=8)
    one = lab.prompt(asked["prompt"], asked["answer"], asked["foil"])
    libraries, loading, *progress, last = told(client, asked)
    assert [libraries, loading] == [{"doing": trial.LIBRARIES}, {"doing": "loading pocket"}]
    assert progress[-1]["done"] == progress[-1]["total"] > 0
    (row,) = last["answer"]["rows"]
    assert row["label"] == "L2H1" and row["estimate"] == pytest.approx(one.ablate("L2H1", "zero").estimate, abs=1e-4)
    assert abs(row["estimate"]) > 1e-3
    assert last["answer"]["clean"] == pytest.approx(one.logit_difference().table["estimate"].iloc[0], abs=1e-4)
    every = told(client, question(shelf, heads=trial.EVERY, kind="patch"))
    assert "doing" not in every[0] and len(every[-1]["answer"]["rows"]) == 32  # the model was loaded before
    kept = told(client, question(shelf, kind="keep", heads="circuit"))[-1]["answer"]["rows"]
    assert kept[0]["estimate"] == pytest.approx(one.keep_only("circuit", "zero").estimate, abs=1e-4)
    said = told(client, question(shelf, kind="keep", heads=trial.EVERY))[-1]["refused"]
    assert said == "keep only takes heads together, and every head leaves none out; name some, a role, or circuit"
    for direction in trial.DIRECTIONS:
        (patched,) = told(client, question(shelf, kind="patch", direction=direction))[-1]["answer"]["rows"]
        assert patched["estimate"] == pytest.approx(one.patch("L2H1", direction).estimate, abs=1e-4)
    assert "direction=up is unknown" in told(client, question(shelf, kind="patch", direction="up"))[-1]["refused"]
    role = next(role for role in one.circuit.roles if "_" in role)
    names = (role, role.replace("_", " "))
    shown = [told(client, question(shelf, heads=name))[-1]["answer"]["rows"] for name in names]
    assert [(row["label"], row["estimate"]) for (row,) in shown] == [(name, shown[0][0]["estimate"]) for name in names]
    joined = told(client, question(shelf, heads="l2h1 + L1H2, l0h3 L0H4"))[-1]["answer"]["rows"]
    assert [row["label"] for row in joined] == ["L2H1+L1H2", "L0H3", "L0H4"]
    assert joined[0]["estimate"] == pytest.approx(one.ablate(["L2H1", "L1H2"], "zero").estimate, abs=1e-4)
    refused = told(client, question(shelf, heads="L9H9"))[-1]["refused"]
    assert refused.startswith("L9H9 is outside model pocket") and "\n" not in refused


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"{", "a question is a JSON object"),
        (b"[]", "a question holds the texts"),
        (b'{"run": 3}', "a question holds the texts"),
        (b'{"run": "pocket/ioi", "kind": "delete"}', "the question 'delete' is unknown; use ablate, patch, keep"),
        (b'{"run": "elsewhere", "kind": "ablate"}', "there is no finished run 'elsewhere' here"),
        (b'{"run": "pocket/ioi", "kind": "ablate", "prompt": "' + b"x" * 20_001 + b'"}', "more than 20000 characters"),
        (b"[" * 100_000, "a question is a JSON object; send one"),
        (b'"' + b"x" * application.MOST_SENT, "a question has at most 1048576 bytes; shorten it"),
        (b'{"run": "pocket/ioi", "kind": "\\ud800"}', "half of a character"),
    ],
)
def test_what_is_no_question_is_refused_in_a_sentence(client, sent, said) -> None:
    answer = client.post(f"/{TOKEN}/ask", content=sent)
    assert answer.status_code == 400 and said in answer.json()["refused"]


def test_a_fault_ends_the_answer_with_a_sentence(shelf, caplog) -> None:
    class Faulty(trial.Trials):
        def ask(self, *asked: Any) -> dict[str, Any]:
            raise ZeroDivisionError

    client = TestClient(application.application(shelf, TOKEN, Faulty()), base_url="http://127.0.0.1")
    assert told(client, question(shelf)) == [{"refused": application.FAILED}]
    assert "ZeroDivisionError" in caplog.text


# --- the command -----------------------------------------------------------------------------------------------------


def test_only_this_machine_is_listened_to_and_a_taken_port_is_said() -> None:
    first = serve.opened(0)
    host, port = first.getsockname()
    assert host == "127.0.0.1" and port > 0
    first.listen()
    with pytest.raises(UserError, match=rf"serve.port={port} cannot be used .*; use another, or 0 for a free one"):
        serve.opened(port)
    first.close()


def test_a_folder_that_is_not_there_is_refused(tmp_path) -> None:
    outcome = command("serve", f"results={tmp_path / 'nowhere'}")
    assert outcome.code == 2 and "is not a folder; give one that runs wrote to" in outcome.errors.replace("\n", "")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_the_command_itself_answers_a_question(shelf, tmp_path) -> None:
    """A process of its own, as somebody starts it: inside of Hydra's main function, where other tests are not."""
    typed = [sys.executable, str(ROOT / "run.py"), "serve", f"results={shelf}", "serve.port=0"]
    with (tmp_path / "errors").open("wb") as errors:
        served = subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path)
    try:
        assert served.stdout is not None
        address = served.stdout.readline().partition(" shows ")[0]
        asked = urllib.request.Request(f"{address}ask", json.dumps(question(shelf)).encode(), method="POST")
        with urllib.request.urlopen(asked, timeout=300) as answer:
            libraries, loading, *progress, last = [json.loads(line) for line in answer]
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(60)
    assert [libraries, loading] == [{"doing": trial.LIBRARIES}, {"doing": "loading pocket"}]
    assert progress[-1]["done"] == progress[-1]["total"] > 0
    (row,) = last["answer"]["rows"]
    assert row["label"] == "L2H1" and abs(row["estimate"]) > 1e-3
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_an_address_below_the_token_that_is_no_page_leads_back(client) -> None:
    """Without the token, the answer is bare: it tells nobody what listens here."""
    html = {"accept": "text/html"}
    found = client.get(f"/{TOKEN}/nothing", headers=html)
    assert found.status_code == 404 and application.NO_PAGE in found.text and f'href="/{TOKEN}/"' in found.text
    assert client.get(f"/{TOKEN}/nothing").json() == {"refused": application.NO_PAGE}
    for address in ("/", "/nothing", f"/{TOKEN}x/", f"/x{TOKEN}/"):
        answer = client.get(address, headers=html)
        assert (answer.status_code, answer.text) == (404, "Not Found"), address
    assert client.post(f"/{TOKEN}/", headers=html).status_code == 405


def test_the_form_begins_with_the_recipe_of_the_claim(shelf, tmp_path) -> None:
    shutil.copytree(shelf / "pocket" / "ioi", tmp_path / "results" / "run")
    opened = TestClient(application.application(tmp_path / "results", TOKEN), base_url="http://127.0.0.1")
    chosen = re.findall("<option selected>(.*?)</option>", opened.get(f"/{TOKEN}/").text)
    assert chosen == [Shelf(tmp_path / "results").runs()[0].recipe] == ["mean"]


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(shelf: Path) -> Iterator[str]:
    """The address of a real server in a thread."""
    listening = serve.opened(0)
    config = uvicorn.Config(application.application(shelf, TOKEN), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait(lambda: server.started, "the server")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/{TOKEN}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


def opened(browser: Any, address: str, size: tuple[int, int]) -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(address)


def asked_outside(browser: Any) -> list[str]:
    """The addresses of all requests that went anywhere but to this machine."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert urls
    return [url for url in urls if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]


def in_chromium(test: Any) -> Any:
    for mark in NEEDS_CHROMIUM:
        test = mark(test)
    return test


@in_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_prompt_is_asked_about_in_a_browser_and_nothing_goes_outside(browser, address, size) -> None:
    opened(browser, address, size)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= size[0]
    browser.find_element("css selector", "#ask button").click()
    wait(lambda: browser.find_element("id", "state").text == "Done.", "the answer", 300)
    rows = browser.find_elements("css selector", "#answer tbody tr")
    assert len(rows) == 32
    place = browser.execute_script("return document.getElementById('asked').getBoundingClientRect().top")
    assert 0 <= place < size[1] / 2  # the answer is in sight, from its beginning
    values = [abs(float(row.find_element("tag name", "td").text)) for row in rows]
    assert values == sorted(values, reverse=True) and values[0] > 0.1
    longest = browser.execute_script("return document.querySelector('#answer i').getBoundingClientRect().width")
    assert longest > 20
    assert asked_outside(browser) == []
    assert [one["message"] for one in browser.get_log("browser") if one["level"] in ("SEVERE", "WARNING")] == []


@in_chromium
def test_the_form_offers_what_its_question_has(browser, address) -> None:
    """Patching has a direction and no recipe, and to keep every head asks nothing."""
    opened(browser, address, DESKTOP)
    enabled = "return ['recipe', 'direction'].map(name => !document.getElementById('ask').elements[name].disabled)"
    heads = browser.find_element("name", "heads")
    for kind, expected in (("patch", [False, True]), ("ablate", [True, False]), ("keep", [True, False])):
        assert heads.get_attribute("value") == trial.EVERY
        browser.find_element("css selector", f"[name=kind][value={kind}]").click()
        assert browser.execute_script(enabled) == expected, kind
    assert heads.get_attribute("value") == "circuit"


@in_chromium
def test_a_refusal_is_shown_and_the_model_can_be_asked_again(browser, address) -> None:
    opened(browser, address, DESKTOP)
    heads = browser.find_element("name", "heads")
    heads.clear()
    heads.send_keys("L9H9")
    button = browser.find_element("css selector", "#ask button")
    button.click()
    wait(lambda: "outside model pocket" in browser.find_element("id", "state").text, "the refusal", 300)
    assert button.is_enabled() and "refused" in browser.find_element("id", "state").get_attribute("class")


@in_chromium
def test_reports_and_comparisons_are_reached_by_links(browser, address) -> None:
    opened(browser, address, DESKTOP)
    browser.find_element("css selector", "#compare button").click()
    wait(lambda: browser.find_elements("css selector", ".sentence"), "the comparison")
    assert "a reaches tier" in browser.find_element("css selector", ".sentence").text
    assert [one["message"] for one in browser.get_log("browser")] == []
    opened(browser, address, DESKTOP)
    browser.find_element("css selector", "#runs a").click()
    wait(lambda: browser.execute_script("return document.documentElement.dataset.ready") == "yes", "the report")
    assert asked_outside(browser) == []
    assert [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []
