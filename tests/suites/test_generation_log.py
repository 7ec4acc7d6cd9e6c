"""The log of generations: facts alone, runs that must be complete to be read, and outputs that are asked again after an error."""

import hashlib
import json
from dataclasses import replace

import pytest

import results_io
from results_io import UserError
from suites import lock
from suites.item import Item, ItemVariant, SamplingLeg
from suites.likelihood import ChoiceScores
from suites.log import chain, generations
from suites.log.generations import GenerationLog, Slot
from suites.models.base import Generation, Request
from tests.suites import scripted

IDENTITY = {"weights_sha256": "aa"}
ITEMS = [Item("one", "first prompt"), Item("two", "second prompt", variant=ItemVariant("padding", "one", {"n": 2}, 5))]
FACTS = {"legs_dropped": {}, "unchanged": []}


@pytest.fixture
def suite():
    return scripted.suite(ITEMS)


def opened(path):
    return GenerationLog(path, IDENTITY, "scripted", 0)


def line(log, suite, item, text="a text", **changes):
    slot, request = Slot(item, "greedy", 0), Request(suite.by_id[item].prompt)
    generation = Generation(**{"text": text, "finish": "stop", "logprob": -0.5, "seconds": 0.25, **changes})
    return log.generation(suite, slot, request, generation, f"key of {item}", cached=False)


