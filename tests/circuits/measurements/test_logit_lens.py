"""04: the last row is the model itself, the first is the embedding alone, and where an answer emerges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from circuits.measurements import logit_lens


@pytest.fixture(scope="module", params=[("gpt2", "ioi"), ("gpt2", "greater_than"), ("llama", "ioi"), ("neox", "ioi")])
def case(request, make_study):
    study = make_study(*request.param)
    return study, logit_lens.measure(study)


def scores(logits: torch.Tensor, prompts, row: int) -> tuple[int, float, float]:
    answers, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
    rank = int((logits > logits[answers].max()).sum())
    return rank, float(logits.softmax(0)[answers].sum()), float(logits[answers].mean() - logits[wrong].mean())


def named(study, ids: list[int]) -> list[str]:
    """Tokens as text; the toy's vocabulary is padded past its tokenizer."""
    tokens = study.model.tokenizer.convert_ids_to_tokens(ids)
    return [f"<id {number}>" if token is None else token for number, token in zip(ids, tokens, strict=True)]


def test_the_last_row_is_the_model_s_prediction(case) -> None:
    study, data = case
    logits = study.engine.end_logits(study.prompts)
    assert data["rank"].shape == data["probability"].shape == (study.model.n_layers + 1, len(study.prompts))
    assert data["max_error"] < 1e-4
    for row in range(len(study.prompts)):
        rank, probability, difference = scores(logits[row], study.prompts, row)
        assert data["rank"][-1, row] == rank
        assert data["probability"][-1, row] == pytest.approx(probability, rel=1e-4)
        assert data["logit_diff"][-1, row] == pytest.approx(difference, abs=1e-4)


def test_earlier_rows_are_the_plain_model_s_stream_read_by_its_own_norm_and_unembedding(study, plain) -> None:
    data, prompts, network = logit_lens.measure(study), study.prompts, plain("gpt2")
    for row in (0, 13):
        tokens = prompts.clean[row, : int(prompts.end[row]) + 1]
        with torch.no_grad():
            streams = network(tokens[None], output_hidden_states=True).hidden_states
            for layer in range(3):  # Hugging Face applies the final norm to the last one itself
                logits = network.lm_head(network.transformer.ln_f(streams[layer][0, -1]))
                rank, probability, difference = scores(logits, prompts, row)
                assert data["rank"][layer, row] == rank
                assert data["probability"][layer, row] == pytest.approx(probability, rel=1e-4)
                assert data["logit_diff"][layer, row] == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize(
    ("ranks", "layer"),
    [
        ([3, 2, 0, 0], 2),  # emerges and stays
        ([0, 0, 0, 0], 0),  # there from the start
        ([5, 0, 1, 0], 3),  # lost again in between: the last return counts
        ([0, 0, 0, 1], None),  # there until the very end, but not at it
        ([4, 3, 2, 1], None),  # never
        ([0], 0),
        ([7], None),
    ],
)
def test_emergence(ranks, layer) -> None:
    assert logit_lens.emergence(np.array(ranks)[:, None]) == [layer]


def test_emergence_is_per_prompt() -> None:
    assert logit_lens.emergence(np.array([[1, 0], [0, 0], [0, 2]])) == [1, None]


def test_examples_hold_the_lens_at_the_last_position_and_the_plain_model_s_top_tokens(study, plain) -> None:
    data, network = logit_lens.measure(study), plain("gpt2")
    for row, example in enumerate(data["examples"]):
        assert [layer[-1] for layer in example["logit_diff"]] == pytest.approx(data["logit_diff"][:, row], abs=1e-5)
        tokens = study.prompts.clean[row, : int(study.prompts.end[row]) + 1]
        with torch.no_grad():
            predicted = network(tokens[None]).logits[0].softmax(1).max(1)
        assert example["tokens"] == named(study, tokens.tolist())
        assert example["top_token"][-1] == named(study, predicted.indices.tolist())
        assert example["top_probability"][-1] == pytest.approx(predicted.values.tolist(), rel=1e-4)


def test_by_position_at_the_end_is_the_mean_of_the_lens(study) -> None:
    data = logit_lens.measure(study)
    found = data["by_position"]
    place = found["roles"].index("end")
    for name in ("logit_diff", "probability"):
        expected = np.asarray(data[name])[:, found["rows"]].mean(1)
        assert [float(layer[place]) for layer in found[name]] == pytest.approx(expected, abs=1e-5)


def test_examples_and_by_position_agree_at_every_position_and_layer(study, plain) -> None:
    data, network = logit_lens.measure(study), plain("gpt2")
    found, prompts = data["by_position"], study.prompts
    for role, where in prompts.positions.items():  # the mean over `rows`, each read out at its own position of the role
        place, expected = found["roles"].index(role), []
        for row in found["rows"]:
            tokens, answers, wrong = prompts.clean[row], prompts.answers[row], prompts.wrong[row]
            with torch.no_grad():
                streams = network(tokens[None], output_hidden_states=True).hidden_states
                logits = network.lm_head(network.transformer.ln_f(streams[1][0, int(where[row])]))
            expected.append(float(logits[answers[answers >= 0]].mean() - logits[wrong[wrong >= 0]].mean()))
        assert float(found["logit_diff"][1][place]) == pytest.approx(np.mean(expected), abs=1e-4)
    example, tokens = data["examples"][0], prompts.clean[0, : int(prompts.end[0]) + 1]
    answers, wrong = prompts.answers[0], prompts.wrong[0]
    with torch.no_grad():
        streams = network(tokens[None], output_hidden_states=True).hidden_states
        for layer in range(3):
            logits = network.lm_head(network.transformer.ln_f(streams[layer][0]))
            assert example["top_token"][layer] == named(study, logits.argmax(1).tolist())
            difference = logits[:, answers[answers >= 0]].mean(1) - logits[:, wrong[wrong >= 0]].mean(1)
            assert example["logit_diff"][layer] == pytest.approx(difference.tolist(), abs=1e-4)
