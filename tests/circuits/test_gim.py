"""GIM's gradients against a GPT-2 written out by hand, the authors' package, and their own limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circuits.engine import decoder
from circuits.engine.gim import BackwardPass, softmax
from circuits.engine.gradients import METHODS, GradientEngine
from circuits.models import UnsupportedArchitectureError
from circuits.prompts import PromptSet
from tests.circuits import toy

GIM = BackwardPass()
PLAIN = BackwardPass(temperature=1.0, query=1.0, key=1.0, value=1.0)


@pytest.fixture(scope="module")
def several(scored) -> PromptSet:
    return scored.select([0, 5, 9, 20, 27])


@pytest.fixture(scope="module")
def engine(load) -> Callable[..., GradientEngine]:
    """engine(architecture, fused, backward)"""

    @cache
    def make(architecture: str = "gpt2", fused: bool = False, backward: BackwardPass | None = GIM) -> GradientEngine:
        model = load(architecture, "float64")
        return GradientEngine(model, decoder=decoder.of(model) if fused else None, backward=backward)

    return make


# --- by hand -----------------------------------------------------------------------------------------------------


class ByHand:
    """The forward pass of a plain GPT-2, and GIM's backward pass as sums of Jacobian-vector products.

    Nothing of torch's automatic differentiation but that of the MLP is used. One prompt at a time. z is that of a bridge,
    without the value bias, which an attention pattern passes on whatever it is: its gradient is the same.
    """

    def __init__(self, model: Any, backward: BackwardPass) -> None:
        self.model, self.rule = model, backward
        self.heads, self.width = toy.N_HEADS, toy.D_HEAD

    def norm(self, module: Any, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        scale = (x.var(-1, keepdim=True, unbiased=False) + module.eps).sqrt()
        value = (x - x.mean(-1, keepdim=True)) / scale * module.weight + module.bias

        def back(gradient: Tensor) -> Tensor:
            own = gradient * module.weight / scale
            return own - own.mean(-1, keepdim=True)

        return value, back

    def run(self, tokens: Tensor, direction: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """(z of each layer, [position, head, d_head]; dLD/dz of each layer), LD = direction . final norm at the end."""
        parts, length = self.model.transformer, len(tokens)
        x = parts.wte.weight[tokens] + parts.wpe.weight[:length]
        states, steps = [], []
        for block in parts.h:
            normed, norm_back = self.norm(block.ln_1, x)
            q, k, v = (
                t.view(length, self.heads, self.width).transpose(0, 1) for t in block.attn.c_attn(normed).chunk(3, -1)
            )
            scores = (q @ k.mT / self.width**0.5).masked_fill(~torch.ones(length, length).tril().bool(), -torch.inf)
            pattern = scores.softmax(-1)
            z = (pattern @ v).transpose(0, 1)
            middle = x + block.attn.c_proj(z.reshape(length, -1))
            read, read_back = self.norm(block.ln_2, middle)
            states.append(z)
            steps.append((block, norm_back, q, k, v, scores, pattern, read, read_back))
            x = middle + block.mlp(read)
        _, back = self.norm(parts.ln_f, x)
        gradient = torch.zeros_like(x)
        gradient[-1] = direction
        gradient, slopes = back(gradient), []
        for step in reversed(steps):
            gradient, slope = self.back_through(step, gradient)
            slopes.append(slope)
        return states, slopes[::-1]

    def back_through(self, parts: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor, Tensor]:
        block, norm_back, q, k, v, scores, pattern, read, read_back = parts
        transposed = torch.func.vjp(block.mlp, read)[1]
        gradient = gradient + read_back(transposed(gradient)[0])
        slope = (gradient @ block.attn.c_proj.weight.T).view(-1, self.heads, self.width)
        at_z = slope.transpose(0, 1)
        at_pattern, at_v = at_z @ v.mT, self.rule.value * (pattern.mT @ at_z)
        smooth = (scores / self.rule.temperature).softmax(-1)
        at_scores = smooth * (at_pattern - (at_pattern * smooth).sum(-1, keepdim=True)) / self.width**0.5
        at_q, at_k = self.rule.query * (at_scores @ k), self.rule.key * (at_scores.mT @ q)
        joint = torch.cat([t.transpose(0, 1).flatten(1) for t in (at_q, at_k, at_v)], -1)
        return gradient + norm_back(joint @ block.attn.c_attn.weight.T), slope


def scores_by_hand(model: Any, rule: BackwardPass, prompts: PromptSet) -> np.ndarray:
    """(z_corrupted - z_clean) . dLD/dz of the clean run, [prompt, head]."""
    by_hand, rows = ByHand(model, rule), []
    for row in range(len(prompts)):
        length = int(prompts.end[row]) + 1
        ids = [[i for i in part[row].tolist() if i >= 0] for part in (prompts.answers, prompts.wrong)]
        weights = model.lm_head.weight
        direction = weights[ids[0]].mean(0) - weights[ids[1]].mean(0)
        clean, slopes = by_hand.run(prompts.clean[row, :length], direction)
        corrupted, _ = by_hand.run(prompts.corrupted[row, :length], direction)
        rows.append(torch.cat([((o - c) * s).sum((0, 2)) for c, o, s in zip(clean, corrupted, slopes, strict=True)]))
    return torch.stack(rows).detach().numpy()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", [GIM, BackwardPass(5.0, 0.1, 0.7, 0.9)])
def test_heads_scores_are_those_of_a_backward_pass_by_hand(rule, fused, engine, plain, several) -> None:
    found = engine("gpt2", fused, rule).head_effects(several, "clean").plain
    expected = scores_by_hand(plain("gpt2"), rule, several)
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < 1e-10 * np.abs(expected).max()
    ordinary = engine("gpt2", fused, None).head_effects(several, "clean").plain
    assert np.abs(found - ordinary).max() > 0.05 * np.abs(ordinary).max()


def test_the_softmax_s_gradient_by_hand() -> None:
    """Scores 0 and log 16 at temperature 2: p is 1/17, 16/17 and p' is 1/5, 4/5; of dL/dp = (1, 0), p' (1 - 1/5) is .16."""
    scores = torch.tensor([0.0, float(np.log(16))], dtype=torch.float64, requires_grad=True)
    pattern = softmax(scores, 2.0)
    assert pattern.tolist() == pytest.approx([1 / 17, 16 / 17])
    pattern[0].backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx([0.16, -0.16])


def test_where_one_of_two_is_enough_the_ordinary_gradient_vanishes_and_gim_s_does_not() -> None:
    scores = torch.tensor([20.0, 20.0, 0.0], dtype=torch.float64, requires_grad=True)
    (ordinary,) = torch.autograd.grad(scores.softmax(-1)[:2].sum(), scores)
    (found,) = torch.autograd.grad(softmax(scores, 2.0)[:2].sum(), scores)
    assert abs(ordinary[0]) < 1.1e-9 and found[0] == pytest.approx(0.5 * np.exp(-10) / 2, rel=1e-3)


# --- both engines, every family -----------------------------------------------------------------------------------


def everything(engine: GradientEngine, prompts: PromptSet) -> list[np.ndarray]:
    heads = [engine.head_effects(prompts, base).plain for base in ("clean", "corrupted")]
    integrated = engine.integrated_head_effects(prompts, "corrupted", 3)
    return [*heads, integrated, *(engine.edge_scores(prompts, "clean", method).mean for method in METHODS)]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_a_decoder_and_the_model_s_own_modules_agree(architecture, engine, several) -> None:
    one, two = (everything(engine(architecture, fused), several) for fused in (False, True))
    assert all(np.nanmax(np.abs(a - b)) < 1e-9 * np.nanmax(np.abs(a)) for a, b in zip(one, two, strict=True))


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("fused", [False, True])
def test_the_forward_pass_stays_as_it_is(fused, engine, several) -> None:
    """The sum of all edges' changes at the ends of the path: LD of both runs does not know the rule."""
    ordinary, modified = (engine("gpt2", fused, rule).edge_scores(several, "clean", "eap") for rule in (None, GIM))
    assert modified.total_effect == pytest.approx(ordinary.total_effect, rel=1e-12)


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_heads_of_every_family(architecture, engine, several) -> None:
    """With temperature and shares of 1 only the norms differ; GIM moves the scores further, and they stay finite."""
    ordinary, frozen, found = (
        engine(architecture, False, rule).head_effects(several, "clean").plain for rule in (None, PLAIN, GIM)
    )
    assert np.isfinite(found).all()
    assert np.abs(frozen - ordinary).max() > 1e-3 * np.abs(ordinary).max()
    assert np.abs(found - frozen).max() > 1e-2 * np.abs(frozen).max()