def test_a_complete_run(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        run = log.begin(suite, 2, FACTS)
        log.add([line(log, suite, "one"), line(log, suite, "two", "another")])
        log.finish(run)
    recorded = generations.latest(path, suite)
    assert [one["response_text"] for one in recorded.generations.values()] == ["a text", "another"]
    assert generations.to_generation(recorded.generations[Slot("one", "greedy", 0)]) == Generation(
        "a text", "stop", logprob=-0.5, seconds=0.25
    )
    assert [one["kind"] for one in chain.read(path)] == [
        "run_started",
        "facts",
        "generation",
        "generation",
        "run_finished",
    ]


def test_a_line_has_the_facts_of_the_specification(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        log.begin(suite, 2, FACTS)
        log.add([line(log, suite, "two")])
    stored = json.loads(path.read_text().splitlines()[-1])
    assert set(stored) == set(
        "schema kind run_id seq prev hash ts suite_id suite_hash item_id item_version item_hash prompt_hash variant "
        "sample_index leg model_fingerprint request request_sha256 response_text response_hash response_tokens tokens_in "
        "tokens_out finish_reason latency_ms logprob error reported cached cache_key env_hash".split()
    )
    assert "second prompt" not in path.read_text()  # prompts are in the lock, by their hash
    assert stored["variant"] == {"kind": "padding", "parent": "one", "params": {"n": 2}, "seed": 5}
    assert stored["model_fingerprint"] == results_io.sha256(IDENTITY)
    assert not set(stored) & {"score", "correct", "detection", "detections"}  # nothing derived


def test_the_hash_of_a_request_tells_system_and_prompt_apart(tmp_path, suite):
    with opened(tmp_path / generations.NAME) as log:
        log.begin(suite, 2, FACTS)
        generation = Generation("a text", "stop")
        hashes = [
            log.generation(suite, Slot("one", "greedy", 0), request, generation, "key", cached=False)["request_sha256"]
            for request in (Request("bc", "a"), Request("c", "ab"), Request("abc"), Request("abc", ""))
        ]
    assert len(set(hashes)) == 4
    assert hashes[0] == hashlib.sha256(b'["a","bc"]').hexdigest()


def test_hashes_are_those_of_the_lock(tmp_path, suite):
    with opened(tmp_path / generations.NAME) as log:
        log.begin(suite, 2, FACTS)
        stored = line(log, suite, "two")
    item = suite.by_id["two"]
    assert stored["prompt_hash"] == lock.prompt_hash(item)
    assert stored["item_hash"] == lock.item_hash(item, suite.scorer)


def test_silent_absence_is_refused(tmp_path, suite):
    path = tmp_path / generations.NAME
    with pytest.raises(UserError, match="has no run of forbidden"):
        generations.latest(path, suite)
    with opened(path) as log:
        run = log.begin(suite, 2, FACTS)
        with pytest.raises(UserError, match="forbidden has 0 of 2 generations and did not finish"):
            generations.latest(path, suite)
        log.add([line(log, suite, "one")])
        with pytest.raises(UserError, match="1 of 2 generations and did not finish"):
            generations.latest(path, suite)
        with pytest.raises(UserError, match="has 1 generations, announced 2"):
            log.finish(run)
    with pytest.raises(UserError, match="1 of 2 generations and did not finish"):
        generations.latest(path, suite)
    with chain.Writer(path) as writer:  # somebody else says that it is finished
        writer.append([{"kind": "run_finished", "run_id": run.run_id, "n": 1, "errors": 0}])
    with pytest.raises(UserError, match="has 1 generations, announced 2 and finished with 1"):
        generations.latest(path, suite)
    with opened(path) as log:
        run = log.begin(suite, 1, FACTS)
        log.add([line(log, suite, "one")])
    with chain.Writer(path) as writer:
        writer.append([{"kind": "run_finished", "run_id": run.run_id, "n": 3, "errors": 0}])
    with pytest.raises(UserError, match="has 1 generations, announced 1 and finished with 3"):
        generations.latest(path, suite)


def test_likelihoods_that_are_silently_absent_are_refused(tmp_path):
    items = [Item("one", "first prompt", answers=("a",), choices=("a", "b"))]
    suite, path = scripted.suite(items), tmp_path / generations.NAME
    with opened(path) as log:
        run = log.begin(suite, 1, FACTS, expected_likelihoods=1)
        log.add([line(log, suite, "one")])
        with pytest.raises(UserError, match="has the likelihoods of 0 items, announced 1"):
            log.finish(run)
        log.add([log.likelihood(suite, "one", ChoiceScores(("a", "b"), (-1.0, -2.0), (1, 1), frozenset({0})))])
        log.finish(run)
    assert set(generations.latest(path, suite).likelihoods) == {"one"}


def test_a_run_without_samples_is_refused(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        run = log.begin(suite, 0, FACTS)
        with pytest.raises(UserError, match="finished without a single generation"):
            log.finish(run)
    with pytest.raises(UserError, match="did not finish"):
        generations.latest(path, suite)


def test_a_run_that_goes_on(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        log.begin(suite, 2, FACTS)
        log.add([line(log, suite, "one")])
    with opened(path) as log:
        run = log.begin(suite, 2, FACTS)
        assert list(run.generations) == [Slot("one", "greedy", 0)]
        log.add([line(log, suite, "two")])
        log.finish(run)
    records = chain.read(path)
    resumed = [one for one in records if one["kind"] == "run_resumed"]
    assert [one["outstanding_n"] for one in resumed] == [1]
    before = path.read_bytes()
    with opened(path) as log:  # a third time there is nothing to say
        log.finish(log.begin(suite, 2, FACTS))
    assert path.read_bytes() == before


def test_a_failed_call_is_asked_again_and_the_later_line_counts(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        run = log.begin(suite, 2, FACTS)
        log.add([line(log, suite, "one"), line(log, suite, "two", "", finish="error", error="timed out")])
        log.finish(run)
        assert run.errors == [Slot("two", "greedy", 0)]
        assert set(log.answered()) == {"key of one"}
    assert generations.latest(path, suite).finished["errors"] == 1
    with opened(path) as log:
        run = log.begin(suite, 2, FACTS)
        assert run.finished is None
        log.add([line(log, suite, "two", "now")])
        log.finish(run)
    recorded = generations.latest(path, suite)
    assert recorded.errors == [] and recorded.finished == {**recorded.finished, "n": 2, "errors": 0}
    assert recorded.generations[Slot("two", "greedy", 0)]["response_text"] == "now"


def test_another_suite_or_model_is_another_run(tmp_path, suite):
    edited = scripted.suite([*ITEMS, Item("three", "third")])
    ids = {
        generations.run_id(suite, IDENTITY, 0),
        generations.run_id(edited, IDENTITY, 0),
        generations.run_id(suite, {"weights_sha256": "ab"}, 0),
        generations.run_id(suite, IDENTITY, 1),
        generations.run_id(replace(suite, legs=(SamplingLeg(max_tokens=9),)), IDENTITY, 0),
    }
    assert len(ids) == 5
    path = tmp_path / generations.NAME
    with opened(path) as log:
        log.begin(suite, 2, FACTS)
    for other in (edited, replace(suite, legs=(SamplingLeg(max_tokens=9),)), replace(suite, id="renamed")):
        with pytest.raises(UserError, match=f"has no run of {other.id} as it is now"):
            generations.latest(path, other)


def test_what_utf8_and_json_cannot_hold(tmp_path, suite):
    path = tmp_path / generations.NAME
    with opened(path) as log:
        log.begin(suite, 2, FACTS)
        log.add([line(log, suite, "one", "half \ud83d and \ud83d\ude00 whole", logprob=float("-inf"))])
    stored = generations.to_generation(
        generations.read(path)[generations.run_id(suite, IDENTITY, 0)].generations[Slot("one", "greedy", 0)]
    )
    assert stored.text == "half \N{REPLACEMENT CHARACTER} and 😀 whole"
    assert stored.logprob is None


def test_not_applicable_is_said_once(tmp_path, suite):
    path = tmp_path / generations.NAME
    for _ in range(2):
        with opened(path) as log:
            log.not_applicable(suite, "no sampling")
    assert [one["kind"] for one in chain.read(path)] == ["run_started", "not_applicable"]
    assert generations.latest(path, suite).not_applicable == "no sampling"
