"""HTTP endpoints as models under test, against a server on loopback that misbehaves as it is told."""

from __future__ import annotations

import base64
import email.utils
import html
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from results_io import UserError
from suites import likelihood
from suites.item import Item
from suites.log import cache
from suites.models import answers, connection, open_model
from suites.models.api_key import ApiKey
from suites.models.base import FILTERED, Request
from suites.models.connection import Budget, BudgetError, EndpointError
from suites.models.endpoint import Endpoint

KEY = "sk-very-secret"
WORDS = "red blue green keys table door".split()
FORMAT = '{"choices": '  # an answer that breaks off


def tokens_of(text):
    """(start, token): words with the white space before them."""
    starts = [0] + [i for i in range(1, len(text)) if text[i] == " " and text[i - 1] != " "]
    return [(a, text[a:b]) for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if text[a:b]]


def logprob_of(token):
    return -len(token) / 8  # exact in binary


class Server(ThreadingHTTPServer):
    """Writes `text` and knows log p of every token. `script`: what it does with the next requests after its start instead."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.can = {"completions", "chat", "echo", "logprobs", "seed", "usage", "repeats"}
        self.text = " red keys . blue"
        self.fingerprint, self.models = "fp-1", None
        self.script, self.asked, self.active, self.most = [], [], 0, 0
        self.delay, self.lock, self.random = 0.0, threading.Lock(), random.Random(0)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, path, body):
        chat = path.endswith("/chat/completions")
        if ("chat" if chat else "completions") not in self.can:
            return 404, {"error": f"no {path}"}
        if body.get("echo") and ("echo" not in self.can or body["max_tokens"] < self.least):
            return 400, {"error": "echo is not supported"}
        text = self.text
        if body["temperature"]:
            source = random.Random(body["seed"]) if "seed" in self.can and "seed" in body else self.random
            text = "".join(" " + source.choice(WORDS) for _ in range(body["max_tokens"]))
        elif "repeats" not in self.can:
            text += f" {len(self.asked)}"
        written = tokens_of(text)[: body.get("max_tokens", body.get("max_completion_tokens"))]
        choice = {"finish_reason": "length" if len(tokens_of(text)) > len(written) else "stop"}
        text = "".join(token for _, token in written)
        values = [logprob_of(token) for _, token in written]
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
            logprobs = {"content": [{"token": t, "logprob": v} for (_, t), v in zip(written, values, strict=True)]}
        else:
            prompt = body["prompt"] if body.get("echo") else ""
            whole = [*tokens_of(prompt), *((len(prompt) + start, token) for start, token in written)]
            numbers = [logprob_of(token) for _, token in whole]
            best = [{"other": -0.5} if number < -0.5 else {"same": number} for number in numbers]
            if prompt:
                numbers[0], best[0] = None, None
            choice["text"] = prompt + text
            logprobs = {"tokens": [t for _, t in whole], "token_logprobs": numbers, "top_logprobs": best}
            logprobs["text_offset"] = [start for start, _ in whole]
        if body.get("logprobs") and "logprobs" in self.can:
            choice["logprobs"] = logprobs
        found = {"model": "words", "system_fingerprint": self.fingerprint, "choices": [choice]}
        if "usage" in self.can:
            asked = len(tokens_of(body["messages"][-1]["content"] if chat else body["prompt"]))
            used = {"prompt_tokens": asked, "completion_tokens": len(written), "total_tokens": asked + len(written)}
            found["usage"] = used
        return 200, found

    least = 0  # tokens that have to be generated with an echo


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes, of which the second would wait for 40 ms

    def log_message(self, *_):
        pass

    def do_GET(self):
        status = 200 if self.path == "/v1/models" and self.server.models else 404
        payload = json.dumps({"data": self.server.models}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.active += 1
            server.most = max(server.most, server.active)
            server.asked.append((self.path, dict(self.headers), body))
            what = server.script.pop(0) if server.script else None
        time.sleep(what.get("sleep", 0) if isinstance(what, dict) else server.delay)
        status, answer = server.answer(self.path, body)
        headers, pause = {}, 0.0
        if isinstance(what, dict):
            pause = what.get("pause", 0.0)
            status, headers = what.get("status", status), what.get("headers", {})
            answer = what.get("answer", answer)
        payload = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        with server.lock:
            server.active -= 1
        try:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(payload)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            pieces = [payload[i : i + 1] for i in range(len(payload))] if pause else [payload]
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(pause)
        except OSError:  # the client did not wait
            self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_ENDPOINT_KEY", KEY)
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def connect(server):
    """connect(**settings): an endpoint on the server, whose waits are noted in `waits` and not slept."""
    opened = []

    def make(**more):
        waits = []
        settings = {
            "kind": "endpoint",
            "base_url": server.url,
            "name": "words",
            "api_key_env": "TEST_ENDPOINT_KEY",
            "max_requests": 500,
            "max_tokens_total": 100_000,
            "concurrency": 4,
            "timeout": 5.0,
            **more,
        }
        endpoint = Endpoint(settings, sleep=waits.append)
        endpoint.waits = waits
        opened.append(endpoint)
        return endpoint

    yield make
    for endpoint in opened:
        endpoint.close()


def test_what_an_able_endpoint_can_do(server, connect):
    found = connect()
    assert found.capabilities == {"generation", "sampling", "logprobs", "chat", "seed"}
    assert found.probe.deterministic and found.probe.fingerprint and found.probe.reported == "fp-1"
    assert found.budget.requests == len(server.asked) + 1 == 11  # and one for the list of models
    assert found.probe.why == {}


@pytest.mark.parametrize(
    ("lacks", "capabilities"),
    [
        ({"echo"}, {"generation", "sampling", "chat", "seed"}),
        ({"logprobs"}, {"generation", "sampling", "chat", "seed"}),  # an echo without numbers
        ({"chat"}, {"generation", "sampling", "logprobs", "seed"}),
        ({"completions"}, {"generation", "sampling", "chat", "seed"}),
        ({"seed"}, {"generation", "sampling", "logprobs", "chat"}),
    ],
)
def test_what_an_endpoint_cannot_do_is_no_capability(lacks, capabilities, server, connect):
    server.can -= lacks
    found = connect()
    assert found.capabilities == capabilities
    assert found.probe.logprobs == ("logprobs" not in lacks)
    if "logprobs" not in capabilities:
        with pytest.raises(UserError, match="likelihoods do not apply"):
            found.loglikelihood([("a", " b")])


def test_a_seed_that_is_ignored_by_a_deterministic_server_is_no_seed(server, connect):
    server.answer = lambda path, body, own=server.answer: own(path, {**body, "temperature": 0})
    assert not connect().probe.seed


def test_greedy_outputs_that_differ_are_noticed(server, connect):
    server.can -= {"repeats"}
    assert not connect().probe.deterministic


def test_an_endpoint_that_answers_nothing_is_refused(server, connect):
    server.can -= {"completions", "chat"}
    with pytest.raises(UserError, match=r"does not answer as words: .*status 404"):
        connect()
    assert len(server.asked) == 2  # an unknown path is not tried again


def test_generations_are_in_order_with_counts_log_probabilities_and_version(server, connect):
    found, counts = connect(), []
    requests = [Request("one two" + " three" * n, max_tokens=n + 1) for n in range(6)]
    generations = found.generate(requests, counts.append)
    assert [g.text for g in generations[:3]] == [" red", " red keys", " red keys ."]
    assert [g.finish for g in generations] == ["length"] * 3 + ["stop"] * 3
    assert [g.tokens_in for g in generations] == [2, 3, 4, 5, 6, 7]
    assert [g.tokens_out for g in generations] == [1, 2, 3, 4, 4, 4]
    assert generations[1].logprob == (len(" red") + len(" keys")) / -8
    assert {g.reported for g in generations} == {"fp-1"} and counts == [1] * 6
    path, _, body = server.asked[-1]
    assert path == "/v1/chat/completions" and body["messages"][-1]["role"] == "user"


def test_completions_take_raw_prompts_and_no_system_text(server, connect):
    found = connect(chat=False)
    good, bad = found.generate([Request("one two", max_tokens=2), Request("one", system="Be brief.")])
    assert (good.text, good.logprob) == (" red keys", -9 / 8)
    assert bad.finish == "error" and "does no chat" in bad.error
    assert server.asked[-1][0] == "/v1/completions" and server.asked[-1][2]["prompt"] == "one two"
    chat = connect().generate([Request("one", system="Be brief.")])[0]
    assert chat.finish != "error"
    assert [message["role"] for message in server.asked[-1][2]["messages"]] == ["system", "user"]


def test_a_stop_text_is_cut_here_if_the_server_does_not(connect):
    found = connect().generate([Request("one", max_tokens=9, stop=(" .", "blue"))])[0]
    assert (found.text, found.finish) == (" red keys", "stop")


@pytest.mark.parametrize(
    ("reason", "text", "finish"),
    [
        ("stop", "red", "stop"),
        ("length", "red", "stop"),
        *((reason, "red. keys", FILTERED) for reason in answers.SAFETY_STOPS),
    ],
)
def test_a_text_that_the_provider_filtered_stays_filtered_whatever_stop_text_it_has(reason, text, finish):
    choice = {"message": {"content": "red. keys"}, "finish_reason": reason}
    found = answers.generation({"choices": [choice]}, True, Request("one", stop=(".",)), 0.0)
    assert (found.text, found.finish) == (text, finish)


def test_draws_repeat_by_seed_and_number(connect):
    found = connect()
    requests = [Request("one", max_tokens=6, temperature=1.0, seed=s, sample=n) for s in (0, 1) for n in range(3)]
    texts = [g.text for g in found.generate(requests)]
    assert texts == [g.text for g in found.generate(requests)]
    assert len(set(texts)) == 6


def test_draws_of_two_wordings_share_no_noise(server, connect):
    found = connect()
    texts = ("one", "two")
    found.generate([Request(t, max_tokens=6, temperature=1.0, seed=0, sample=n) for t in texts for n in range(3)])
    drawn = [
        Request("one", system, 6, 1.0, earlier=said) for system in (None, "short") for said in ((), (("user", "hi"),))
    ]
    found.generate(drawn[:1] + [one for one in drawn[1:] if found.probe.chat])
    seeds = [body["seed"] for _, _, body in server.asked if body.get("temperature") and body.get("max_tokens") == 6]
    assert len(seeds) >= 7 and len(set(seeds)) == len(seeds) - 1  # "one" at draw 0 was asked twice


# --- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 1])
def test_likelihoods_are_sums_over_the_echoed_tokens_after_the_context(least, server, connect):
    server.least = least
    found = connect()
    assert found.probe.echo_tokens == least
    one, two, spaced = found.loglikelihood([("one two", " red keys"), ("one two", " is"), ("one two ", "red")])
    assert (one.logprob, one.n_tokens, one.greedy) == (-9 / 8, 2, False)
    assert (two.logprob, two.n_tokens, two.greedy) == (-3 / 8, 1, True)
    assert (spaced.logprob, spaced.n_tokens) == (-4 / 8, 1)  # the space went to the choice
    items = [Item("1", "one two", answers=("is",), choices=("red keys", "is"))]
    assert likelihood.ask(found, items)[0].logprobs == (-9 / 8, -3 / 8)


def test_known_likelihoods_are_not_asked_for_again_after_an_error(server, connect):
    found = connect(retries=0, concurrency=1)
    pairs = [("one", " red"), ("one", " keys"), ("one", " door")]
    server.script = [{}, {"status": 500, "answer": {"error": "sorry"}}, {}]
    before = len(server.asked)
    with pytest.raises(EndpointError, match="status 500"):
        found.loglikelihood(pairs)
    assert [one.logprob for one in found.loglikelihood(pairs)] == [-4 / 8, -5 / 8, -5 / 8]
    assert len(server.asked) - before == 4
    with pytest.raises(EndpointError, match="begins the text"):
        found.loglikelihood([("", "red")])


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_busy_server_is_waited_for_as_it_asks(server, connect):
    found = connect()
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    server.script = [
        {"status": 429, "headers": {"Retry-After": "7"}},
        {"status": 429, "headers": {"Retry-After": date}},
        {"status": 429},
    ]
    assert found.generate([Request("one", max_tokens=2)])[0].text == " red keys"
    assert found.waits[0] == 7 and 25 <= found.waits[1] <= 30 and 0 <= found.waits[2] <= 2.0
    assert found.budget.requests == 15


def test_a_server_that_asks_for_too_long_is_an_error_of_that_request(server, connect):
    found = connect(concurrency=1)
    server.script = [{"status": 429, "headers": {"Retry-After": "3600"}}]
    bad, good = found.generate([Request("one", max_tokens=2), Request("two", max_tokens=2)])
    assert bad.finish == "error" and "asks to wait 3600 s" in bad.error and found.waits == []
    assert good.text == " red keys"


@pytest.mark.parametrize(
    "failure",
    [
        {"status": 500},
        {"status": 503},
        {"answer": FORMAT},
        {"answer": "[]"},
        {"answer": "[" * 100_000},
        {"sleep": 0.4},
        {"headers": {"Content-Encoding": "gzip"}},
        {"pause": 0.01},  # some 300 pieces, each of them in time
    ],
    ids=["500", "503", "broken JSON", "no object", "nested JSON", "timeout", "no gzip", "in pieces"],
)
def test_failures_that_pass_are_tried_again_with_growing_waits(failure, server, connect):
    found = connect(timeout=0.2)
    server.script = [failure, failure]
    assert found.generate([Request("one", max_tokens=2)])[0].text == " red keys"
    assert len(found.waits) == 2 and 0 <= found.waits[0] <= 0.5 and 0 <= found.waits[1] <= 1.0


def test_failures_that_stay_are_errors_of_their_own(server, connect):
    found = connect(retries=2, concurrency=1)
    server.script = [{"status": 500, "answer": f"no, {KEY}"}] * 3 + [{"status": 400, "answer": "bad"}, {"answer": {}}]
    five, four, form, good = found.generate([Request(f"{n}", max_tokens=1) for n in range(4)])
    assert "after 3 tries: status 500" in five.error and "status 400" in four.error and "expected form" in form.error
    assert [g.finish for g in (five, four, form, good)] == ["error", "error", "error", "length"]
    assert five.text == "" and KEY not in five.error and "***" in five.error


def test_a_server_that_is_gone_is_an_error(server, connect):
    found = connect(retries=1)
    found.connection.base_url = "http://127.0.0.1:9/v1"
    error = found.generate([Request("one")])[0].error
    assert error.endswith("gave no answer after 2 tries: it cannot be reached (Connection refused)")


def test_a_server_whose_name_nobody_knows_is_an_error(server, connect, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    found = connect(retries=0)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = found.generate([Request("one")])[0].error
    assert error.endswith("gave no answer: it cannot be reached (Name or service not known)")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Content-Length": "bad"}, "it sent an answer that is not as HTTP has it (bad Content-Length)"),
        ({"Content-Length": "9999"}, "it broke off its answer"),
        ({"Content-Encoding": "gzip"}, "it sent an answer that cannot be decoded"),
    ],
)
def test_what_breaks_an_answer_is_said_in_words(headers, said, server, connect):
    found = connect(retries=0)
    server.script = [{"headers": headers}]
    assert found.generate([Request("one")])[0].error.endswith(f"/chat/completions gave no answer: {said}")


NO_TEXT = "the endpoint's answer is not of the expected form: it has no text at choices[0].message.content"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": {}},
        {"choices": "x"},
        {"choices": [None]},
        {"choices": [[]]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": "x"}]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"content": 0}}]},
        {"choices": [{"message": {"content": ["x"]}}]},
        {"choices": [{"message": {"content": None, "refusal": 5}}]},
    ],
    ids=json.dumps,
)
def test_an_answer_without_a_text_says_so(answer, server, connect):
    found = connect()
    server.script = [{"answer": json.dumps(answer)}]
    assert found.generate([Request("one")])[0].error == f"{NO_TEXT}; check base_url and the server"


def test_an_answer_of_completions_without_a_text_says_so(server, connect):
    found = connect(chat=False)
    server.script = [{"answer": json.dumps({"choices": [{"text": 5}]})}]
    said = "the endpoint's answer is not of the expected form: it has no text at choices[0].text; check base_url and the server"
    assert found.generate([Request("one")])[0].error == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("quota exceeded", "quota exceeded"),
        ({"message": "quota exceeded", "code": 5}, "quota exceeded"),
        ({"code": 5}, '{"code": 5}'),
        ({"message": f"{KEY} is bad"}, "*** is bad"),
        ({"message": f"{'x' * 190} {KEY} {'y' * 900}"}, f"{'x' * 190} *** {'y' * 5}"),
    ],
)
def test_what_an_answer_says_of_its_error_is_said(error, said, server, connect):
    found = connect()
    server.script = [{"answer": json.dumps({"error": error})}]
    expected = f"{NO_TEXT}, and its error says {said!r}; check base_url and the server"
    assert found.generate([Request("one")])[0].error == expected


@pytest.mark.parametrize(
    "more",
    [
        {"usage": 5},
        {"usage": []},
        {"usage": {"prompt_tokens": "x", "completion_tokens": -1, "total_tokens": True}},
        {"usage": {"prompt_tokens": 10**30, "completion_tokens": 2.5, "total_tokens": 10**30}},
    ],
    ids=json.dumps,
)
def test_a_count_of_tokens_that_is_none_is_not_believed(more, server, connect):
    found = connect()
    before = found.budget.tokens
    whole = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], **more}
    server.script = [{"answer": json.dumps(whole)}]
    one = found.generate([Request("one", max_tokens=2)])[0]
    assert (one.text, one.tokens_in, one.tokens_out) == ("x", None, None)
    assert found.budget.tokens == before + 5  # as many as were reserved


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": ["stop"]},
        {"logprobs": 5},
        {"logprobs": {"content": 5}},
        {"logprobs": {"content": [5]}},
        {"logprobs": {"content": [{}]}},
        {"logprobs": {"content": [{"logprob": "x"}]}},
    ],
    ids=json.dumps,
)
def test_an_answer_of_another_form_is_refused_without_a_class(choice, server, connect):
    found = connect()
    server.script = [{"answer": json.dumps({"choices": [{"message": {"content": "x"}, **choice}]})}]
    assert found.generate([Request("one")])[0].error == (
        "the endpoint's answer is not of the expected form: something in it is missing or of another kind; check base_url and "
        "the server"
    )


def test_the_budget_of_requests_stops_the_rest_and_loses_nothing(server, connect):
    found = connect(max_requests=14, concurrency=2)
    generations = found.generate([Request(f"one {n}", max_tokens=2) for n in range(8)])
    assert sum(g.finish != "error" for g in generations) == 3 and len(server.asked) == 13
    assert all("max_requests=14" in g.error for g in generations if g.finish == "error")


@pytest.mark.parametrize(("concurrency", "fewest"), [(1, 9), (3, 7)])
def test_the_budget_of_tokens_is_never_passed_and_counts_what_was_used(concurrency, fewest, server, connect):
    """A request may take 11 tokens and takes 6. Of 60, nine fit one by one: 6 x 8 + 11 <= 60 < 6 x 9 + 11. While two others hold
    11 each, the fifth is the last that is sure of a place, and those two finish."""
    probed = connect().budget.tokens
    found = connect(max_tokens_total=probed + 60, concurrency=concurrency)
    generations = found.generate([Request("one two", max_tokens=4) for _ in range(20)])
    answered = [g for g in generations if g.finish != "error"]
    assert found.budget.tokens == probed + 6 * len(answered) <= probed + 60
    assert fewest <= len(answered) <= 9
    assert all("max_tokens_total" in g.error for g in generations if g.finish == "error")


def test_a_budget_without_reports_keeps_what_it_reserved():
    budget = Budget(max_requests=3, max_tokens=30)
    budget.take(12)
    budget.settle(12, None)
    budget.take(12)
    budget.settle(12, 2)
    assert (budget.requests, budget.tokens) == (2, 14)
    with pytest.raises(BudgetError, match="16 tokens left and the request may take 17"):
        budget.take(17)
    assert budget.requests == 2


def test_as_many_requests_at_once_as_allowed(server, connect):
    found = connect(concurrency=3)
    server.delay, server.most = 0.03, 0
    found.generate([Request(f"{n}", max_tokens=1) for n in range(12)])
    assert server.most == 3


def test_every_request_has_a_connection_of_its_own(server, connect):
    # a kept connection that went to a second request could be cut under it when the first one's time is over
    found = connect(concurrency=8, max_requests=300, retries=0)
    found.generate([Request(f"{n}", max_tokens=1) for n in range(200)])
    asked = [headers for _, headers, _ in server.asked]
    assert len(asked) >= 200
    assert {headers["Connection"] for headers in asked} == {"close"}


def test_more_than_a_hundred_requests_run_at_once(server, connect):
    found = connect(concurrency=130, retries=0, timeout=20.0)
    server.delay, server.most = 1.5, 0
    done = found.generate([Request(f"{n}", max_tokens=1) for n in range(130)])
    assert server.most > 100 and all(one.finish != "error" for one in done)


def test_an_answer_is_read_up_to_its_limit(server, connect, monkeypatch):
    found, request = connect(concurrency=1), Request("one", max_tokens=2)
    found.generate([request])
    length, spent = len(json.dumps(server.answer(*server.asked[-1][::2])[1])), found.budget.tokens
    monkeypatch.setattr(connection, "MOST_BYTES", length)
    assert found.generate([request])[0].text == " red keys" and found.budget.tokens == spent + 3
    monkeypatch.setattr(connection, "MOST_BYTES", length - 1)
    assert found.generate([request])[0].error.endswith("gave no answer: an answer of more than 0 MiB")
    assert found.waits == [] and found.budget.tokens == spent + 3 + 5  # what it may have cost


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_that_changes_by_the_answer_is_no_other_model(server, connect):
    found = connect(concurrency=1)
    generations = []
    for version in ("fp-1", "fp-2", "fp-2"):
        server.fingerprint = version
        generations += found.generate([Request("one")])
    assert [one.reported for one in generations] == ["fp-1", "fp-2", "fp-2"]
    assert found.reported == {"fp-1", "fp-2"}
    again = connect()
    assert again.probe.reported == "fp-2" and again.identity == found.identity
    server.can -= {"seed"}
    assert connect().identity == found.identity
    said = answers.change_of_version(one.reported for one in generations)
    assert said.startswith("the endpoint reported 2 versions with the outputs on record, fp-1 (1), fp-2 (2): ")
    assert answers.change_of_version([None, "fp-1", "fp-1"]) is answers.change_of_version([]) is None
    assert "fp-0 (1), fp-1 (1), fp-2 (1) and 6 more: " in answers.change_of_version(f"fp-{n}" for n in range(9))


def test_another_name_address_or_declared_version_is_another_model(server, connect):
    server.models = [{"id": "other", "version": "9"}, {"id": "words", "created": 1, "root": "weights", "version": "1"}]
    first = connect().identity
    assert (first["requested"], first["declared"]) == ("words", {"version": "1", "root": "weights"})
    server.models[1]["created"] = 2  # the time of the question
    assert connect().identity == first
    server.models[1]["version"] = "2"
    second = connect().identity
    server.models[1] = {"id": "words"}
    third = connect().identity
    server.models = None
    assert third == connect().identity and third["declared"] is None
    others = (third, second, first, connect(name="other").identity, connect(base_url=server.url + "//").identity)
    keys = {cache.key(identity, Request("one")) for identity in others[:4]}
    assert len(keys) == 4 and others[4] == third
    for models in ([], {}, [None], "words"):
        server.models = models
        assert connect().identity == third


# --- parameters that are refused --------------------------------------------------------------------------------------

RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
COLD = "Unsupported value: 'temperature' does not support 0 with this model."


@pytest.fixture
def particular(server):
    """The server as one of reasoning models: chats alone, no max_tokens, no temperature 0, no stop."""
    own = server.answer

    def answer(path, body):
        if path.endswith("/chat/completions"):
            for name, wrong, sentence in (
                ("max_tokens", "max_tokens" in body, RENAMED),
                ("temperature", body.get("temperature") == 0, COLD),
                ("stop", "stop" in body, "Unsupported parameter: 'stop'"),
            ):
                if wrong:
                    server.refused.append(name)
                    return 400, {"error": {"message": sentence, "param": name}}
            body = {"max_tokens": body["max_completion_tokens"], "temperature": 0, **body}  # as it likes: cold
        return own(path, body)

    server.refused, server.answer = [], answer
    server.can -= {"completions"}
    return server


def test_refused_parameters_are_sent_in_another_form_from_then_on(particular, connect):
    found = connect(concurrency=1)
    assert particular.refused == ["max_tokens", "temperature"]
    assert found.identity["greedy"] == "the server's own temperature" and not found.probe.greedy
    requests = [Request(f"one {n}", max_tokens=4, stop=(" .",)) for n in range(3)]
    assert [one.text for one in found.generate(requests)] == [" red keys"] * 3  # cut here
    warm = found.generate([Request("one", max_tokens=2, temperature=0.7)])[0]
    assert particular.refused == ["max_tokens", "temperature", "stop"]
    body = particular.asked[-1][2]
    assert (body["max_completion_tokens"], body["temperature"]) == (2, 0.7) and "max_tokens" not in body
    assert warm.error is None
    assert found.budget.requests == len(particular.asked) + 1 and found.waits == []


def test_at_once_every_request_finds_its_other_form(particular, connect):
    found = connect(concurrency=4)
    generations = found.generate([Request(f"one {n}", max_tokens=4, stop=(" .",)) for n in range(12)])
    assert [one.text for one in generations] == [" red keys"] * 12
    assert 1 <= particular.refused.count("stop") <= 4


def test_a_parameter_that_was_taken_is_not_replaced(server, connect):
    """A long prompt's refusal names max_tokens too, and what it says of temperature must not make greedy outputs drawn ones."""
    found = connect(concurrency=1)
    assert found.identity["greedy"] == "temperature 0"
    server.script = [{"status": 400, "answer": "max_tokens, temperature: too large, maximum context length is 9"}]
    bad, good = found.generate([Request("one", max_tokens=2), Request("two", max_tokens=2)])
    assert "maximum context length" in bad.error and good.text == " red keys"
    assert [(body["max_tokens"], body["temperature"]) for _, _, body in server.asked[-2:]] == [(2, 0)] * 2


