"""The decoder's functions against the plain Hugging Face model and the bridge, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from circuits import study
from circuits.circuit import head
from circuits.engine import FusedEngine, LensEngine, decoder
from circuits.interventions import Recipe, Sweep, Variant, ablate, noise
from circuits.models import UnsupportedArchitectureError
from tests.circuits import toy

pytestmark = [pytest.mark.every_architecture, pytest.mark.usefixtures("float64_throughout")]

LENGTH = 11


@pytest.fixture(scope="module")
def of(load):
    return cache(lambda architecture="gpt2", dtype="float64": decoder.of(load(architecture, dtype)))


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, toy.VOCABULARY, (5, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def end():
    return torch.tensor([10, 3, 7, 10, 1])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative_error(found, expected) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def centred(x):
    """Bridge and plain model may differ by a constant of the unembedding, which no probability depends on."""
    return x - x.mean(-1, keepdim=True)


# --- the whole model --------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_forward_gives_hugging_face_s_logits(architecture, of, plain, tokens, end) -> None:
    rows = torch.arange(len(tokens))
    with torch.no_grad():
        found = of(architecture).forward(tokens, end, ())
        expected = plain(architecture)(tokens).logits[rows, end]
    assert found.dtype == torch.float64
    assert relative_error(centred(found), centred(expected)) < 1e-12


@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_every_named_activation_is_the_bridge_s(architecture, of, load, tokens, end) -> None:
    one, bridge = of(architecture), load(architecture, "float64").bridge
    found, expected = {}, {}

    def keep(tensor, hook, kept, name):
        kept[name] = tensor.clone()

    with torch.no_grad():
        one.forward(tokens, end, [(name, partial(keep, kept=found, name=name)) for name in one.names])
        hooks = [(name, partial(keep, kept=expected, name=name)) for name in one.names]
        bridge.run_with_hooks(tokens, fwd_hooks=hooks, return_type="logits")
    assert set(found) == set(one.names)
    missing = one.names - set(expected)
    assert not missing, f"the bridge has no {sorted(missing)}"
    for name in sorted(one.names):
        assert found[name].shape == expected[name].shape, name
        assert relative_error(found[name], expected[name]) < 1e-12, name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_replacing_at_a_hook_is_replacing_at_the_bridge_s(architecture, of, load, tokens, end) -> None:
    one, bridge, rows = of(architecture), load(architecture, "float64").bridge, torch.arange(len(tokens))

    def move(tensor, hook):
        return tensor + 0.3 * torch.linspace(-1, 1, tensor[0].numel(), dtype=tensor.dtype).view(tensor.shape[1:])

    with torch.no_grad():
        intact = one.forward(tokens, end, ())
        for name in sorted(one.names):
            found = one.forward(tokens, end, [(name, move)])
            expected = bridge.run_with_hooks(tokens, fwd_hooks=[(name, move)], return_type="logits")[rows, end]
            assert relative_error(found, expected) < 1e-12, name
            assert relative_error(found, intact) > 1e-4, name


def test_hooks_at_one_name_act_in_order_and_none_means_as_it_is(of, tokens, end) -> None:
    one, name = of(), "blocks.1.hook_mlp_out"
    hooks = [(name, lambda x, hook: -x), (name, lambda x, hook: None), (name, lambda x, hook: x.clamp(min=0))]
    with torch.no_grad():
        found = one.forward(tokens, end, hooks)
        assert torch.equal(found, one.forward(tokens, end, [(name, lambda x, hook: (-x).clamp(min=0))]))
        assert not torch.allclose(found, one.forward(tokens, end, hooks[::-1]))


def test_a_hook_that_is_not_there_is_named(of, tokens, end) -> None:
    with pytest.raises(KeyError, match=r"blocks\.0\.attn\.hook_pattern"):
        of().forward(tokens, end, [("blocks.0.attn.hook_pattern", lambda x, hook: x)])


@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_the_upper_layers_continue_what_the_lower_ones_left(architecture, of, tokens, end) -> None:
    one, kept = of(architecture), {}
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(one.n_layers)]
    with torch.no_grad():
        expected = one.forward(tokens, end, [(n, lambda x, hook, n=n: kept.update({n: x.clone()})) for n in names])
        for first, name in enumerate(names):
            final = one.upper(kept[name], end, (), first)
            assert final.shape == (5, toy.D_MODEL)
            assert relative_error(one.logits(final), expected) < 1e-12
        seen = one.upper(kept[names[0]], end, [("ln_final.hook_in", lambda x, hook: None)])
        assert relative_error(one.logits(seen), expected) < 1e-12


@pytest.mark.parametrize("architecture", toy.FAMILIES)
def test_rows_that_share_what_comes_before_the_first_hook(architecture, of, tokens, end) -> None:
    """Equal prompts are run once up to the first hook: each row still gets its own edit, whatever rows are beside it."""
    one, name = of(architecture), f"blocks.{of(architecture).n_layers - 1}.hook_resid_pre"
    order = [2, 0, 2, 2, 1]

    def add(x, hook, steps):
        return x + 0.1 * torch.tensor(steps, dtype=x.dtype)[:, None, None]

    with torch.no_grad():
        together = one.forward(tokens[order], end[order], [(name, partial(add, steps=[0, 1, 2, 3, 4]))])
        for row, prompt in enumerate(order):
            own = slice(prompt, prompt + 1)
            alone = one.forward(tokens[own], end[own], [(name, partial(add, steps=[row]))])
            assert relative_error(together[row], alone[0]) < 1e-12


# --- parts ------------------------------------------------------------------------------------------------------


def test_which_positions_a_model_has(of) -> None:
    assert of("gpt2").positions.shape == (toy.N_POSITIONS, toy.D_MODEL)
    assert of("gpt2").angles_of is None
    x = random(2, 5, 4, 8)
    assert torch.equal(of("gpt2").rotate(x), x)
    for architecture in ("neox", "llama", "qwen2"):
        assert of(architecture).positions is None
        cos, sin = of(architecture).angles(LENGTH, 0, torch.device("cpu"))
        assert cos.shape == sin.shape
        assert cos.shape[0] == LENGTH
        assert float((cos**2 + sin**2 - 1).abs().max()) < 1e-6
    stream = random(2, 5, toy.D_MODEL)
    assert torch.equal(of("gpt2").place(stream) - stream, (stream + of("gpt2").positions[:5]) - stream)
    assert torch.equal(of("llama").place(stream), stream)


@pytest.mark.parametrize("architecture", ["neox", "llama", "qwen2"])
def test_rotating_depends_on_the_place_and_products_on_the_distance(architecture, of) -> None:
    """By definition of rotary positions: q_i . k_j depends on i - j; angles are float32 in the model itself."""
    one, x, y = of(architecture), random(1, 9, 4, 8), random(1, 9, 4, 8, seed=1)
    whole = one.rotate(x)
    assert torch.equal(one.rotate(x[:, 4:], slice(4, None)), whole[:, 4:])
    at = torch.tensor([[7]])
    assert torch.equal(one.rotate(x[:, 7:8], at), whole[:, 7:8])
    same = x[:, :1].expand(1, 9, 4, 8), y[:, :1].expand(1, 9, 4, 8)
    products = torch.einsum("rihd,rjhd->hij", one.rotate(same[0]), one.rotate(same[1]))
    for offset in range(-8, 9):
        along = products.diagonal(offset, 1, 2)
        assert float((along - along[:, :1]).abs().max()) < 1e-5
    assert float((products[:, 0] - products[:, 0, :1]).abs().max()) > 0.1
    assert torch.equal(whole[:, 0], x[:, 0])


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
@pytest.mark.parametrize("heads", [[0], [3, 1], [0, 2, 3], [0, 1, 2, 3]])
def test_a_layer_with_some_heads_alone_gives_their_share(architecture, heads, of) -> None:
    """Their z is the whole layer's, and what they write is the sum over them alone, without the bias."""
    one, stream = of(architecture), random(2, 7, toy.D_MODEL)
    weights = one.layers[0]
    some = weights.keep(heads)

    def attend(layer):
        q, k, v = one.projected(layer, one.norm(stream))
        return one.attend(one.rotate(q), one.rotate(k), v)

    whole, part = attend(weights), attend(some)
    assert relative_error(part, whole[:, :, heads]) < 1e-12
    written = torch.einsum("rphd,hde->rpe", whole[:, :, heads], weights.output[heads])
    assert relative_error(one.project(some, part), written) < 1e-12
    assert some.output_bias is None


