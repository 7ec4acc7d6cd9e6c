"""22: what the circuit loses without each head and each role."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.circuit import Role, head
from circuits.engine import LensEngine
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import minimality
from tests.circuits import toy

ROWS = [3, 10, 22]


@pytest.fixture(scope="module")
def data(study):
    return minimality.measure(study)


def test_effects_equal_brute_force(data, study, twin) -> None:
    circuit = list(study.circuit.heads)
    outside = [node for node in study.model.heads if node not in circuit]
    removals = [[node] for node in circuit] + [list(role.heads) for role in study.circuit.roles.values()]
    variants = [ablate(outside, Recipe("mean"), "circuit")]
    variants += [ablate(outside + nodes, Recipe("mean"), f"{i}") for i, nodes in enumerate(removals)]
    truth = twin().run(tuple(variants), study.prompts.select(ROWS)).logit_diff
    loss = truth[0] - truth[1:]
    assert data["heads"] == [[0, 1], [1, 2], [2, 0], [2, 3]]
    assert data["roles"] == ["early", "middle", "late"]
    assert data["effect"].shape == (4, len(study.prompts))
    assert np.abs(data["effect"][:, ROWS] - loss[:4]).max() < 1e-4
    assert np.abs(data["role_effect"][:, ROWS] - loss[4:]).max() < 1e-4
    assert np.abs(data["effect"]).mean() > 0.05


def test_a_role_of_one_head_loses_what_the_head_loses(data) -> None:
    assert np.abs(data["role_effect"][0] - data["effect"][0]).max() < 1e-5
    assert np.abs(data["role_effect"][1] - data["effect"][1]).max() < 1e-5
    assert np.abs(data["role_effect"][2] - data["effect"][2]).max() > 1e-3


def test_in_the_whole_model_minimality_is_the_knock_out(study) -> None:
    everything = replace(study.circuit, roles={"all": Role(study.model.heads), "one": Role((head(1, 2),))})
    data = minimality.measure(replace(study, circuit=everything))
    variants = (
        Variant("clean"),
        ablate([head(1, 2)], Recipe("mean"), "a"),
        ablate(study.model.heads, Recipe("mean"), "b"),
    )
    clean, without, floor = study.run(Sweep(variants)).logit_diff
    assert np.abs(data["effect"][6] - (clean - without)).max() < 1e-5
    assert np.abs(data["role_effect"][1] - (clean - without)).max() < 1e-5
    assert np.abs(data["role_effect"][0] - (clean - floor)).max() < 1e-5


def test_a_head_that_writes_nothing_loses_nothing(study, tmp_path) -> None:
    network = toy.build("gpt2")
    with torch.no_grad():
        network.transformer.h[1].attn.c_proj.weight[2 * toy.D_HEAD : 3 * toy.D_HEAD] = 0  # the rows of head 2
    model = toy.load(toy.save(network, tmp_path / "idle"))
    engine = LensEngine(model, study.engine.reference.prompts)
    data = minimality.measure(replace(study, model=model, engine=engine))
    idle, others = data["heads"].index([1, 2]), [i for i, pair in enumerate(data["heads"]) if pair != [1, 2]]
    assert np.abs(data["effect"][idle]).max() < 1e-5
    assert np.abs(data["role_effect"][data["roles"].index("middle")]).max() < 1e-5
    assert (np.abs(data["effect"][others]).mean(1) > 0.05).all()
