"""Every model family through one small random checkpoint: what each engine and measurement makes of its architecture.

Against the plain Hugging Face model in float64, which the rotary families are made to keep throughout. What a family's
architecture does not allow is refused in one sentence: Qwen 3 normalises queries and keys, Gemma scales its embeddings and
has gains of 1 + w, Gemma 2 and 3 normalise what attention and MLP write, Gemma 2 bounds scores and logits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from circuits import study as studies
from circuits import tasks
from circuits.circuit import Circuit, Node, Role, head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.engine import FusedEngine, LensEngine, choose, decoder
from circuits.engine.gradients import GradientEngine
from circuits.engine.paths import UnknownWiringError
from circuits.interventions import Intervention, Recipe, Sweep, Variant, ablate, denoise, noise, patch_paths
from circuits.measurements import (
    MEASUREMENTS,
    activation_patching,
    attention,
    cross_task,
    direct_logit_attribution,
    head_statistics,
    logit_lens,
    mediation,
    weights,
)
from circuits.measurements.direct_logit_attribution import NonlinearReadoutError
from circuits.models import UnsupportedArchitectureError
from tests.circuits import toy, whole_word_tokenizer
from tests.circuits.hook_loop import HookLoop
from tests.circuits.path_loop import PathLoop

pytestmark = pytest.mark.usefixtures("float64_throughout")

NEW = ("qwen3", "gemma", "gemma2", "gemma3")  # the others have these tests elsewhere
PATHS = (*toy.ARCHITECTURES, "gemma", "qwen3")
EXACT = 1e-10
CORRUPTED = Recipe("patch", source="corrupted")
LEFT_OUT = {
    "qwen3": {"09": "normalises queries and keys"},
    "gemma2": {
        "03": "bounds its logits",
        "05": "measurement.mediation.onward=false",
        "07": "bounds its logits",
        "08": "the attention output of layer 0",
        "09": "normalises what its heads write",
        "24": "the attention output of layer 0",
        "28": "the attention output of layer 0",
    },
    "gemma3": {
        "05": "measurement.mediation.onward=false",
        "08": "the attention output of layer 0",
        "09": "normalises what its heads write",
        "24": "the attention output of layer 0",
        "28": "the attention output of layer 0",
    },
}


@pytest.fixture(scope="module")
def few(scored):
    """Three prompts of different lengths."""
    first = {int(end): row for row, end in enumerate(scored.end)}
    return scored.select([first[end] for end in sorted(first)][:3])


@pytest.fixture(scope="module")
def lens(load, reference):
    return cache(lambda family: LensEngine(load(family, "float64"), reference))


def small_circuit() -> Circuit:
    roles = {"early": Role((head(0, 1),), ordinal=1), "late": Role((head(1, 0), head(1, 3)), ordinal=4)}
    return Circuit("small", "ioi", "toy", roles, {"kind": "user", "source": "tests", "split": "none"})


@pytest.fixture(scope="module")
def make(load):
    """make(family): a study of it in float32 with a circuit, on the engine that auto chooses."""
    return cache(
        lambda family: studies.prepare(
            load(family),
            tasks.get("ioi"),
            toy.SIZES,
            seed=0,
            engine=toy.ENGINE,
            circuit=small_circuit(),
            settings=toy.SETTINGS,
        )
    )


def relative_error(found, expected) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# --- the model -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.every_architecture
@torch.no_grad()
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_log_probabilities_are_hugging_face_s(family, load, plain) -> None:
    tokens = torch.randint(0, toy.VOCABULARY, (4, 11), generator=torch.Generator().manual_seed(0))
    found = load(family, "float64").bridge(tokens, return_type="logits").log_softmax(-1)
    expected = plain(family)(tokens).logits.log_softmax(-1)
    assert found.dtype == torch.float64
    assert float((found - expected).abs().max()) < EXACT
    assert float(expected.std()) > 1  # a model that says something


@torch.no_grad()
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_reading_out_the_final_stream_gives_the_model_s_logits(family, load, lens, few) -> None:
    """Soft caps included: cap tanh(x / cap)."""
    model, rows = load(family, "float64"), torch.arange(len(few))
    stream = lens(family).activations(few, "clean", ("ln_final.hook_in",))["ln_final.hook_in"][rows, few.end]
    assert float((model.logits_of(stream) - lens(family).end_logits(few)).abs().max()) < EXACT
    assert model.bounds_logits == (family == "gemma2")
    assert model.normalises_attention == (family in ("gemma2", "gemma3"))
    assert model.normalises_queries == (family in ("qwen3", "gemma3"))


# --- interventions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", NEW)
def test_patching_nothing_changes_nothing_and_everything_gives_the_other_run(family, lens, few) -> None:
    heads = [head(layer, index) for layer in range(2) for index in range(toy.N_HEADS)]
    mlps = [Node("mlp", layer) for layer in range(2)]
    sweep = Sweep(
        (
            Variant("clean"),
            Variant("corrupted", base="corrupted"),
            Variant("its own", (Intervention(tuple(heads), Recipe("patch", source="clean")),)),
            noise([EMBEDDING], "tokens"),
            noise([*heads, *mlps, EMBEDDING], "all"),
            denoise([Node("residual", 0)], "back"),
        )
    )
    found = lens(family).run(sweep, few).logit_diff
    assert np.abs(found[0] - found[1]).min() > 1e-3
    assert np.abs(found[[2, 5]] - found[0]).max() < EXACT
    assert np.abs(found[3:5] - found[1]).max() < EXACT


@pytest.mark.parametrize("family", NEW)
def test_interventions_on_nodes_are_the_brute_force_ones(family, lens, few, plain, reference) -> None:
    nodes = ([head(0, 1)], [head(1, 2), head(0, 3)], [Node("mlp", 0)], [Node("attention", 1)], [Node("residual", 1)])
    recipes = (Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise"), CORRUPTED)
    variants = [ablate(some, recipe, f"{some}/{recipe}") for some in (*nodes, [EMBEDDING]) for recipe in recipes]
    variants += [denoise(some, f"at s2/{some}", ("s2",)) for some in nodes]
    prompts = few.select([0, 2])
    truth = HookLoop(plain(family), family, toy.N_HEADS, reference).run(tuple(variants), prompts)
    found = lens(family).run(Sweep(tuple(variants), probabilities=True), prompts)
    assert relative_error(found.logit_diff, truth.logit_diff) < EXACT
    assert np.abs(found.answer_probability - truth.answer_probability).max() < EXACT
    assert (found.correct == truth.correct).all()


@pytest.mark.sampled(4)
@pytest.mark.every_architecture
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_fused_agrees_and_auto_takes_it(family, load, reference, few) -> None:
    model, settings = load(family, "float64"), {**toy.ENGINE, "tolerance": {"float64": EXACT}}
    engine = choose(settings, model, reference, few)
    assert isinstance(engine, FusedEngine) and engine.why == "parity with lens within 1e-10"
    assert isinstance(choose({**settings, "name": "fused"}, model, reference, few), FusedEngine)


def test_the_fused_embedding_is_the_scaled_one(load, few) -> None:
    """Without a copy: it is scaled as it is read."""
    for family, scale in (("gemma", toy.D_MODEL**0.5), ("llama", 1.0)):
        model = load(family, "float64")
        one, weights = decoder.of(model), model.bridge.W_E.detach()
        assert one.embedding.data_ptr() == weights.data_ptr()
        ratio = one.embed(torch.arange(len(weights))[None])[0] / weights
        assert float((ratio - scale).nan_to_num(0).abs().max()) < 1e-6  # the scale is one of float32


# --- paths and gradients -------------------------------------------------------------------------------------------

EDGES = (
    Edge(head(0, 1), Reader("q", 1, 2)),
    Edge(head(0, 0), Reader("k", 1, 1)),
    Edge(Node("mlp", 0), Reader("v", 1, 0)),
    Edge(EMBEDDING, Reader("mlp", 1)),
    Edge(EMBEDDING, Reader("q", 0, 3)),
    Edge(head(1, 3), Reader("logits", 2)),
)


@pytest.mark.parametrize("family", ["qwen3", "gemma"])
def test_interventions_on_paths_are_the_brute_force_ones(family, lens, few, plain, reference) -> None:
    recipes = (CORRUPTED, Recipe("mean"))
    variants = tuple(patch_paths([edge], recipe, f"{edge}/{recipe}") for edge in EDGES for recipe in recipes)
    variants += (patch_paths(EDGES, Recipe("resample"), "all"),)
    prompts = few.select([1])
    truth = PathLoop(plain(family), family, toy.N_HEADS, reference).differences(variants, prompts)
    assert relative_error(lens(family).run(Sweep(variants), prompts).logit_diff, truth) < EXACT


@pytest.mark.every_architecture
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_paths_through_a_norm_after_the_attention_are_refused(family, lens, load, few) -> None:
    sweep = Sweep((patch_paths(EDGES[:1], CORRUPTED, "path"),))
    refused = "the attention output of layer 0 in model .* is not the one of a pre-norm decoder"
    with pytest.raises(UnknownWiringError, match=refused):
        lens(family).run(sweep, few)
    with pytest.raises(UnknownWiringError, match=refused):
        GradientEngine(load(family, "float64")).edge_scores(few, "corrupted", "eap")


@pytest.mark.parametrize("family", NEW)
def test_gradients_of_heads_are_finite_differences(family, load, few) -> None:
    """(z_other - z_base) . dLD/dz against [LD(z_base + e change) - LD(z_base - e change)] / 2e of the hooked model."""
    model, step = load(family, "float64"), 1e-5
    prompts = few.select([0])
    found = GradientEngine(model).head_effects(prompts, "corrupted").plain[0]
    engine, names = LensEngine(model, few), [f"blocks.{layer}.attn.hook_z" for layer in range(2)]
    clean, corrupted = (engine.activations(prompts, base, tuple(names)) for base in ("clean", "corrupted"))
    answer, foil = int(prompts.answers[0, 0]), int(prompts.wrong[0, 0])

    def moved(tensor, hook, index, change):
        tensor = tensor.clone()
        tensor[:, :, index] += change[:, :, index]
        return tensor

    def difference(node: Node, scale: float) -> float:
        name = names[node.layer]
        act = partial(moved, index=node.index, change=scale * (clean[name] - corrupted[name]))
        with torch.no_grad():
            logits = model.bridge.run_with_hooks(prompts.corrupted, fwd_hooks=[(name, act)], return_type="logits")
        return float(logits[0, -1, answer] - logits[0, -1, foil])

    expected = [(difference(node, step) - difference(node, -step)) / (2 * step) for node in model.heads]
    assert relative_error(found, np.array(expected)) < 1e-5


# --- measurements that read weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", NEW)
def test_every_measurement_runs_or_is_left_out_with_the_reason(family, make) -> None:
    expected = dict(LEFT_OUT.get(family, {}))
    for number in ("03", "04", "05", "07", "08", "09", "24", "26", "28"):
        if number not in expected:
            MEASUREMENTS[number].measure(make(family))
            continue
        with pytest.raises(UnsupportedArchitectureError, match=expected.pop(number)) as refused:
            MEASUREMENTS[number].measure(make(family))
        assert "\n" not in str(refused.value) and ";" in str(refused.value)
    assert not expected


@torch.no_grad()
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_attribution_and_norms_take_the_norm_after_the_attention_into_account(family, make, plain, few) -> None:
    """Head by head on the plain model: gain * (z_h W_O^h) / scale, its own scale frozen, then the final norm's."""
    study, network = make(family), plain(family)
    parts = direct_logit_attribution.attribute(study, few)
    norms = head_statistics.output_norms(study, few)
    for row in range(len(few)):
        tokens = few.clean[row, : int(few.end[row]) + 1]
        written, stream, mlp = end_of_layers(network, tokens)
        final = network.model.norm
        scale = (stream.pow(2).mean() + final.eps).sqrt()
        unembedding = network.lm_head.weight
        direction = unembedding[few.answers[row, 0]] - unembedding[few.wrong[row, 0]]
        direction = (1 + final.weight) * direction / scale
        assert parts["attribution"][row].tolist() == pytest.approx((written @ direction).flatten().tolist(), abs=2e-4)
        assert norms[row].tolist() == pytest.approx(written.norm(dim=-1).flatten().tolist(), rel=1e-4)
        assert parts["mlp"][row].tolist() == pytest.approx((mlp @ direction).tolist(), abs=2e-4)
        total = sum(float(values[row].sum()) for values in parts.values())
        assert total == pytest.approx(float(stream @ direction), abs=2e-4)
        assert float(parts["bias"][row]) == pytest.approx(0, abs=2e-4)  # nothing is left over for a bias to hide


