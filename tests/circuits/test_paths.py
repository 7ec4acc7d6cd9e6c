"""Interventions on paths against brute force, their limit cases, their invariances and their guards, in both backends.

The brute force is `path_loop`: the graph evaluated edge by edge on the plain Hugging Face model. Rotary models compute
softmax and RMS norm in float32 whatever their dtype; here both are made to keep float64, so that every architecture is
held to 1e-10.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from circuits.circuit import Node, head
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Reader
from circuits.engine import DeadHookError, FusedEngine, LensEngine, memory
from circuits.engine.paths import UnknownWiringError, plan
from circuits.interventions import Intervention, PathIntervention, Recipe, Sweep, Variant, ablate, noise, patch_paths
from results_io import UserError
from tests.circuits import toy
from tests.circuits.path_loop import PathLoop, all_edges

pytestmark = pytest.mark.usefixtures("float64_throughout")

CORRUPTED, CLEAN = Recipe("patch", source="corrupted"), Recipe("patch", source="clean")
ROUNDING = 1e-14  # the same numbers on another row of a small float64 batch: torch sums them in another order
RECIPES = (
    CORRUPTED,
    Recipe("mean"),
    Recipe("resample", seed=3),
    Recipe("zero"),
    Recipe("mean", pooled=True),
    Recipe("noise", scale=0.5),
    Recipe("zero_raw"),
)


@pytest.fixture(scope="module")
def few(scored):
    """Two prompts of different lengths."""
    return scored.select([0, int(np.argmax((scored.end != scored.end[0]).numpy()))])


@pytest.fixture(scope="module")
def loop(plain, reference):
    return cache(lambda architecture: PathLoop(plain(architecture), architecture, toy.N_HEADS, reference))


@pytest.fixture(scope="module", params=[LensEngine, FusedEngine], ids=["lens", "fused"])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def engine(backend, load, reference):
    return cache(lambda architecture="gpt2", dtype="float64": backend(load(architecture, dtype), reference))


@pytest.fixture(scope="module")
def lens(load, reference):
    return LensEngine(load("gpt2", "float64"), reference)


def variants(edges, seed: int = 0) -> tuple[Variant, ...]:
    """Every edge noised, one in six denoised, random sets under every recipe, and sets beside changed nodes."""
    rng = random.Random(seed)
    some = lambda size: tuple(rng.sample(edges, size))  # noqa: E731
    made = [Variant("clean"), Variant("corrupted", base="corrupted")]
    made += [patch_paths([edge], CORRUPTED, f"noise {edge}") for edge in edges]
    made += [patch_paths([edge], CLEAN, f"denoise {edge}", "corrupted") for edge in edges[::6]]
    for recipe in RECIPES:
        made += [patch_paths(some(size), recipe, f"{size} edges {recipe}") for size in (5, 20, len(edges) // 2)]
    made += [patch_paths(some(size), CLEAN, f"{size} edges restored", "corrupted") for size in (5, 20)]
    two = (PathIntervention(some(10), CORRUPTED), PathIntervention(some(10), Recipe("mean")))
    nodes = Intervention((head(0, 1), Node("mlp", 0)), Recipe("mean"))
    tokens = Intervention((EMBEDDING,), CORRUPTED, ("s2",))
    stack = Intervention((head(1, 0), head(0, 2)), CORRUPTED, ("io", "end"))
    made.append(Variant("two recipes", two))
    made.append(Variant("nodes and paths", (nodes, PathIntervention(some(30), CORRUPTED))))
    made.append(Variant("tokens and paths", (tokens, PathIntervention(some(30), Recipe("mean")))))
    made.append(Variant("nodes, tokens and paths", (stack, tokens, nodes, *two), "corrupted"))
    return tuple(made)


@pytest.fixture(scope="module")
def sweep(loop, load):
    """sweep(architecture): what is compared with brute force."""

    def make(architecture):
        return Sweep(variants(all_edges(loop(architecture), load(architecture).graph.n_key_value_heads)))

    return cache(make)


@pytest.fixture(scope="module")
def truth(loop, sweep, few):
    return cache(lambda architecture: loop(architecture).differences(sweep(architecture).variants, few))


def relative_error(found, expected) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# --- against brute force ----------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_float64_equals_brute_force(architecture, engine, sweep, few, truth) -> None:
    effects = engine(architecture).run(sweep(architecture), few)
    assert effects.logit_diff.dtype == np.float64
    assert relative_error(effects.logit_diff, truth(architecture)) < 1e-10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_float32_equals_brute_force(architecture, engine, sweep, few, truth) -> None:
    effects = engine(architecture, "float32").run(sweep(architecture), few)
    assert effects.logit_diff.dtype == np.float32
    assert relative_error(effects.logit_diff, truth(architecture)) < 1e-4


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_comparison_has_every_kind_of_edge_and_something_to_compare(architecture, sweep, truth, load) -> None:
    """All edges do something, but those whose writer gives the same in both runs at their last token, which is the same:
    the embedding to the logits and, where the MLP of layer 0 reads nothing else, that MLP to the last layer's q and MLP.
    """
    single = [v for v in sweep(architecture).variants if v.name.startswith("noise ")]
    edges = [variant.on_paths[0].edges[0] for variant in single]
    assert set(edges) == set(load(architecture).graph.edges)
    kinds = {(edge.writer.kind, edge.reader.kind) for edge in edges}
    assert kinds == {(w, r) for w in ("embedding", "head", "mlp") for r in (*PROJECTIONS, "mlp", "logits")}
    effect = np.abs(truth(architecture)[2 : 2 + len(edges)] - truth(architecture)[0]).max(1)
    largest = dict.fromkeys(kinds, 0.0)
    for edge, size in zip(edges, effect, strict=True):
        largest[edge.writer.kind, edge.reader.kind] = max(largest[edge.writer.kind, edge.reader.kind], size)
    same = {kind for kind, size in largest.items() if size < 1e-12}
    assert same == {("embedding", "logits")} | ({("mlp", "mlp"), ("mlp", "q")} if architecture == "neox" else set())
    assert all(size > 1e-3 for kind, size in largest.items() if kind not in same)
    assert np.mean(effect > 1e-4) > 0.8


# --- limits -----------------------------------------------------------------------------------------------------


def outgoing(graph, writers) -> list[Edge]:
    return [edge for edge in graph.edges if edge.writer in writers]


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_no_edges_are_the_base_run_and_all_edges_the_other(architecture, engine, few) -> None:
    edges = engine(architecture).model.graph.edges
    sweep = Sweep(
        (
            Variant("clean"),
            Variant("corrupted", base="corrupted"),
            patch_paths([], CORRUPTED, "none"),
            Variant("empty", (PathIntervention((), CORRUPTED),), "corrupted"),
            patch_paths(edges, CORRUPTED, "all from corrupted"),
            patch_paths(edges, CLEAN, "all from clean", "corrupted"),
            patch_paths(edges, CLEAN, "clean into itself"),
        )
    )
    clean, corrupted, none, empty, noised, restored, itself = engine(architecture).run(sweep, few).logit_diff
    assert np.array_equal(none, clean)
    assert np.array_equal(empty, corrupted)
    scale = np.abs(clean).max()
    assert np.abs(clean - corrupted).min() > 1e-2 * scale
    assert np.abs(noised - corrupted).max() < 1e-10 * scale
    assert np.abs(restored - clean).max() < 1e-10 * scale
    assert np.abs(itself - clean).max() < 1e-10 * scale


@pytest.mark.sampled(4)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_all_edges_out_of_a_node_are_the_node(architecture, recipe, engine, few) -> None:
    graph = engine(architecture).model.graph
    whole = {writer: writer for writer in graph.writers} | {EMBEDDING: Node("residual", 0)}
    paths = [patch_paths(outgoing(graph, {writer}), recipe, f"paths {writer}") for writer in graph.writers]
    nodes = [ablate([whole[writer]], recipe, f"node {writer}") for writer in graph.writers]
    found = engine(architecture).run(Sweep((*paths, *nodes)), few).logit_diff
    assert relative_error(found[: len(paths)], found[len(paths) :]) < 1e-10


def test_all_edges_out_of_many_nodes_are_these_nodes(engine, few) -> None:
    graph = engine().model.graph
    heads = [head(0, 1), head(0, 3), head(1, 0), head(1, 2), head(2, 2)]
    recipe = Recipe("mean")
    sweep = Sweep((patch_paths(outgoing(graph, heads), recipe, "paths"), ablate(heads, recipe, "nodes")))
    paths, nodes = engine().run(sweep, few).logit_diff
    assert relative_error(paths, nodes) < 1e-10


def test_of_two_interventions_on_one_edge_the_second_counts(engine, few) -> None:
    edges = engine().model.graph.edges
    first, second = PathIntervention(edges[10:90], CORRUPTED), PathIntervention(edges[50:120], Recipe("mean"))
    disjoint = (PathIntervention(edges[10:50], CORRUPTED), second)
    sweep = Sweep((Variant("twice", (first, second)), Variant("once", disjoint)))
    assert plan(sweep.variants[0]) == plan(sweep.variants[1])
    twice, once = engine().run(sweep, few).logit_diff
    assert relative_error(twice, once) < ROUNDING


# --- direct paths only ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(backend, tmp_path_factory, reference):
    """A GPT-2 whose head L1H2 writes nothing."""
    network = toy.build("gpt2")
    with torch.no_grad():
        network.transformer.h[1].attn.c_proj.weight[2 * toy.D_HEAD : 3 * toy.D_HEAD] = 0
    folder = toy.save(network, tmp_path_factory.mktemp("models") / "interrupted")
    return backend(toy.load(folder, "float64"), reference)


def test_edges_into_a_head_that_writes_nothing_do_nothing(interrupted, engine, few) -> None:
    """The head's queries, keys and values change and nothing else does: no effect leaks along another path."""
    into = [edge for edge in engine().model.graph.edges if str(edge.reader).startswith("L1H2.")]
    sweep = Sweep((Variant("clean"), *(patch_paths([edge], CORRUPTED, str(edge)) for edge in into)))
    silent, intact = (one.run(sweep, few).logit_diff for one in (interrupted, engine()))
    assert relative_error(silent[1:], silent[:1]) < ROUNDING
    assert np.abs(intact[1:] - intact[0]).max(1).min() > 1e-4


