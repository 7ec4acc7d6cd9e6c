"""The hand-written model does its tasks by the circuits it claims, and by nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch
from torch import Tensor

from circuits import planted
from circuits.circuit import Node, head
from circuits.planted import compiler, features, mechanisms
from circuits.planted.design import sound as sound_design
from circuits.prompts import PromptSet, tokenize
from circuits.tasks import EMBEDDED, TASKS
from results_io import UserError

N_PROMPTS, N_FEW, N_REFERENCE = 100, 24, 120
HEADS = tuple(head(layer, index) for layer in range(planted.N_LAYERS) for index in range(planted.N_HEADS))
ABLATIONS = ("zero", "mean", "pooled_mean", "resample", "noise")


pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


@pytest.fixture(scope="module")
def sound():
    """The model as Hugging Face gives it."""
    return planted.build()


@pytest.fixture(scope="module")
def bridge():
    """A second copy in TransformerBridge, processed as every measurement has it."""
    return bridged(planted.build(), compatibility=True)


def bridged(built: planted.PlantedModel, compatibility: bool):
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(
        built.name, hf_model=built.model, tokenizer=built.tokenizer, device="cpu"
    )
    if compatibility:
        bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge


# --- a small independent way to measure --------------------------------------------------------------------------


@cache
def prompts(task: str, n: int, seed: int) -> PromptSet:
    rng = random.Random(seed)
    examples = [TASKS[task].sample(rng) for _ in range(n)]
    return tokenize(TASKS[task], examples, planted.tokenizer_with_bos("planted/sound"), split="evaluation")


def at_end(scored: PromptSet, values: Tensor) -> Tensor:
    """The rows of [prompt, position, ...] values where the answer is predicted."""
    return values[torch.arange(len(scored)), scored.end]


def real(scored: PromptSet) -> Tensor:
    """[prompt, position], False where there is padding."""
    return torch.arange(scored.clean.shape[1])[None] <= scored.end[:, None]


def logit_difference(scored: PromptSet, logits: Tensor) -> Tensor:
    """Mean logit of the answers minus mean logit of the wrong words, for each prompt."""
    rows = zip(at_end(scored, logits), scored.answers, scored.wrong, strict=True)
    return torch.stack([row[yes[yes >= 0]].mean() - row[no[no >= 0]].mean() for row, yes, no in rows])


def z_hook(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_z"


def head_outputs(bridge, tokens: Tensor) -> Tensor:
    """z of every head, [layer, prompt, position, head, d_head]."""
    _, cache = bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith("attn.hook_z"))
    return torch.stack([cache[z_hook(layer)] for layer in range(planted.N_LAYERS)])


def replacements(bridge, scored: PromptSet, reference: PromptSet) -> dict[str, Tensor]:
    """What each kind of ablation puts in the place of z; all from prompts other than the scored ones."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    z = head_outputs(bridge, reference.clean)
    rows = {name: [i for i, other in enumerate(reference.templates) if other == name] for name in scored.templates}
    shape = (planted.N_LAYERS, *scored.clean.shape, planted.N_HEADS, mechanisms.D_HEAD)
    pooled, deviation = z[:, real(reference)].mean(1), z[:, real(reference)].std(1)
    pooled_mean = pooled[:, None, None].expand(shape)
    return {
        "zero": torch.zeros(shape),
        "mean": torch.stack([z[:, rows[name]].mean(1) for name in scored.templates], 1),
        "pooled_mean": pooled_mean,
        "resample": torch.stack([z[:, rng.choice(rows[name])] for name in scored.templates], 1),
        "noise": pooled_mean + deviation[:, None, None] * torch.randn(shape, generator=generator),
    }


def ablated(bridge, scored: PromptSet, heads: Iterable[Node], source: Tensor) -> Tensor:
    """Logit difference of every prompt with z of `heads` replaced at every position."""
    by_layer: dict[int, list[int]] = {}
    for node in heads:
        by_layer.setdefault(node.layer, []).append(node.index)

    def replace(layer: int, indices: list[int]) -> Callable[[Tensor, object], Tensor]:
        def hook(z: Tensor, hook: object) -> Tensor:
            z = z.clone()
            z[:, :, indices] = source[layer][:, :, indices]
            return z

        return hook

    hooks = [(z_hook(layer), replace(layer, indices)) for layer, indices in by_layer.items()]
    return logit_difference(scored, bridge.run_with_hooks(scored.clean, fwd_hooks=hooks))


