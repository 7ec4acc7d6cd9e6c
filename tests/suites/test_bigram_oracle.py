"""A bigram table with known numbers on 300 items: ours, lm-evaluation-harness's and the expected ones.

The table and the items give the expected log-likelihoods, acc, Brier score and per-token accuracy as they are drawn. What the
words were is not recorded, and acc_norm and acc_bytes depend on their lengths: WORDS are in an order that gives those two, so
lm-eval, which computes them too, is their only independent reference.
"""

from __future__ import annotations

import json
import logging
from functools import cache

import numpy as np
import pytest
import yaml

from suites import likelihood
from suites.item import Item
from suites.models.base import Likelihood

WORDS = ("<end>", *"ran mat café on naïveté a über dog sat the cat".split())  # the first is in no item
ITEMS, CHOICES = 300, 4
FIRST = (-3.755073, -3.410184, -1.378731, -10.281662)
EXPECTED = {"acc": 78, "acc_norm": 83, "acc_bytes": 84, "acc_token": 82}  # of 300: .26, .276667, .28, .273333
BRIER = 1.160344822


def table():
    """log p(next word | word), [word next]: normal logits with standard deviation 1.5."""
    logits = 1.5 * np.random.default_rng(7).normal(size=(len(WORDS), len(WORDS)))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def documents():
    """Contexts of 3 words, 4 choices of 1 to 3 words each, and the number of the right one, all uniform."""
    rng = np.random.default_rng(0)

    def text(length):
        return " ".join(WORDS[index] for index in rng.integers(1, len(WORDS), length))

    return [
        {
            "context": text(3),
            "choices": [text(rng.integers(1, 4)) for _ in range(CHOICES)],
            "label": int(rng.integers(CHOICES)),
        }
        for _ in range(ITEMS)
    ]


class Bigram:
    """A model under test whose tokens are words."""

    name, capabilities = "bigram", frozenset({"logprobs"})

    def __init__(self):
        self.table = table()

    def encode(self, text):
        return [WORDS.index(word) for word in text.split()]

    def score(self, before, after):
        """(log p, whether greedy decoding gives it) of the ids `after` that follow `before`."""
        logprob, greedy = 0.0, True
        for last, following in zip([before[-1], *after], after, strict=False):
            logprob += self.table[last, following]
            greedy &= bool(self.table[last].argmax() == following)
        return float(logprob), greedy

    def loglikelihood(self, pairs):
        split = [likelihood.split(lambda text, bos=True: self.encode(text), *pair, prefix=None) for pair in pairs]
        return [Likelihood(*self.score(before, after), len(after)) for before, after in split]


@cache
def scored():
    docs = documents()
    items = [
        Item(str(number), doc["context"], answers=(doc["choices"][doc["label"]],), choices=tuple(doc["choices"]))
        for number, doc in enumerate(docs)
    ]
    return docs, likelihood.ask(Bigram(), items)


@pytest.mark.parametrize("metric", likelihood.METRICS)
def test_four_accuracies_of_one_file(metric):
    docs, scores = scored()
    right = sum(one.picked(metric) == doc["label"] for one, doc in zip(scores, docs, strict=True))
    assert right == EXPECTED[metric]


def test_equal_choices_are_one_answer_to_the_summary():
    docs, scores = scored()
    repeated = [len(set(doc["choices"])) < CHOICES for doc in docs]
    assert sum(repeated) == 23  # lm-eval counts by number: the twin of the right choice is wrong there, and right here
    by_text = sum(
        doc["choices"][one.picked()] == doc["choices"][doc["label"]] for one, doc in zip(scores, docs, strict=True)
    )
    apart = [one for one, twice in zip(scores, repeated, strict=True) if not twice]
    assert likelihood.summarise(scores)["acc"].value * ITEMS == pytest.approx(by_text) == pytest.approx(81)
    right = sum(
        one.picked() == doc["label"] for one, doc, twice in zip(scores, docs, repeated, strict=True) if not twice
    )
    assert likelihood.summarise(apart)["acc"].value * len(apart) == pytest.approx(right)


def test_log_likelihoods_and_brier_score():
    docs, scores = scored()
    assert scores[0].logprobs == pytest.approx(FIRST, abs=5e-7)
    labels = np.eye(CHOICES)[[doc["label"] for doc in docs]]
    brier = np.sum((np.array([one.probabilities for one in scores]) - labels) ** 2, axis=1).mean()
    assert brier == pytest.approx(BRIER, abs=5e-10)


def test_the_log_likelihoods_by_hand():
    docs, scores = scored()
    chances = np.exp(table())
    assert chances.sum(axis=1) == pytest.approx(np.ones(len(WORDS)))
    for doc, one in list(zip(docs, scores, strict=True))[:20]:
        for choice, found in zip(doc["choices"], one.logprobs, strict=True):
            path = [WORDS.index(word) for word in f"{doc['context'].split()[-1]} {choice}".split()]
            product = np.prod([chances[path[k], path[k + 1]] for k in range(len(path) - 1)])
            assert np.exp(found) == pytest.approx(product)


@pytest.fixture
def lm_eval_results(tmp_path):
    """(results, samples in order) of lm-eval on a local JSONL file of the same documents and the same table."""
    lm_eval = pytest.importorskip("lm_eval", reason="the optional extra lm-eval is not installed")
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager

    class BigramLM(TemplateLM):
        """The table, with lm-eval's own handling of contexts and choices."""

        bigram, eot_token_id, tokenizer_name = Bigram(), 0, "words"

        def tok_encode(self, string, **_):
            return self.bigram.encode(string)

        def _loglikelihood_tokens(self, requests, **_):
            return [self.bigram.score(before, after) for _, before, after in requests]

        def loglikelihood_rolling(self, requests, **_):
            raise NotImplementedError

        def generate_until(self, requests, **_):
            raise NotImplementedError

    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(json.dumps(doc, ensure_ascii=False) for doc in documents()), encoding="utf-8")
    task = {
        "task": "bigram",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes", "brier_score")],
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        found = lm_eval.simple_evaluate(
            BigramLM(), tasks=["bigram"], task_manager=manager, bootstrap_iters=0, log_samples=True
        )
    finally:
        logging.disable(previous)
    return found["results"]["bigram"], sorted(found["samples"]["bigram"], key=lambda sample: sample["doc_id"])


def test_lm_eval_gives_the_same_of_every_item(lm_eval_results):
    results, samples = lm_eval_results
    docs, scores = scored()
    theirs = np.array([[pair[0] for pair in sample["filtered_resps"]] for sample in samples], dtype=float)
    assert theirs[0] == pytest.approx(FIRST, abs=5e-7)
    assert np.array_equal(theirs, np.array([one.logprobs for one in scores]))
    for metric in ("acc", "acc_norm", "acc_bytes"):
        assert results[f"{metric},none"] == pytest.approx(EXPECTED[metric] / ITEMS, abs=1e-12)
        for doc, one, sample in zip(docs, scores, samples, strict=True):
            assert sample[metric] == (one.picked(metric) == doc["label"])
    assert results["brier_score,none"] == pytest.approx(BRIER, abs=5e-10)
    hashes = ("doc_hash", "prompt_hash", "target_hash")
    assert all(len(sample[name]) == 64 for sample in samples for name in hashes)