def test_an_edge_to_the_logits_does_not_go_through_later_components(engine, few) -> None:
    """The direct effect is that of adding the change to what the final norm reads: nothing in between is run anew."""
    model, node = engine().model, head(0, 1)
    bridge = model.bridge
    with torch.no_grad():
        logits, kept, final = {}, {}, {}
        for base, tokens in (("clean", few.clean), ("corrupted", few.corrupted)):
            logits[base], cache_ = bridge.run_with_cache(tokens)
            kept[base] = cache_["blocks.0.attn.hook_z"][:, :, 1]
            final[base] = cache_["ln_final.hook_in"]
        changed = final["clean"] + (kept["corrupted"] - kept["clean"]) @ bridge.W_O[0][1]
        by_hand = bridge.unembed(bridge.ln_final(changed))
    rows = torch.arange(len(few))
    at_end = by_hand[rows, few.end]
    expected = (at_end[rows, few.answers[:, 0]] - at_end[rows, few.wrong[:, 0]]).numpy()
    sweep = Sweep((patch_paths([Edge(node, model.graph.logits)], CORRUPTED, "direct"), noise([node], "total")))
    direct, total = engine().run(sweep, few).logit_diff
    assert relative_error(direct, expected) < 1e-10
    assert np.abs(direct - total).min() > 1e-2


