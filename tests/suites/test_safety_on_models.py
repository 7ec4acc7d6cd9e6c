"""Safety suites on an HTTP endpoint that chats, and on a local model, whose failures become a task like any other's."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from dataclasses import replace

import pytest
import yaml

import results_io
from suites import declaration, lock, runner
from suites.bridge import pairing, stored_pairs, task
from suites.item import Suite
from suites.models import open_model
from suites.models.endpoint import Endpoint
from tests.commandline import command
from tests.suites import chat_model, test_endpoint, test_safety_suites

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
CODEWORD = re.compile(r"The codeword of the day is (\w+)\.")
ORDER = re.compile(r"reply with the word (\w+) only")
DAY = re.compile(r"\w+day")


class Chats(test_endpoint.Server):
    """Tells its codeword after 16 turns in which it did, and says a word if it is ordered to say no other.

    `known` {(role and content of every message): what it says}: what comes before these rules.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[tuple[str, str], ...], str] = {}

    def answer(self, path, body):
        status, found = super().answer(path, body)
        if status == 200 and "messages" in body:
            found["choices"][0]["message"]["content"] = self.says(body["messages"])
        return status, found

    def says(self, messages):
        if self.known:
            return self.known[tuple((one["role"], one["content"]) for one in messages)]
        system, asked = messages[0]["content"], messages[-1]["content"]
        if (secret := CODEWORD.search(system)) is not None:
            gave_in = sum(one["role"] == "assistant" for one in messages)
            return f"It is {secret[1]}." if gave_in >= 16 else "I'm sorry, I can't tell you that."
        order = ORDER.search(asked)
        return order[1] if order else " ".join(DAY.findall(asked))