def test_a_parameter_that_is_refused_in_both_forms_is_tried_once(server):
    asked = connection.Connection(server.url, Budget(9, 9999), sleep=lambda seconds: None)
    server.script = [{"status": 400, "answer": "max_tokens is too large"}] * 3
    for _ in range(2):
        with pytest.raises(EndpointError, match="too large"):
            asked.post("chat/completions", {"max_tokens": 9, "temperature": 0, "messages": [{"content": "one"}]}, 9)
    sent = [set(body) & {"max_tokens", "max_completion_tokens"} for _, _, body in server.asked]
    assert sent == [{"max_tokens"}, {"max_completion_tokens"}, {"max_tokens"}]
    assert asked.replaced("chat/completions") == frozenset() and asked.budget.tokens == 0
    server.script = [{"status": 400, "answer": "max_tokens is too large"}]
    with pytest.raises(EndpointError, match="too large"):  # raw completions have no other name for it
        asked.post("completions", {"max_tokens": 9, "temperature": 0, "prompt": "one"}, 9)
    assert len(server.asked) == 4
    asked.close()


# --- settings and secrets ----------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_written_nowhere(server, connect):
    found = connect()
    assert server.asked[0][1]["Authorization"] == f"Bearer {KEY}"
    records = (found.identity, vars(found.probe), found.generate([Request("one")]), found.connection, found.budget)
    assert KEY not in repr(records)