# --- invariances ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(engine):
    """Single edges, random sets and combinations, in one sweep."""
    made = variants(engine().model.graph.edges, seed=1)
    return Sweep((*made[:350:50], *made[-8:]))


@pytest.fixture(scope="module")
def effects(engine, sample, scored):
    return engine().run(sample, scored).logit_diff


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "prompts"), [(1, 1), (7, 3), (64, 5), (4096, 4096)])
def test_chunk_sizes_change_nothing(rows, prompts, backend, engine, sample, effects, scored, reference) -> None:
    columns = [0, 5] if rows == 1 else list(range(0, len(scored), 2))
    other = backend(engine().model, reference, rows_per_forward=rows, prompts_per_batch=prompts)
    other.reference = engine().reference  # whose activations are known
    assert relative_error(other.run(sample, scored.select(columns)).logit_diff, effects[:, columns]) < 1e-10


@pytest.mark.sampled(2)
def test_permuting_prompts_and_variants_permutes_the_effects(engine, sample, effects, scored) -> None:
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(sample)), rng.permutation(len(scored))
    shuffled = Sweep(tuple(sample.variants[row] for row in rows))
    found = engine().run(shuffled, scored.select(columns.tolist())).logit_diff
    assert relative_error(found, effects[np.ix_(rows, columns)]) < 1e-10


