"""01 against the plain Hugging Face model, prompt by prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from circuits.measurements import baseline


@pytest.fixture(scope="module")
def data(study):
    return baseline.measure(study)


def plain_scores(network, tokens, answers, wrong) -> tuple[float, bool, float]:
    """(logit difference, the answer is the top token, its probability), nothing batched or padded."""
    with torch.no_grad():
        logits = network(tokens[None]).logits[0, -1]
    difference = logits[answers].mean() - logits[wrong].mean()
    return float(difference), int(logits.argmax()) in answers, float(logits.softmax(0)[answers].sum())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", ["ioi", "greater_than"])
def test_every_number_is_the_plain_model_s(task, make_study, plain) -> None:
    study = make_study("gpt2", task)
    data, prompts = baseline.measure(study), study.prompts
    for row, end in enumerate(prompts.end.tolist()):
        answers, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
        clean = plain_scores(plain("gpt2"), prompts.clean[row, : end + 1], answers, wrong)
        corrupted = plain_scores(plain("gpt2"), prompts.corrupted[row, : end + 1], answers, wrong)
        assert data["clean_logit_diff"][row] == pytest.approx(clean[0], abs=1e-4)
        assert data["corrupted_logit_diff"][row] == pytest.approx(corrupted[0], abs=1e-4)
        assert bool(data["top1"][row]) == clean[1]
        assert data["answer_probability"][row] == pytest.approx(clean[2], rel=1e-4)


def test_top1_needs_the_very_best_token(study, monkeypatch) -> None:
    """The random model never gets one right, so hand it logits where it does."""
    logits = torch.zeros(len(study.prompts), 1024)
    right = [0, 3, 4]
    logits[right, study.prompts.answers[right, 0]] = 1.0
    others = [row for row in range(len(study.prompts)) if row not in right]
    logits[others, study.prompts.wrong[others, 0]] = 1.0
    monkeypatch.setattr(study.engine, "end_logits", lambda prompts: logits)
    assert np.flatnonzero(baseline.measure(study)["top1"]).tolist() == right


def test_accuracy_is_the_share_of_positive_logit_differences(data) -> None:
    positive = data["clean_logit_diff"] > 0
    assert np.array_equal(data["correct"], positive)
    split = np.array(data["split"])
    assert data["accuracy"] == {name: positive[split == name].mean() for name in ("evaluation", "held_out")}
    assert 0 < positive.mean() < 1


def test_labels_are_the_prompts_and_heads_are_row_major(data, study) -> None:
    prompts = study.prompts
    assert data["prompt_id"] == prompts.ids
    assert data["split"] == ("evaluation",) * 20 + ("held_out",) * 8
    assert (data["template"], data["cluster"], data["factors"]) == (
        prompts.templates,
        prompts.clusters,
        prompts.factors,
    )
    assert data["heads"] == [[layer, index] for layer in range(3) for index in range(4)]
    assert (data["n_layers"], data["n_heads_per_layer"]) == (3, 4)


def test_examples_show_what_the_model_saw(data, study) -> None:
    assert len(data["examples"]) == 3
    for row, example in enumerate(data["examples"]):
        end = int(study.prompts.end[row])
        assert example["bos"] == example["clean"][0] == study.model.tokenizer.bos_token
        assert len(example["clean"]) == len(example["corrupted"]) == end + 1
        assert example["clean"][-1] == "to"
        where = example["positions"]
        assert [example["clean"][where["io"]]] == example["answers"]
        assert [example["clean"][where["s1"]]] == [example["clean"][where["s2"]]] == example["wrong"]
        assert example["clean"] != example["corrupted"]
