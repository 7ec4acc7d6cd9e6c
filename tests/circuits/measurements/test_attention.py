"""25: entropy, attention between named positions, and the scores on repeated tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.measurements import attention
from tests.circuits import toy

N = 9  # tokens of the hand-made patterns


def causal(n: int, *keys) -> torch.Tensor:
    """[1, head, query, key]: head i looks only at keys[i](query), at 0 where that is before the start."""
    pattern = torch.zeros(1, len(keys), n, n)
    for index, key in enumerate(keys):
        for query in range(n):
            pattern[0, index, query, max(0, key(query))] = 1.0
    return pattern


def uniform(n: int) -> torch.Tensor:
    return torch.tril(torch.ones(n, n)) / torch.arange(1, n + 1)[:, None]


@pytest.fixture(scope="module")
def data(study):
    return attention.measure(study)


def entropy(pattern: torch.Tensor, end: list[int]) -> list[float]:
    return attention._entropy(pattern, torch.tensor(end)).tolist()


def test_uniform_attention_has_entropy_1_and_a_single_key_0() -> None:
    pattern = torch.stack([uniform(N), causal(N, lambda query: query - 1)[0, 0]])[None]
    assert entropy(pattern, [N - 1]) == pytest.approx([1.0, 0.0], abs=1e-6)


def test_entropy_of_two_equal_keys_is_log_2_over_the_log_of_the_number_of_keys() -> None:
    pattern = (causal(N, lambda query: 0) + causal(N, lambda query: query)) / 2
    expected = np.mean([np.log(2) / np.log(query + 1) for query in range(1, N)])
    assert entropy(pattern, [N - 1]) == pytest.approx([expected], rel=1e-5)


def test_padded_queries_and_the_first_one_do_not_count() -> None:
    pattern = uniform(N)[None, None].repeat(2, 1, 1, 1)
    pattern[1, :, 5:] = causal(N, lambda query: 0)[0, :, 5:]
    assert entropy(pattern, [N - 1, 4]) == pytest.approx([1.0], abs=1e-6)
    assert entropy(pattern, [N - 1, N - 1])[0] < 0.8


def plain_patterns(network, tokens) -> torch.Tensor:
    """[layer and head, query, key] of one prompt, unpadded, from Hugging Face's own attention weights."""
    with torch.no_grad():
        return torch.cat(network(tokens[None], output_attentions=True).attentions)[:, :].flatten(0, 1)


def test_entropy_and_attention_between_positions_are_the_plain_model_s(data, study, plain) -> None:
    prompts = study.prompts.select(toy.lowest_hash(study, study.settings["attention_prompts"]))
    ratios, between = [], {(query, key): [] for query in prompts.positions for key in prompts.positions}
    for row, end in enumerate(prompts.end.tolist()):
        pattern = plain_patterns(plain("gpt2"), prompts.clean[row, : end + 1]).numpy()
        surprise = -(pattern * np.log(np.clip(pattern, 1e-12, None))).sum(2)[:, 1:]
        ratios.append(surprise / np.log(np.arange(2, end + 2)))
        for query, key in between:
            between[query, key].append(pattern[:, int(prompts.positions[query][row]), int(prompts.positions[key][row])])
    assert data["entropy"] == pytest.approx(np.concatenate(ratios, 1).mean(1), abs=1e-5)
    for (query, key), values in between.items():
        assert data["to_position"][query][key] == pytest.approx(np.mean(values, 0), abs=1e-5), (query, key)
    assert (data["entropy"] > 0).all() and (data["entropy"] < 1).all()


def test_nothing_looks_ahead(data) -> None:
    assert np.abs(data["to_position"]["s1"]["end"]).max() == 0
    assert np.abs(data["to_position"]["s1"]["s2"]).max() == 0


def test_scores_are_shares_of_attention_for_every_head(data) -> None:
    for name in ("previous_token", "duplicate_token", "induction"):
        assert data[name].shape == (12,)
        assert (data[name] >= 0).all() and (data[name] <= 1).all()
        assert data[name].max() > 0.02
    together = data["previous_token"] + data["duplicate_token"] + data["induction"]
    assert (together <= 1 + 1e-6).all()