def end_of_layers(network, tokens):
    """At the last position: what each head adds [layer, head, d_model], the final stream, what each MLP adds."""
    kept = {"z": [], "sum": [], "mlp": [], "stream": []}
    handles = []
    for block in network.model.layers:
        handles.append(
            block.self_attn.o_proj.register_forward_pre_hook(lambda m, args: kept["z"].append(args[0][0, -1]))
        )
        handles.append(
            block.post_attention_layernorm.register_forward_pre_hook(lambda m, args: kept["sum"].append(args[0][0, -1]))
        )
        handles.append(
            block.post_feedforward_layernorm.register_forward_hook(lambda m, args, out: kept["mlp"].append(out[0, -1]))
        )
    handles.append(network.model.norm.register_forward_pre_hook(lambda m, args: kept["stream"].append(args[0][0, -1])))
    network(tokens[None])
    for handle in handles:
        handle.remove()
    written = []
    for block, z, total in zip(network.model.layers, kept["z"], kept["sum"], strict=True):
        norm, weight = block.post_attention_layernorm, block.self_attn.o_proj.weight
        heads = torch.stack([z[part] @ weight[:, part].T for part in torch.arange(len(z)).reshape(toy.N_HEADS, -1)])
        written.append((1 + norm.weight) * heads / (total.pow(2).mean() + norm.eps).sqrt())
    return torch.stack(written), kept["stream"][0], torch.stack(kept["mlp"])


