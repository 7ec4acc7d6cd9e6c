"""Nothing waits for ever: refusals come before torch is imported, servers have a deadline, patterns and aliases have bounds."""

from __future__ import annotations

import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from circuits import yaml_file
from meridian import first_checks
from results_io import UserError
from suites import bounded_yaml, declaration, patterns, schema
from suites.drift import corpus, registration
from suites.geometry import construct
from suites.judging import rubric
from suites.log import chain
from suites.models.connection import Budget, Connection, EndpointError
from suites.shadow import redaction
from tests.commandline import ROOT, started

CPU_SECONDS = 5.0  # of one core; 3.6 to 4.3 were measured
MEASURED = """
import resource, runpy, sys
try:
    runpy.run_path("run.py", run_name="__main__")
except SystemExit as stop:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(stop.code, used.ru_utime + used.ru_stime, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (("circuit=file", "circuit.path=nowhere.yaml"), "no circuit file at nowhere.yaml; run with circuit=discovered"),
        (
            ("prompts.evaluation=1000000",),
            "prompts.evaluation=1000000 asks for 1,000,800 prompts in all: about 28 hours and 9.5 GiB of results on two CPU "
            "cores for the smallest model that ships, and more for others; use fewer prompts, or add force=true",
        ),
        (
            ("measurement.random_circuits=10000000",),
            "measurement.random_circuits=10000000 asks for at least 1,500,000,000 runs of a prompt: about 3 days on two CPU "
            "cores for the smallest model that ships, and more for others; use a smaller number, or add force=true",
        ),
        (("circuit=file", "circuit.path=pyproject.toml"), "pyproject.toml is not a circuit file"),
        (("results=/proc/x",), "/proc/x cannot be written"),
    ],
)
def test_a_refusal_takes_five_seconds_and_no_torch(typed, sentence) -> None:
    line = [sys.executable, "-c", MEASURED, "task=ioi", *typed]
    finished = subprocess.run(line, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    code, seconds, torch = finished.stdout.split()
    assert finished.stderr.startswith(sentence) and finished.stderr.count("\n") == 1
    assert (code, torch) == ("2", "False") and float(seconds) < CPU_SECONDS


@pytest.mark.parametrize(
    "typed",
    [
        "draws=1000000",
        "companion_prompts=1000000000",
        "corruption.draws=1000000",
        "completeness.random_groups=1000000",
        "completeness.draws=1000000",
        "outside.draws=1000000",
        "scrubbing.draws=1000000",
        "llc.draws=1000000",
    ],
)
def test_a_count_that_multiplies_what_is_run_is_asked_for_twice(typed) -> None:
    limit = "limits.hours=0.5"  # of which the settings as they are take a part
    first_checks.check(started("task=ioi", limit))
    typed = f"measurement.{typed}"
    with pytest.raises(UserError, match=r"runs of a prompt: about .*; use a smaller number, or add force=true"):
        first_checks.check(started("task=ioi", limit, typed))
    first_checks.check(started("task=ioi", limit, "force=true", typed))


@pytest.mark.parametrize(
    ("typed", "times"),
    [
        ("calibration.common.bootstrap_resamples=10000000", "10,000,000"),
        ("calibration.common.permutations=5000000", "5,000,000"),
        ("calibration.m3b.subsamples=2000000", "2,000,000"),
        ("measurement.ocse.permutations=9999999", "9,999,999"),
        ("measurement.ocse.nearest_neighbour.permutations=4000000", "4,000,000"),
        ("measurement.ocse.bootstrap.refits=10000", "1,990,000"),
        ("measurement.ocse.bootstrap.permutations=1000000", "100,000,000"),
        ("measurement.discovery.stability.resamples=3000000", "3,000,000"),
    ],
)
def test_more_resamples_than_memory_holds_are_asked_for_twice(typed, times) -> None:
    first_checks.check(
        started("task=ioi", "prompts.evaluation=100000", "calibration.common.bootstrap_resamples=1000000")
    )
    said = f"{typed} draws {times} times, and limits.resamples=1,000,000: "
    with pytest.raises(UserError, match=rf"^{re.escape(said)}.*; use a smaller number, or add force=true$"):
        first_checks.check(started("task=ioi", typed))
    first_checks.check(started("task=ioi", "force=true", typed))


@pytest.mark.slow
def test_a_long_run_is_asked_for_twice() -> None:
    for typed in (("prompts.reference=500000",), ("prompts.evaluation=40", "limits.hours=0.001")):
        with pytest.raises(UserError, match="add force=true"):
            first_checks.check(started("task=ioi", *typed))
        first_checks.check(context := started("task=ioi", "force=true", *typed))
        assert not [text for text in context.differs if "force" in text or "limits" in text]
    first_checks.check(started("task=ioi", "prompts.evaluation=6400"))


# --- a server that never ends ----------------------------------------------------------------------------------------

NEVER = {
    "silence": (b"", 0.0, b""),
    "one header after another": (b"HTTP/1.1 200 OK\r\n", 0.02, b"X-A: b\r\n"),
    "a status byte by byte": (b"HTTP/1.1 200 ", 0.02, b"O"),
    "one byte of the answer after another": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", 0.02, b" "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0.02, b"1\r\n \r\n"),
}
HANDSHAKES = {  # no answer to a TLS client, and a record of 16 kB that comes byte by byte
    "no handshake": (b"", 0.0, b""),
    "a handshake byte by byte": (b"\x16\x03\x03\x40\x00", 0.02, b"\x02"),
}
TIMEOUT, RETRIES = 0.2, 1
SPARE = 2.0  # seconds, on busy cores


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    line = ["openssl", "req", "-x509", *kind, *named, "-keyout", str(key), "-out", str(made)]
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    return made, key


@pytest.fixture
def never(request, monkeypatch) -> Iterator[str]:
    """The address of a server that begins an answer, or a handshake, and goes on with it for ever."""
    scheme, name = request.param
    begin, pause, more = (NEVER | HANDSHAKES)[name]
    ended, listening, encrypted = threading.Event(), socket.create_server(("127.0.0.1", 0)), None
    if scheme == "https" and name in NEVER:
        made, key = request.getfixturevalue("certificate")
        encrypted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        encrypted.load_cert_chain(made, key)
        monkeypatch.setenv("SSL_CERT_FILE", str(made))

    def answer(one: socket.socket) -> None:
        with one:
            try:
                one = one if encrypted is None else encrypted.wrap_socket(one, server_side=True)
                one.recv(65536)
                one.sendall(begin)
                while not ended.wait(pause or 0.1):
                    one.sendall(more)
            except OSError:  # the client did not wait
                pass

    def serve() -> None:
        while True:
            try:
                one, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/v1"
    ended.set()
    listening.close()


WAYS = [*(("http", name) for name in NEVER), *(("https", name) for name in (NEVER | HANDSHAKES))]


@pytest.mark.parametrize("never", WAYS, indirect=True, ids=": ".join)
def test_an_endpoint_is_given_up_after_its_time_for_every_try(never, monkeypatch) -> None:
    _give_up(never, monkeypatch, "it did not answer in time (no whole answer in 0.2 s)")


def test_an_endpoint_is_given_up_while_its_name_is_looked_up(monkeypatch) -> None:
    asked, ended = socket.getaddrinfo, threading.Event()

    def slow(host, *rest, **more):
        if host in ("slow.test", b"slow.test"):
            ended.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        _give_up("http://slow.test/v1", monkeypatch, "it did not answer in time (no connection in 0.2 s)")
    finally:
        ended.set()


def _give_up(address: str, monkeypatch, said: str) -> None:
    """Ask at the address: refused in one sentence after TIMEOUT for every try, and no socket to it stays open."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    waits, before = [], _threads()
    asked = Connection(address, Budget(9, 999), timeout=TIMEOUT, retries=RETRIES, sleep=waits.append)
    began = time.monotonic()
    with pytest.raises(EndpointError, match=f"gave no answer after 2 tries: {re.escape(said)}"):
        asked.post("chat/completions", {}, 10)
    assert time.monotonic() - began < TIMEOUT * (RETRIES + 1) + SPARE and len(waits) == RETRIES
    if "127.0.0.1" in address:  # a thread ends when its socket is shut down
        while _threads() > before and time.monotonic() - began < 10:
            time.sleep(0.01)
        assert _threads() <= before
    asked.close()


