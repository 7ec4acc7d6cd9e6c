"""The induction self-tests: scores against brute force, ranks and the value of uniform attention by hand, a random model."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.circuit import head
from meridian.experiments import reproduce_induction as experiment
from tests.meridian.experiments import reproduced

SETTINGS = reproduced.settings_of("reproduce_induction")


def test_scores_of_each_sequence_are_those_of_its_attention() -> None:
    """On the model itself, token by token."""
    study = reproduced.planted()
    settings = {"seed": 5, "length": 6, "sequences": 2}
    found = experiment.scores(study, settings)
    assert found["length"] == 6
    tokenizer = study.model.tokenizer
    usable = torch.tensor([i for i in range(len(tokenizer)) if i not in set(tokenizer.all_special_ids)])
    for number in range(2):
        order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(5 + number))[:6]
        tokens = torch.tensor([[tokenizer.bos_token_id, *usable[order].tolist(), *usable[order].tolist()]])
        with torch.no_grad():
            _, cache = study.model.bridge.run_with_cache(tokens)
        for place, node in enumerate(study.model.heads):
            pattern = cache[f"blocks.{node.layer}.attn.hook_pattern"][0, node.index]
            for name, back in (("previous_token", 1), ("duplicate_token", 6), ("induction", 5)):
                expected = np.mean([float(pattern[query, query - back]) for query in range(7, 13)])
                assert found[name][number, place] == pytest.approx(expected, abs=1e-5), (name, node)


def test_a_half_is_as_long_as_the_context_holds() -> None:
    study = reproduced.planted()
    context = study.model.bridge.cfg.n_ctx
    found = experiment.scores(study, {"seed": 0, "length": 10_000, "sequences": 1})
    assert found["length"] == (context - 1) // 2


def test_rank_and_uniform_attention_by_hand() -> None:
    assert experiment.rank(np.array([0.2, 0.9, 0.5, 0.5])) == [4, 1, 2, 2]
    assert experiment.uniform(2, bos=True) == pytest.approx((1 / 4 + 1 / 5) / 2)  # queries 3 and 4 of BOS a b a b
    assert experiment.uniform(2, bos=False) == pytest.approx((1 / 3 + 1 / 4) / 2)  # queries 2 and 3 of a b a b
    assert experiment.uniform(1, bos=True) == pytest.approx(1 / 3)


def test_a_fact_holds_if_the_head_is_among_the_top() -> None:
    heads = [head(2, 2), head(4, 11), head(5, 5), head(6, 9), head(3, 0), head(0, 1)]
    scores = np.tile([[0.9, 0.1, 0.5, 0.4, 0.3, 0.2]], (4, 1))
    found = dict.fromkeys(experiment.SCORES, scores)
    rows = {row.quantity: row for row in experiment.rows(found, heads, heads, SETTINGS, 100, bos=True)}
    assert rows["previous-token score of L2H2, place 1"].inside is True
    assert rows["previous-token score of L4H11, place 6"].inside is False
    assert rows["induction score of L6H9, place 3"].inside is True
    assert rows["duplicate-token score of L3H0, place 4"].inside is False
    assert all(row.inside is None for row in experiment.rows(found, heads, [], SETTINGS, 100, bos=True))
    assert all("BOS before them" in row.gap for row in rows.values())
    assert not any("BOS" in row.gap for row in experiment.rows(found, heads, heads, SETTINGS, 100, bos=False))


def test_every_row_by_hand() -> None:
    """Each head and score with a number of its own."""
    heads = [head(2, 2), head(4, 11), head(5, 5), head(6, 9), head(3, 0), head(0, 1)]
    scores = {
        "previous_token": [0.41, 0.82, 0.03, 0.04, 0.05, 0.06],
        "duplicate_token": [0.11, 0.12, 0.13, 0.14, 0.75, 0.76],
        "induction": [0.21, 0.22, 0.63, 0.64, 0.25, 0.26],
    }
    found = {name: np.tile(values, (4, 1)) for name, values in scores.items()}
    uniform = "uniform attention 0.225"
    reproduced.assert_rows(
        [
            *experiment.rows(found, heads, heads, SETTINGS, 2, bos=True),
            *experiment.strongest(found, heads, SETTINGS, 2, bos=True),
        ],
        [
            ("previous-token score of L4H11, place 1", 0.82, "among the top 2"),
            ("previous-token score of L2H2, place 2", 0.41, "among the top 2"),
            ("induction score of L5H5, place 2", 0.63, "among the top 5"),
            ("induction score of L6H9, place 1", 0.64, "among the top 5"),
            ("duplicate-token score of L3H0, place 2", 0.75, "among the top 3"),
            ("duplicate-token score of L0H1, place 1", 0.76, "among the top 3"),
            ("largest previous-token score: L4H11", 0.82, uniform),
            ("largest duplicate-token score: L0H1", 0.76, uniform),
            ("largest induction score: L6H9", 0.64, uniform),
        ],
    )


def test_sequences_of_a_tokenizer_without_bos_have_none() -> None:
    study = reproduced.planted()
    tokenizer = copy.deepcopy(study.model.tokenizer)
    tokenizer.bos_token = None
    without = replace(study, model=replace(study.model, tokenizer=tokenizer))
    settings = {"seed": 0, "length": 10_000, "sequences": 1}
    context = study.model.bridge.cfg.n_ctx
    found = experiment.scores(without, settings)
    assert (found["length"], found["bos"]) == (context // 2, False)
    assert experiment.scores(study, settings)["bos"] is True


@pytest.mark.slow
def test_a_random_model_has_all_rows(tmp_path) -> None:
    folder = reproduced.save_random(tmp_path / "model")
    _, document = reproduced.reproduce(
        "reproduce_induction",
        tmp_path / "results",
        "model=gpt2",
        f"model.path={folder}",
        "experiment.repeated_tokens.sequences=3",
        "experiment.bootstrap.resamples=100",
    )
    rows = document["rows"]
    assert len(rows) == 6 + 3
    assert all(0 <= row["ours"]["value"] <= 1 for row in rows)
    assert all(row["inside"] in (True, False) for row in rows[:6])
    assert np.shape(document["data"]["scores"]["induction"]) == (3, 144)
    assert document["data"]["scores"]["length"] == (reproduced.POSITIONS - 1) // 2