@pytest.mark.slow
def test_heads_that_do_not_sum_to_what_attention_adds_are_noticed(make, folder) -> None:
    """The sum over all components cannot tell, as what heads lack would count as bias."""
    model = toy.load(folder("gemma3"))
    spoilt = toy.load(folder("gemma3"))
    study = make("gemma3")
    model.__dict__["output_weights"] = 2 * spoilt.output_weights
    with pytest.raises(
        NonlinearReadoutError, match="the heads of layer 0 in toy/gemma3 do not sum to what its attention"
    ):
        direct_logit_attribution.attribute(replace(study, model=model), study.discovery)


def test_the_logit_lens_ends_in_the_bounded_logits(make) -> None:
    data = logit_lens.measure(make("gemma2"))
    clean = make("gemma2").run(Sweep((Variant("clean"),))).logit_diff[0]
    assert data["max_error"] < 1e-4
    assert np.abs(data["logit_diff"][-1] - clean).max() < 1e-4
    assert np.abs(data["logit_diff"]).max() < 60  # of two logits within 30


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_mediation_without_the_ways_onward_is_that_of_the_patches(family, make) -> None:
    study = replace(make(family), settings={**toy.SETTINGS, "mediation": {"onward": False}})
    found, patched = mediation.measure(study), activation_patching.patch_heads(study)
    assert set(found) == {"total", "natural_direct", "natural_indirect", "interaction"}
    assert np.abs(found["natural_indirect"] - (patched.clean[:, None] - patched.noised)).max() < 1e-6


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3"])
def test_products_of_weights_that_a_norm_parts_are_refused(family, load) -> None:
    with pytest.raises(
        UnsupportedArchitectureError, match=f"model toy/{family} normalises .* judge its heads by activ"
    ):
        weights.HeadWeights.of(load(family))