def test_edges_of_the_last_layer_to_the_logits_are_the_heads_own_direct_effects(engine, several) -> None:
    """What follows z of the last layer's heads is the MLP and the final norm: their edges to both add up to their score."""
    run = engine()
    edges = run.edge_scores(several, "clean", "eap")
    heads = run.head_effects(several, "clean").plain.mean(0).reshape(-1, toy.N_HEADS)[-1]
    last = [run.graph.writers.index(node) for node in run.model.heads[-toy.N_HEADS :]]
    assert np.nansum(edges.mean[:, last], 0) == pytest.approx(heads, rel=1e-9)


def test_a_run_leaves_no_hook_in_the_model(engine, several) -> None:
    run = engine()
    everything(run, several)
    points = run.model.bridge.hook_dict.values()
    assert not any(point.fwd_hooks or point.bwd_hooks for point in points)


def test_a_pattern_that_is_no_softmax_of_its_scores_is_refused(engine, several, monkeypatch) -> None:
    run = engine()
    attention = type(run.model.bridge.blocks[0].attn)
    own = attention._masked_softmax
    monkeypatch.setattr(attention, "_masked_softmax", lambda self, scores, dtype=None: own(self, scores, dtype) ** 2)
    with pytest.raises(UnsupportedArchitectureError, match=r"pattern of layer 0 .* is not the softmax of its scores"):
        run.head_effects(several, "clean")


