"""The greater-than reproduction: its two statistics by hand, its edges, a planted circuit, a random model of GPT-2's shape."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.circuit import Circuit, Node, Role, head
from circuits.edges import EMBEDDING, Graph
from circuits.prompts import PADDING
from circuits.tasks import lexicon
from meridian.experiments import reproduce_greater_than as experiment
from meridian.experiments.estimates import PromptSample
from tests.meridian.experiments import reproduced

GRAPH = Graph(n_layers=4, n_heads=3, n_key_value_heads=3)


def claim(*mlps: int) -> Circuit:
    return Circuit("a", "greater_than", "m", {"reader": Role((head(0, 1), head(2, 2)))}, {}, (), mlps)


@pytest.fixture(scope="module")
def study():
    return reproduced.planted("greater_than", "lens")  # edges go its way in any case


@pytest.fixture(scope="module")
def found(study):
    return experiment.probabilities(study)


# --- the statistics ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_probabilities_of_the_whole_model_are_those_of_its_logits(study, found) -> None:
    prompts, tokenizer = study.prompts, study.model.tokenizer
    p = study.engine.end_logits(prompts).double().softmax(1)
    for row in range(len(prompts)):
        later, earlier = ([one for one in ids[row].tolist() if one >= 0] for ids in (prompts.answers, prompts.wrong))
        expected = float(p[row, later].sum() - p[row, earlier].sum())
        assert found["difference"]["model"][row] == pytest.approx(expected, abs=1e-5)
        start = tokenizer.decode([int(prompts.clean[row, prompts.positions["yy"][row]])]).strip()
        beside = [tokenizer.convert_tokens_to_ids(f"{int(start) + step:02d}") for step in (1, -1)]
        if int(start) - 1 < int(lexicon.NUMBERS[2]):  # the embedded models' earliest year is no foil
            assert found["sharpness"]["model"][row] is None
        else:
            expected = float(p[row, beside[0]] - p[row, beside[1]])
            assert found["sharpness"]["model"][row] == pytest.approx(expected, abs=1e-5)


def test_the_year_before_and_after_the_latest_wrong_one(study) -> None:
    prompts = replace(
        study.prompts.select([0, 1, 2]),
        answers=torch.tensor([[33, 40, 50], [99, PADDING, PADDING], [12, 13, 14]]),
        wrong=torch.tensor([[30, 31, 32], [97, 96, PADDING], [10, PADDING, PADDING]]),
    )
    years = {number: number for number in range(100)}
    assert experiment.beside(prompts, years, 1)[:, 0].tolist() == [33, PADDING, PADDING]
    assert experiment.beside(prompts, years, -1)[:, 0].tolist() == [31, 96, PADDING]


def without(ids, gone) -> torch.Tensor:
    """Ids of every row without one of them, padded at the end."""
    rows = [[one for one in row if one not in (out, PADDING)] for row, out in zip(ids.tolist(), gone, strict=True)]
    return torch.tensor([row + [PADDING] * (ids.shape[1] - len(row)) for row in rows])


@pytest.mark.slow
def test_a_prompt_without_a_year_before_or_after_has_no_sharpness(study, found) -> None:
    chosen = [row for row, value in enumerate(found["sharpness"]["model"]) if value is not None][:3]
    prompts = study.prompts.select(chosen)
    years = experiment.candidate_years(study.model.tokenizer, study.prompts)
    after, before = (experiment.beside(prompts, years, step)[:, 0].tolist() for step in (1, -1))
    prompts = replace(
        prompts,
        answers=without(prompts.answers, [after[0], None, None]),
        wrong=without(prompts.wrong, [None, before[1], None]),
    )
    again = experiment.probabilities(replace(study, prompts=prompts))["sharpness"]
    for name, (first, second, third) in again.items():
        assert (first, second) == (None, None)
        assert third == pytest.approx(found["sharpness"][name][chosen[2]], abs=1e-6)


def test_rows_by_hand() -> None:
    """Every run with a number of its own."""
    difference = {"start year 01": 0.11, "inputs to logits": 0.62, "complement": -0.23}
    difference = {name: [value] * 4 for name, value in difference.items()}
    difference |= {"model": [0.8, 0.6, 0.7, 0.9], "circuit": [0.4, 0.3, 0.35, 0.45]}
    sharpness = {"start year 01": 0.01, "inputs to logits": 0.03, "complement": 0.04}
    sharpness = {name: [value] * 4 for name, value in sharpness.items()}
    sharpness |= {"model": [0.1, None, 0.3, 0.2], "circuit": [None, 0.05, 0.07, 0.09]}
    sample = PromptSample(("a", "b", "c", "d"), resamples=200)
    settings = reproduced.settings_of("reproduce_greater_than")
    reproduced.assert_rows(
        experiment.rows({"difference": difference, "sharpness": sharpness}, sample, settings),
        [
            ("probability difference, model", 0.75, 0.817),
            ("its standard deviation over prompts", math.sqrt(0.0125), 0.193),
            ("cutoff sharpness, model", 0.2, 0.060),
            ("probability difference, start year 01", 0.11, None),
            ("probability difference, circuit", 0.375, 0.727),
            ("circuit / model", 0.5, 0.895),
            ("cutoff sharpness, circuit", 0.07, 0.08),
            ("probability difference, inputs to logits", 0.62, 0.715),
            ("probability difference, complement", -0.23, -0.366),
        ],
    )


def test_years_later_and_earlier_come_from_one_sweep(study, found, monkeypatch) -> None:
    """Two sweeps: about all candidates, and about the years before and after."""
    asked, measured = [], study.engine.run

    def run(sweep, prompts, advance):
        asked.append(len(prompts))
        return measured(sweep, prompts, advance)

    monkeypatch.setattr(study.engine, "run", run)
    assert experiment.probabilities(study) == found
    assert asked == [len(study.prompts)] * 2


# --- the edges ---------------------------------------------------------------------------------------------------


def cut(variant) -> set:
    (paths,) = variant.on_paths
    return set(paths.edges)


def test_mlps_and_logits_of_a_circuit_read_its_own_nodes_alone() -> None:
    _, circuit, inputs, complement, _ = experiment.variants(claim(2, 3), GRAPH)
    own = {head(0, 1), head(2, 2), Node("mlp", 2), Node("mlp", 3)}
    read = {e for e in GRAPH.edges if (e.reader.kind == "mlp" and e.reader.layer >= 2) or e.reader == GRAPH.logits}
    assert cut(circuit) == {edge for edge in read if edge.writer not in own}
    assert cut(complement) == {edge for edge in read if edge.writer in own}
    assert cut(circuit) | cut(complement) == read
    replaced = {node for item in inputs.on_nodes for node in item.nodes}
    assert replaced >= {node for node in GRAPH.writers if node.kind == "head"} - own
    assert not replaced & own
    assert cut(inputs) <= cut(circuit)


def test_a_circuit_without_mlps_keeps_all_and_the_embedding() -> None:
    _, circuit, _, complement, _ = experiment.variants(claim(), GRAPH)
    outside = {node for node in GRAPH.writers if node.kind == "head"} - {head(0, 1), head(2, 2)}
    assert {edge.writer for edge in cut(circuit)} == outside
    assert EMBEDDING not in {edge.writer for edge in cut(complement)}


def test_a_planted_circuit_does_it_all_and_what_is_left_nothing(found) -> None:
    """MLPs are zero there: the complement is the run with the start year 01."""
    mean = {name: np.mean(values) for name, values in found["difference"].items()}
    assert mean["model"] > 0.5
    assert mean["circuit"] == pytest.approx(mean["model"], rel=0.01)
    assert mean["inputs to logits"] == pytest.approx(mean["model"], rel=0.01)
    assert mean["complement"] == pytest.approx(mean["start year 01"], abs=0.02)


# --- a random model of GPT-2's shape -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_random_model_runs_to_the_end(tmp_path) -> None:
    folder = reproduced.save_random(tmp_path / "model")
    outcome, document = reproduced.reproduce(
        "reproduce_greater_than",
        tmp_path / "results",
        "model=gpt2",
        f"model.path={folder}",
        "experiment.prompts={discovery: 2, evaluation: 6, held_out: 4, reference: 40}",
        "experiment.bootstrap.resamples=100",
    )
    assert "gpt2 does not do greater-than" in outcome.said
    assert "names no MLPs" not in outcome.said
    rows = {row["quantity"]: row for row in document["rows"]}
    assert len(rows) == 9
    assert rows["probability difference, circuit"]["paper"] == 0.727
    assert rows["circuit / model"]["ours"]["value"] is None
    for name, row in rows.items():
        if name != "circuit / model":
            assert -1 <= row["ours"]["value"] <= 1, name
    assert document["subject"]["circuit"]["mlps"] == [8, 9, 10, 11]