def _threads() -> int:
    """How many threads ask an endpoint."""
    return sum(one.name.endswith("(_run)") for one in threading.enumerate())


# --- what a suite may bring ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a{99999999}", "counts up to 1e+08 repeats, and 10000 are allowed"),
        ("(a{1000}){1000}", "counts up to 1e+06 repeats"),
        ("((a{50}){50}){50}", "counts up to 1.25e+05 repeats"),
        ("a{99999999999999999999}", "counts up to inf repeats"),
        ("(?x)a{ 3 0 0 0 0 0 0 }", "counts up to 3e+06 repeats"),
        ("(?x)a{3#\n00#}\n0000,}", "counts up to 3e+06 repeats"),
        ("(?x:a{30\x1c00}){3\u20030}{#\n3 0 }", "counts up to 2.7e+06 repeats"),
        ("(?:()()()()){10000}", "takes more than 1 s or 256 MiB"),  # 14 s of a fast core; (){10000} takes it 1.3 s
        ("(?:" + "[a-z]" * 390 + "){10000}", "takes more than 1 s or 256 MiB"),
        ("(?:" + "()" * 245 + "){1000}", "takes more than 1 s or 256 MiB"),
        ("(?<=(?x: a{ 9 0 0 0 })){9}", "counts up to 8.1e+04 repeats"),
        ("a{0,99999999999999999999}", "repeat count too big"),
        ("a{99999,}", "counts up to 1e+05 repeats"),
        ("(" * 900 + ")" * 900, "is nested too deep"),
        ("x" * 2001, "it has 2001 characters, and 2000 are allowed"),
        ("(a", "missing )"),
    ],
)
def test_a_pattern_without_bounds_is_refused(pattern, reason) -> None:
    began = time.process_time()
    with pytest.raises(UserError) as refused:
        patterns.compiled(pattern)
    assert reason in str(refused.value) and len(str(refused.value)) < 300 and time.process_time() - began < 0.5