def test_repeated_tokens_have_no_bos_where_the_tokenizer_has_none(make) -> None:
    """Qwen's has none."""
    study = make("qwen2")
    tokenizer = toy.build_tokenizer()
    tokenizer.bos_token = None
    without = replace(study, model=replace(study.model, tokenizer=tokenizer))
    length = study.settings["repeated_tokens"]["length"]
    found = attention.repeated_token_scores(without)
    assert {name: tuple(score.shape) for name, score in found.items()} == dict.fromkeys(found, (8,))
    tokens = attention._repeated_tokens(without)
    assert tokens.shape[1] == 2 * length and torch.equal(tokens[:, :length], tokens[:, length:])
    assert torch.equal(attention._repeated_tokens(study)[:, 1:], tokens)


@pytest.mark.slow
def test_a_companion_whose_words_the_tokenizer_splits_is_passed_over(make, monkeypatch) -> None:
    """Years, where every digit is a token of its own, as in Qwen's and Llama's tokenizers."""
    digits = [f"{number:02d}" for number in range(100)]
    vocabulary = tasks.Vocabulary(whole_word_tokenizer.build(without=digits))
    ioi = tasks.get("ioi", vocabulary)
    study = replace(make("gpt2"), task=ioi, settings={**toy.SETTINGS, "companions": 2})
    monkeypatch.setattr(cross_task, "_effects", lambda study, name: name)
    found = cross_task.measure(study)
    assert ioi.companions[0] == "greater_than" and list(found["tasks"]) == ["successor", ioi.companions[1]]
    assert list(found["unavailable"]) == ["greater_than"]
    assert "in this model's tokenizer" in found["unavailable"]["greater_than"]
