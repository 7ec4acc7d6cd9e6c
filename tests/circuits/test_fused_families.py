"""What some families add to a pre-norm decoder, in the fused backend: norms of heads, norms of what is written, bounds, windows.

Against the reference backend and against plain Hugging Face, in float64 to 1e-10; and what would be wrong without each part.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from circuits.circuit import Node, head
from circuits.engine import FusedEngine, LensEngine, choose
from circuits.engine.gradients import GradientEngine
from circuits.engine.scores import gather
from circuits.interventions import Recipe, Sweep, Variant, ablate, noise
from tests.circuits import toy
from tests.circuits.test_fused import BASES, TOLERANCE, assert_same, combinations, everything

pytestmark = [pytest.mark.every_architecture, pytest.mark.usefixtures("float64_throughout")]

MIXED = ["sliding_attention", "full_attention"]
WINDOW = {"sliding_window": 6, "layer_types": MIXED}  # far shorter than the prompts
ANGLES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
MADE: dict[str, tuple[str, dict[str, Any]]] = {  # name: family, settings of its configuration
    "qwen3": ("qwen3", {}),
    "qwen3 with windows": ("qwen3", {**WINDOW, "use_sliding_window": True}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {**WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("gemma3", {**WINDOW, "rope_parameters": ANGLES}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return cache(
        lambda name: toy.save(
            toy.build(MADE[name][0], **MADE[name][1]), tmp_path_factory.mktemp("families") / name.replace(" ", "_")
        )
    )


@pytest.fixture(scope="module")
def model(place):
    return cache(lambda name, dtype="float64": toy.load(place(name), dtype))


@pytest.fixture(scope="module")
def few(scored):
    """One prompt of each of three lengths."""
    chosen = {int(end): row for row, end in enumerate(scored.end.tolist())}
    return scored.select(list(chosen.values())[:3])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MADE)
def test_every_intervention_is_what_it_is_in_the_reference_backend(name, dtype, model, reference, few) -> None:
    made = everything(2)
    made = made if dtype == "float64" else made[::5]
    sweep = Sweep((*BASES, *(v for v in made if v not in BASES), *combinations(2)), probabilities=True)
    fused, lens = (one(model(name, dtype), reference).run(sweep, few) for one in (FusedEngine, LensEngine))
    assert_same(fused, lens.logit_diff, TOLERANCE[dtype])
    assert np.array_equal(fused.correct, lens.correct)
    assert fused.answer_probability is not None and lens.answer_probability is not None
    assert np.abs(fused.answer_probability - lens.answer_probability).max() < TOLERANCE[dtype]
    moved = np.abs(lens.logit_diff - lens.logit_diff[[0 if v.base == "clean" else 1 for v in sweep.variants]]).max(1)
    assert (moved > 1e-3).mean() > 0.7


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MADE)
def test_sets_of_heads_and_mlps_of_every_size(name, model, reference, few) -> None:
    """Also those large enough that replaced heads are not computed at all."""
    nodes = [*(head(layer, index) for layer in (0, 1) for index in range(toy.N_HEADS)), Node("mlp", 0), Node("mlp", 1)]
    rng, recipes = random.Random(0), (Recipe("mean"), Recipe("zero"), Recipe("resample", seed=1))
    drawn = [(rng.sample(nodes, size), recipe) for size in (0, 1, 4, 9, 10) for recipe in recipes]
    sweep = Sweep(tuple(ablate(some, recipe, f"{len(some)} {recipe}") for some, recipe in drawn))
    expected = LensEngine(model(name), reference).run(sweep, few).logit_diff
    for least in (1, 10**6):
        one = FusedEngine(model(name), reference)
        one.smallest_product = least
        assert_same(one.run(sweep, few), expected, 1e-10)


@pytest.mark.sampled(5)
@torch.no_grad()
@pytest.mark.parametrize("name", MADE)
def test_patches_means_and_zeros_are_those_of_plain_hugging_face(name, place, model, reference, few) -> None:
    """By hooks on the plain model's own modules: a head's z is what o_proj reads, an MLP's output what is added after it."""
    plain, rows = toy.plain(place(name)), torch.arange(len(few))
    own = slice(toy.D_HEAD, 2 * toy.D_HEAD)

    def module(layer: int, mlp: bool) -> torch.nn.Module:
        block = plain.model.layers[layer]
        return getattr(block, "post_feedforward_layernorm", block.mlp) if mlp else block.self_attn.o_proj

    def run(tokens, layer, mlp, replace_by=None):
        """(logit differences, the activation) with a head's z or an MLP's output replaced."""
        kept = []

        def visit(value):
            kept.append(value.clone())
            if replace_by is not None:
                value = value.clone()
                value[..., slice(None) if mlp else own] = replace_by
            return value

        target = module(layer, mlp)
        handle = (
            target.register_forward_hook(lambda m, args, out: visit(out))
            if mlp
            else target.register_forward_pre_hook(lambda m, args: (visit(args[0]),))
        )
        logits = plain(tokens, use_cache=False).logits
        handle.remove()
        return logits, kept[0] if mlp else kept[0][..., own]

    def difference(logits):
        at_end = logits[rows, few.end]
        answers, foils = (torch.nanmean(gather(at_end, ids), 1) for ids in (few.answers, few.wrong))
        return (answers - foils).numpy()

    made, expected = [Variant("clean")], [difference(plain(few.clean, use_cache=False).logits)]
    for layer in (0, 1):
        for mlp in (False, True):
            node = [Node("mlp", layer) if mlp else head(layer, 1)]
            _, other = run(few.corrupted, layer, mlp)
            _, reference_values = run(reference.clean, layer, mlp)
            means = torch.stack(
                [
                    reference_values[[row for row, own in enumerate(reference.templates) if own == template]].mean(0)
                    for template in few.templates
                ]
            )[:, : few.clean.shape[1]]
            made += [noise(node, f"patch {node}"), ablate(node, Recipe("mean"), f"mean {node}")]
            made.append(ablate(node, Recipe("zero"), f"zero {node}"))
            for value in (other, means, torch.zeros_like(other)):
                expected.append(difference(run(few.clean, layer, mlp, value)[0]))
    found = FusedEngine(model(name), reference).run(Sweep(tuple(made)), few)
    assert_same(found, np.stack(expected), 1e-10)
    assert (np.abs(found.logit_diff[1:] - found.logit_diff[0]).max(1) > 1e-3).all()


