"""Gradients against finite differences, exact patches, closed limits and a model in which nothing is nonlinear.

The twin for edges is a bridge of its own in which TransformerLens hands every head its own copy of the stream
(`hook_q_input` and so on): a reader's input is moved there, and nothing of the engine is used. Rotary models compute
their norms and softmax in float32 whatever their dtype; here that is undone, so that differences can be small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from einops import einsum
from torch import Tensor
from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from circuits.circuit import Node, head
from circuits.edges import PROJECTIONS, Edge, Reader
from circuits.engine import DeadHookError, LensEngine, decoder
from circuits.engine.gradients import METHODS, GradientEngine, NodeEstimates, _gradients, frozen, midpoints
from circuits.interventions import Intervention, Recipe, Sweep, Variant, denoise, noise
from circuits.models import Model
from circuits.prompts import PromptSet
from results_io import UserError
from tests.circuits import toy

STEP = 1e-5  # of central differences: error about STEP^2 from curvature and 1e-16 / STEP from rounding
EVERY = toy.ARCHITECTURES


# --- models ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    """Norms and softmax of rotary models in the dtype of their input."""
    softmax = AttentionBridge._masked_softmax

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaRMSNorm, "forward", norm)
        patch.setattr(Qwen2RMSNorm, "forward", norm)
        patch.setattr(
            AttentionBridge, "_masked_softmax", lambda self, scores, dtype=None: softmax(self, scores, scores.dtype)
        )
        yield


@pytest.fixture(scope="module")
def few(scored) -> PromptSet:
    """Three prompts of two lengths."""
    chosen = scored.select([0, 5, 9])
    assert len(set(chosen.end.tolist())) == 2
    return chosen


@pytest.fixture(scope="module")
def engine(load) -> Callable[[str], GradientEngine]:
    return cache(lambda architecture="gpt2": GradientEngine(load(architecture, "float64")))


@pytest.fixture(scope="module")
def split(folder) -> Callable[[str], Model]:
    """split(architecture): the model with a copy of the stream for every reader."""

    @cache
    def make(architecture: str) -> Model:
        model = toy.load(folder(architecture), "float64")
        model.bridge.set_use_split_qkv_input(True)
        model.bridge.set_use_hook_mlp_in(True)
        return model

    return make


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> Callable[..., Model]:
    """linear(architecture, sharp): a random model whose logits are linear in every activation.

    An epsilon of 1e14 makes the norms' scale constant, attention is uniform (W_Q = 0) and MLPs are linear or absent.
    Up to layer `sharp` attention is saturated instead, and all that follows that layer's is linear.
    """

    @cache
    def make(architecture: str, sharp: int = -1) -> Model:
        model = _linear_gpt2() if architecture == "gpt2" else _linear_llama()
        layers = model.transformer.h if architecture == "gpt2" else model.model.layers
        with torch.no_grad():
            for index, layer in enumerate(layers):
                if architecture == "gpt2":
                    query = layer.attn.c_attn.weight[:, : toy.D_MODEL]
                else:
                    query = layer.self_attn.q_proj.weight
                query *= SHARP if index <= sharp else 0
        path = tmp_path_factory.mktemp("linear") / f"{architecture}{sharp}"
        return toy.load(toy.save(model, path), "float64")

    return make


EPSILON, GAIN = 1e14, 1e7
SHARP = 300  # times a random W_Q: scores of some hundreds
SIZE = {"vocab_size": toy.VOCABULARY, "bos_token_id": 1, "eos_token_id": 1, "tie_word_embeddings": False}


def _linear_gpt2() -> GPT2LMHeadModel:
    shape = {"n_embd": toy.D_MODEL, "n_head": toy.N_HEADS, "n_layer": 3, "n_positions": toy.N_POSITIONS}
    made = GPT2Config(**shape, **SIZE, activation_function="linear", layer_norm_epsilon=EPSILON)
    model = GPT2LMHeadModel(made)
    return _randomise(model)


def _linear_llama() -> LlamaForCausalLM:
    shape = {"hidden_size": toy.D_MODEL, "num_attention_heads": toy.N_HEADS, "num_hidden_layers": 3}
    shape |= {"intermediate_size": 16, "max_position_embeddings": toy.N_POSITIONS, "num_key_value_heads": 2}
    model = _randomise(LlamaForCausalLM(LlamaConfig(**shape, **SIZE, rms_norm_eps=EPSILON)))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.zero_()
    return model


@torch.no_grad()
def _randomise(model):
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            scale = 0.1 if "mlp" in name else 0.3  # linear MLPs blow the stream up
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        else:
            parameter.fill_(0.0 if name.endswith("bias") else GAIN)
    return model.eval()


# --- by hand -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def run(model: Model, prompts: PromptSet, base: str, hooks: list) -> np.ndarray:
    """Logit differences [prompt] of a run with hooks, from the definition."""
    tokens = prompts.clean if base == "clean" else prompts.corrupted
    logits = model.bridge.run_with_hooks(tokens, fwd_hooks=hooks)
    found = []
    for row, end in enumerate(prompts.end.tolist()):
        answers, foils = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
        found.append(float(logits[row, end, answers].mean() - logits[row, end, foils].mean()))
    return np.array(found)


@torch.no_grad()
def read(model: Model, prompts: PromptSet, base: str, names: list[str]) -> dict[str, Tensor]:
    tokens, kept = prompts.clean if base == "clean" else prompts.corrupted, {}
    hooks = [(name, lambda tensor, hook, name=name: kept.__setitem__(name, tensor.clone())) for name in names]
    model.bridge.run_with_hooks(tokens, fwd_hooks=hooks)
    return kept


def other(base: str) -> str:
    return "clean" if base == "corrupted" else "corrupted"


def hook_of(writer: Node) -> str:
    if writer.kind == "embedding":
        return "blocks.0.hook_resid_pre"
    return f"blocks.{writer.layer}." + ("attn.hook_z" if writer.kind == "head" else "hook_mlp_out")


def moved(model: Model, prompts: PromptSet, base: str, name: str, amounts: Tensor) -> np.ndarray:
    """Logit differences [variant, prompt] with `amounts` [variant, prompt, position, ...] added at a hook."""
    rows = prompts.select(list(range(len(prompts))) * len(amounts))
    flat = run(model, rows, base, [(name, lambda tensor, hook: tensor + amounts.flatten(0, 1))])
    return flat.reshape(len(amounts), len(prompts))


def slope(model: Model, prompts: PromptSet, base: str, name: str, amounts: Tensor) -> np.ndarray:
    """Central differences [variant, prompt] of the logit difference along `amounts`."""
    up, down = (moved(model, prompts, base, name, sign * STEP * amounts) for sign in (1, -1))
    return (up - down) / (2 * STEP)


def change_at(model: Model, prompts: PromptSet, base: str, name: str) -> Tensor:
    """x_other - x_base at a hook."""
    return read(model, prompts, other(base), [name])[name] - read(model, prompts, base, [name])[name]


def one_by_one(change: Tensor) -> Tensor:
    """[head, prompt, position, head, d_head]: variant i has the change of head i alone."""
    return einsum(change, torch.eye(change.shape[2]).to(change), "p t head d, one head -> one p t head d")


def written(model: Model, writer: Node, prompts: PromptSet, base: str) -> Tensor:
    """u_other - u_base in the residual stream, [prompt, position, d_model]."""
    change = change_at(model, prompts, base, hook_of(writer))
    if writer.kind == "head":
        change = change[:, :, writer.index] @ model.bridge.W_O[writer.layer][writer.index].detach()
    return change


def input_of(reader: Reader, model: Model) -> tuple[str, Callable[[Tensor], Tensor]]:
    """The hook of a reader's own input in a split model, and how an addition [..., d_model] is laid out there."""
    if reader.kind == "logits":
        return "ln_final.hook_in", lambda amount: amount
    if reader.kind == "mlp":
        return f"blocks.{reader.layer}.hook_mlp_in", lambda amount: amount
    heads = model.n_heads if reader.kind == "q" else model.graph.n_key_value_heads
    own = torch.eye(heads, dtype=torch.float64)[reader.index]
    return f"blocks.{reader.layer}.hook_{reader.kind}_input", lambda amount: einsum(amount, own, "... d, h -> ... h d")