def test_patterns_within_the_bounds_compile_at_once_in_little_memory() -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    largest = ["a{10000}", "(a{100}){100}", "((a{10}){10}){100}", "(?:\\w+\\s){10000}", "(a|b|c){10000}", "[a-z]" * 400]
    for pattern in (*largest, "\\p{L}" * 390, "x*" * 1000, "(?i)" + "ß" * 1900, "(?:a?){100}a{100}"):
        patterns.bounded(pattern)
    for pattern in (r"[\w.%+-]{1,64}@[\w.-]{1,63}\.[a-z]{2,4}", "(a{0,1000}){0,1000}", r"(?x) \d{ 4 } - \d{2} # {99}"):
        patterns.bounded(pattern)
    assert time.process_time() - began < 2 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    assert patterns.search(r"(\d{1,3})%", "about 35% of")[1] == "35"


@pytest.mark.parametrize("pattern", ["(?x)a{ 3 0 0 0 0 0 0 }", "(a"])
def test_the_answer_pattern_of_a_construct_has_the_bounds(pattern) -> None:
    asked = construct.load("pocket").constructs[0]
    with pytest.raises(UserError, match=r"answer_pattern .* is no regular expression"):
        construct._lint_answer(replace(asked, answer_pattern=pattern), "here")


def test_a_search_ends_in_its_time() -> None:
    began = time.process_time()
    with pytest.raises(TimeoutError):
        patterns.every(r"(?:(a|b|ab)*?c|(a|ab|b)*?d)+?e|x", f"x {'ab' * 20} " * 20)
    assert time.process_time() - began < 2 * patterns.TIMEOUT