def outside(heads: Iterable[Node]) -> list[Node]:
    return [node for node in HEADS if node not in set(heads)]


@pytest.fixture(scope="module")
def measured(bridge) -> Callable[..., tuple[PromptSet, dict[str, Tensor], Tensor]]:
    """(task, n) -> prompts, the replacements for their ablation, and the intact model's logit differences."""

    @cache
    def measure(task: str, n: int = N_FEW) -> tuple[PromptSet, dict[str, Tensor], Tensor]:
        scored = prompts(task, n, seed=1)
        sources = replacements(bridge, scored, prompts(task, N_REFERENCE, seed=2))
        return scored, sources, ablated(bridge, scored, [], sources["zero"])

    return measure


# --- behaviour ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("task", EMBEDDED)
def test_every_task_is_solved(sound, task):
    scored = prompts(task, N_PROMPTS, seed=0)
    logits = sound.model(scored.clean).logits
    difference = logit_difference(scored, logits)
    assert (difference > 0).all()
    assert difference.mean() >= 5
    top = at_end(scored, logits).argmax(1)
    best = (scored.answers == top[:, None]).any(1).sum()
    assert best >= (95 if task == "induction" else 100)  # two words of a list may have similar codes


def test_without_a_repeated_name_no_name_is_preferred(sound):
    scored = prompts("ioi", N_PROMPTS, seed=0)
    logits = sound.model(scored.corrupted).logits
    assert abs(logit_difference(scored, logits).mean()) <= 0.3
    row = torch.arange(N_PROMPTS)
    io, s1 = (at_end(scored, logits)[row, scored.corrupted[row, scored.positions[role]]] for role in ("io", "s1"))
    assert abs((io - s1).mean()) <= 0.3
    assert (io - s1).abs().max() <= 2.5


# --- form --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compatibility", [False, True])
def test_bridge_computes_what_hugging_face_does(sound, compatibility):
    copy = bridged(planted.build(), compatibility)
    for task in EMBEDDED:
        scored = prompts(task, N_FEW, seed=0)
        ours, theirs = sound.model(scored.clean).logits, copy(scored.clean)
        torch.testing.assert_close(theirs[real(scored)], ours[real(scored)], atol=1e-4, rtol=0)
        difference = logit_difference(scored, ours)
        gap = (logit_difference(scored, theirs) - difference).abs() / difference
        assert gap.max() <= 1e-4


@pytest.mark.parametrize("task", EMBEDDED)
def test_layer_norm_is_linear_within_a_ten_thousandth(bridge, task):
    scored = prompts(task, N_FEW, seed=0)
    _, cache = bridge.run_with_cache(scored.clean)
    names = [f"blocks.{layer}.ln1.hook_scale" for layer in range(planted.N_LAYERS)] + ["ln_final.hook_scale"]
    scales = torch.stack([cache[name][real(scored)] for name in names])
    assert (scales.max() - scales.min()) / scales.mean() <= 1e-4
    streams = torch.stack([cache[f"blocks.{layer}.hook_resid_post"] for layer in range(planted.N_LAYERS)])
    assert streams.mean(-1).abs().max() <= 1e-6


def test_weights_are_finite_and_of_moderate_size(sound):
    for name, parameter in sound.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.isfinite().all() and parameter.abs().max() < 1000, name
        assert (not name.endswith("bias") and ".mlp." not in name) or parameter.abs().max() == 0, name