# --- integrated gradients over nodes ------------------------------------------------------------------------------


def integrated_by_hand(model: Any, prompts: PromptSet, steps: int) -> np.ndarray:
    """(z_clean - z_corrupted) . mean of dLD/dz over runs between, by plain autograd on the Hugging Face model."""
    kept: dict[int, Tensor] = {}
    blocks, rows = list(model.transformer.h), []

    def keep(module, args, layer):
        kept[layer] = args[0]

    handles = [
        block.attn.c_proj.register_forward_pre_hook(lambda m, a, layer=layer: keep(m, a, layer))
        for layer, block in enumerate(blocks)
    ]
    embed = model.transformer.wte
    for row in range(len(prompts)):
        length = int(prompts.end[row]) + 1
        sides = [embed(part[row, :length]).detach() for part in (prompts.corrupted, prompts.clean)]
        ids = [[i for i in part[row].tolist() if i >= 0] for part in (prompts.answers, prompts.wrong)]
        ends, slopes = [], torch.zeros(len(blocks), length, toy.D_MODEL, dtype=torch.float64)
        for side in sides:
            model(inputs_embeds=side[None])
            ends.append(torch.stack([kept[layer][0].detach() for layer in range(len(blocks))]))
        for step in range(steps):
            start = sides[0] + (step + 0.5) / steps * (sides[1] - sides[0])
            logits = model(inputs_embeds=start[None].requires_grad_()).logits[0, -1]
            difference = logits[ids[0]].mean() - logits[ids[1]].mean()
            found = torch.autograd.grad(difference, [kept[layer] for layer in range(len(blocks))])
            slopes += torch.stack([one[0] for one in found]) / steps
        by_head = ((ends[1] - ends[0]) * slopes).unflatten(-1, (toy.N_HEADS, toy.D_HEAD)).sum((1, 3))
        rows.append(by_head.flatten())
    for handle in handles:
        handle.remove()
    return torch.stack(rows).detach().numpy()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_integrated_gradients_of_heads_are_those_of_plain_autograd(steps, fused, engine, plain, several) -> None:
    found = engine("gpt2", fused, None).integrated_head_effects(several, "corrupted", steps)
    expected = integrated_by_hand(plain("gpt2"), several, steps)
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < 1e-9 * np.abs(expected).max()
    reverse = engine("gpt2", fused, None).integrated_head_effects(several, "clean", steps)
    assert np.abs(reverse + found).max() < 1e-9 * np.abs(expected).max()


# --- the authors' package -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.filterwarnings("ignore:A forward hook edited hook_scale")
@pytest.mark.parametrize("architecture", ["gpt2", "neox"])
def test_the_authors_package_gives_the_same_gradients(architecture, engine, several, monkeypatch) -> None:
    """gim-explain 0.1.4: the gradient at every z inside its context, times the change of z."""
    package = pytest.importorskip("gim", reason="the optional extra gim is not installed")
    run = engine(architecture)
    # its softmax takes no dtype, with which TransformerLens calls softmax
    monkeypatch.setattr(
        type(run.model.bridge.blocks[0].attn), "_masked_softmax", lambda self, scores, dtype=None: scores.softmax(-1)
    )
    bridge, kept = run.model.bridge, {}

    def keep(tensor: Tensor, hook: object, name: str) -> Tensor:
        kept[name] = tensor.detach().requires_grad_() if not tensor.requires_grad else tensor.view_as(tensor)
        return kept[name]

    names = [f"blocks.{layer}.attn.hook_z" for layer in range(run.model.n_layers)]
    hooks = [(name, lambda tensor, hook, name=name: keep(tensor, hook, name)) for name in names]
    expected = []
    for row in range(len(several)):
        length, parts = int(several.end[row]) + 1, []
        with torch.no_grad():
            bridge.run_with_hooks(several.corrupted[row : row + 1, :length], fwd_hooks=hooks)
            corrupted = {name: kept[name] for name in names}
        with torch.enable_grad(), package.GIM(bridge):
            logits = bridge.run_with_hooks(several.clean[row : row + 1, :length], fwd_hooks=hooks, return_type="logits")
            ids = [[i for i in part[row].tolist() if i >= 0] for part in (several.answers, several.wrong)]
            difference = logits[0, -1, ids[0]].mean() - logits[0, -1, ids[1]].mean()
            slopes = torch.autograd.grad(difference, [kept[name] for name in names])
        for name, slope in zip(names, slopes, strict=True):
            parts.append(((corrupted[name] - kept[name].detach()) * slope).sum((0, 1, 3)))
        expected.append(torch.cat(parts))
    found = run.head_effects(several, "clean").plain
    truth = torch.stack(expected).detach().numpy()
    assert np.abs(found - truth).max() < 1e-10 * np.abs(truth).max()
