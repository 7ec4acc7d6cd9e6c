"""What an intervention puts in place: by the documented laws, computed where the activations are, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from circuits.engine.sources import ReferenceActivations, Sources
from circuits.interventions import Recipe
from circuits.prompts import PromptSet
from tests.circuits import philox_loop

HOOKS = {"blocks.0.attn.hook_z": (3, 5), "blocks.1.attn.hook_z": (3, 5), "blocks.1.hook_mlp_out": (7,)}
RECIPES = (
    Recipe("zero"),
    Recipe("zero_raw"),
    Recipe("mean"),
    Recipe("mean", pooled=True),
    Recipe("resample"),
    Recipe("resample", seed=4, draw=2),
    Recipe("noise"),
    Recipe("noise", draw=1),
    Recipe("noise", scale=0.5, seed=4, draw=1),
    Recipe("noise", additive=True, scale=3.0),
    Recipe("patch"),
    Recipe("patch", source="corrupted"),
)
CONSTANTS = {"blocks.0.attn.hook_z": torch.arange(15.0).view(3, 5)}


def run(device: str = "cpu", dtype: torch.dtype = torch.float32):
    """Activations that depend on token, position and component, on a device."""

    def activations(prompts: PromptSet, base: str, hooks: tuple[str, ...]) -> dict[str, torch.Tensor]:
        tokens = prompts.clean if base == "clean" else prompts.corrupted
        found = {}
        for hook in hooks:
            shape = HOOKS[hook]
            phase = torch.arange(torch.Size(shape).numel()).view(shape) + len(hook)
            place = torch.arange(tokens.shape[1])[None, :].expand_as(tokens)
            both = (tokens * 0.37 + place * 1.3)[(..., *[None] * len(shape))]
            found[hook] = torch.sin(both * (1 + phase)).to(dtype).to(device)
        return found

    return activations


def sources(prompts: PromptSet, reference: PromptSet, device: str = "cpu", dtype=torch.float32) -> Sources:
    own = run(device, dtype)
    return Sources(prompts, ReferenceActivations(reference, own, CONSTANTS), own)


@pytest.fixture(scope="module")
def whole(scored, reference) -> dict:
    made = sources(scored, reference)
    return {(hook, recipe): made.get(hook, recipe) for hook in HOOKS for recipe in RECIPES}


def test_noise_and_donors_are_those_of_the_laws(scored, reference, whole) -> None:
    activations = run()(reference, "clean", tuple(HOOKS))
    real = torch.arange(reference.clean.shape[1]) <= reference.end[:, None]
    for hook, shape in HOOKS.items():
        pooled = activations[hook][real].double()
        mean, deviation = pooled.mean(0), pooled.std(0)
        own = run()(scored, "clean", (hook,))[hook].double()
        for row in (0, 5, len(scored) - 1):
            length = int(scored.end[row]) + 1
            same = [other for other, name in enumerate(reference.templates) if name == scored.templates[row]]
            for recipe in (one for one in RECIPES if one.kind in ("noise", "resample")):
                found = whole[hook, recipe][row, :length].double()
                if recipe.kind == "resample":
                    donor = same[philox_loop.donor(recipe.seed, scored.ids[row], recipe.draw, len(same))]
                    assert torch.equal(found, activations[hook][donor, :length].double())
                    continue
                count = length * torch.Size(shape).numel()
                drawn = philox_loop.normal(recipe.seed, scored.ids[row], hook, recipe.draw, count)
                centre = own[row, :length] if recipe.additive else mean
                expected = centre + recipe.scale * deviation * torch.tensor(drawn, dtype=torch.float64).view(
                    length, *shape
                )
                assert float((found - expected).abs().max()) < 2e-6 * recipe.scale + 1e-6


def test_batches_order_and_padding_change_no_bit(scored, reference, whole) -> None:
    order = np.random.default_rng(0).permutation(len(scored)).tolist()
    batches = [order, order[:1], order[1:8], sorted(order, key=lambda row: int(scored.end[row]))[:9]]
    for rows in batches:
        batch = scored.select(rows)
        padded = {name: torch.nn.functional.pad(getattr(batch, name), (0, 3)) for name in ("clean", "corrupted")}
        wider = replace(batch, **padded)
        for made in (sources(batch, reference), sources(wider, reference)):
            for (hook, recipe), expected in whole.items():
                found = made.get(hook, recipe)
                assert found.shape[:2] == made.prompts.clean.shape
                for place, row in enumerate(rows):
                    length = int(scored.end[row]) + 1
                    assert torch.equal(found[place, :length], expected[row, :length]), (hook, recipe)


def test_drawn_together_or_each_alone_is_the_same(scored, reference, whole) -> None:
    made = sources(scored, reference)
    noise = [(hook, recipe) for hook in HOOKS for recipe in RECIPES if recipe.kind == "noise"]
    made.prefetch_noise(reversed(noise))
    assert all(torch.equal(made.get(*pair), whole[pair]) for pair in noise)


class Operations(TorchDispatchMode):
    """Counts operations that compute or copy."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
        views = all(one.untyped_storage().data_ptr() in given for one in made)
        self.count += function._schema.is_mutable or not views
        return out


def test_noise_of_all_layers_and_draws_takes_as_many_launches_as_one(scored, reference) -> None:
    """Each by itself takes as many. Beyond the joint ones each pair needs its scale, its product and its sum."""
    counts = {}
    for draws in (1, 5):
        made = sources(scored.select(range(4)), reference)
        pairs = [(hook, Recipe("noise", draw=draw)) for hook in list(HOOKS)[:2] for draw in range(draws)]
        made.prefetch_noise(pairs[:1])
        for hook in HOOKS:
            made.reference.pooled(hook)
        made._stored.clear()
        with Operations() as launched:
            made.prefetch_noise(pairs)
        counts[draws] = launched.count
    assert 100 < counts[1] < 170
    assert counts[5] - counts[1] <= 3 * 8


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_everything_is_computed_where_the_activations_are(hook, recipe, scored, reference) -> None:
    """On the meta device no value can be read and nothing from elsewhere mixed in."""
    found = sources(scored, reference, "meta").get(hook, recipe)
    assert (found.device.type, found.shape) == ("meta", (*scored.clean.shape, *HOOKS[hook]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_dtype_has_the_same_draws(dtype, scored, reference, whole) -> None:
    made = sources(scored, reference, dtype=dtype)
    for pair, expected in whole.items():
        found = made.get(*pair)
        assert found.dtype == dtype
        assert float((found.double() - expected.double()).abs().max()) < (0.15 if dtype == torch.bfloat16 else 1e-5)
