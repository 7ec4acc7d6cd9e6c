"""Local models under test: generation against transformers' own, likelihoods, batching, ablation against the engine."""

from __future__ import annotations

import itertools
import math
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from circuits import models, tasks
from circuits import prompts as prompt_sets
from circuits.circuit import parse_head
from circuits.engine import LensEngine
from circuits.interventions import Intervention, Recipe, Sweep, Variant
from circuits.models import EMBEDDED
from results_io import UserError
from suites.models import open_model
from suites.models.base import Request
from tests.circuits import toy

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
PROMPTS = (
    "When John and Mary went to the store, John gave a drink to",
    "The war lasted from the year 1732 to the year 17",
    "The keys",
    "The key on the table",
    "Mary",
    "After Tom and Anna went to the park, Anna handed a book to",
)
SIZES = {"evaluation": 12, "held_out": 4, "discovery": 4, "reference": 40}
HEADS = ("L1H3", "L3H2", "L3H5")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pocket():
    return open_model(POCKET)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(architecture): a random model of it with the pocket's words."""
    return cache(lambda name: toy.save(toy.build(name), tmp_path_factory.mktemp("models") / name))


@pytest.fixture(scope="module")
def local(folder):
    """local(architecture, **settings): that model under test."""
    return lambda name, **more: open_model({"name": name, "kind": "local", "path": str(folder(name)), **more})


@pytest.fixture(scope="module")
def ioi(pocket):
    """(texts of the reference prompts, reference prompts, evaluation prompts) of IOI in the pocket's words."""
    task = tasks.get("ioi")
    drawn = prompt_sets.draw_examples(task, SIZES, 0)
    sets = {name: prompt_sets.tokenize(task, drawn[name], pocket.tokenizer, name) for name in drawn}
    return [example.clean for example in drawn["reference"]], sets["reference"], sets["evaluation"]


def asked(prompts=PROMPTS, **settings):
    return [Request(prompt, **settings) for prompt in prompts]