def test_the_order_of_edges_changes_nothing(engine, few) -> None:
    edges = list(engine().model.graph.edges[20:200:3])
    sweep = Sweep((patch_paths(edges, CORRUPTED, "forward"), patch_paths(edges[::-1], CORRUPTED, "backward")))
    assert plan(sweep.variants[0]) == plan(sweep.variants[1])
    forward, backward = engine().run(sweep, few).logit_diff
    assert relative_error(forward, backward) < ROUNDING


def test_wider_padding_changes_nothing(engine, sample, effects, scored) -> None:
    pad = {name: torch.nn.functional.pad(getattr(scored, name), (0, 5)) for name in ("clean", "corrupted")}
    assert relative_error(engine().run(sample, replace(scored, **pad)).logit_diff, effects) < 1e-10


def test_the_same_run_gives_the_same_bytes_and_leaves_no_trace(backend, load, reference, sample, few) -> None:
    model = load("gpt2")
    with torch.no_grad():
        before = model.bridge(few.clean, return_type="logits")
        first, again = (backend(model, reference).run(sample, few).logit_diff for _ in range(2))
        assert first.tobytes() == again.tobytes()
        assert torch.equal(model.bridge(few.clean, return_type="logits"), before)


@pytest.fixture(scope="module")
def small_memory(backend):
    """An engine that runs out of memory in any forward pass of more than `capacity` rows."""

    class SmallMemory(backend):
        capacity = 10_000

        def _forward(self, tokens, end, hooks):
            self.sizes.append(len(tokens))
            if len(tokens) > self.capacity:
                raise torch.OutOfMemoryError(f"{len(tokens)} rows")
            return super()._forward(tokens, end, hooks)

    return SmallMemory


@pytest.mark.sampled(4)
@pytest.mark.parametrize("capacity", [40, 5])
def test_out_of_memory_halves_the_rows_and_changes_nothing(
    capacity, small_memory, engine, reference, sample, effects, scored
) -> None:
    small = small_memory(engine().model, reference)
    small.capacity, small.reference, small.sizes = capacity, engine().reference, []
    done: list[int] = []
    columns = list(range(0, len(scored), 4))
    found = small.run(sample, scored.select(columns), done.append).logit_diff
    assert relative_error(found, effects[:, columns]) < 1e-10
    assert sum(done) == len(sample) * len(columns)
    failed = sum(size > capacity for size in small.sizes)
    assert 1 <= failed <= 10 + 3 * len(small.sizes) / memory.RETRY


