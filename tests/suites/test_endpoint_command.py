"""`run.py` with model=endpoint, against a server on loopback that answers with pocket: HTTP changes no number."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml

import results_io
from suites import declaration, lock
from suites.models import open_model
from suites.models.base import Request
from tests.commandline import command

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
SUITE, RESULT = "repeated_injection", "114_injection.json"
PROMPTS = 40  # a third of a14_repeated_injection_color, of which pocket fails most
PAIRS = "132_trace_pairs.json"
KEY = "sk-b42ac7d09e1f4c55"
SAME = ("metric_id", "suite", "value", "ci", "n", "n_excluded", "status", "passed", "detail")


class Handler(BaseHTTPRequestHandler):
    """Raw completions without log-probabilities of the prompt; no chat."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 404, {"error": "completions only"}
        if self.path == "/v1/completions" and not body.get("echo"):
            status, answer = 200, self.server.answer(body)
        if self.server.says is not None and len(self.server.asked) > 20:
            status, answer = 400, f"{'.' * self.server.says}{self.headers['Authorization']} is known here"
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.lock, self.asked = open_model(POCKET), threading.Lock(), []
        self.versions, self.says = 0, None  # fingerprints that take turns; dots before the key in errors that quote it

    def answer(self, body):
        prompt = body["prompt"] if self.model.reads(body["prompt"]) else "The"  # the probe's words
        request = Request(prompt, None, body["max_tokens"], body["temperature"], tuple(body.get("stop", ())))
        with self.lock:
            self.asked.append(body)
            (found,) = self.model.generate([request])
            version = f"fp-{len(self.asked) % self.versions}" if self.versions else None
        choice = {"text": found.text, "finish_reason": found.finish}
        answer = {"model": "pocket over HTTP", "choices": [choice], "usage": {"total_tokens": found.tokens_in}}
        return {**answer, "system_fingerprint": version}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """The settings that name the suite."""
    folder = tmp_path_factory.mktemp("suite")
    declared = declaration.read_yaml(declaration.find("a14_repeated_injection_color") / declaration.FILE)
    declared["generator"]["params"]["contents"] = PROMPTS // 2
    (folder / declaration.FILE).write_text(yaml.safe_dump(declared | {"id": SUITE}), encoding="utf-8")
    (folder / lock.FILE).write_text(lock.freeze(declaration.read(folder)), encoding="utf-8")
    return "suite=file", f"suite.path={folder}"


def settings(server):
    return (
        "model=endpoint",
        f"model.base_url=http://127.0.0.1:{server.server_port}/v1",
        "model.name=served",
    )


def records(folder, name):
    return [
        {key: one[key] for key in SAME} for one in results_io.read(folder / name / "suites" / SUITE / RESULT)["records"]
    ]


def test_a_suite_over_http_gives_the_local_numbers_and_nothing_to_trace(server, suite, tmp_path):
    served = command(*suite, *settings(server), f"results={tmp_path}")
    local = command(*suite, "model=pocket", "model.device=cpu", f"results={tmp_path}")
    assert (served.code, local.code) == (0, 0), served.errors + local.errors
    assert records(tmp_path, "served") == records(tmp_path, "pocket")
    rate = records(tmp_path, "served")[0]
    assert rate["metric_id"].endswith(".failure_rate") and rate["value"] > 0.5 and rate["status"] == "ok"
    document = results_io.read(tmp_path / "served" / "suites" / SUITE / RESULT)
    (group,) = results_io.read(tmp_path / "served" / "suites" / SUITE / PAIRS)["records"]
    reason = "not traceable (an endpoint, or a model with an intervention: its activations are out of reach)"
    assert (group["traceable"], group["rejected"]) == (0, {reason: document["n"]["failed"]})
    identity = document["subject"]["identity"]
    assert (identity["kind"], identity["requested"], identity["greedy"]) == ("endpoint", "served", "temperature 0")