BOMB = "\n".join(["l0: &l0 [x]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))])
ITSELF = "a: &a [*a]"


LONG = "x: " + "long " * 60_000
REFUSED = {  # a text: what the sentence says of it
    "aliases of aliases": (BOMB, "aliases stand for more than 50000 values"),
    "an alias of itself": (ITSELF, "refers to itself"),
    "brackets": ("a: " + "[" * 5000 + "]" * 5000, "nested more than 24 deep"),
    "brackets without end": ("{a: " * 5000, "nested more than 24 deep"),
    "lists in lists": ("- " * 5000 + "x", "nested more than 24 deep"),
    "deep and an alias": ("a: &x 1\nb: *x\nc: " + "[" * 5000 + "]" * 5000, "nested more than 24 deep"),
    "many keys": ("".join(f"a_longer_key_{n}: 1\n" for n in range(20_000)), "more than 262144 bytes"),
    "one long text": (LONG, "more than 262144 bytes"),
    "a number that is none": ('a: !!int ""', "a value is not what its tag says"),
    "a number without end": ("a: 1" + ":59" * 5000 + ".5", "a value is not what its tag says"),
    "a truth that is none": ("a: !!bool perhaps", "a value is not what its tag says"),
    "a date that is none": ("a: !!timestamp later", "a value is not what its tag says"),
}
READERS = {  # a file, and what reads it
    "suite": ("suite.yaml", declaration.read),
    "corpus": ("prompts.yaml", corpus.declared),
    "hypothesis": ("hypothesis.yaml", lambda folder: registration.read(folder / "hypothesis.yaml")),
    "rubric": ("rubric.yaml", lambda folder: rubric.load(str(folder / "rubric.yaml"))),
    "redaction": ("redact.yaml", lambda folder: redaction.Redactor(folder / "redact.yaml")),
    "reference of a geometry set": ("reference.yaml", construct.load),
    "construct of a geometry set": ("construct.yaml", lambda folder: construct.read(folder / "construct.yaml")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_every_reader_of_yaml_has_the_bounds(reader, kind, tmp_path) -> None:
    (name, read), (text, reason) = READERS[reader], REFUSED[kind]
    (tmp_path / name).write_text(text)
    began = time.process_time()
    with pytest.raises(UserError) as refused:
        read(tmp_path)
    assert reason in (said := str(refused.value)) and "\n" not in said and len(said) < 500
    assert time.process_time() - began < 3


@pytest.mark.parametrize("line", ["[" * 5000 + "]" * 5000, '{"a": ' * 5000])
def test_a_chain_of_a_drift_series_that_is_deep_is_refused(line, tmp_path) -> None:
    (path := tmp_path / "series.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match="line 1 is not a record"):
        chain.read(path)


def test_a_file_of_the_largest_size_takes_seconds() -> None:
    keys = [f"key_{n}" for n in range(24_000)]
    began = time.process_time()
    assert schema.first_repeated(keys) is None and schema.first_repeated([*keys, "key_7"]) == len(keys)
    assert time.process_time() - began < 0.5
    assert schema.first_repeated([[1], {"a": 1}, 1, [1]]) == 3 and schema.first_repeated([1, True]) == 1


def test_yaml_with_a_few_aliases_is_read(tmp_path) -> None:
    (tmp_path / "few.yaml").write_text("a: &one {x: 1}\nb: *one\nc: '* not one'\n")
    expected = {"a": {"x": 1}, "b": {"x": 1}, "c": "* not one"}
    assert yaml_file.read(tmp_path / "few.yaml") == bounded_yaml.read(tmp_path / "few.yaml") == expected