@pytest.mark.slow
def test_out_of_memory_between_the_hooks_of_a_pass_is_survived(
    backend, engine, reference, sample, effects, scored, monkeypatch
) -> None:
    """A pass that was broken off in its middle leaves nothing behind for the next one."""
    small, norm = backend(engine().model, reference), engine().model.bridge.blocks[1].ln1
    small.run(sample, scored.select([0]))  # the wiring is proved
    forward = type(norm).forward

    def limited(self, x, **rest):
        if self is norm and len(x) > 60:
            raise torch.OutOfMemoryError(f"{len(x)} rows")
        return forward(self, x, **rest)

    monkeypatch.setattr(type(norm), "forward", limited)
    assert relative_error(small.run(sample, scored).logit_diff, effects) < 1e-10
    assert small.row_allowance.now < small.row_allowance.whole


# --- cost -------------------------------------------------------------------------------------------------------


def test_edges_take_as_many_forward_passes_as_nodes_and_one_of_the_base_run(lens, reference, scored) -> None:
    class Counting(LensEngine):
        rows = 0

        def _forward(self, tokens, end, hooks):
            self.rows += len(tokens)
            return super()._forward(tokens, end, hooks)

    model = lens.model
    edges = [Edge(node, model.graph.logits) for node in model.heads]
    rows = []
    for made in (
        tuple(patch_paths([e], CORRUPTED, str(e)) for e in edges),
        tuple(noise([n], str(n)) for n in model.heads),
    ):
        one = Counting(model, reference)
        one.run(Sweep(made), scored.select([0]))
        one.rows = 0
        one.run(Sweep(made), scored)
        rows.append(one.rows)
    assert rows == [(len(edges) + 2) * len(scored), (len(edges) + 1) * len(scored)]


def test_writers_that_the_same_readers_see_replaced_are_one_replacement(lens) -> None:
    graph = lens.model.graph
    outside = [head(0, 0), head(0, 2), head(1, 1)]
    made = plan(patch_paths(outgoing(graph, outside), Recipe("mean"), "outside"))
    assert [one.writers for one in made.replacements] == [(head(0, 0), head(0, 2)), (head(1, 1),)]
    groups = made.inputs[2, "attention"]
    assert list(groups) == [(0, 1)]
    assert len(groups[0, 1]) == 3 * toy.N_HEADS
    assert set(made.inputs) == {(0, "mlp"), (1, "attention"), (1, "mlp"), (2, "attention"), (2, "mlp"), (3, "logits")}


# --- guards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (Edge(head(2, 0), Reader("q", 1, 0)), "edge L2H0->L1H0.q runs backwards"),
        (Edge(head(0, 0), Reader("q", 0, 1)), "edge L0H0->L0H1.q runs backwards"),
        (Edge(head(0, 7), Reader("logits", 3)), "edge L0H7->logits is outside a model with layers 0-2"),
        (Edge(head(0, 0), Reader("v", 1, 4)), "edge L0H0->L1H4.v is outside a model with layers 0-2"),
    ],
)
def test_an_edge_that_is_not_there_is_refused(edge, message, engine, few) -> None:
    with pytest.raises(UserError, match=message):
        engine().run(Sweep((patch_paths([edge], CORRUPTED, "a"),)), few)


PROBED = [
    Edge(head(0, 1), Reader("v", 1, 2)),
    Edge(head(0, 1), Reader("mlp", 1)),
    Edge(head(1, 3), Reader("logits", 3)),  # a writer after the first reader: what it writes has to be read in the run
]