def test_same_seed_same_weights_and_other_seed_other_decoys_only(sound):
    state = torch.get_rng_state()
    again, other = planted.build(seed=0), planted.build(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    for name, value in sound.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    circuit = {node for claim in sound.circuits.values() for node in claim.heads}
    for layer in range(planted.N_LAYERS):
        mine, theirs = (one.model.transformer.h[layer].attn.c_proj.weight for one in (sound, other))
        per_head = zip(mine.split(mechanisms.D_HEAD), theirs.split(mechanisms.D_HEAD), strict=True)
        for index, (one, two) in enumerate(per_head):
            assert torch.equal(one, two) == (head(layer, index) in circuit)


@pytest.mark.slow
def test_building_takes_seconds():
    for remembered in (features.spread_codes, features.year_codes):
        remembered.cache_clear()
    start = time.process_time()
    planted.build()
    assert time.process_time() - start <= 5


def test_codes_are_far_apart():
    for count, width, bound in (
        (100, features.NAME_WIDTH, 0.17),
        (features.N_POSITIONS, features.POSITION_WIDTH, 0.24),
    ):
        codes = features.spread_codes(count, width)
        overlap = (codes @ codes.T - torch.eye(count)).abs().max()
        welch = ((count - width) / (width * (count - 1))) ** 0.5  # no codes can do better
        assert welch <= overlap <= bound


def test_subspaces_lie_side_by_side_and_must_fit_to_be_joined():
    parts = [features.columns(name) for name in features.SUBSPACES]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop <= features.D_MODEL
    with pytest.raises(ValueError, match=r"name .40 wide. and bos .1 wide. cannot be joined"):
        compiler.joined([("name", "bos", 1.0)])
    with pytest.raises(ValueError, match="24 head dimensions that are left"):
        compiler.joined([("name", "name", 1.0), ("name", "answer_name", 1.0)])


def test_unknown_variant_is_refused():
    with pytest.raises(UserError, match="unknown planted variant 'perfect': expected one of sound"):
        planted.build("perfect")
    with pytest.raises(UserError, match="unknown planted variant"):
        planted.claimed_circuits("perfect")


# --- circuits ----------------------------------------------------------------------------------------------------


def test_claims_are_disjoint_and_labelled(sound):
    assert set(sound.circuits) == set(EMBEDDED)
    claimed = [node for circuit in sound.circuits.values() for node in circuit.heads]
    assert len(claimed) == len(set(claimed))
    assert sound.circuit is sound.circuits["ioi"]
    assert planted.claimed_circuits("sound") == sound.circuits
    assert [str(node) for node in sound.circuit.heads] == ["L0H2", "L0H5", "L1H3", "L2H1", "L3H0", "L3H2", "L3H5"]
    assert {name: role.ordinal for name, role in sound.circuit.roles.items()} == {
        "duplicate_token": 1,
        "s_inhibition": 2,
        "name_mover": 4,
    }
    for circuit in sound.circuits.values():
        assert circuit.model == sound.name == "planted/sound"
        assert circuit.provenance["kind"] == "planted"
        for role in circuit.roles.values():
            assert role.sign == 1 and role.assigned_by == "construction" and role.evidence


@pytest.mark.parametrize(
    ("role", "reader", "read", "least"),
    [
        ("duplicate_token", "s2", "s1", 0.5),
        ("s_inhibition", "end", "s2", 0.9),
        ("name_mover", "end", "io", 0.9),
    ],
)
def test_heads_attend_as_their_role_says(bridge, sound, role, reader, read, least):
    ioi = prompts("ioi", N_PROMPTS, seed=1)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(planted.N_LAYERS)]
    _, cache = bridge.run_with_cache(ioi.clean, names_filter=names)
    for node in sound.circuit.roles[role].heads:
        pattern = cache[names[node.layer]][:, node.index]
        attention = pattern[torch.arange(N_PROMPTS), ioi.positions[reader], ioi.positions[read]]
        assert attention.mean() >= least


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ABLATIONS)
def test_circuit_alone_does_the_task_and_the_rest_does_nothing(bridge, sound, measured, kind):
    ioi, sources, clean = measured("ioi", N_PROMPTS)
    circuit = sound.circuit.heads
    alone = ablated(bridge, ioi, outside(circuit), sources[kind])
    assert alone.sum() / clean.sum() == pytest.approx(1, abs=0.02)
    rest = ablated(bridge, ioi, circuit, sources[kind])
    assert rest.sum() / clean.sum() == pytest.approx(0, abs=0.05)