@pytest.mark.slow
def test_a_second_run_asks_only_what_the_endpoint_can_do(server, suite, tmp_path):
    arguments = (*suite, *settings(server), f"results={tmp_path}")
    assert command(*arguments).code == 0
    asked, rate = len(server.asked), records(tmp_path, "served")[0]
    again = command(*arguments)
    probes = len(server.asked) - asked
    assert again.code == 0 and 0 < probes <= 12 and f"0 outputs asked, {PROMPTS} known before" in again.said
    assert records(tmp_path, "served")[0] == rate


@pytest.mark.slow
def test_versions_that_take_turns_are_no_reason_to_ask_again(server, suite, tmp_path):
    """Of three, so that the two runs' first answers, and their probes, have different ones."""
    server.versions = 3
    arguments = (*suite, *settings(server), f"results={tmp_path}")
    assert command(*arguments).code == 0
    document = (tmp_path / "served" / "suites" / SUITE / RESULT).read_bytes()
    server.asked.append(None)
    asked, again = len(server.asked), command(*arguments)
    assert (
        again.code == 0
        and 0 < len(server.asked) - asked <= 12
        and f"0 outputs asked, {PROMPTS} known before" in again.said
    )
    assert (tmp_path / "served" / "suites" / SUITE / RESULT).read_bytes() == document
    assert "the endpoint reported 3 versions with the outputs on record, " in again.said
    lines = (tmp_path / "served" / "suites" / SUITE / "generations.jsonl").read_text().splitlines()
    reported = [line["reported"] for line in map(json.loads, lines) if line["kind"] == "generation"]
    assert set(reported) == {"fp-0", "fp-1", "fp-2"} and len(reported) == PROMPTS


@pytest.mark.slow
@pytest.mark.parametrize(("end", "dots"), [("\n", 180), ("", 0)])
def test_no_file_and_no_line_holds_a_piece_of_the_key(end, dots, server, suite, tmp_path, monkeypatch):
    """The server quotes it in its errors: whole, or where the quote of 200 characters ends in the middle of it."""
    monkeypatch.setenv("TEST_KEY", KEY + end)
    server.says = dots
    found = command(*suite, *settings(server), "model.api_key_env=TEST_KEY", f"results={tmp_path}")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts = [found.output, found.errors, *(path.read_bytes().decode(errors="replace") for path in files)]
    assert any(path.name == "generations.jsonl" and "Bearer ***" in path.read_text() for path in files)
    pieces = [KEY[place : place + 6] for place in range(len(KEY) - 5)]
    assert [piece for piece in pieces for text in texts if piece in text] == []


@pytest.mark.slow
def test_a_budget_that_is_used_up_is_said_and_nothing_counts_as_wrong(server, suite, tmp_path):
    found = command(*suite, *settings(server), "model.max_requests=30", f"results={tmp_path}")
    assert "calls failed and are asked again next time" in found.said and "max_requests=30" in found.said
    rates = records(tmp_path, "served")
    assert rates[0]["n_excluded"]["error"] > 0
    assert command(*suite, *settings(server), f"results={tmp_path}").code == 0
    assert "error" not in records(tmp_path, "served")[0]["n_excluded"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arguments", [("task=ioi",), ("task=all",), ("task=failures",), ("doctor",)])
def test_what_needs_activations_is_one_sentence(arguments, tmp_path):
    """Without an address too: it is no question of settings."""
    found = command(*arguments, "model=endpoint", "model.name=served", f"results={tmp_path}")
    assert found.code == 2
    assert found.errors.strip() == (
        "model=endpoint shows no activations, which circuits need; run suites on it, for example suite=all"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "model=endpoint needs model.name; give the name that the server has for the model"),
        (("model.name=served",), "an endpoint needs base_url"),
        (
            ("model.name=served", "model.base_url=localhost:8000"),
            "is no HTTP address; write for example http://localhost:8000/v1",
        ),
        (("model.name=../served", "model.base_url=http://localhost:1/v1"), "leads out of the results folder"),
    ],
)
def test_missing_settings_are_one_sentence(given, sentence, suite, tmp_path):
    found = command(*suite, "model=endpoint", *given, f"results={tmp_path}")
    assert found.code == 2 and sentence in found.errors and found.errors.count("\n") == 1, found.errors
