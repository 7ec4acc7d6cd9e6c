"""Per item, our log-likelihoods are lm-evaluation-harness's: with our model inside it, and with its own on the same weights."""

from __future__ import annotations

import copy
import json
import logging
from functools import cache

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.models import EMBEDDED
from results_io import UserError
from suites import likelihood
from suites.item import Item
from suites.models import open_model

lm_eval = pytest.importorskip("lm_eval", reason="the optional extra lm-eval is not installed")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.loggers import EvaluationTracker  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from suites.harness import lm_eval_samples  # noqa: E402
from suites.harness.lm_eval import MeridianLM  # noqa: E402

TOLERANCE, GAP = 1e-4, 2e-4  # nats: of a log-likelihood, and below which two choices may change places
ITEMS, CHOICES = 420, 4
METRICS = ("acc", "acc_norm", "acc_bytes", "brier_score")
LENGTH = 64  # positions of both models
POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
SENTENCES = (
    "The café in Zürich serves naïveté and crème brûlée.",
    "In 1732 the war lasted twelve years; nobody won it.",
    "She said: «Où est la clé?» and he answered 42 times.",
    "keys keys on the table, the boxes were red and blue",
    "データ is not ASCII, nor are Ελληνικά or 🙂 emoji.",
)
EDGES = (  # (context, choices): the cases that catch real bugs
    ("The keys", (" on the table", "on", "  table", "were red and blue")),  # choices that begin with spaces
    ("The keys  ", ("on", "table", "were", "red")),  # a context that ends with them
    ("The keys\n", ("on", "table", "were", "red")),
    ("", ("The", "She said", "keys keys on", "In 1732 the war")),  # no context
    ("Zürich データ", ("café", "naïveté", "🙂 🙂", "Ελληνικά")),  # beyond ASCII
    ("The", ("a", "b", "c", "d")),  # of one token each
    ("keys on the table " * 40, ("red", "blue and red", "1732", "table, the boxes")),  # longer than the model reads
    ("keys " * 61, ("red", "blue and red", "1732", "table, the boxes")),  # about as long
    ("The war", ("won it", "won it", "lasted", "won it")),  # exact ties
    ("The war", ("it", "it was a war that lasted twelve years and nobody won it", "he", "she said")),  # unequal lengths
)


