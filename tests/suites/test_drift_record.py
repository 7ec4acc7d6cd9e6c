"""What a record says is missing and what is retired, and the endpoint's errors that are no gap: on records written by hand."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from results_io import UserError
from suites.drift import series_record, snapshot
from suites.log import chain
from suites.models.connection import UnansweredError
from suites.models.endpoint import Endpoint
from tests.commandline import command
from tests.suites.test_drift_analysis import begun, grid, line, plain, week

CELLS = 72  # 12 prompts, 6 samples


def opened(folder):
    return chain.Writer(folder / series_record.NAME)


def gaps(folder):
    return [(gap["snapshot"], gap["affected"]["cells"]) for gap in series_record.read(folder / series_record.NAME).gaps]


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_a_finished_week_is_no_gap_though_the_server_is_down(tmp_path) -> None:
    with opened(tmp_path) as writer:
        week(writer, "2026-W22", grid("2026-W22", plain))
    before = (tmp_path / series_record.NAME).read_bytes()
    with pytest.raises(UserError, match="the snapshot 2026-W22 is finished"):
        snapshot.absent(tmp_path, "2026-W22", "down")
    assert (tmp_path / series_record.NAME).read_bytes() == before


def test_a_week_that_was_begun_lacks_what_was_not_asked(tmp_path) -> None:
    with opened(tmp_path) as writer:
        writer.append([begun("2026-W22"), *grid("2026-W22", plain)[:50]])
    assert snapshot.absent(tmp_path, "2026-W22", "down")
    assert gaps(tmp_path) == [("2026-W22", CELLS - 50)]


def test_a_week_off_the_schedule_is_no_gap(tmp_path) -> None:
    """Every second week from W22 on: W23 lacks nothing, W24 does, once."""
    with opened(tmp_path) as writer:
        week(writer, "2026-W22", grid("2026-W22", plain), every=2)
    found = [snapshot.absent(tmp_path, name, "down") for name in ("2026-W23", "2026-W24", "2026-W24", "2026-W25")]
    assert found == [False, True, True, False]
    assert gaps(tmp_path) == [("2026-W24", CELLS)]


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with one status."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        payload = json.dumps({"error": "no"}).encode()
        self.send_response(self.server.of_chat if "chat" in self.path else self.server.status)
        self.send_header("Content-Length", str(len(payload)))
        if self.server.wait:
            self.send_header("Retry-After", str(self.server.wait))
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture(scope="module")
def refusing():
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize(
    ("status", "of_chat", "wait", "is_gap"),
    [
        *((status, status, 0, False) for status in (401, 404, 400)),
        *((500, 500, 0, True), (503, 503, 3600, True)),
        *((502, 401, 0, False), (401, 502, 0, False), (404, 502, 0, True), (502, 404, 0, True)),
    ],
)
def test_only_a_server_that_does_not_answer_leaves_a_gap(refusing, status, of_chat, wait, is_gap, tmp_path) -> None:
    """A key that is refused, or a path that is not there, says nothing of that week: exit code 2, and nothing is written."""
    refusing.status, refusing.of_chat, refusing.wait = status, of_chat, wait
    model = ("model=endpoint", f"model.base_url=http://127.0.0.1:{refusing.server_port}/v1", "model.name=prod")
    results = tmp_path / "results"
    done = command("drift", "series=prod", "do=snapshot", *model, "model.retries=0", f"results={results}")
    assert (done.code, f"status {status}" in done.output + done.errors) == (3 if is_gap else 2, True)
    assert (results / "drift" / "prod" / series_record.NAME).is_file() == is_gap
    settings = {"kind": "endpoint", "name": "prod", "base_url": model[1].partition("=")[2], "retries": 0}
    with pytest.raises(UserError) as caught:
        Endpoint({**settings, "max_requests": 100, "max_tokens_total": 10_000}, lambda seconds: None)
    assert isinstance(caught.value, UnansweredError) == is_gap


# --- what is retired --------------------------------------------------------------------------------------------------


def test_a_snapshot_that_was_only_begun_retires_nothing(tmp_path) -> None:
    """W22 asked p0 and p1, W23 only p1. W24 was killed after its header, and W25 after p0 again."""
    retired = []
    with opened(tmp_path) as writer:
        for name, asked, is_finished in (
            ("2026-W22", ("p0", "p1"), True),
            ("2026-W23", ("p1",), True),
            ("2026-W24", (), False),
            ("2026-W25", ("p0",), False),
        ):
            rows = [line(name, prompt, 0) for prompt in asked]
            if is_finished:
                week(writer, name, rows)
            else:
                writer.append([begun(name), *rows])
            retired.append(series_record.retired(series_record.read(tmp_path / series_record.NAME)))
    assert retired == [set(), {"p0@1"}, {"p0@1"}, set()]
    assert series_record.retired(series_record.SeriesRecord()) == set()