def same(found, expected):
    """Equal in everything but the time and the last digits of log-probabilities."""
    assert [(g.text, g.finish, g.tokens, g.tokens_in, g.tokens_out) for g in found] == [
        (g.text, g.finish, g.tokens, g.tokens_in, g.tokens_out) for g in expected
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama", "qwen2", "qwen3", "gemma2"])
def test_greedy_tokens_are_those_of_transformers_own_generation(name, local):
    model = local(name)
    for prompt, found in zip(PROMPTS, model.generate(asked(max_tokens=9)), strict=True):
        tokens = torch.tensor([model.encoding.prompt(prompt)])
        expected = model.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, do_sample=False, eos_token_id=1
        )
        assert list(found.tokens) == expected[0, tokens.shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_an_output_does_not_depend_on_its_batch(temperature, pocket):
    requests = [
        Request(prompt, max_tokens=8 + 3 * (sample % 3), temperature=temperature, sample=sample, seed=5)
        for prompt, sample in itertools.product(PROMPTS, range(4))
    ]
    whole = pocket.generate(requests)
    for rows in (1, 16):
        same(open_model({**POCKET, "rows": rows}).generate(requests), whole)
    same(open_model({**POCKET, "memory_mib": 0.5}).generate(requests), whole)
    same(pocket.generate(requests[::-1])[::-1], whole)


def test_samples_are_repeatable_by_seed_and_number_and_follow_the_temperature(pocket):
    """Frequencies of the first word over 1500 draws: each within four standard errors of softmax(logits / T)."""
    draws, temperature = 1500, 1.7
    requests = [Request(PROMPTS[2], max_tokens=1, temperature=temperature, sample=n) for n in range(draws)]
    found = [g.tokens[0] for g in pocket.generate(requests)]
    assert found[:40] == [g.tokens[0] for g in pocket.generate(requests[:40])]
    reseeded = pocket.generate(
        [Request(PROMPTS[2], max_tokens=1, temperature=temperature, seed=1, sample=n) for n in range(40)]
    )
    assert found[:40] != [g.tokens[0] for g in reseeded]
    with torch.no_grad():
        logits = pocket.model(torch.tensor([pocket.encoding.prompt(PROMPTS[2])])).logits[0, -1].double()
    probability = (logits / temperature).softmax(0).numpy()
    frequency = np.bincount(found, minlength=len(probability)) / draws
    assert np.all(np.abs(frequency - probability) <= 4 * np.sqrt(probability * (1 - probability) / draws) + 1 / draws)


def test_a_stop_text_ends_the_output_before_it(pocket):
    free, stopped, early = (
        pocket.generate([Request(PROMPTS[0], max_tokens=6, stop=stop)])[0] for stop in ((), (".",), ("never", "Mary"))
    )
    assert (free.text, free.finish, free.tokens_out) == ("Mary . Mary . Mary .", "length", 6)
    assert (stopped.text, stopped.finish, stopped.tokens_out) == ("Mary ", "stop", 2)
    assert stopped.tokens == free.tokens[:2]
    assert (early.text, early.finish, early.tokens_out) == ("", "stop", 0)


def test_the_end_of_text_token_ends_the_output_and_is_not_in_its_text(folder, tmp_path):
    """A GPT-2 whose unembedding is tied to nothing but the end: it always writes token 1."""
    copy = shutil.copytree(folder("gpt2"), tmp_path / "ending")
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"].zero_()
    weights["transformer.ln_f.weight"].zero_()
    weights["transformer.ln_f.bias"].fill_(1.0)
    weights["lm_head.weight"][1] = 1.0
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    found = open_model({"name": "ending", "kind": "local", "path": str(copy)}).generate(asked(max_tokens=5))
    assert {(g.text, g.finish, g.tokens, g.tokens_out) for g in found} == {("", "stop", (1,), 0)}
    expected = -math.log1p((toy.VOCABULARY - 1) * math.exp(-toy.D_MODEL))
    assert all(abs(g.logprob - expected) < 1e-5 for g in found)


def test_the_log_probability_of_an_output_is_that_of_its_tokens_read_at_once(pocket):
    found = pocket.generate(asked(max_tokens=7))
    scored = pocket.score([(pocket.encoding.prompt(p), list(g.tokens)) for p, g in zip(PROMPTS, found, strict=True)])
    for generation, likelihood in zip(found, scored, strict=True):
        assert abs(generation.logprob - likelihood.logprob) < 1e-4
        assert abs(sum(generation.logprobs) - generation.logprob) < 1e-9
        assert likelihood.greedy


def test_prompts_that_do_not_fit_are_errors_of_their_own_and_long_outputs_end_with_the_context(pocket):
    counts = []
    fits, full = "key " * 60, "key " * 63  # and BOS: 61 and 64 of 64
    found = pocket.generate(
        [Request("key " * 64), Request(fits, max_tokens=50), Request(full, max_tokens=50), Request("The")],
        counts.append,
    )
    assert [g.finish for g in found] == ["error", "length", "length", "length"]
    assert "65 tokens and the model pocket reads 64" in found[0].error and found[0].text == ""
    assert [g.tokens_out for g in found[1:]] == [4, 1, 8]
    assert sum(counts) == 4
    system = pocket.generate([Request("The", system="Be brief.")])[0]
    assert system.finish == "error" and "no chat template" in system.error
    assert pocket.generate([]) == []


def test_every_prompt_begins_with_one_bos_token(pocket, local):
    assert pocket.encoding.prompt("Mary") == pocket.encoding.prompt("<bos>Mary") == [1, 115]
    assert local("gpt2", bos=False).encoding.prompt("Mary") == [115]
    planted = open_model({"name": "planted/sound", "kind": "planted", "variant": "sound", "device": "cpu"})
    assert planted.encoding.prompt("Mary") == [1, 115]
    assert planted.generate([Request(PROMPTS[0], max_tokens=1)])[0].text == "Mary"


def test_what_the_vocabulary_reads(pocket):
    assert pocket.reads("Mary gave the key") and not pocket.reads("Mary gave the kkey")
    assert pocket.same_tokens("Mary  gave\n", "Mary gave") is True
    assert pocket.same_tokens("Mary gave", "gave Mary") is False


def test_a_chat_template_wraps_the_prompt_and_is_a_capability(folder, tmp_path, pocket):
    copy = shutil.copytree(folder("llama"), tmp_path / "chat")
    (copy / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} . {% endfor %}"
    )
    model = open_model({"name": "chat", "kind": "local", "path": str(copy)})
    assert "chat" in model.capabilities and "chat" not in pocket.capabilities
    assert model.encoding.prompt("Mary", "John") == model.encoding.tokens("<bos>system : John . user : Mary . ")
    assert model.encoding.prompt("Mary").count(1) == 1
    told = model.encoding.prompt("Mary", "key", (("user", "John"), ("assistant", "store")))
    assert told == model.encoding.tokens("<bos>system : key . user : John . assistant : store . user : Mary . ")
    (spoken,) = model.generate(
        [Request("Mary", earlier=(("user", "John"), ("assistant", "store")))], lambda count: None
    )
    assert spoken.error is None and spoken.tokens_in == len(told) - 4
    raw = open_model({"name": "chat", "kind": "local", "path": str(copy), "chat": False})
    assert raw.encoding.prompt("Mary") == [1, 115] and raw.encoding.sha256 == model.encoding.sha256
    assert raw.identity != model.identity
    with pytest.raises(UserError, match="no chat template"):
        open_model({**POCKET, "chat": True})


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_what_never_fits_is_an_error(pocket, monkeypatch):
    """Memory for two rows; the prompt of two words never fits."""
    requests = [Request(p, max_tokens=5, temperature=1.0, sample=n) for n, p in enumerate((*PROMPTS, "Mary the"))]
    expected, own, sizes = pocket.generate(requests), pocket._continue, []

    def limited(batch):
        sizes.append(len(batch))
        own(batch)
        if len(batch) > 2 or any(len(reply.prompt) == 3 and "Mary" in reply.request.prompt for reply in batch):
            raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(pocket, "_continue", limited)
    found = pocket.generate(requests)
    same(found[:-1], expected[:-1])
    assert found[-1].finish == "error" and "out of memory" in found[-1].error
    assert sizes[0] == 7 and sorted(sizes)[:2] == [1, 1]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_prompts_of_unequal_lengths_have_numbers_in_every_dtype(name, dtype, local):
    model = local(name, dtype=dtype)
    whole = model.loglikelihood([(prompt, " key") for prompt in PROMPTS])
    alone = [model.loglikelihood([(prompt, " key")])[0] for prompt in PROMPTS]
    tolerance = 1e-6 if dtype != "bfloat16" else 0.2  # three digits
    np.testing.assert_allclose([a.logprob for a in whole], [b.logprob for b in alone], atol=tolerance)