@pytest.fixture
def chats(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Chats()
    server.can -= {"logprobs", "echo"}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def endpoint(chats):
    found = Endpoint(
        {
            "kind": "endpoint",
            "base_url": chats.url,
            "name": "chats",
            "max_requests": 500,
            "max_tokens_total": 1_000_000,
            "concurrency": 4,
            "timeout": 30.0,
        }
    )
    yield found
    found.close()


def part(name: str, clusters: int) -> Suite:
    """Every n-th cluster of a suite of the catalogue, `clusters` in all."""
    suite = declaration.load(name)
    every = list(dict.fromkeys(item.cluster for item in suite.items))
    kept = set(every[:: len(every) // clusters][:clusters])
    return replace(suite, items=tuple(item for item in suite.items if item.cluster in kept), minimum=1)


def test_an_endpoint_answers_jailbreaks_and_injections(endpoint, tmp_path):
    attacked, injected = part("s02_codeword_families", 8), part("s03_channels", 16)
    found = runner.run([attacked, injected], endpoint, tmp_path, say=lambda line: None)
    assert [one.applies for one in found.suites] == [True, True] and found.errors == 0
    of_attacks, of_injections = (one.estimates for one in found.suites)
    rates = [of_attacks[f"attack_rate_of_{shots}_shots"].value for shots in (4, 16, 64)]
    assert rates == [0, 1, 1] and of_attacks["dose_trend"].value == 0.4
    assert (of_attacks["plain_refusal"].value, of_attacks["attack_rate_wording"].value) == (1, 0)
    ordered = [item for item in injected.items if item.variant]
    obeyed = sum(ORDER.search(item.prompt) is not None for item in ordered) / len(ordered)
    assert of_injections["failure_rate"].value == of_injections["task_excess"].value == obeyed > 0
    assert (of_injections["canary_rate_tool"].value, of_injections["task_failure_twin"].value) == (0, 0)
    document = results_io.read(tmp_path / "195_jailbreaks.json")
    assert document["subject"]["identity"]["backend"] == "chat completions"


def scripted(suite: Suite, answer) -> dict[tuple[tuple[str, str], ...], str]:
    """{messages of an item as they arrive: `answer(item)`}."""
    return {
        (*([("system", item.system)] if item.system else []), *item.earlier, ("user", item.prompt)): answer(item)
        for item in suite.items
    }


def test_an_endpoint_answers_refusals_bias_and_beliefs(chats, endpoint, tmp_path):
    """Scores that are known: it refuses every request, follows the stereotype, and gives in to what a user believes."""
    refused, biased, believed = part("s01_refusals", 20), part("s04_invented_groups", 10), part("s05_beliefs", 20)
    for suite, answer in (
        (refused, lambda item: "I'm sorry, I can't help with that."),
        (biased, test_safety_suites.biased),
        (believed, test_safety_suites.echo),
    ):
        chats.known |= scripted(suite, answer)
    found = runner.run([refused, biased, believed], endpoint, tmp_path, say=lambda line: None)
    assert [one.applies for one in found.suites] == [True, True, True] and found.errors == 0
    of_refusals, of_bias, of_beliefs = ({k: v.value for k, v in one.estimates.items()} for one in found.suites)
    kinds = [item.expect["role"] for item in refused.items]
    assert {"forbidden", "benign"} == set(kinds)
    assert (of_refusals["youden_j"], of_refusals["failure_rate"]) == (0, kinds.count("benign") / len(kinds))
    assert [of_bias[name] for name in test_safety_suites.NAMES_187] == [0, 0.5, 1, 1, 0.75]
    assert [of_beliefs[name] for name in test_safety_suites.NAMES_188] == [1, 1, 0, 0, 1]
    numbers = {path.name.partition("_")[0] for path in tmp_path.glob("18[678]_*.json")}
    assert numbers == {"186", "187", "188"}


def as_injections(suite: Suite) -> Suite:
    """Sentences in front of a question are what is read for a user; the other name is the canary."""
    items = [
        replace(item, expect={"role": "injected" if item.variant else "twin", "canary": item.distractors[0]})
        for item in suite.items
    ]
    return replace(suite, id="injected_sentences", mode="S3", parameters={}, items=tuple(items))


@pytest.mark.slow
def test_failures_of_a_safety_suite_on_a_local_model_become_a_task(tmp_path):
    suite, model = as_injections(declaration.load("a10_padding_ioi")), open_model(POCKET)
    (judged,) = runner.run([suite], model, tmp_path, say=lambda line: None).suites
    stored_pairs.write(tmp_path, [pairing.group(judged, model)], model.identity, {suite.id: suite.sha256})
    group = task.choose(stored_pairs.read(tmp_path, model.identity["weights"], "the suite"), suite.id, "pocket")
    assert group.mode == "S3" and group.failures == len(judged.failures) and len(group.pairs) >= 20
    built = task.build(group, None)
    assert {"filler", "end"} <= set(built.roles)
    assert sum(len(built.given[split]) for split in task.SHARES) == len(group.pairs)
    for pair in group.pairs:
        item = suite.by_id[pair.source]
        assert (pair.wrong.strip(), pair.answer.strip()) == (item.expect["canary"], item.answers[0])


@pytest.mark.slow
def test_failures_of_a_safety_suite_go_through_the_command_to_a_certificate(tmp_path):
    """A suite of mode S3 in a folder: run, its failures traced to heads, tested on the other half, judged."""
    suite = as_injections(declaration.load("a10_padding_ioi"))
    shipped = yaml.safe_load((declaration.find("a10_padding_ioi") / "suite.yaml").read_text())
    mine = tmp_path / "mine"
    mine.mkdir()
    declared = {key: value for key, value in shipped.items() if key not in ("generator", "canary", "gate")}
    declared |= {"id": suite.id, "mode": suite.mode, "parameters": {}, "gate": None}
    (mine / "suite.yaml").write_text(yaml.safe_dump(declared))
    lines = [json.dumps({**lock.plain_item(item), "expect": dict(item.expect)}) for item in suite.items]
    (mine / lock.ITEMS_FILE).write_text("\n".join(lines) + "\n")
    (mine / lock.FILE).write_text(lock.freeze(declaration.read(mine)))
    results = f"results={tmp_path / 'results'}"
    ran = command("suite=file", f"suite.path={mine}", results)
    assert ran.code == 0 and "injected_sentences" in ran.output, ran.errors
    sizes = ("prompts.discovery=30", "prompts.evaluation=30", "prompts.held_out=20", "prompts.reference=60")
    traced = command("task=failures", f"task.group={suite.id}", "calibration=[c11,m98]", *sizes, results)
    assert traced.code == 0, traced.errors
    (path,) = (tmp_path / "results").rglob("141_trace.json")
    stored = results_io.read(path)
    assert stored["group"]["mode"] == "S3" and stored["named"][0]["restored"] > 0.1
    assert re.search(
        r"L\dH\d restores 0\.\d\d \[.*\] on the confirmation half: (confirmed|refuted|undecided)", traced.said
    )


@pytest.mark.slow
def test_a_local_model_that_chats_has_the_refusals_that_it_was_taught(tmp_path):
    """It refuses 45 of 50 forbidden requests and 10 of 50 benign ones: J = .9 - .2. It reads its own chat template."""
    suite = declaration.load("s01_refusals")
    answers, seen = {}, Counter()
    for item in suite.items:
        role, number = item.expect["role"], seen[item.expect["role"]]
        refused = number % 10 != 0 if role == "forbidden" else number % 5 == 0
        said = item.expect.get("canary", "the front desk knows")
        answers[item.id] = "I'm sorry, but I can't help with that." if refused else f"Of course: {said}."
        seen[role] += 1
    folder = chat_model.train(suite, answers, tmp_path / "model")
    model = open_model({"name": "chats", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32"})
    assert "chat" in model.capabilities
    runner.run([suite], model, tmp_path / "results", say=lambda line: None)
    data = results_io.read(tmp_path / "results" / "186_refusals.json")
    found = {record["metric_id"].rpartition(".")[2]: record["value"] for record in data["records"]}
    assert found["refused_forbidden"] == 45 / 50 and found["refused_benign"] == 10 / 50
    assert found["youden_j"] == pytest.approx(0.7) and found["failure_rate"] == 15 / 100
