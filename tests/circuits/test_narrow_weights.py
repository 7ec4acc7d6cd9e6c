"""float32 over bfloat16: weights in 16 bits, computed with as float32, everywhere."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from circuits import folding, models, narrow_weights
from circuits.circuit import Node, head
from circuits.engine import FusedEngine, LensEngine, choose
from circuits.engine.gradients import GradientEngine
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise, patch_paths
from circuits.models import UnsupportedArchitectureError
from circuits.narrow_weights import Narrow, narrow, plain
from results_io import UserError
from tests.circuits import toy

pytestmark = pytest.mark.every_architecture

NAME = "float32_over_bfloat16"


@pytest.fixture(scope="module")
def load(folder):
    return cache(lambda family, dtype=NAME: toy.load(folder(family), dtype))


@pytest.fixture
def matrix():
    return narrow(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16())


# --- a matrix ------------------------------------------------------------------------------------------------------


def test_it_says_float32_and_takes_half_of_that(matrix) -> None:
    parameter = torch.nn.Parameter(matrix)
    assert isinstance(parameter, torch.nn.Parameter) and parameter.dtype == torch.float32
    assert plain(parameter).dtype == torch.bfloat16 and parameter.untyped_storage().nbytes() == 6 * 4 * 2
    assert (
        narrow_weights.wide(parameter).dtype == torch.float32 and type(narrow_weights.wide(parameter)) is torch.Tensor
    )


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.T,
        lambda x: x[1],
        lambda x: x[:, 1:3],
        lambda x: x.unflatten(0, (2, 3)),
        lambda x: x.split(2)[1],
        lambda x: x.index_select(0, torch.tensor([4, 1])),
        lambda x: x.detach().clone().contiguous(),
        lambda x: torch.cat([x, x]),
        lambda x: x.to("cpu"),
        copy.deepcopy,
    ],
)
def test_what_moves_it_keeps_it_narrow(cut, matrix) -> None:
    found = cut(matrix)
    assert isinstance(found, Narrow) and plain(found).dtype == torch.bfloat16
    assert torch.equal(plain(found), cut(plain(matrix)))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: torch.ones(3, 6) @ x,
        lambda x: functional.linear(torch.ones(3, 4), x, torch.ones(6)),
        lambda x: functional.embedding(torch.tensor([5, 0]), x),
        lambda x: torch.einsum("od,rd->ro", x, torch.ones(2, 4)),
        lambda x: torch.addmm(torch.ones(4), torch.ones(3, 6), x),
        lambda x: x[torch.tensor([4, 1])],
        lambda x: x[[2, 0]],
        lambda x: torch.stack([x, x]),
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.square().mean(0),
        lambda x: x.new_zeros(2),
        lambda x: torch.where(x > 0, x, 0.0),
    ],
)
def test_what_computes_with_it_is_float32(compute, matrix) -> None:
    found, expected = compute(matrix), compute(plain(matrix).float())
    assert type(found) is torch.Tensor and found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("widened", [1, 8, 10**6])
def test_products_and_gradients_do_not_depend_on_how_much_is_widened(widened, matrix, monkeypatch) -> None:
    monkeypatch.setattr(narrow_weights, "WIDENED", {"cpu": widened, "cuda": widened})
    x, bias = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.ones(6)
    exact = plain(matrix).double()
    with torch.no_grad():
        found = functional.linear(x, matrix, bias)
    assert float((found - functional.linear(x.double(), exact, bias.double())).abs().max()) < 1e-6
    own, other = x.clone().requires_grad_(), x.double().requires_grad_()
    functional.linear(own, matrix, bias).square().sum().backward()
    functional.linear(other, exact, bias.double()).square().sum().backward()
    assert own.grad is not None and other.grad is not None and float((own.grad - other.grad).abs().max()) < 1e-5


# --- a model -------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(8)
@torch.no_grad()
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_its_log_probabilities_are_those_of_plain_hugging_face_in_float32(family, load, folder) -> None:
    """Up to one rounding of the weights that were folded, a fraction of what computing in bfloat16 costs."""
    tokens = torch.randint(0, toy.VOCABULARY, (4, 11), generator=torch.Generator().manual_seed(0))
    expected = toy.plain(folder(family), torch.float32)(tokens).logits.double().log_softmax(-1)
    errors = {}
    for dtype in (NAME, "bfloat16"):
        found = load(family, dtype).bridge(tokens, return_type="logits").double().log_softmax(-1)
        errors[dtype] = float((found - expected).square().mean().sqrt())
    model = load(family)
    assert errors[NAME] < 0.5 * errors["bfloat16"]
    assert (model.precision, model.dtype) == (NAME, torch.float32)
    matrices = [weight for weight in model.bridge.parameters() if weight.ndim > 1]
    assert all(plain(weight).dtype == torch.bfloat16 for weight in matrices)
    bare = models.load_plain({"dtype": NAME, "device": "cpu"}, model.identity)[0]
    assert float((bare(tokens).logits.double().log_softmax(-1) - expected).abs().max()) < 1e-4  # the toy's are bfloat16


@pytest.mark.sampled(8)
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_both_backends_and_gradients_agree_as_in_float32(family, load, reference, scored) -> None:
    model, prompts = load(family), scored.select([0, 5, 9])
    last = model.n_layers - 1
    nodes = [head(0, 1), head(last, 2), Node("mlp", 0), Node("residual", last), Node("attention", 0)]
    made = [variant(node, recipe) for node in nodes for recipe in RECIPES for variant in (_ablated, _at_a_position)]
    made += [noise([head(0, 1), head(last, 0)], "n"), denoise([Node("mlp", last)], "d", ("end",))]
    if family in toy.ARCHITECTURES:
        edge = next(edge for edge in model.graph.edges if edge.writer == head(0, 1) and edge.reader.kind == "q")
        made.append(patch_paths([edge], Recipe("patch", source="corrupted"), "path"))
    sweep = Sweep((Variant("clean"), *made), probabilities=True)
    fused = choose({**toy.ENGINE, "name": "fused"}, model, reference, prompts)
    found, expected = fused.run(sweep, prompts), LensEngine(model, reference).run(sweep, prompts)
    assert found.logit_diff.dtype == np.float32
    assert np.abs(found.logit_diff - expected.logit_diff).max() < 1e-4 * np.abs(expected.logit_diff).max()
    exact = FusedEngine(load(family, "float32"), reference).run(sweep, prompts).logit_diff
    coarse = FusedEngine(load(family, "bfloat16"), reference).run(sweep, prompts).logit_diff
    errors = [np.sqrt(np.mean((one - exact) ** 2)) for one in (found.logit_diff, coarse)]
    assert errors[0] < 0.8 * errors[1]
    assert isinstance(fused, FusedEngine)
    engines = GradientEngine(model, decoder=fused.decoder), GradientEngine(model)
    fast, slow = (engine.node_effects(prompts, "clean")["v"].plain for engine in engines)
    assert np.abs(fast - slow).max() < 1e-3 * np.abs(slow).max()


RECIPES = (Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise", additive=True, scale=3.0))


def _ablated(node: Node, recipe: Recipe) -> Variant:
    return ablate([node], recipe, f"{node} {recipe}")


def _at_a_position(node: Node, recipe: Recipe) -> Variant:
    return denoise([node], f"{node} {recipe} at s2", ("s2",))


def test_a_model_that_is_folded_wrongly_is_refused(folder, monkeypatch) -> None:
    """The proof against plain Hugging Face has room for rounding and for nothing else."""
    fold = folding.fold

    def spoilt(bridge):
        fold(bridge)
        bridge.state_dict()["unembed.weight"].mul_(1.1)

    monkeypatch.setattr(folding, "fold", torch.no_grad()(spoilt))
    with pytest.raises(
        UnsupportedArchitectureError, match=r"differ from plain Hugging Face's by 0\.\d+ of the largest"
    ):
        toy.load(folder("llama"), NAME)


@pytest.mark.parametrize("name", ["float32_over_int4", "bfloat16_over_float32", "int8", "over"])
def test_a_name_of_no_type_is_refused(name, folder) -> None:
    with pytest.raises(UserError) as refused:
        toy.load(folder("gpt2"), name)
    assert str(refused.value) == (
        f"model.dtype={name} is no floating-point type; use float32, the scoring type, float32_over_bfloat16, which keeps "
        "weights in half the memory, or bfloat16"
    )