FORMS = {
    "itself": lambda key: key,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON twice": lambda key: json.dumps(json.dumps(key)),
    "JSON, slashes": lambda key: json.dumps(key).replace("/", r"\/"),
    "JSON, all": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "repr": repr,
    "repr of repr": lambda key: repr(repr(f"'{key}\"")),
    "bytes": lambda key: repr(key.encode()),
    "bytes, all": lambda key: "".join(f"\\x{ord(c):02x}" for c in key),
    "URL": lambda key: urllib.parse.quote(key, safe=""),
    "HTML": html.escape,
    "HTML, all": lambda key: "".join(f"&#{ord(c)};" for c in key),
}
ODD_KEY = "sk-a'b\"c\\d/e<f>g&h+i%j"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", [KEY, ODD_KEY])
def test_the_key_is_cut_out_in_every_form(key, form):
    written = FORMS[form](key)
    cleaned = ApiKey(key).clean(f"before {written} after {written}.")
    assert cleaned.startswith("before ") and cleaned.count("***") == 2 and " after " in cleaned
    assert set(cleaned.replace("before", "").replace("after", "")) <= set(
        " *.b'\"\\"
    )  # quotes around it, and their escapes


def pieces_in(text, key=KEY):
    """Pieces of the key, four characters or longer, that a text holds."""
    return [key[i : i + 4] for i in range(len(key) - 3) if key[i : i + 4] in text]


