"""27: the columns of other tasks are activation patching on those tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits import tasks
from circuits.interventions import Sweep, Variant
from circuits.measurements import activation_patching, cross_task
from circuits.tasks.published.successor import ORDERS
from tests.circuits import family_tokenizers, gpt2_tokenizer, toy


@pytest.fixture(scope="module")
def data(study):
    return cross_task.measure(study)


def test_the_first_companions_are_measured_and_not_the_task_itself(data, study) -> None:
    assert list(data["tasks"]) == list(study.task.companions[:2]) == ["greater_than", "subject_verb_agreement"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greater_than", "subject_verb_agreement"])
def test_columns_equal_activation_patching_on_that_task(name, data, study) -> None:
    other = studies.prepare(
        study.model,
        tasks.get(name),
        {**toy.SIZES, "evaluation": 6},
        0,
        toy.ENGINE,
        settings=study.settings,
        circuit=None,
    )
    patched = activation_patching.measure(other)["denoising"]
    bases = other.run(Sweep((Variant("clean"), Variant("corrupted", base="corrupted"))))
    rows = other.prompts.rows_of("evaluation")
    found = data["tasks"][name]
    assert found["prompt_id"] == tuple(other.prompts.ids[row] for row in rows)
    assert found["denoising"].shape == (6, 12)
    assert np.abs(found["denoising"] - patched[rows]).max() < 1e-5
    clean, corrupted = bases.logit_diff[:, rows]
    assert found["gap"] == pytest.approx((clean - corrupted).mean(), abs=1e-5)
    assert found["mean_clean"] == pytest.approx(clean.mean(), abs=1e-5)
    assert found["accuracy"] == bases.correct[0, rows].mean()


def test_a_companion_s_stored_circuit_is_named(data) -> None:
    """The toy comes with a circuit for greater-than and none for the other."""
    assert data["tasks"]["greater_than"]["circuit"] == {
        "name": "toy_greater_than",
        "heads": [[0, 1], [1, 2], [2, 0], [2, 3]],
    }
    assert data["tasks"]["subject_verb_agreement"]["circuit"] == {"name": None, "heads": []}


def test_the_number_of_companions_and_prompts_are_settings(study) -> None:
    one = replace(study, settings={**study.settings, "companions": 1, "companion_prompts": 3})
    found = cross_task.measure(one)["tasks"]
    assert list(found) == ["greater_than"]
    assert len(found["greater_than"]["prompt_id"]) == 3


# --- stand-ins -------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.skipif(gpt2_tokenizer.merges() is None, reason="GPT-2's merges file is absent")
@pytest.mark.parametrize(("kind", "written"), [("gpt2", True), ("llama3", False), ("qwen", False), ("llama2", True)])
def test_a_stand_in_takes_the_place_of_a_task_that_the_tokenizer_cannot_write(kind, written) -> None:
    """Of years, GPT-2 and SentencePiece have two tokens; Llama-3 writes three digits and one, Qwen four."""
    vocabulary = tasks.Vocabulary(family_tokenizers.build(kind))
    task = tasks.get("subject_verb_agreement", vocabulary)
    names, unavailable = cross_task.chosen(task)
    assert names[0] == ("greater_than" if written else "successor")
    assert ("greater_than" in unavailable) is not written and "successor" not in unavailable
    successor = tasks.get("successor", vocabulary)
    drawn = prompt_sets.draw_examples(successor, {"evaluation": 30, "reference": 30}, seed=0)["evaluation"]
    prompts = prompt_sets.tokenize(replace(successor, bos=kind != "qwen"), drawn, vocabulary.tokenizer, "evaluation")
    following = {a: b for order in ORDERS.values() for a, b in pairwise(order.split())}
    for example in drawn:
        assert following[example.clean.rstrip(",").split()[-1]] == example.answers[0]
        assert following[example.corrupted.rstrip(",").split()[-1]] == example.wrong[0]
    assert len(prompts) == 30 and set(cross_task.stored_circuits(task)) >= {"greater_than", "successor"}


def test_companions_without_a_stand_in_are_as_before(study) -> None:
    names, unavailable = cross_task.chosen(study.task)
    assert names == list(study.task.companions) and unavailable == {}
    assert cross_task.chosen(replace(study.task, companions=())) == ([], {})
