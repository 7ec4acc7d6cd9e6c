"""A prompt whose activations are not finite spoils no other prompt, in either backend and in every family of models.

The kernels' own tests are in `tests/kernels/test_not_finite.py`; here are the attention that the engine writes out itself (with
capped scores, windows, a past), the last layer's, that along paths, and all that a pass does with the states of a whole batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.circuit import Node, head
from circuits.engine import FusedEngine, LensEngine
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise, patch_paths
from tests.circuits import toy
from tests.circuits.test_fused_families import MADE

pytestmark = pytest.mark.every_architecture
BAD = [float("nan"), float("inf")]
RECIPES = (Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise", additive=True, scale=3.0))
SPOILT = 2  # the row of the bad prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    def make(name: str):
        family, settings = MADE.get(name, (name, {}))
        folder = tmp_path_factory.mktemp("one_bad_prompt") / name.replace(" ", "_")
        return toy.load(toy.save(toy.build(family, **settings), folder))

    return make


@pytest.fixture(scope="module")
def alike(sets):
    """Five prompts of one length, so that they are computed together."""
    prompts = sets("ioi")["evaluation"]
    return prompts.select((prompts.end == prompts.end.mode().values).nonzero()[:5, 0].tolist())


def of_one_prompt(prompts) -> int:
    """A token of the bad prompt that no other prompt has, in neither of its texts."""
    both = torch.cat([prompts.clean, prompts.corrupted], 1)
    others = set(both[[row for row in range(len(prompts)) if row != SPOILT]].flatten().tolist())
    return next(token for token in prompts.clean[SPOILT].tolist() if token not in others and token in both[SPOILT, 1:])


def sweep_of(model, path: bool) -> Sweep:
    """All kinds of sites and recipes at all positions, which attend to no past, and at late ones, which do."""
    last = model.n_layers - 1
    nodes = [head(0, 1), head(last, 2), Node("mlp", 0), Node("residual", last), Node("attention", 0)]
    made = [ablate([node], recipe, f"{node} {recipe}") for node in nodes for recipe in RECIPES]
    made += [denoise([node], f"{node} at s2", ("s2",)) for node in nodes]
    made += [noise([node], f"{node} at the end", ("end",)) for node in nodes]
    if path:
        edge = next(edge for edge in model.graph.edges if edge.writer == head(0, 1) and edge.reader.kind == "q")
        made.append(patch_paths([edge], Recipe("patch", source="corrupted"), "a path"))
    return Sweep((Variant("clean"), *made), probabilities=True)


def spoil(engine: LensEngine, token: int, bad: float) -> None:
    """Give a token an embedding that is not finite, in the weights that the engine runs on."""
    weights = engine.model.bridge.embed.original_component.weight
    assert weights.data_ptr() != engine.model.bridge.unembed.original_component.weight.data_ptr()
    weights.data[token, 3] = bad
    if isinstance(engine, FusedEngine):
        embedding = engine.decoder.embedding.clone()
        embedding[token, 3] = bad
        engine.decoder = replace(engine.decoder, embedding=embedding)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("backend", [FusedEngine, LensEngine])
@pytest.mark.parametrize("name", [*toy.ARCHITECTURES, *MADE])
def test_the_others_keep_every_bit(name, backend, bad, model, alike, reference) -> None:
    own = model(name)
    engine, sweep, token = backend(own, reference), sweep_of(own, name in toy.ARCHITECTURES), of_one_prompt(alike)
    before = engine.run(sweep, alike)
    spoil(engine, token, bad)
    after = engine.run(sweep, alike)
    others = [row for row in range(len(alike)) if row != SPOILT]
    for field in ("logit_diff", "answer_probability", "foil_probability"):
        assert np.array_equal(getattr(after, field)[:, others], getattr(before, field)[:, others]), field
    assert np.isnan(after.logit_diff[0, SPOILT]) and np.isnan(after.logit_diff[:, SPOILT]).mean() > 0.5
    assert np.isfinite(before.logit_diff).all()
