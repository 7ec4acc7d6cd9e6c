"""21 equals ablating each head alone."""

from __future__ import annotations

import numpy as np
import pytest

from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import knockouts

ROWS = [2, 16, 24]


@pytest.fixture(scope="module")
def data(study):
    return knockouts.measure(study)


def test_every_column_is_a_single_ablation(data, study) -> None:
    clean = study.run(Sweep((Variant("clean"),))).logit_diff[0]
    for column, node in enumerate(study.model.heads):
        alone = study.run(Sweep((ablate([node], Recipe("mean"), "a"),))).logit_diff[0]
        assert np.abs(data["effect"][:, column] - (clean - alone)).max() < 1e-5
    assert data["recipe"] == "mean per template and position"


def test_effects_equal_brute_force(data, study, twin) -> None:
    variants = (Variant("clean"), *(ablate([node], Recipe("mean"), str(node)) for node in study.model.heads))
    truth = twin().run(variants, study.prompts.select(ROWS)).logit_diff
    assert data["effect"].shape == (len(study.prompts), len(study.model.heads))
    assert np.abs(data["effect"][ROWS] - (truth[0] - truth[1:]).T).max() < 1e-4
    assert np.abs(data["effect"]).mean() > 0.1