PARTS = {  # what a family has, and the decoder without it
    "query_gain": ("qwen3", lambda one: {"query_gain": None}),
    "key_gain": ("gemma3", lambda one: {"key_gain": None}),
    "attention_gain": ("gemma2", lambda one: {"attention_gain": None}),
    "mlp_gain": ("gemma3", lambda one: {"mlp_gain": None}),
    "window": ("gemma2", lambda one: {"window": None}),
    "one position more in the window": ("qwen3 with windows", lambda one: {"window": one.window and one.window + 1}),
    "table": ("gemma3", lambda one: {"table": 0}),
}
WHOLES = {"score_cap": "gemma2", "logit_cap": "gemma2", "embedding_scale": "gemma"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", [*PARTS, *WHOLES])
def test_without_any_of_its_parts_it_is_another_model(part, model, reference, few) -> None:
    name = WHOLES[part] if part in WHOLES else PARTS[part][0]
    sweep = Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("mean"), "a"), noise([Node("mlp", 0)], "b")))
    fused = FusedEngine(model(name), reference)
    whole = fused.run(sweep, few).logit_diff
    layers = tuple(replace(one, **({} if part in WHOLES else PARTS[part][1](one))) for one in fused.decoder.layers)
    fused.decoder = replace(fused.decoder, layers=layers, **({part: None} if part in WHOLES else {}))
    assert np.abs(fused.run(sweep, few).logit_diff - whole).max() > 1e-3 * np.abs(whole).max()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MADE)
def test_auto_chooses_it_and_gradients_are_the_model_s(name, model, reference, few) -> None:
    one = choose({**toy.ENGINE, "name": "auto"}, model(name), reference, few)
    assert one.describe()["backend"] == "fused", one.why
    assert isinstance(one, FusedEngine)
    engines = GradientEngine(model(name), decoder=one.decoder), GradientEngine(model(name))
    found, expected = (engine.node_effects(few, "clean", correcting=True) for engine in engines)
    for kind, estimates in expected.items():
        for field in ("plain", "corrected")[: 1 if kind == "v" else 2]:
            values = getattr(estimates, field)
            assert np.abs(getattr(found[kind], field) - values).max() < 1e-8 * np.abs(values).max(), (kind, field)
