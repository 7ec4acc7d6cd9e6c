"""The inspect_ai provider: raw prompts, batches, log-probabilities and samples, in a tiny evaluation without a network."""

from __future__ import annotations

import socket

import pytest
import torch

from results_io import UserError
from suites.models import open_model
from suites.models.base import Request

pytest.importorskip("inspect_ai", reason="the optional extra inspect is not installed")
import anyio
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

from suites.harness import inspect as provider

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
PAIRS = (("John", "Mary"), ("Tom", "Anna"), ("Mary", "Paul"), ("Kim", "Megan"), ("David", "Steve"), ("Alice", "Frank"))
PROMPTS = {b: f"When {a} and {b} went to the store, {a} gave a drink to" for a, b in PAIRS}


@pytest.fixture(scope="module")
def pocket():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield open_model(POCKET)
    torch.set_num_threads(threads)


@pytest.fixture
def no_network(monkeypatch):
    """Connections to anything but this machine fail."""
    connect = socket.socket.connect

    def refuse(self, address, *rest):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a connection to {address}")
        return connect(self, address, *rest)

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def batches(pocket, monkeypatch):
    """How many requests each call of the model had."""
    sizes, own = [], pocket.generate
    monkeypatch.setattr(pocket, "generate", lambda requests: sizes.append(len(requests)) or own(requests))
    return sizes


def ask(model, prompt, **config):
    return anyio.run(
        lambda: model.api.generate([ChatMessageUser(content=prompt)], [], "none", GenerateConfig(**config))
    )


@pytest.mark.slow
def test_a_tiny_evaluation(pocket, batches, no_network, tmp_path):
    model = get_model("meridian/pocket", local=pocket, memoize=False)
    samples = [Sample(input=prompt, target=name, id=name) for name, prompt in PROMPTS.items()]
    samples.append(Sample(input=PROMPTS["Mary"], target="John", id="wrong"))
    samples.append(Sample(input="key " * 70, target="key", id="too long"))
    task = Task(dataset=samples, solver=generate(), scorer=includes())
    config = {"max_tokens": 3, "temperature": 0.0, "logprobs": True}
    log = eval(task, model=model, log_dir=str(tmp_path), display="none", fail_on_error=False, max_samples=8, **config)[
        0
    ]
    found = {sample.id: sample for sample in log.samples}
    right = {name: sample.scores["includes"].value for name, sample in found.items() if sample.error is None}
    assert right == {**dict.fromkeys(PROMPTS, "C"), "wrong": "I"}
    assert "71 tokens and the model pocket reads 64" in found["too long"].error.message
    assert max(batches) > 1 and sum(batches) == 8
    expected = pocket.generate([Request(PROMPTS["Anna"], max_tokens=3)])[0]
    output = found["Anna"].output
    assert output.completion == expected.text and output.stop_reason == "max_tokens"
    assert [one.logprob for one in output.choices[0].logprobs.content] == pytest.approx(expected.logprobs, abs=1e-5)
    assert output.choices[0].logprobs.content[0].token == "Anna"
    assert (output.usage.input_tokens, output.usage.output_tokens) == (expected.tokens_in, 3)


def test_requests_that_wait_are_one_batch(pocket, batches):
    model = get_model("meridian/pocket", local=pocket, memoize=False)
    texts = {}

    async def one(name):
        config = GenerateConfig(max_tokens=1)
        texts[name] = (
            await model.api.generate([ChatMessageUser(content=PROMPTS[name])], [], "none", config)
        ).completion

    async def everything():
        async with anyio.create_task_group() as group:
            for name in PROMPTS:
                group.start_soon(one, name)

    anyio.run(everything)
    assert texts == {name: name for name in PROMPTS} and batches == [len(PROMPTS)]


def test_epochs_are_samples_and_seeds_repeat_them(pocket):
    drawn = {}
    for seed in (0, 0, 1):
        model = get_model("meridian/pocket", local=pocket, memoize=False)
        texts = [ask(model, "The keys", temperature=1.0, seed=seed, max_tokens=6).completion for _ in range(4)]
        assert drawn.setdefault(seed, texts) == texts and len(set(texts)) == 4
    assert drawn[0] != drawn[1]
    requests = [Request("The keys", max_tokens=6, temperature=1.0, sample=n) for n in range(4)]
    assert drawn[0] == [g.text for g in pocket.generate(requests)]


def test_a_stop_text_ends_the_output(pocket):
    output = ask(
        get_model("meridian/pocket", local=pocket, memoize=False), PROMPTS["Mary"], stop_seqs=["."], max_tokens=6
    )
    assert (output.completion, output.stop_reason) == ("Mary ", "stop")
    assert output.choices[0].logprobs is None


def test_the_model_is_found_by_its_settings():
    settings = {key: value for key, value in POCKET.items() if key != "name"}
    model = get_model("meridian/pocket", memoize=False, **settings, intervention={"heads": ["L3H2"]})
    assert model.api.model.identity["intervention"] is not None
    assert ask(model, "The keys", max_tokens=2).stop_reason == "max_tokens"


def test_conversations_and_tools_are_refused(pocket):
    api = provider.MeridianAPI("pocket", local=pocket)
    user = ChatMessageUser(content="The")
    with pytest.raises(UserError, match="a conversation of 2 messages"):
        anyio.run(lambda: api.generate([user, user], [], "none", GenerateConfig()))
    with pytest.raises(UserError, match="takes no tools"):
        anyio.run(lambda: api.generate([user], [object()], "auto", GenerateConfig()))
