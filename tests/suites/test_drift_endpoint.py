"""Nine weeks of a scripted endpoint on loopback, with an injected clock: every status, alarm, gap and exit code as scripted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import yaml

import results_io
from meridian import drift_series
from results_io import UserError
from suites.drift import analysis, corpus, registration, schedule, series_record, site, snapshot
from suites.drift.corpus import AXES
from suites.log import chain
from suites.models.connection import UnansweredError
from suites.models.endpoint import Endpoint
from suites.modes import embedding

pytestmark = pytest.mark.slow

SETTINGS = {
    "order": None, "version": None, "every": 1, "default_samples": 6, "zero_samples": 2, "alpha": 0.05,
    "minimum_prompts": 10, "most_errors": 0.1, "resamples": 1000, "prompt_level": False, "snapshot": None,
}  # fmt: skip
ANALYSED = drift_series.analysed_by({**SETTINGS, "corpus": "small"})
START = datetime(2026, 5, 25, 9, tzinfo=UTC)  # the Monday of 2026-W22
LIVE = ("refusal-boundary", "neutral-control", "factual-stability")


class Server(ThreadingHTTPServer):
    """Answers by week: 3 refuses more, 5 halves the length, 6 changes system_fingerprint, 7 is down, 8 refuses temperature."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.week, self.asked, self.broken, self.texts, self.lock = 1, 0, frozenset(), (), threading.Lock()

    def answer(self, body):
        if self.week == 7:
            return 500, {"error": "down"}
        if self.week == 8 and "temperature" in body:
            return 400, {"error": "temperature is not supported"}
        prompt = body["messages"][-1]["content"]
        if self.texts:
            said = self.texts[len(prompt) % len(self.texts)]
            choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            return 200, {"model": "prod-1", "choices": [choice], "usage": {"completion_tokens": len(said.split())}}
        if prompt in self.broken:
            return 400, {"error": "this prompt is broken"}
        with self.lock:
            self.asked += 1
            draw = body.get("seed", [self.week, self.asked])  # a server that takes no seed draws anew each time
        asked = json.dumps([prompt, 0 if body.get("temperature") == 0 else draw])
        drawn = int(hashlib.sha256(asked.encode()).hexdigest(), 16)
        words = ["red", "green", "blue", "grey"][drawn % 4 :] + ["sea"] * (8 + drawn // 7 % 5)
        if self.week >= 5:
            words = words[: len(words) // 2]
        text = " ".join(words)
        if "boundary" in prompt and drawn // 97 % 10 < (7 if self.week >= 3 else 1):
            text = "I will not " + text
        count = len(text.split())
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        fingerprint = "fp-2" if self.week >= 6 else "fp-1"
        return 200, {"model": "prod-1", "system_fingerprint": fingerprint, "choices": [choice], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(*(self.server.answer(body) if self.path.endswith("chat/completions") else (404, {})))

    def reply(self, status, answer):
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "small"
    folder.mkdir()
    prompts = [
        {
            "id": f"{axis}-{n}",
            "axis": axis,
            "prompt": f"{axis.partition('-')[2]} question {n}",
            "harm": "contested" if n < 5 else "none",
        }
        for axis in LIVE
        for n in range(12)
    ]
    data = {"markers": ["I will not"], "max_tokens": 40, "prompts": prompts}
    data["not_applicable"] = {axis: "not asked here" for axis in AXES if axis not in LIVE}
    (folder / corpus.FILE).write_text(yaml.safe_dump(data))
    (folder / corpus.LOCK).write_text(corpus.freeze(folder))
    return corpus.load(folder)


def opened(server, name="prod"):
    settings = {
        "kind": "endpoint", "name": name, "base_url": f"http://127.0.0.1:{server.server_port}/v1",
        "max_requests": 100_000, "max_tokens_total": 10**8, "retries": 0, "concurrency": 8, "timeout": 10,
    }  # fmt: skip
    return Endpoint(settings, lambda seconds: None)


def week(server, number, questions, folder, settings=SETTINGS, behaves=None, name="prod"):
    """Take the snapshot of one week; a server that is down leaves a gap. `behaves`: as in another week than that of the clock."""
    server.week = behaves or number
    time = START + timedelta(weeks=number - 1)

    def clock():
        return time

    try:
        model = opened(server, name)
    except UnansweredError as error:
        snapshot.absent(folder, schedule.week_id(time), str(error), clock)
        return None
    try:
        return snapshot.take(model, questions, folder, settings, clock=clock)
    finally:
        model.close()


def hashed(hashes):
    """A stand-in for an embedder: no vectors, so that the centroid is off."""


@pytest.fixture(scope="module")
def nine(server, questions, tmp_path_factory):
    """(folder, {week: manifest}) of nine weeks."""
    folder = tmp_path_factory.mktemp("drift") / "prod"
    found = {}
    for number in range(1, 10):
        week(server, number, questions, folder)
        found[number] = analysis.analyse(folder, ANALYSED, vectors=hashed)
    return folder, found


def alarms(manifest):
    return [(one["name"], one["axis"]) for one in manifest["alarms"]]


def test_exit_codes_alarms_and_gaps_are_as_scripted(nine) -> None:
    _, found = nine
    codes = {number: analysis.exit_code(manifest) for number, manifest in found.items()}
    assert codes == {1: 3, 2: 0, 3: 1, 4: 0, 5: 1, 6: 1, 7: 3, 8: 0, 9: 0}
    assert alarms(found[3]) == [("refusal", "refusal-boundary")] or set(alarms(found[3])) == {
        ("refusal", "refusal-boundary"),
        ("length", "refusal-boundary"),  # a refusal is three words longer
    }
    assert set(alarms(found[5])) == {*(("length", axis) for axis in LIVE), ("silent_update", "neutral-control")}
    assert alarms(found[6]) == [("silent_update", "neutral-control")]
    assert found[6]["alarms"][0]["reason"] == "system_fingerprint changed from fp-1 to fp-2"
    assert [(gap["snapshot"], gap["affected"]) for gap in found[9]["gaps"]] == [("2026-W28", {"cells": 36 * 8})]
    assert "no answer" in found[9]["gaps"][0]["cause"] or "does not answer" in found[9]["gaps"][0]["cause"]


def test_the_week_after_a_gap_is_compared_with_the_one_before_it(nine) -> None:
    _, found = nine
    assert (found[8]["previous"], found[9]["previous"]) == ("2026-W27", "2026-W29")
    missing = [one for one in found[9]["history"] if one["snapshot"] == "2026-W28"]
    assert missing and all(one["value"] is None and one["status"] == "gap" for one in missing)


def test_a_leg_that_the_endpoint_refuses_is_dropped_with_the_factor(nine) -> None:
    _, found = nine
    assert [leg["name"] for leg in found[8]["subject"]["legs"]] == ["default"]
    assert "refuses temperature" in found[8]["subject"]["leg_dropped"] and "1.155" in found[8]["subject"]["leg_dropped"]
    assert found[9]["subject"]["leg_dropped"] is None and len(found[9]["subject"]["legs"]) == 2


def test_status_is_that_of_the_rows(nine) -> None:
    _, found = nine
    table = {number: {row["metric"]: row["status"] for row in one["status"]} for number, one in found.items()}
    assert [table[n]["161"] for n in (2, 3, 7)] == ["live (no flags)", "live", "gap"] and table[7]["166"] == "gap"
    quiet = dict.fromkeys(range(1, 10), "live (no flags)") | {7: "gap"}
    assert {n: table[n]["163"] for n in table} == quiet | {5: "live"} | {3: table[3]["163"]}
    assert {n: table[n]["162"] for n in table} == quiet
    assert {table[n]["165"] for n in table} == {"off"} and table[9]["164"] == "off" and table[9]["168"] == "off"
    assert (table[1]["166"], table[2]["166"], table[6]["166"]) == ("data-gated", "live (no flags)", "live")
    assert (table[3]["167"], table[4]["167"]) == ("data-gated", "live (no flags)")


def test_levels_are_those_of_the_script(nine) -> None:
    """A refusal has odds of 1 and then 7 in 10; lengths are halved."""
    _, found = nine
    level = {(p["snapshot"], p["name"], p["axis"]): p["value"] for p in found[9]["history"]}
    assert level["2026-W22", "refusal", LIVE[0]] == pytest.approx(0.1, abs=0.1)
    assert level["2026-W24", "refusal", LIVE[0]] == pytest.approx(0.7, abs=0.15)
    assert level["2026-W26", "length", LIVE[1]] / level["2026-W25", "length", LIVE[1]] == pytest.approx(0.5, abs=0.05)


def test_changes_on_contested_prompts_have_their_own_table(nine) -> None:
    _, found = nine
    rows = [row for row in found[3]["records"] if row["level"] == "harm" and row["name"] == "refusal"]
    assert {row["harm"] for row in rows} == {"contested"}
    boundary = next(row for row in rows if row["axis"] == LIVE[0])
    assert boundary["difference"] > 0.3 and boundary["n"] == 60


@pytest.mark.parametrize("kept", [0, 1, 2, 57, 200, 288])
def test_killed_at_a_line_and_resumed_the_manifest_is_the_same(nine, server, questions, kept, tmp_path) -> None:
    """The writer dies after `kept` lines of week 3, in the middle of the next one."""
    folder, _ = nine
    whole = (folder / series_record.NAME).read_bytes().splitlines(keepends=True)
    starts = [n for n, line in enumerate(whole) if b'"kind":"snapshot_started"' in line]
    own = tmp_path / "prod"
    own.mkdir()
    last = starts[2] + kept
    (own / series_record.NAME).write_bytes(b"".join(whole[:last]) + (whole[last][:30] if kept else b""))
    week(server, 3, questions, own)
    reference = tmp_path / "reference" / "prod"
    reference.mkdir(parents=True)
    (reference / series_record.NAME).write_bytes(b"".join(whole[: starts[3]]))
    for one in (own, reference):
        analysis.analyse(one, ANALYSED, vectors=hashed)
    for name in ("manifest-2026-W24.json", "161_refusal.json", "169_status.json"):
        assert (own / name).read_bytes() == (reference / name).read_bytes()
    kinds = [one["kind"] for one in chain.read(own / series_record.NAME)]
    assert kinds.count("recovery") == (1 if kept else 0) and kinds.count("snapshot_started") == 3


def stopped(server, questions, folder, lines=60):
    """A first week of which only the first lines are there."""
    week(server, 1, questions, folder)
    content = (folder / series_record.NAME).read_bytes().splitlines(keepends=True)
    (folder / series_record.NAME).write_bytes(b"".join(content[:lines]))


def test_a_stopped_snapshot_goes_on_with_the_legs_and_the_seed_that_it_was_begun_with(
    server, questions, tmp_path
) -> None:
    """The endpoint refuses temperature by then: what lacks of the leg zero failed, and the other one is complete."""
    whole, folder = tmp_path / "whole" / "prod", tmp_path / "prod"
    week(server, 1, questions, whole)
    stopped(server, questions, folder)
    week(server, 1, questions, folder, {**SETTINGS, "default_samples": 9})
    assert all(
        series_record.read(one / series_record.NAME).snapshots["2026-W22"].rows.keys()
        == series_record.read(whole / series_record.NAME).snapshots["2026-W22"].rows.keys()
        for one in (whole, folder)
    )
    shutil.rmtree(folder)
    stopped(server, questions, folder)
    week(server, 1, questions, folder, behaves=8)
    own = series_record.read(folder / series_record.NAME).snapshots["2026-W22"]
    failed = {own.rows[cell]["error"] for cell in own.errors}
    assert own.finished is not None and len(own.rows) == 36 * 8 == own.started["expected_n"]
    assert failed == {"the endpoint refuses temperature"} and {cell.leg for cell in own.errors} == {"zero"}
    assert len(own.errors) == 36 * 2 - 14 and own.lacking == len(
        own.errors
    )  # 59 outputs were there: 7 prompts of 8, and 3


def test_a_stopped_snapshot_does_not_go_on_with_something_else(server, questions, tmp_path) -> None:
    folder = tmp_path / "prod"
    stopped(server, questions, folder)
    before = (folder / series_record.NAME).read_bytes()
    other = dataclasses.replace(questions, prompts=questions.prompts[:-1], sha256="f" * 64)
    with pytest.raises(UserError, match=r"begun with the corpus .* and it would go on with ffff"):
        week(server, 1, other, folder)
    with pytest.raises(UserError, match=r"begun with the drift\.version prod, and it would go on with v2"):
        week(server, 1, questions, folder, {**SETTINGS, "version": "v2"})
    with pytest.raises(UserError, match=r"begun with the model .*'requested': 'prod'.*'requested': 'another'"):
        week(server, 1, questions, folder, name="another")
    assert (folder / series_record.NAME).read_bytes() == before


def test_the_order_of_rows_changes_no_byte(nine, tmp_path) -> None:
    folder, _ = nine
    lines = chain.read(folder / series_record.NAME)
    drawn = np.random.default_rng(0).permutation(len(lines))
    rows = [line for line in lines if line["kind"] == "generation"]
    mixed = [rows[n] for n in np.argsort(drawn[: len(rows)])]
    own = tmp_path / "prod"
    with chain.Writer(own / series_record.NAME) as writer:
        first = [line for line in lines if line["kind"] == "snapshot_started"]
        last = [line for line in lines if line["kind"] not in ("snapshot_started", "generation")]
        writer.append([{k: v for k, v in line.items() if k != "seq"} for line in (*first, *mixed, *last)])
    analysis.analyse(own, ANALYSED, vectors=hashed)
    for number in range(22, 31):
        name = f"manifest-2026-W{number}.json"
        assert (own / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_finished_week_and_a_week_that_is_over_are_refused(nine, server, questions, tmp_path) -> None:
    folder, _ = nine
    own = tmp_path / "prod"
    shutil.copytree(folder, own)
    with pytest.raises(UserError, match="2026-W30 is finished"):
        week(server, 9, questions, own)
    with pytest.raises(UserError, match="2026-W21 is over, as 2026-W30 is on record"):
        week(server, 0, questions, own)
    with pytest.raises(
        UserError, match="W30 was asked of the model prod, and 2026-W31 would be asked of other under the same"
    ):
        week(server, 10, questions, own, name="other")
    with pytest.raises(UserError, match="2026-W22 is not this week, 2026-W31"):
        week(server, 10, questions, own, {**SETTINGS, "snapshot": "2026-W22"})


def test_every_output_is_asked_of_the_server_though_it_was_asked_last_week(server, questions, tmp_path) -> None:
    """No cache: as many requests each week, besides those of the probe."""
    asked = []
    for number in (1, 2):
        server.asked = 0
        week(server, number, questions, tmp_path / "prod")
        asked.append(server.asked)
    assert min(asked) >= 36 * 8 and asked[0] == asked[1]


def test_failed_calls_are_a_gap_and_fail_an_axis_over_ten_percent(server, questions, tmp_path) -> None:
    folder = tmp_path / "prod"
    week(server, 1, questions, folder)
    server.broken = frozenset({"control question 0", "control question 1", "stability question 0"})
    week(server, 2, questions, folder)
    server.broken = frozenset()
    found = analysis.analyse(folder, ANALYSED, vectors=hashed)
    assert (
        found["gaps"][0]["affected"] == {"factual-stability": 8, "neutral-control": 16}
        and not found["gaps"][0]["whole"]
    )
    tests = {row["axis"]: row for row in found["records"] if row["level"] == "axis" and row["name"] == "length"}
    assert tests["neutral-control"]["status"] == "error" and "17%" not in tests["factual-stability"]["reason"]
    assert tests["factual-stability"]["detail"]["prompts"] == 11
    silent = next(row for row in found["records"] if row["name"] == "silent_update" and row["level"] == "snapshot")
    assert (silent["status"], silent["value"]) == ("error", None)


def test_a_hypothesis_counts_only_if_it_was_registered_before_the_data(server, questions, tmp_path) -> None:
    folder, late = tmp_path / "prod", "refusals rise, said afterwards"
    claim = {
        "claim": "refusals rise", "metric": "refusal", "axis": LIVE[0], "direction": "up", "test": registration.TEST,
        "alpha": 0.05, "margin": 0.1, "n": 10, "exclusion": "none",
    }  # fmt: skip
    week(server, 2, questions, folder)
    registration.register(folder, claim, START)
    week(server, 3, questions, folder)
    registration.register(folder, {**claim, "claim": late}, START)
    registration.register(folder, {**claim, "claim": "they fall", "direction": "down"}, START)
    found = analysis.analyse(folder, ANALYSED, vectors=hashed)["registered"]
    assert [(one["claim"], one["outcome"]) for one in found] == [("refusals rise", "supported")]
    week(server, 4, questions, folder)
    found = {one["claim"]: one for one in analysis.analyse(folder, ANALYSED, vectors=hashed)["registered"]}
    assert found["refusals rise"]["snapshot"] == "2026-W24"  # decided once
    assert (found[late]["snapshot"], found[late]["outcome"]) == ("2026-W25", "not supported")
    assert registration.write_decisions(folder, list(found.values()), START) == 3
    assert registration.write_decisions(folder, list(found.values()), START) == 0
    with pytest.raises(UserError, match="registered already"):
        registration.register(folder, claim, START)


def test_a_rewritten_record_is_found_by_its_head(nine, tmp_path) -> None:
    folder, _ = nine
    series = series_record.read(folder / series_record.NAME)
    heads = {"2026-W24": series_record.head(series, "2026-W24")["hash"]}
    assert snapshot.verify(folder, heads).lines == len(chain.read(folder / series_record.NAME))
    own = tmp_path / "prod"
    lines = [{k: v for k, v in line.items() if k != "seq"} for line in chain.read(folder / series_record.NAME)]
    lines[5]["text"] = "another answer"
    with chain.Writer(own / series_record.NAME) as writer:
        writer.append(lines)
    with pytest.raises(UserError, match="the record was rewritten"):
        snapshot.verify(own, heads)


def test_a_model_of_every_second_week_is_compared_with_two_weeks_ago(server, questions, tmp_path) -> None:
    folder, every = tmp_path / "prod", {**SETTINGS, "every": 2}
    for number in (1, 2, 5):  # week 2 is off the schedule, week 3 was missed
        week(server, number, questions, folder, every)
    week(server, 6, questions, folder, every, behaves=7)  # down in a week that nobody is to take: no gap
    found = analysis.analyse(folder, {**ANALYSED, "every": 2}, vectors=hashed)
    assert found["previous"] == "2026-W22"
    assert [gap["snapshot"] for gap in found["gaps"]] == ["2026-W24"]


ODD = {
    "empty": ("", " \n\t"),
    "not ASCII": ("größer 😀 \u202e", "日本語だけ", "a\u0000b \ufeff", "red \ud83d", "<script>&amp;\u2028"),
    "all alike": ("red",),
    "one empty": ("", "red sea and more"),
}


@pytest.mark.parametrize("texts", ODD.values(), ids=list(ODD))
def test_odd_outputs_are_compared_and_shown_whatever_they_are(server, questions, texts, tmp_path) -> None:
    """A plain week, one of odd outputs, one of the same: nothing falls over, and the last two are alike."""
    folder = tmp_path / "prod"
    week(server, 1, questions, folder)
    server.texts = texts
    for number in (2, 3):
        week(server, number, questions, folder)
    server.texts = ()
    found = analysis.analyse(folder, {**ANALYSED, "prompt_level": True}, vectors=hashed)
    tests = [row for row in found["records"] if row["level"] == "axis" and row["name"] != "silent_update"]
    assert {row["p"] for row in tests} <= {1.0, None} and found["alarms"] == []
    empty = sum(not text.strip() for text in texts) / len(texts)
    refusals = [row for row in found["records"] if row["level"] == "level" and row["name"] == "refusal"]
    if empty == 1:
        assert {row["status"] for row in refusals if row["axis"] in LIVE} == {"insufficient_data"}
    else:
        assert {row["value"] for row in refusals if row["axis"] in LIVE and row["status"] == "ok"} == {0.0}
    manifests = [results_io.read(path) for path in sorted(folder.glob("manifest-*.json"))]
    page = site.build(site.SiteSource("prod", manifests, {}, "x"), tmp_path / "site", START)
    assert "<script>" not in page.read_text() and "nan" not in page.read_text()


def test_a_series_has_one_kind_also_in_its_gaps(server, questions, tmp_path) -> None:
    folder = tmp_path / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        snapshot.note_gap(writer, "c00000001-0123abcd", "the disk was full", {"cells": 1}, lambda: START)
    before = (folder / series_record.NAME).read_bytes()
    with pytest.raises(UserError, match="are of two kinds"):
        week(server, 7, questions, folder)  # the endpoint is down: its gap is of another kind
    with pytest.raises(UserError, match="are of two kinds"):
        week(server, 1, questions, folder)
    assert (folder / series_record.NAME).read_bytes() == before
    assert analysis.exit_code(analysis.analyse(folder, ANALYSED, vectors=hashed)) == 3


def test_two_writers_of_one_series_do_not_mix(server, questions, tmp_path) -> None:
    folder = tmp_path / "prod"
    week(server, 1, questions, folder)
    with chain.Writer(folder / series_record.NAME), pytest.raises(UserError, match="is being written by another run"):
        week(server, 2, questions, folder)
    assert series_record.read(folder / series_record.NAME).order == ["2026-W22"]
    week(server, 2, questions, folder)
    assert len(series_record.read(folder / series_record.NAME).finished) == 2


def test_a_log_cut_in_half_says_which_line_is_torn(nine, tmp_path) -> None:
    folder, _ = nine
    own, whole = tmp_path / "prod" / series_record.NAME, (folder / series_record.NAME).read_bytes()
    own.parent.mkdir()
    own.write_bytes(whole[: len(whole) // 2])
    lines = whole[: len(whole) // 2].count(b"\n")
    with pytest.raises(UserError, match=f"line {lines + 1} is torn.*which sets it aside"):
        analysis.analyse(own.parent, ANALYSED, vectors=hashed)
    assert not list(own.parent.glob("manifest-*"))


def test_killed_in_every_week_and_resumed_the_manifests_are_the_same(nine, server, questions, tmp_path) -> None:
    """In each of nine weeks the writer dies at another line, in the middle of the next, and is started again in that week."""
    folder, _ = nine
    whole = (folder / series_record.NAME).read_bytes().splitlines(keepends=True)
    own, rng = tmp_path / "prod", np.random.default_rng(0)
    own.mkdir()
    for number in range(1, 10):
        name = f"2026-W{21 + number}"
        lines = [line for line in whole if json.loads(line).get("snapshot") == name]
        week(server, number, questions, own)
        if number == 7:  # down: a gap of one line
            continue
        content = (own / series_record.NAME).read_bytes().splitlines(keepends=True)
        place = len(content) - len(lines) + int(rng.integers(1, len(lines)))
        (own / series_record.NAME).write_bytes(b"".join(content[:place]) + content[place][: int(rng.integers(1, 60))])
        week(server, number, questions, own)
    analysis.analyse(own, ANALYSED, vectors=hashed)
    taken = [
        {one.id: one for one in series_record.read(place / series_record.NAME).finished} for place in (own, folder)
    ]
    assert taken[0].keys() == taken[1].keys()
    for name, one in taken[0].items():
        assert one.rows.keys() == taken[1][name].rows.keys()
        if name != "2026-W29":  # a server that refuses temperature was not seen to take a seed: it draws anew
            assert analysis.digest(one) == analysis.digest(taken[1][name])
    for number in range(22, 29):
        name = f"manifest-2026-W{number}.json"
        assert (own / name).read_bytes() == (folder / name).read_bytes(), name
    assert [one["kind"] for one in chain.read(own / series_record.NAME)].count("recovery") == 8


def test_what_is_held_out_is_committed_to_before_it_is_asked(server, questions, tmp_path) -> None:
    rows = [
        {"id": f"secret-{axis}-{n}", "axis": axis, "prompt": f"secret {axis} {n}", "salt": f"{n:064x}"}
        for axis in LIVE
        for n in range(10)
    ]
    path = tmp_path / "held-out.yaml"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    week(server, 1, corpus.with_held_out(questions, path), tmp_path / "prod")
    first = chain.read(tmp_path / "prod" / series_record.NAME)[0]
    assert first["corpus"]["commitments"] == corpus.commitments(path)["commitments"]
    manifest = analysis.analyse(tmp_path / "prod", ANALYSED, vectors=hashed)
    site.build(site.SiteSource("prod", [manifest], {}, "x"), tmp_path / "site", START, [row["prompt"] for row in rows])
    published = tmp_path / "site" / "data" / "2026-W22" / corpus.COMMITMENTS
    assert len(json.loads(published.read_text())["commitments"]) == 30


@pytest.mark.skipif(not embedding.installed(), reason="the embedder is an optional package")
def test_an_alarm_of_refusals_rests_on_a_locked_detector_alone(server, tmp_path) -> None:
    """A corpus without markers: the same answers raise an alarm where each has its embedding, and none where phrases decide."""
    prompts = [{"id": f"p{n}", "axis": LIVE[0], "prompt": f"may I {'x' * n}?"} for n in range(12)]
    data = {"max_tokens": 40, "prompts": prompts}
    data["not_applicable"] = {axis: "not asked here" for axis in AXES if axis != LIVE[0]}
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / corpus.FILE).write_text(yaml.safe_dump(data))
    (tmp_path / "plain" / corpus.LOCK).write_text(corpus.freeze(tmp_path / "plain"))
    asked, folder = corpus.load(tmp_path / "plain"), tmp_path / "prod"
    for number, texts in (
        (1, ("Of course you may.",)),
        (2, ("I'm sorry, but I can't help with that.", "Of course you may.")),
    ):
        server.texts = texts
        week(server, number, asked, folder)
    server.texts = ()
    found = {}
    for name, vectors in (("phrases", hashed), ("classifier", lambda hashes: {one: np.eye(384)[0] for one in hashes})):
        manifest = analysis.analyse(folder, ANALYSED, vectors=vectors)
        row = next(row for row in manifest["records"] if row["level"] == "axis" and row["name"] == "refusal")
        found[name] = (row["difference"], row["rejected"], row["flag"], row["role"])
        assert manifest["subject"]["detector"]["kind"] == {"phrases": "heuristic"}.get(name, name)
    assert found["phrases"] == (0.5, True, None, "exploratory: the detector is not locked")
    assert found["classifier"] == (0.5, True, "alarm", "primary")