@pytest.mark.slow
def test_random_circuits_of_the_same_layers_do_not_do_the_task(bridge, sound, measured):
    scored, sources, clean = measured("ioi")
    rng = random.Random(0)
    layers = [node.layer for node in sound.circuit.heads]
    shares = []
    for _ in range(20):
        drawn = [
            head(layer, index)
            for layer in range(planted.N_LAYERS)
            for index in rng.sample(range(planted.N_HEADS), layers.count(layer))
        ]
        shares.append(ablated(bridge, scored, outside(drawn), sources["pooled_mean"]).sum() / clean.sum())
    faithfulness = torch.stack(shares)
    assert faithfulness.abs().mean() <= 0.2
    assert faithfulness.max() <= 0.6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["mean", "pooled_mean"])
def test_every_circuit_head_matters_and_no_other_head_does(bridge, sound, measured, kind):
    scored, sources, clean = measured("ioi")
    for node in HEADS:
        effect = 1 - ablated(bridge, scored, [node], sources[kind]).sum() / clean.sum()
        if node in sound.circuit.heads:
            assert effect >= 0.15, node
        else:
            assert abs(effect) <= 0.01, node


def test_decoys_are_as_active_as_the_circuit(bridge, sound):
    ioi = prompts("ioi", N_PROMPTS, seed=1)
    z = head_outputs(bridge, ioi.clean)[:, torch.arange(N_PROMPTS), ioi.end]
    outputs = torch.einsum("lphd,lhdm->lphm", z, torch.stack([bridge.W_O[i] for i in range(planted.N_LAYERS)]))
    norms = outputs.norm(dim=-1).mean(1)
    design = sound_design()
    junk = [node for node in HEADS if design.heads[node] == mechanisms.JUNK_WRITER]
    writers = torch.tensor([norms[node.layer, node.index] for node in junk])
    movers = torch.tensor([norms[node.layer, node.index] for node in sound.circuit.roles["name_mover"].heads])
    assert len(junk) >= 5
    assert 0.3 <= writers.mean() / movers.mean() <= 2
    activity = z.norm(dim=-1).mean(1).flatten()
    loudest = {HEADS[place] for place in activity.topk(7).indices.tolist()}
    assert len(loudest & set(sound.circuit.heads)) <= 2  # activation norm is a bad guide to this circuit


# --- the other tasks ---------------------------------------------------------------------------------------------

COMPANIONS = tuple(task for task in EMBEDDED if task != "ioi")


# Agreement heads also see the nouns and verbs in lists of random words.
TOLERANCE = dict.fromkeys(COMPANIONS, 0.01) | {"induction": 0.04}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", COMPANIONS)
def test_companion_circuit_alone_does_its_task(bridge, sound, measured, task):
    scored, sources, clean = measured(task)
    for kind in ABLATIONS:
        alone = ablated(bridge, scored, outside(sound.circuits[task].heads), sources[kind])
        assert alone.sum() / clean.sum() == pytest.approx(1, abs=TOLERANCE[task]), kind


@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", COMPANIONS)
def test_every_head_of_a_companion_circuit_matters(bridge, sound, measured, task):
    scored, sources, clean = measured(task)
    for node in sound.circuits[task].heads:
        for kind in ("mean", "pooled_mean"):
            effect = 1 - ablated(bridge, scored, [node], sources[kind]).sum() / clean.sum()
            assert effect >= 0.15, (node, kind)


@pytest.mark.slow
def test_companion_circuits_leave_the_ioi_logit_difference_alone(bridge, sound, measured):
    ioi, sources, clean = measured("ioi", N_PROMPTS)
    for task in COMPANIONS:
        without = ablated(bridge, ioi, sound.circuits[task].heads, sources["pooled_mean"])
        assert abs((without - clean).mean()) <= 0.01, task


@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", COMPANIONS)
def test_the_ioi_circuit_leaves_the_other_tasks_alone(bridge, sound, measured, task):
    scored, sources, clean = measured(task)
    without = ablated(bridge, scored, sound.circuit.heads, sources["pooled_mean"])
    assert abs((without - clean).mean()) <= 0.01