@pytest.mark.parametrize("name", ["attn.hook_z", "attn.hook_v", "hook_resid_pre", "ln2.hook_in", "ln_final.hook_in"])
def test_a_hook_that_is_never_called_is_noticed(name, lens, few, monkeypatch) -> None:
    one, run = lens, lens.model.bridge.run_with_hooks
    sweep = Sweep((patch_paths(PROBED, CORRUPTED, "a"),))
    one.run(sweep, few)  # the wiring is proved

    def drop(tokens, fwd_hooks, return_type):
        patching = return_type == "logits" and any("ln_final" in hook for hook, _ in fwd_hooks)
        kept = [hook for hook in fwd_hooks if not (patching and hook[0].endswith(name))]
        return run(tokens, fwd_hooks=kept, return_type=return_type)

    monkeypatch.setattr(one.model.bridge, "run_with_hooks", drop, raising=False)
    with pytest.raises(DeadHookError, match=rf"never called hook .*{name}; nothing was replaced"):
        one.run(sweep, few)


def double(tensor, hook):
    return 2 * tensor


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("the q projection of layer 1", lambda m: m.bridge.blocks[1].attn.q.hook_in.add_hook(double)),
        ("the k projection of layer 0", lambda m: m.projections.update(k=[2 * w for w in m.projections["k"]])),
        (
            "the v projection of layer 0",
            lambda m: m.projection_biases.update(v=[b + 1 for b in m.projection_biases["v"]]),
        ),
        ("the attention output of layer 0", lambda m: m.projections.update(o=[w.flip(0) for w in m.projections["o"]])),
        ("the MLP input of layer 0", lambda m: setattr(m.bridge.cfg, "parallel_attn_mlp", True)),
        ("the output of layer 2", lambda m: m.bridge.ln_final.hook_in.add_hook(double)),
    ],
)
def test_a_model_that_is_wired_otherwise_is_refused(what, spoil, folder, reference, few) -> None:
    model = toy.load(folder("gpt2"))
    sweep = Sweep((patch_paths(PROBED, CORRUPTED, "a"),))
    LensEngine(model, reference).run(sweep, few)
    spoil(model)
    vars(model).pop("graph")
    with pytest.raises(UnknownWiringError, match=rf"{what} in model toy/gpt2 is not the one of a pre-norm decoder"):
        LensEngine(model, reference).run(sweep, few)


@pytest.mark.parametrize(
    ("config", "network", "message"),
    [
        (
            Gemma2Config,
            Gemma2ForCausalLM,
            "the attention output of layer 0 in model toy/.* is not the one of a pre-norm",
        ),
        (Olmo2Config, Olmo2ForCausalLM, r"model toy/.* has no blocks.0.ln2.hook_in, so it is not a pre-norm decoder"),
        (PhiConfig, PhiForCausalLM, r"model toy/.* has no blocks.0.ln2.hook_in, so it is not a pre-norm decoder"),
    ],
)
def test_architectures_of_another_wiring_are_refused(config, network, message, tmp_path, reference, few) -> None:
    """Gemma-2 and OLMo-2 norm what a component writes; in Phi one norm serves attention and MLP."""
    ids = {
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "head_dim": toy.D_HEAD,
    }
    sizes = {"vocab_size": toy.VOCABULARY, "hidden_size": toy.D_MODEL, "num_attention_heads": toy.N_HEADS}
    model = toy.randomise(network(config(**ids, **sizes, num_hidden_layers=2, intermediate_size=64)), 0)
    engine = LensEngine(toy.load(toy.save(model.eval(), tmp_path / "other")), reference)
    with pytest.raises(UnknownWiringError, match=message):
        engine.run(Sweep((patch_paths([Edge(head(0, 1), Reader("q", 1, 2))], CORRUPTED, "a"),)), few)
    engine.run(Sweep((noise([head(0, 1)], "a"),)), few)


def test_a_model_in_bfloat16_is_not_refused(backend, load, reference, few) -> None:
    """Its rounding is coarser than any guard for float32 would allow."""
    model = load("gpt2", "bfloat16")
    sweep = Sweep((Variant("corrupted", base="corrupted"), patch_paths(model.graph.edges, CORRUPTED, "all")))
    corrupted, everything = backend(model, reference).run(sweep, few).logit_diff
    assert relative_error(everything, corrupted) < 0.02