@pytest.fixture(scope="module", autouse=True)
def quietly():
    threads, previous = torch.get_num_threads(), logging.root.manager.disable
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(previous)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A folder with a random GPT-2 and a byte-level BPE of 400 merged tokens, whose weights are large enough to prefer."""
    path = tmp_path_factory.mktemp("models") / "byte_level"
    backend = Tokenizer(tokenizer_models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    backend.train_from_iterator(SENTENCES * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|end|>", eos_token="<|end|>")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH, initializer_range=0.5,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def settings(byte_level):
    return {
        "pocket": POCKET,
        "byte_level": {"name": "random", "kind": "local", "path": str(byte_level), "device": "cpu"},
    }


def documents(words, edges=()):
    """Random contexts and choices of 1 to 4 words, then the edge cases."""
    generator = np.random.default_rng(0)

    def text(low, high):
        return " ".join(generator.choice(words, generator.integers(low, high + 1)))

    drawn = [(text(1, 12), tuple(text(1, 4) for _ in range(CHOICES))) for _ in range(ITEMS - len(edges))]
    return [
        {"context": context, "choices": list(choices), "label": int(generator.integers(CHOICES))}
        for context, choices in (*drawn, *edges)
    ]


@pytest.fixture(scope="module")
def docs(settings):
    """docs(model): its documents, as many as ITEMS."""

    @cache
    def make(name):
        if name == "byte_level":
            words = {word for sentence in SENTENCES for word in sentence.split()}
            return documents(sorted(word for word in words if not word.isdigit()), EDGES)  # Jinja makes 42 a number
        vocabulary = open_model(settings[name]).tokenizer.get_vocab()
        edges = [("", ("The", "Mary", "keys", "John gave")), ("key " * 80, ("is", "is red", "on the", "are"))]
        return documents([word for word in sorted(vocabulary) if word.isalpha()], edges)

    return make


def evaluate(model, docs, folder, **more):
    """(log-likelihoods [item, choice], greedy alike, the three accuracies), from lm-eval on a local JSONL file."""
    (folder / "items.jsonl").write_text(
        "\n".join(json.dumps(doc, ensure_ascii=False) for doc in docs), encoding="utf-8"
    )
    task = {
        "task": "meridian_parity",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": name} for name in METRICS],
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model, tasks=["meridian_parity"], task_manager=manager, bootstrap_iters=0, log_samples=True, **more
    )
    samples = sorted(found["samples"]["meridian_parity"], key=lambda sample: sample["doc_id"])
    tracker = EvaluationTracker(output_path=str(folder / "log" / "results.json"))
    tracker.date_id = "now"  # otherwise set where aggregated results are written
    tracker.save_results_samples("meridian_parity", copy.deepcopy(samples))
    results = found["results"]["meridian_parity"]
    values = np.array([[list(pair) for pair in sample["filtered_resps"]] for sample in samples], dtype=object)
    numbers, greedy = values[..., 0].astype(float), values[..., 1].astype(bool)
    return numbers, greedy, {name: results[f"{name},none"] for name in METRICS}


def own(model, docs):
    items = [
        Item(str(i), doc["context"], answers=(doc["choices"][doc["label"]],), choices=tuple(doc["choices"]))
        for i, doc in enumerate(docs)
    ]
    return likelihood.ask(model, items)


def compare(scores, docs, theirs, accuracies, tolerance=TOLERANCE):
    """The criterion: per item, then the three accuracies of the labels themselves; returns the largest difference."""
    ours = np.array([one.logprobs for one in scores])
    assert ours.shape == theirs.shape == (ITEMS, CHOICES)
    assert np.abs(ours - theirs).max() <= tolerance
    ordered = np.sort(theirs, 1)
    clear = ordered[:, -1] - ordered[:, -2] >= GAP
    assert np.array_equal(ours.argmax(1)[clear], theirs.argmax(1)[clear])
    labels = np.eye(CHOICES)[[doc["label"] for doc in docs]]
    brier = np.mean(np.sum((np.array([one.probabilities for one in scores]) - labels) ** 2, axis=1))
    assert brier == pytest.approx(accuracies["brier_score"], abs=tolerance)
    for metric in ("acc", "acc_norm", "acc_bytes"):
        right = [one.picked(metric) == doc["label"] for one, doc in zip(scores, docs, strict=True)]
        assert np.mean(right) == pytest.approx(accuracies[metric], abs=1e-12), metric
    return float(np.abs(ours - theirs).max())


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("name", "bos"),
    [pytest.param("pocket", True, marks=pytest.mark.slow), ("byte_level", True), ("byte_level", False)],
)
def test_our_model_inside_lm_eval_gives_our_numbers(name, bos, settings, docs, tmp_path):
    model = open_model({**settings[name], "bos": bos})
    found, greedy, accuracies = evaluate(MeridianLM(model), docs(name), tmp_path)
    scores = own(model, docs(name))
    assert compare(scores, docs(name), found, accuracies, tolerance=1e-9) <= 1e-9
    assert 0 < greedy.sum() < greedy.size


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("name", "bos", "rows"),
    [
        pytest.param("pocket", True, 16, marks=pytest.mark.slow),
        pytest.param("pocket", False, 16, marks=pytest.mark.slow),
        pytest.param("byte_level", True, 1, marks=pytest.mark.slow),
        ("byte_level", True, 16),
        ("byte_level", False, 16),
    ],
)
def test_lm_evals_own_model_gives_our_numbers(name, bos, rows, settings, docs, byte_level, tmp_path):
    """`hf` on the same folder has its own tokenizer path, padding and truncation."""
    folder = {"pocket": EMBEDDED / "pocket", "byte_level": byte_level}[name]
    theirs = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=rows, add_bos_token=bos)
    found, greedy, accuracies = evaluate(theirs, docs(name), tmp_path)
    model = open_model({**settings[name], "bos": bos, "rows": rows})
    compare(own(model, docs(name)), docs(name), found, accuracies)
    pairs = [(doc["context"], " " + choice) for doc in docs(name) for choice in doc["choices"]]
    assert np.mean([one.greedy for one in model.loglikelihood(pairs)] == greedy.ravel()) == 1


@pytest.mark.slow
def test_an_ablated_model_inside_lm_eval_is_another_model(settings, docs, tmp_path):
    intact, ablated = (
        open_model({**settings["pocket"], "intervention": heads}) for heads in (None, {"heads": ["L3H2", "L2H1"]})
    )
    found, _, accuracies = evaluate(MeridianLM(ablated), docs("pocket"), tmp_path)
    compare(own(ablated, docs("pocket")), docs("pocket"), found, accuracies, tolerance=1e-9)
    assert np.abs(found - np.array([one.logprobs for one in own(intact, docs("pocket"))])).max() > 0.1


def instance(kind, *arguments):
    return Instance(kind, {}, arguments, 0)


def test_rolling_likelihoods_are_lm_evals(settings, byte_level):
    """Texts shorter and longer than the context, in windows that score every token once."""
    texts = ["", "The", " ".join(SENTENCES), SENTENCES[2]]
    requests = [instance("loglikelihood_rolling", text) for text in texts]
    theirs = HFLM(pretrained=str(byte_level), device="cpu", dtype="float32", batch_size=4, add_bos_token=False)
    expected = theirs.loglikelihood_rolling(requests)
    found = MeridianLM(open_model(settings["byte_level"])).loglikelihood_rolling(requests)
    np.testing.assert_allclose(found, expected, atol=5e-4)  # sums over up to 230 tokens
    assert found[0] == 0


def test_generated_texts_are_lm_evals(settings, byte_level):
    wanted = {"until": [" t"], "max_gen_toks": 12, "do_sample": False}
    requests = [instance("generate_until", text, wanted) for text in ("The keys", "She said", "In 1732 the", "keys")]
    theirs = HFLM(pretrained=str(byte_level), device="cpu", dtype="float32", batch_size=2, add_bos_token=False)
    model = MeridianLM(open_model({**settings["byte_level"], "bos": False}))
    assert model.generate_until(requests) == theirs.generate_until(requests)


def test_what_lm_eval_must_not_do(settings, tmp_path, docs):
    model = MeridianLM(open_model(settings["pocket"]))
    with pytest.raises(UserError, match="run without use_cache"):
        evaluate(model, docs("pocket")[:2], tmp_path, use_cache=str(tmp_path / "answers"))
    with pytest.raises(UserError, match="81 tokens"):
        model.generate_until([instance("generate_until", "key " * 80, {"until": []})])
    with pytest.raises(UserError, match="setting 'top_p' is unknown"):
        model.generate_until([instance("generate_until", "key", {"until": [], "top_p": 0.5})])


def test_lm_eval_finds_the_model_by_name(docs, tmp_path):
    arguments = {"name": "pocket", "kind": "embedded", "path": "pocket"}
    by_name, _, _ = evaluate("meridian", docs("pocket")[:6], tmp_path, model_args=arguments, device="cpu", batch_size=4)
    expected = [one.logprobs for one in own(open_model(POCKET), docs("pocket")[:6])]
    np.testing.assert_allclose(by_name, expected, rtol=0, atol=TOLERANCE)  # batches of other sizes


def test_a_samples_file_becomes_items_with_their_log_likelihoods(docs, settings, tmp_path):
    chosen = [*docs("byte_level")[:8], *docs("byte_level")[-len(EDGES) :]]
    numbers, _, _ = evaluate(MeridianLM(open_model(settings["byte_level"])), chosen, tmp_path)
    (path,) = (tmp_path / "log").rglob("samples_*.jsonl")
    found = lm_eval_samples.read(path)
    assert [one.item.prompt for one in found] == [doc["context"] for doc in chosen]
    assert [one.item.choices for one in found] == [tuple(c.strip() for c in doc["choices"]) for doc in chosen]
    assert [one.item.answers for one in found] == [(doc["choices"][doc["label"]].strip(),) for doc in chosen]
    np.testing.assert_array_equal([one.logprobs for one in found], numbers)
    assert all(set(one.foreign) == {"doc_hash", "prompt_hash", "target_hash"} for one in found)
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = json.loads(lines[3])
    changed["arguments"]["gen_args_0"]["arg_0"] += "!"
    path.write_text("\n".join([*lines[:3], json.dumps(changed)]), encoding="utf-8")
    with pytest.raises(UserError, match="line 4, is not a sample"):
        lm_eval_samples.read(path)