# --- heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["corrupted", "clean"])
@pytest.mark.parametrize("architecture", EVERY)
def test_head_estimates_are_the_slope_of_the_patch(architecture, base, engine, few) -> None:
    """The effect of patching a share e of the way, over e, tends to AtP with an error proportional to e."""
    model, found = engine(architecture).model, engine(architecture).head_effects(few, base)
    untouched, errors = run(model, few, base, []), {1e-3: [], 1e-4: []}
    for layer in range(model.n_layers):
        name = f"blocks.{layer}.attn.hook_z"
        parts = one_by_one(change_at(model, few, base, name))
        estimate = found.plain[:, layer * toy.N_HEADS : (layer + 1) * toy.N_HEADS].T
        for share, kept in errors.items():
            kept.append((moved(model, few, base, name, share * parts) - untouched) / share - estimate)
    coarse, fine = (np.abs(kept).mean() for kept in errors.values())
    assert fine < 1e-3 * np.abs(found.plain).mean()
    assert coarse / fine == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("base", ["corrupted", "clean"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_head_estimates_are_exact_on_a_linear_model(architecture, base, linear, few, reference) -> None:
    model = linear(architecture)
    patch = denoise if base == "corrupted" else noise
    variants = (Variant("base", base=base), *(patch([node], str(node)) for node in model.heads))
    table = LensEngine(model, reference).run(Sweep(variants), few).logit_diff
    truth = (table[1:] - table[0]).T
    estimate = GradientEngine(model).head_effects(few, base).plain
    assert np.abs(truth).mean() > 0.1
    assert np.abs(estimate - truth).max() < 1e-9 * np.abs(truth).max()


def test_head_estimates_miss_a_nonlinear_model_by_a_stated_amount(engine, few, reference) -> None:
    """Random weights are far from linear: half of the effect is not first-order (measured 0.5 of its mean size)."""
    model = engine().model
    variants = (Variant("base", base="corrupted"), *(denoise([node], str(node)) for node in model.heads))
    table = LensEngine(model, reference).run(Sweep(variants), few).logit_diff
    truth = (table[1:] - table[0]).T
    estimate = engine().head_effects(few, "corrupted").plain
    assert 0.1 < np.abs(estimate - truth).mean() / np.abs(truth).mean() < 1


def test_estimates_with_many_foils(load, sets) -> None:
    prompts, model = sets("greater_than")["evaluation"].select(range(3)), load("gpt2", "float64")
    name = "blocks.1.attn.hook_z"
    found = GradientEngine(model).head_effects(prompts, "corrupted").plain[:, toy.N_HEADS : 2 * toy.N_HEADS]
    expected = slope(model, prompts, "corrupted", name, one_by_one(change_at(model, prompts, "corrupted", name)))
    assert np.abs(found.T - expected).max() < 1e-7
    assert np.abs(expected).mean() > 0.01


# --- gradient dropping -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", EVERY)
def test_dropping_equals_detaching_each_layer_in_turn(architecture, engine, few) -> None:
    model, layers = engine(architecture).model, range(engine(architecture).model.n_layers)
    names = [f"blocks.{layer}.attn.hook_z" for layer in layers]
    clean, corrupted = (read(model, few, base, names) for base in ("clean", "corrupted"))
    expected = []
    for dropped in layers:
        kept = {}

        def keep(tensor: Tensor, hook: object, name: str, kept=kept) -> Tensor:
            kept[name] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
            return kept[name]

        cut = [
            (f"blocks.{dropped}.{part}", lambda tensor, hook: tensor.detach())
            for part in ("hook_attn_out", "hook_mlp_out")
        ]
        hooks = [(name, lambda tensor, hook, name=name, keep=keep: keep(tensor, hook, name)) for name in names]
        logits = model.bridge.run_with_hooks(few.corrupted, fwd_hooks=[*hooks, *cut])
        at_end = logits[torch.arange(3), few.end]
        difference = at_end.gather(1, few.answers) - at_end.gather(1, few.wrong)
        gradients = torch.autograd.grad(difference.sum(), list(kept.values()), allow_unused=True)
        products = [
            torch.zeros(3, toy.N_HEADS) if gradient is None else ((clean[n] - corrupted[n]) * gradient).sum((1, 3))
            for n, gradient in zip(kept, gradients, strict=True)
        ]
        expected.append(torch.cat(products, 1).abs())
        assert not products[dropped].any()  # a head's own layer is its only way out
    mean = (sum(expected) / (len(layers) - 1)).numpy()
    found = engine(architecture).head_effects(few, "corrupted", dropping=True)
    assert np.abs(found.dropped - mean).max() < 1e-12
    assert mean.min() > 0
    assert np.abs(found.plain - engine(architecture).head_effects(few, "corrupted").plain).max() < 1e-12


def test_dropping_sees_a_head_whose_effects_cancel(tmp_path_factory, few, reference) -> None:
    """The MLP of layer 1 takes out all that stands in the stream: no head of layer 0 has an effect.

    Dropping layer 1 leaves the direct effect, dropping layer 2 leaves the cancellation: |direct| / 2 on average.
    """
    network = _linear_gpt2()
    with torch.no_grad():
        for index, block in enumerate(network.transformer.h):
            block.attn.c_attn.weight[:, : toy.D_MODEL] = 0
            block.mlp.c_proj.weight.zero_()
            if index:
                block.attn.c_proj.weight.zero_()
        mlp, identity = network.transformer.h[1].mlp, torch.eye(toy.D_MODEL)
        mlp.c_fc.weight.zero_()[:, : toy.D_MODEL] = identity
        mlp.c_proj.weight[: toy.D_MODEL] = -identity
    model = toy.load(toy.save(network, tmp_path_factory.mktemp("cancel") / "gpt2"), "float64")
    heads = [head(0, index) for index in range(toy.N_HEADS)]
    freeze = Intervention((Node("mlp", 1),), Recipe("patch", source="corrupted"))
    through = [denoise([node], str(node)) for node in heads]
    direct = [
        replace(variant, name=f"{variant.name} direct", interventions=(*variant.interventions, freeze))
        for variant in through
    ]
    table = (
        LensEngine(model, reference).run(Sweep((Variant("base", base="corrupted"), *through, *direct)), few).logit_diff
    )
    total, straight = np.split((table[1:] - table[0]).T, 2, axis=1)
    assert np.abs(total).max() < 1e-9
    assert np.abs(straight).mean() > 0.01
    found = GradientEngine(model).head_effects(few, "corrupted", dropping=True)
    assert np.abs(found.plain[:, : toy.N_HEADS]).max() < 1e-9
    assert np.abs(found.dropped[:, : toy.N_HEADS] - np.abs(straight) / 2).max() < 1e-9


# --- queries, keys and values ------------------------------------------------------------------------------------


def parts_of(model: Model, kind: str, layer: int, prompts: PromptSet) -> tuple[str, Tensor]:
    """The hook of a layer's q, k or v, and what the clean run would change there, one head at a time."""
    name = f"blocks.{layer}.attn.hook_{kind}"
    return name, one_by_one(change_at(model, prompts, "corrupted", name))


def columns_of(estimates: NodeEstimates, layer: int) -> list[int]:
    return [column for column, reader in enumerate(estimates.readers) if reader.layer == layer]


@pytest.mark.sampled(2)
@pytest.mark.every_architecture
@pytest.mark.parametrize("architecture", EVERY)
def test_query_key_and_value_estimates_equal_finite_differences(architecture, engine, few) -> None:
    found, model = engine(architecture).node_effects(few, "corrupted"), engine(architecture).model
    for kind in PROJECTIONS:
        n_nodes = model.n_heads if kind == "q" else model.graph.n_key_value_heads
        assert found[kind].plain.shape == (3, model.n_layers * n_nodes)
        assert found[kind].corrected is None
        for layer in range(model.n_layers):
            expected = slope(model, few, "corrupted", *parts_of(model, kind, layer, few))
            assert np.abs(found[kind].plain[:, columns_of(found[kind], layer)].T - expected).max() < 1e-7
            assert np.abs(expected).mean() > 1e-3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_recomputed_attention_is_exact_where_saturated_attention_has_no_gradient(
    architecture, layer, linear, few
) -> None:
    """What follows the layer is linear: the corrected estimate is the effect, the plain one is not."""
    model = linear(architecture, sharp=layer)
    found = GradientEngine(model).node_effects(few, "corrupted", correcting=True)
    untouched = run(model, few, "corrupted", [])
    for kind in PROJECTIONS:
        columns = columns_of(found[kind], layer)
        truth = (moved(model, few, "corrupted", *parts_of(model, kind, layer, few)) - untouched).T
        scale, plain = np.abs(truth).mean(), found[kind].plain[:, columns]
        assert scale > 0.001
        if kind == "v":
            assert np.abs(plain - truth).max() < 1e-8 * scale
            continue
        assert np.abs(found[kind].corrected[:, columns] - truth).max() < 1e-8 * scale
        assert np.abs(plain - truth).mean() > 0.5 * scale


def test_recomputed_attention_changes_nothing_where_attention_is_uniform(linear, few) -> None:
    found = GradientEngine(linear("llama")).node_effects(few, "clean", correcting=True)
    for kind in ("q", "k"):
        assert np.abs(found[kind].corrected).max() < 1e-9
        assert np.abs(found[kind].plain).max() < 1e-9
    assert np.abs(found["v"].plain).mean() > 0.01


# --- edges -------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("architecture", "base"), list(zip(EVERY, ("corrupted", "clean") * 2, strict=True)))
def test_every_edge_equals_a_finite_difference_at_the_reader_s_input(architecture, base, engine, split, few) -> None:
    scores, model = engine(architecture).edge_scores(few, base, "eap"), engine(architecture).model
    graph = scores.graph
    changes = {writer: written(model, writer, few, base) for writer in graph.writers}
    for row, reader in enumerate(graph.readers):
        name, lay_out = input_of(reader, model)
        writers = graph.writers_of(reader)
        amounts = torch.stack([lay_out(changes[writer]) for writer in writers])
        expected = slope(split(architecture), few, base, name, amounts).mean(1)
        assert np.abs([scores.of(Edge(writer, reader)) for writer in writers] - expected).max() < 1e-7
        assert np.isfinite(scores.mean[row]).sum() == len(writers)
    assert np.nanmean(np.abs(scores.mean)) > 0.01


def test_grouped_queries_share_key_and_value_readers(engine, few) -> None:
    graph = engine("llama").edge_scores(few, "clean", "eap").graph
    kinds = [reader.kind for reader in graph.readers]
    assert (kinds.count("q"), kinds.count("k"), kinds.count("v")) == (8, 4, 4)


@pytest.mark.parametrize("architecture", EVERY)
def test_the_embedding_s_edges_add_up_to_its_gradient(architecture, engine, few) -> None:
    """By the chain rule the readers of the embedding share its gradient out among them."""
    scores, model = engine(architecture).edge_scores(few, "corrupted", "eap"), engine(architecture).model
    name = hook_of(Node("embedding", 0))
    expected = slope(model, few, "corrupted", name, change_at(model, few, "corrupted", name)[None]).mean()
    assert scores.mean[:, 0].sum() == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", EVERY)
def test_integrated_inputs_are_complete(architecture, engine, few) -> None:
    """Over the readers of the embedding the scores add up to LD(other) - LD(base) as steps grow."""
    gradients = engine(architecture)
    truth = (run(gradients.model, few, "clean", []) - run(gradients.model, few, "corrupted", [])).mean()
    steps = (2, 20, 40) if architecture == "gpt2" else (2, 40)
    found = [gradients.edge_scores(few, "corrupted", "eap_ig_inputs", count).mean[:, 0].sum() for count in steps]
    errors = np.abs(np.array(found) - truth)
    assert errors[-1] < 1e-2 * abs(truth)
    assert errors[-1] < 0.1 * errors[0]
    if architecture == "gpt2":
        assert errors[1] / errors[2] == pytest.approx(4, rel=0.25)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", EVERY)
def test_integrated_activations_are_complete_at_every_stage(architecture, engine, few) -> None:
    """Over a stage's writers and all readers the scores add up to the effect of patching the stage, as steps grow."""
    gradients = engine(architecture)
    found = [gradients.edge_scores(few, "corrupted", "eap_ig_activations", steps).mean for steps in (1, 12)]
    errors, sizes = [[], []], []
    for stage in gradients.stages:
        name = hook_of(stage.writers[0])
        change = change_at(gradients.model, few, "corrupted", name)[None]
        ends = (moved(gradients.model, few, "corrupted", name, share * change).mean() for share in (1, 0))
        sizes.append(abs(truth := np.subtract(*ends)))
        for mean, kept in zip(found, errors, strict=True):
            kept.append(abs(np.nansum(mean[:, stage.columns]) - truth))
    assert min(sizes) > 1e-3
    assert np.mean(errors[1]) < 0.05 * np.mean(sizes)
    assert np.mean(errors[1]) < 0.1 * np.mean(errors[0])


def test_integrated_activations_of_the_embedding_are_the_integrated_inputs(engine, few) -> None:
    inputs, activations = (engine().edge_scores(few, "clean", name, 3).mean for name in METHODS[1:])
    assert np.abs(inputs[:, 0] - activations[:, 0]).max() < 1e-12
    assert np.nanmax(np.abs(inputs[:, 1:] - activations[:, 1:])) > 1e-3


@contextmanager
def inputs_split(model: Model) -> Iterator[None]:
    """The stream is copied for every reader meanwhile."""
    model.bridge.set_use_split_qkv_input(True)
    try:
        yield
    finally:
        model.bridge.set_use_split_qkv_input(False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_every_method_gives_the_exact_edge_effect_on_a_linear_model(architecture, method, linear, few) -> None:
    model = linear(architecture)
    gradients = GradientEngine(model)
    scores = gradients.edge_scores(few, "corrupted", method, 2)
    for edge in (
        Edge(head(0, 1), Reader("v", 1, 1)),
        Edge(head(1, 0), Reader("logits", 3)),
        Edge(Node("embedding", 0), Reader("v", 0, 0)),
    ):
        name, lay_out = input_of(edge.reader, model)
        amount = lay_out(written(model, edge.writer, few, "corrupted"))
        with inputs_split(model):
            patched, untouched = moved(model, few, "corrupted", name, torch.stack([amount, 0 * amount]))
        exact = (patched - untouched).mean()
        assert abs(exact) > 1e-3
        assert scores.of(edge) == pytest.approx(exact, rel=1e-8)
    queries = [row for row, reader in enumerate(scores.graph.readers) if reader.kind in "qk"]
    assert np.nanmax(np.abs(scores.mean[queries])) < 1e-9


def test_the_standard_error_is_that_of_single_prompts(engine, few) -> None:
    alone = [engine().edge_scores(few.select([row]), "corrupted", "eap").mean for row in range(len(few))]
    scores = engine().edge_scores(few, "corrupted", "eap")
    assert np.nanmax(np.abs(np.mean(alone, 0) - scores.mean)) < 1e-12
    assert np.nanmax(np.abs(np.std(alone, 0, ddof=1) / np.sqrt(3) - scores.standard_error)) < 1e-9
    assert np.isnan(engine().edge_scores(few.select([0]), "corrupted", "eap").standard_error).all()


# --- invariances -------------------------------------------------------------------------------------------------


def everything(engine: GradientEngine, prompts: PromptSet) -> list[np.ndarray]:
    heads = engine.head_effects(prompts, "corrupted", dropping=True)
    nodes = engine.node_effects(prompts, "corrupted", correcting=True)
    edges = [engine.edge_scores(prompts, "corrupted", method) for method in METHODS]
    found = [heads.plain, heads.dropped, *(nodes[kind].plain for kind in PROJECTIONS), nodes["q"].corrected]
    return [*found, nodes["k"].corrected, *(scores.mean for scores in edges), *(s.standard_error for s in edges)]


@pytest.fixture(scope="module")
def several(scored) -> PromptSet:
    return scored.select([0, 5, 9, 20, 27])


@pytest.mark.sampled(4)
@pytest.mark.every_architecture
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_run_as_a_decoder_the_numbers_are_the_models_own(architecture, load, several) -> None:
    model = load(architecture, "float64")
    fused = GradientEngine(model, decoder=decoder.of(model))
    # rotary models compute norms and softmax in float32 whatever their dtype
    exactness = 1e-10 if architecture == "gpt2" else 1e-4
    for one, other_ in zip(everything(GradientEngine(model), several), everything(fused, several), strict=True):
        assert np.nanmax(np.abs(one - other_)) < exactness * np.nanmax(np.abs(one))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_batch_size_changes_nothing(architecture, load, several) -> None:
    model = load(architecture, "float64")
    whole = everything(GradientEngine(model), several)
    for size in (1, 3):
        for one, other_ in zip(whole, everything(GradientEngine(model, size), several), strict=True):
            assert np.nanmax(np.abs(one - other_)) < 1e-9
    assert all(np.nanmax(np.abs(found)) > 1e-3 for found in whole)


def test_permuting_prompts_permutes_rows(engine, several) -> None:
    order = [3, 0, 2, 1, 4]
    straight = engine().head_effects(several, "clean").plain
    assert np.abs(engine().head_effects(several.select(order), "clean").plain - straight[order]).max() < 1e-12


def test_a_rerun_gives_the_same_bytes(load, several) -> None:
    first, second = (everything(GradientEngine(load("qwen2"), 3), several) for _ in range(2))
    assert all(np.array_equal(one, two, equal_nan=True) for one, two in zip(first, second, strict=True))


@pytest.mark.slow
def test_float32_is_close_to_float64(load, engine, several) -> None:
    single, double = everything(GradientEngine(load("gpt2")), several), everything(engine(), several)
    for one, two in zip(single, double, strict=True):
        assert np.nanmax(np.abs(one - two)) < 1e-4 * np.nanmax(np.abs(two))


# --- memory, gradients of parameters, guards ---------------------------------------------------------------------


class SmallMemory(GradientEngine):
    """Runs out of memory on more than `capacity` rows, and notes how many it refused."""

    capacity = 1

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.refused: list[int] = []

    def _forward(self, tokens, end, hooks, known=None):
        if len(tokens) > self.capacity:
            self.refused.append(len(tokens))
            raise torch.OutOfMemoryError(f"{len(tokens)} rows")
        return super()._forward(tokens, end, hooks, known)


def test_running_out_of_memory_halves_the_batch(load, several) -> None:
    done: list[int] = []
    engine = SmallMemory(load("gpt2", "float64"))
    found = engine.head_effects(several, "corrupted", advance=done.append).plain
    assert engine.refused == [5, 2]
    assert engine.prompts_at_once.now == 1
    assert np.abs(found - GradientEngine(engine.model).head_effects(several, "corrupted").plain).max() < 1e-12
    assert sum(done) == engine.head_passes(False) * len(several)


def test_running_out_of_memory_with_one_prompt_is_an_error(load, several) -> None:
    engine = SmallMemory(load("gpt2"))
    engine.capacity = 0
    with pytest.raises(torch.OutOfMemoryError):
        engine.head_effects(several, "corrupted")


def test_parameters_keep_their_flag_and_get_no_gradient(load, few, several) -> None:
    bridge = load("neox").bridge
    before = {name: parameter.requires_grad for name, parameter in bridge.named_parameters()}
    assert any(before.values())
    everything(GradientEngine(load("neox")), several)
    engine = SmallMemory(load("neox"))
    engine.capacity = 0
    with pytest.raises(torch.OutOfMemoryError):
        engine.head_effects(few, "clean")
    assert {name: parameter.requires_grad for name, parameter in bridge.named_parameters()} == before
    assert all(parameter.grad is None for parameter in bridge.parameters())


def test_frozen_restores_after_an_error() -> None:
    module = torch.nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="stop"), frozen(module):
        assert not any(parameter.requires_grad for parameter in module.parameters())
        raise ValueError("stop")
    assert (module.weight.requires_grad, module.bias.requires_grad) == (True, False)


def test_a_caller_without_gradients_gets_the_same(engine, few) -> None:
    with torch.no_grad():
        inside = engine().head_effects(few, "corrupted").plain
        assert not torch.is_grad_enabled()
    assert np.array_equal(inside, engine().head_effects(few, "corrupted").plain)


def test_a_run_leaves_no_trace_in_the_model(load, several) -> None:
    model = load("llama")
    before = run(model, several, "clean", [])
    everything(GradientEngine(model), several)
    assert np.array_equal(run(model, several, "clean", []), before)


def test_progress_counts_every_pass_once(load, several) -> None:
    engine, done = GradientEngine(load("gpt2"), 3), []
    engine.node_effects(several, "clean", correcting=True, advance=done.append)
    assert sum(done) == engine.node_passes(True) * len(several)
    done.clear()
    engine.edge_scores(several, "clean", "eap_ig_activations", 2, done.append)
    assert sum(done) == engine.edge_passes("eap_ig_activations", 2) * len(several) == (2 + 2 * 2 * 7) * len(several)


def test_a_dead_hook_is_an_error(engine, load, few, monkeypatch) -> None:
    difference, kept = engine()._run(few, "clean", ["blocks.0.attn.hook_z"])
    with pytest.raises(DeadHookError, match="does not depend on the tensor at nowhere: a dead hook"):
        _gradients(difference, {**kept, "nowhere": torch.zeros(1, requires_grad=True)})
    deaf = GradientEngine(load("gpt2"))
    monkeypatch.setattr(
        deaf, "_forward", lambda tokens, end, hooks, known: deaf.model.bridge(tokens)[torch.arange(len(end)), end]
    )
    with pytest.raises(DeadHookError, match=r"never called hook blocks\.0\.attn\.hook_z; no gradient was taken"):
        deaf.head_effects(few, "clean")


def test_refusals(engine, few) -> None:
    with pytest.raises(UserError, match="0 integration steps are no path between two runs; use at least 1"):
        engine().edge_scores(few, "clean", "eap_ig_inputs", 0)
    with pytest.raises(UserError, match="runs backwards"):
        engine().edge_scores(few, "clean", "eap").of(Edge(head(1, 0), Reader("q", 0, 0)))
    with pytest.raises(UserError, match="outside a model"):
        engine().edge_scores(few, "clean", "eap").of(Edge(head(9, 0), Reader("logits", 3)))
    assert midpoints(4) == [0.125, 0.375, 0.625, 0.875]