# --- ablation -----------------------------------------------------------------------------------------------------


def logit_differences(model, prompts):
    """Answer minus wrong answer at the end of clean prompts, nats; of log-probabilities, which is the same."""
    rows = [row[: end + 1].tolist() for row, end in zip(prompts.clean, prompts.end.tolist(), strict=True)]
    right = model.score([(row, [answer]) for row, answer in zip(rows, prompts.answers[:, 0].tolist(), strict=True)])
    wrong = model.score([(row, [answer]) for row, answer in zip(rows, prompts.wrong[:, 0].tolist(), strict=True)])
    return np.array([a.logprob - b.logprob for a, b in zip(right, wrong, strict=True)])


def by_engine(settings, prompts, reference, recipe):
    engine = LensEngine(models.load(settings), reference)
    nodes = tuple(map(parse_head, HEADS))
    return engine.run(Sweep((Variant("ablated", (Intervention(nodes, recipe),)), Variant("intact"))), prompts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_ablated_heads_change_the_pocket_as_the_engine_does(kind, ioi, pocket):
    texts, reference, prompts = ioi
    assert prompts.answers.shape[1] == prompts.wrong.shape[1] == 1
    recipe = Recipe("zero") if kind == "zero" else Recipe("mean", pooled=True)
    expected = by_engine(POCKET, prompts, reference, recipe).logit_diff
    intervention = {"heads": list(HEADS), "kind": kind} | ({"reference": texts} if kind == "mean" else {})
    ablated = open_model({**POCKET, "intervention": intervention})
    np.testing.assert_allclose(logit_differences(ablated, prompts), expected[0], atol=1e-4)
    np.testing.assert_allclose(logit_differences(pocket, prompts), expected[1], atol=1e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


@pytest.mark.sampled(3)
@pytest.mark.every_architecture  # each packs its values in another way
@pytest.mark.parametrize("name", ["neox", "llama", "qwen2"])
def test_ablated_heads_of_other_families_change_as_the_engine_does(name, folder, ioi):
    _, reference, prompts = ioi
    nodes, settings = (parse_head("L0H1"), parse_head("L1H2")), {"name": name, "kind": "local", "device": "cpu"}
    settings |= {"path": str(folder(name)), "dtype": "float64"}
    engine = LensEngine(models.load(settings), reference)
    expected = engine.run(Sweep((Variant("a", (Intervention(nodes, Recipe("zero")),)), Variant("intact"))), prompts)
    for row, intervention in enumerate(({"heads": ["L1H2", "L0H1"]}, None)):
        found = logit_differences(open_model({**settings, "intervention": intervention}), prompts)
        np.testing.assert_allclose(found, expected.logit_diff[row], atol=1e-4)
    assert np.abs(expected.logit_diff[0] - expected.logit_diff[1]).max() > 0.1


def test_generation_with_an_ablated_head_is_that_of_the_ablated_model_read_at_once(pocket):
    model = open_model({**POCKET, "intervention": {"heads": list(HEADS)}})
    found = model.generate(asked(max_tokens=7))
    assert all(
        s.greedy
        for s in model.score([(model.encoding.prompt(p), list(g.tokens)) for p, g in zip(PROMPTS, found, strict=True)])
    )
    assert [g.tokens for g in found] != [g.tokens for g in pocket.generate(asked(max_tokens=7))]


@pytest.mark.parametrize(
    ("intervention", "message"),
    [
        ({"heads": ["L9H0"]}, "L9H0 is outside model pocket"),
        ({"heads": ["x"]}, "L<layer>H<head>"),
        ({"heads": []}, "names no heads"),
        ({"heads": ["L0H0"], "kind": "mean"}, "mean ablation with 0 reference texts"),
        ({"heads": ["L0H0"], "kind": "noise"}, "'noise' is unknown"),
        ({"head": ["L0H0"]}, "key 'head' is unknown"),
    ],
)
def test_a_wrong_intervention_is_refused(intervention, message):
    with pytest.raises(UserError, match=message):
        open_model({**POCKET, "intervention": intervention})


# --- identity -----------------------------------------------------------------------------------------------------


def test_the_identity_is_over_weights_tokenizer_intervention_and_policies(pocket, tmp_path):
    copy = shutil.copytree(EMBEDDED / "pocket", tmp_path / "copy")
    settings = {"name": "pocket", "kind": "local", "path": str(copy), "device": "cpu"}
    assert open_model(settings).identity == pocket.identity
    changed = {
        "bos": open_model({**settings, "bos": False}),
        "head": open_model({**settings, "intervention": {"heads": ["L0H0"]}}),
        "heads": open_model({**settings, "intervention": {"heads": ["L0H0", "L0H1"]}}),
        "dtype": open_model({**settings, "dtype": "float64"}),
    }
    again = open_model({**settings, "intervention": {"heads": ["L0H1", "L0H0", "L0H0"]}})
    assert again.identity == changed["heads"].identity
    weights = load_file(copy / "model.safetensors")
    weights["transformer.wpe.weight"][63, 0] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    changed["weights"] = open_model(settings)
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text.replace('"Mary"', '"Marie"'))
    changed["tokenizer"] = open_model(settings)
    identities = [pocket.identity, *(model.identity for model in changed.values())]
    assert all(a != b for a, b in itertools.combinations(identities, 2))
    assert changed["tokenizer"].identity["tokenizer"] != changed["weights"].identity["tokenizer"]
