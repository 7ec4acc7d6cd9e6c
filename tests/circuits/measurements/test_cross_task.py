"""27: the columns of other tasks are activation patching on those tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits import study as studies
from circuits import tasks
from circuits.interventions import Sweep, Variant
from circuits.measurements import activation_patching, cross_task
from tests.circuits import toy


@pytest.fixture(scope="module")
def data(study):
    return cross_task.measure(study)


def test_the_first_companions_are_measured_and_not_the_task_itself(data, study) -> None:
    assert list(data["tasks"]) == list(study.task.companions[:2]) == ["greater_than", "subject_verb_agreement"]


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