def test_scores_are_exact_on_hand_made_patterns(study, monkeypatch) -> None:
    """Tokens are BOS, w1 ... w8, w1 ... w8; each head follows one rule."""
    length = study.settings["repeated_tokens"]["length"]
    n = 2 * length + 1
    rules = (
        lambda query: query - 1,
        lambda query: query - length,
        lambda query: query - length + 1,
        lambda query: 0,
    )
    layers = [
        causal(n, *rules),
        0.25 * causal(n, *rules) + 0.75 * causal(n, *4 * [lambda query: 0]),
        uniform(n)[None, None],
    ]
    monkeypatch.setattr(attention, "patterns", lambda study, prompts: iter(layers[:2]))
    scores = {name: score.tolist() for name, score in attention.repeated_token_scores(study).items()}
    assert scores == {
        "previous_token": [1, 0, 0, 0, 0.25, 0, 0, 0],
        "duplicate_token": [0, 1, 0, 0, 0, 0.25, 0, 0],
        "induction": [0, 0, 1, 0, 0, 0, 0.25, 0],
    }
    monkeypatch.setattr(attention, "patterns", lambda study, prompts: iter(layers[2:]))
    share = np.mean([1 / (query + 1) for query in range(length + 1, n)])
    assert [float(score) for score in attention.repeated_token_scores(study).values()] == pytest.approx(
        [share] * 3, rel=1e-5
    )


def test_repeated_tokens_are_bos_and_the_same_distinct_ordinary_tokens_twice(study) -> None:
    tokens = attention._repeated_tokens(study)
    length, tokenizer = study.settings["repeated_tokens"]["length"], study.model.tokenizer
    assert tokens.shape == (6, 2 * length + 1)
    assert (tokens[:, 0] == tokenizer.bos_token_id).all()
    assert torch.equal(tokens[:, 1 : length + 1], tokens[:, length + 1 :])
    for row in tokens[:, 1 : length + 1].tolist():
        assert len(set(row)) == length
        assert not set(row) & set(tokenizer.all_special_ids)
    assert len({tuple(row) for row in tokens.tolist()}) == 6
    assert torch.equal(tokens, attention._repeated_tokens(study))
    other = {**study.settings, "repeated_tokens": {**study.settings["repeated_tokens"], "seed": 1}}
    assert not torch.equal(tokens, attention._repeated_tokens(replace(study, settings=other)))


@pytest.mark.parametrize("architecture", ["neox", "llama"])
def test_patterns_of_other_architectures_are_distributions(architecture, make_study) -> None:
    study = make_study(architecture)
    prompts = study.prompts.select(range(4))
    layers = list(attention.patterns(study, prompts))
    assert [tuple(layer.shape) for layer in layers] == [(4, 4, prompts.clean.shape[1], prompts.clean.shape[1])] * 2
    for layer in layers:
        assert float((layer.sum(3) - 1).abs().max()) < 1e-5
        assert float(torch.triu(layer, diagonal=1).abs().max()) == 0


def test_example_patterns_are_causal_distributions_and_agree_with_the_mean_from_the_end(study) -> None:
    stored = attention.measure(study)["examples"]
    prompts = study.prompts.select(list(range(len(stored))))
    decode = study.model.tokenizer.convert_ids_to_tokens
    for base, prefix, tokens in (("clean", "", prompts.clean), ("corrupted", "corrupted_", prompts.corrupted)):
        answer = attention.from_answer(study, prompts, base)
        for row, example in enumerate(stored):
            pattern = np.asarray(example[f"{prefix}pattern"])
            heads, length = study.model.n_layers * study.model.n_heads, len(example["tokens"])
            assert example[f"{prefix}tokens"] == decode(tokens[row, :length].tolist())
            assert pattern.shape == (heads, length, length)
            assert np.abs(pattern.sum(2) - 1).max() < 0.0005 * length + 1e-6
            assert (np.triu(np.ones((length, length)), 1) * pattern).max() == 0
            assert np.abs(pattern[:, -1, 0] - answer.first[row].numpy()).max() <= 0.0006
    assert any(example["tokens"] != example["corrupted_tokens"] for example in stored)