def test_groups_of_heads_share_keys_and_values(of) -> None:
    assert [of(name).layers[0].group for name in ("gpt2", "llama")] == [(0, 1, 2, 3), (0, 0, 1, 1)]
    assert [of(name).n_groups for name in toy.ARCHITECTURES] == [4, 4, 2, 2]
    kept = of("llama").layers[0].keep([1, 2, 3])
    assert (kept.group, kept.n_groups, kept.n_heads) == ((0, 1, 2), 3, 3)


@pytest.mark.parametrize("past", [0, 1, 4])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_attention_of_the_last_position_is_the_full_one_s_last_row(architecture, past, of) -> None:
    """Over a past that all states share and over none; against softmax written out."""
    one, states, prompts, length = of(architecture), 3, 2, 6
    weights, groups = one.layers[0], one.n_groups
    stream = random(states, prompts, length, toy.D_MODEL)
    stream[:, :, :past] = stream[:1, :, :past]
    normed = one.norm(stream)
    q, k, v = one.projected(weights, normed)
    assert k.shape == (states, prompts, length, groups, toy.D_HEAD)
    full = one.attend(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, (states, prompts))
    last, own_k, own_v = one.keys_values_and_last_query(weights, normed, normed[:, :, -1])
    assert relative_error(last[:, :, 0], q[:, :, -1]) < 1e-12
    assert relative_error(own_k, k) < 1e-12
    shared = tuple(x[0, :, :past].transpose(1, 2) for x in (k, v))
    found = one.attend_last(last, own_k[:, :, past:], own_v[:, :, past:], shared)
    assert found.shape == (states, prompts, 1, toy.N_HEADS, toy.D_HEAD)
    assert relative_error(found, full[:, :, -1:]) < 1e-12
    many = [x.repeat_interleave(toy.N_HEADS // groups, 3) for x in (k, v)]
    pattern = (torch.einsum("unhd,unshd->unhs", q[:, :, -1], many[0]) * toy.D_HEAD**-0.5).softmax(-1)
    assert relative_error(found[:, :, 0], torch.einsum("unhs,unshd->unhd", pattern, many[1])) < 1e-12


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_direction_is_the_difference_of_mean_logits(architecture, of) -> None:
    """For several answers and foils of different numbers, -1 being padding."""
    one, stream = of(architecture), random(3, toy.D_MODEL)
    answers, wrong = torch.tensor([[5, 9, 700], [1, -1, -1], [3, 4, -1]]), torch.tensor([[8, -1], [2, 3], [1023, 0]])
    direction, constant = one.direction(answers, wrong)
    logits = one.logits(stream)
    means = [
        torch.stack([row[ids[ids >= 0]].mean() for row, ids in zip(logits, table, strict=True)])
        for table in (answers, wrong)
    ]
    found = (one.norm(stream) * direction).sum(-1) + constant
    assert found.dtype == torch.float64
    assert relative_error(found, means[0] - means[1]) < 1e-12


def test_scores_are_float32_at_least(load) -> None:
    one = decoder.of(load("gpt2", "bfloat16"))
    direction, constant = one.direction(torch.tensor([[1]]), torch.tensor([[2]]))
    stream = random(1, toy.D_MODEL).bfloat16()
    assert direction.dtype == constant.dtype == one.logits(stream).dtype == torch.float32
    exact = one.unembedding[1].float() - one.unembedding[2].float()
    assert torch.equal(direction[0], exact)


def test_padding_takes_nothing_from_the_word_that_it_is_read_as(of) -> None:
    """Ids of -1 are read as word 0. Where its row is not finite, prompts without word 0 have their own numbers still."""
    one, answers, wrong = of(), torch.tensor([[5, -1, 7], [6, -1, -1]]), torch.tensor([[9, 8], [4, -1]])
    expected = one.direction(answers, wrong)
    for bad in (torch.nan, torch.inf):
        table, bias = one.unembedding.clone(), one.unembedding_bias.clone()
        table[0], bias[0] = bad, bad
        found = replace(one, unembedding=table, unembedding_bias=bias).direction(answers, wrong)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert torch.equal(study._mean_rows(table, answers), study._mean_rows(one.unembedding, answers))


# --- what is refused --------------------------------------------------------------------------------------------

ODD = {
    "no pre-norm decoder with a norm before each MLP": (PhiConfig, PhiForCausalLM),
    "no pre-norm decoder with": (Olmo2Config, Olmo2ForCausalLM),
}


def odd_model(folder, config, network, **more):
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False, **more}
    sizes = {"vocab_size": toy.VOCABULARY, "hidden_size": toy.D_MODEL, "num_attention_heads": toy.N_HEADS}
    made = network(config(**ids, **sizes, num_hidden_layers=2, intermediate_size=64, num_key_value_heads=4))
    return toy.load(toy.save(toy.randomise(made, 0).eval(), folder), "float64")


@pytest.mark.parametrize("reason", ODD, ids=lambda r: r.split()[0])
def test_an_architecture_that_is_not_written_down_is_refused_with_the_reason(reason, tmp_path) -> None:
    """Phi has one norm for attention and MLP, OLMo-2 norms what is written and not what is read."""
    model = odd_model(tmp_path / "odd", *ODD[reason], head_dim=toy.D_HEAD)
    with pytest.raises(UnsupportedArchitectureError, match=rf"model toy/odd cannot be run fused, as it .*({reason})"):
        decoder.of(model)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda bridge: bridge.cfg.__setattr__("normalization_type", "BN"), "it normalises with BN"),
        (
            lambda bridge: bridge.cfg.__setattr__("qk_norm_after_rope", True),
            "it normalises queries and keys in a way of its own",
        ),
    ],
)
def test_a_configuration_that_is_not_written_down_is_refused(spoil, reason, folder) -> None:
    model = toy.load(folder("qwen3"))
    spoil(model.bridge)
    with pytest.raises(
        UnsupportedArchitectureError, match=rf"toy/qwen3 cannot be run fused, as {reason}; use engine=lens"
    ):
        decoder.of(model)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A Mistral that sees eight positions at once."""
    folder = tmp_path_factory.mktemp("models") / "windowed"
    return odd_model(folder, MistralConfig, MistralForCausalLM, sliding_window=8, head_dim=toy.D_HEAD)


def test_a_window_of_attention_is_known(windowed, of, tokens) -> None:
    one = decoder.of(windowed)
    assert one.longest == 8
    assert [of(name).longest for name in toy.ARCHITECTURES] == [None] * 4
    short, end = tokens[:, :8], torch.tensor([7] * 5)
    with torch.no_grad():
        expected = windowed.bridge(short, return_type="logits")[:, -1]
        assert relative_error(one.forward(short, end, ()), expected) < 1e-6  # Mistral's norms are in float32
        longer = windowed.bridge(tokens, return_type="logits")[:, -1]
        assert relative_error(one.forward(tokens, torch.tensor([LENGTH - 1] * 5), ()), longer) > 1e-2


def test_prompts_longer_than_the_window_are_run_as_the_model_runs_them(windowed, reference, scored) -> None:
    prompts, sweep = scored.select([0, 5]), Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("mean"), "a")))
    assert int(prompts.end.min()) > 8
    lens, fused = (one(windowed, reference).run(sweep, prompts).logit_diff for one in (LensEngine, FusedEngine))
    assert abs(fused - lens).max() < 1e-10
    told = FusedEngine(windowed, reference)
    told.run(sweep, prompts)
    assert told.describe()["why"] == "prompts longer than 8 tokens, of which attention sees a window, went through lens"
    wrong = FusedEngine(windowed, reference)
    wrong.decoder = replace(wrong.decoder, longest=None)
    assert (
        abs(wrong.run(Sweep((*sweep.variants, noise([head(1, 0)], "n"))), prompts).logit_diff[:2] - lens).max() > 1e-3
    )