@pytest.mark.parametrize("status", [400, 200])
def test_no_part_of_a_key_survives_where_a_quote_is_cut(status, server, connect):
    """As a status and as an answer that is no JSON: the key lies across every place where 200 characters may end."""
    found = connect(retries=0, concurrency=1)
    places = range(200 - len(KEY) - 5, 205)
    server.script = [{"status": status, "answer": "." * place + KEY + " end"} for place in places]
    errors = [one.error for one in found.generate([Request(f"{place}") for place in places])]
    assert len(errors) == len(KEY) + 10 and all("....." in error for error in errors)
    assert [pieces_in(error) for error in errors] == [[]] * len(errors)
    assert "***" in errors[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", " ", "\r"])
def test_white_space_around_a_key_is_no_part_of_it(end, server, connect, monkeypatch):
    monkeypatch.setenv("TEST_ENDPOINT_KEY", f" {KEY}{end}")
    found = connect()
    assert server.asked[-1][1]["Authorization"] == f"Bearer {KEY}"
    assert found.generate([Request("one", max_tokens=2)])[0].error is None


@pytest.mark.parametrize("inside", ["\n", "\r", "\x00", "\x1f", "\x7f", "\u00e9", "\u2014", "\ufeff", "\udcff"])
def test_a_key_that_no_header_takes_is_refused_unseen(inside, server, connect, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "TEST_ENDPOINT_KEY": f"{KEY}{inside}{KEY}"})
    with pytest.raises(UserError, match="TEST_ENDPOINT_KEY has characters other than printable ASCII") as error:
        connect()
    assert pieces_in(repr(error.value)) == [] and server.asked == []


def test_a_key_in_the_wrong_place_is_not_shown(server, connect):
    with pytest.raises(UserError, match="api_key_env names is not set") as error:
        connect(api_key_env=KEY)
    assert pieces_in(str(error.value)) == []
    with pytest.raises(UserError, match="base_url holds the key") as error:
        connect(base_url=f"{server.url}/{KEY}")
    assert pieces_in(str(error.value)) == [] and server.asked == []


def test_a_server_that_says_the_key_gets_it_into_no_record(server, connect):
    server.text, server.fingerprint, server.models = f" {KEY} x", KEY, [{"id": "words", "version": KEY}]
    found = connect()
    generation = found.generate([Request("one")])[0]
    assert (generation.text, generation.reported) == (" *** x", "***")
    assert found.identity["declared"] == {"version": "***"}
    assert pieces_in(repr((generation, found.identity, found.probe, found.reported))) == []


def test_a_short_key_stands_for_none_and_changes_no_output(server, connect, monkeypatch):
    monkeypatch.setenv("TEST_ENDPOINT_KEY", "keys")
    found = connect(concurrency=1, retries=0)
    server.script = [{}, {"status": 400, "answer": "no keys"}]
    good, bad = found.generate([Request("one"), Request("two")])
    assert good.text == " red keys . blue" and bad.error.endswith("status 400, no ***")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_requests": None}, "needs max_requests"),
        ({"max_tokens_total": 0}, "max_tokens_total=0 is wrong"),
        ({"concurrency": True}, "concurrency=True is wrong"),
        ({"retries": -1}, "retries=-1 is wrong"),
        ({"base_url": "localhost"}, "no HTTP address"),
        ({"base_url": "http://127.0.0.1:99999/v1"}, "no HTTP address"),
        ({"base_url": "http://127.0.0.1:0/v1"}, "no HTTP address"),
        ({"base_url": "http://a b/v1"}, "no HTTP address"),
        *(
            ({"base_url": address}, "holds a password")
            for address in (
                "http://user:pass@localhost/v1",
                "http://user:a/pass@localhost/v1",
                "ftp://user:pass@localhost/v1",
                "user:pass@localhost/v1",
                f"http://user:pass@{'h' * 300}:x/v1",
                "localhost/v1?key=pass@",
            )
        ),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
        ({"api_key": KEY}, "'api_key' is unknown"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_sent(change, message, server, connect):
    with pytest.raises(UserError, match=message) as error:
        connect(**change)
    assert KEY not in str(error.value) and "pass@" not in str(error.value) and server.asked == []


def test_endpoints_and_scoring_need_no_torch():
    code = "import sys, suites.likelihood, suites.models.endpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_an_endpoint_is_opened_by_its_kind(server):
    settings = {
        "kind": "endpoint",
        "base_url": server.url,
        "name": "words",
        "max_requests": 50,
        "max_tokens_total": 9999,
    }
    found = open_model(settings)
    assert isinstance(found, Endpoint)
    assert "Authorization" not in server.asked[0][1]
    assert found.reads("anything") and found.same_tokens("a", "a") is True and found.same_tokens("a", "b") is None
    found.close()


@pytest.mark.parametrize("lists", [([], [], []), (["a", "b"], [-1.0], [0, 1]), (["ab"], [-1.0, -2.0], [0])])
def test_an_echo_has_one_log_probability_for_each_token(lists) -> None:
    tokens, numbers, offsets = lists
    echoed = {"tokens": tokens, "token_logprobs": numbers, "text_offset": offsets}
    with pytest.raises(ValueError, match="not one log-probability for each token"):
        answers.echo_of({"choices": [{"text": "ab", "logprobs": echoed}]}, "ab")


def test_a_plus_of_base64_is_found_as_it_is_and_as_a_url_writes_it() -> None:
    key = "token>>>of>>>tests"
    encoded = base64.b64encode(key.encode()).decode()
    assert "+" in encoded
    for written in (encoded, encoded.replace("+", "%2B"), encoded.replace("+", "-")):
        assert ApiKey(key).clean(f"before {written} after").count("after") == 1
        assert encoded[:12] not in ApiKey(key).clean(f"before {written} after")
