"""The planner: its peaks against counted ones, its chunks, the room that a device gives, and recovery after a failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from circuits.circuit import head
from circuits.edges import Edge, Reader
from circuits.engine import FusedEngine, LensEngine, memory
from circuits.engine.lens import hooked_logits
from circuits.engine.memory import MIB, Allowance, DecoderSizes, Paths
from circuits.engine.paths import most_paths
from circuits.engine.rows import Rows
from circuits.interventions import Intervention, Recipe, Sweep, Variant, patch_paths
from circuits.models import Model
from tests.circuits import toy
from tests.circuits.live_bytes import LiveBytes

WITHIN = 0.2  # of the counted peak
CORRUPTED = Recipe("patch", source="corrupted")
SHAPES = {  # as GPT-2 (four times as wide in the MLP) and as Llama 3 (grouped queries, gate, large vocabulary)
    "gpt2": partial(toy.build, "gpt2", n_embd=256, n_head=8, n_layer=3, vocab_size=4096),
    "gpt2, many narrow heads": partial(toy.build, "gpt2", n_embd=128, n_head=16, n_layer=4, vocab_size=4096),
    "llama": partial(
        toy.build,
        "llama",
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=896,
        num_hidden_layers=3,
        vocab_size=16384,
    ),
    "neox": partial(
        toy.build,
        "neox",
        hidden_size=256,
        num_attention_heads=8,
        intermediate_size=1024,
        num_hidden_layers=3,
        vocab_size=4096,
    ),
    "gemma2": partial(
        toy.build,
        "gemma2",
        hidden_size=256,
        head_dim=32,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=896,
        num_hidden_layers=3,
        vocab_size=4096,
    ),
}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory) -> Callable[[str], Model]:
    @cache
    def make(name: str) -> Model:
        folder = tmp_path_factory.mktemp("shapes") / name.partition(",")[0]
        return toy.load(toy.save(SHAPES[name](), folder))

    return make


@pytest.fixture(scope="module")
def alike(sets):
    """Seven prompts of one length."""
    prompts = sets("ioi")["evaluation"]
    end = prompts.end.mode().values
    return prompts.select((prompts.end == end).nonzero()[:7, 0].tolist())


def off(planned: float, counted: float) -> float:
    return planned / counted - 1


# --- peaks ------------------------------------------------------------------------------------------------------


def sweep_of(model: Model, recipes, positions, probabilities: bool) -> Sweep:
    """Every head under every recipe, and each layer's MLP."""
    made = [Variant("clean")]
    for recipe, node in itertools.product(recipes, model.heads):
        made.append(Variant(f"{node}/{recipe}", (Intervention((node,), recipe, positions),)))
    return Sweep(tuple(made), probabilities)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("tokens_per_block", [256, 2048])
@pytest.mark.parametrize("probabilities", [False, True], ids=["difference", "probabilities"])
@pytest.mark.parametrize(
    ("recipes", "positions"),
    [
        ((Recipe("mean"), Recipe("zero")), None),
        ((Recipe("noise"),), None),
        ((CORRUPTED, Recipe("zero")), ("s2",)),
        ((CORRUPTED, Recipe("zero")), ("end",)),
    ],
    ids=["all positions", "noise", "from s2 on", "at the end"],
)
@pytest.mark.parametrize("name", SHAPES)
def test_a_planned_peak_is_the_counted_one_within_a_fifth(
    name, recipes, positions, probabilities, tokens_per_block, shaped, alike, sets, monkeypatch
) -> None:
    model = shaped(name)
    engine = FusedEngine(model, sets("ioi")["reference"], tokens_per_block=tokens_per_block)
    sweep, passes, scores = sweep_of(model, recipes, positions, probabilities), [], Rows.scores
    engine._check(sweep, alike)
    engine._prefetch_reference(sweep)

    def noted(self, wanted):
        passes.append(self)
        return scores(self, wanted)

    with LiveBytes() as live:
        monkeypatch.setattr(Rows, "scores", noted)
        engine.run(sweep, alike)
    tries = [one.trie for one in passes]
    planned = []
    for one in passes:
        own = one.inputs.length - one.first
        smallest = engine.smallest_product / (one.n * own)
        piece = memory.VariantWork.of(
            engine.shape, one.trie, one.inputs.length, one.first, smallest, probabilities, tries
        )
        planned.append(piece.peak(engine.shape, one.n, engine.tokens_per_block, engine.logits_per_block))
    assert {one.n for one in passes} == {len(alike)}
    assert abs(off(max(planned), live.peak)) < WITHIN


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_many_shared_edits_on_short_prompts_take_no_more_than_planned(name, shaped, sets, monkeypatch) -> None:
    """Each state replaces other heads of a layer: one output of replaced heads at a time, and no position of longer prompts."""
    model, prompts = shaped(name), sets("ioi")["evaluation"]
    shortest = prompts.select((prompts.end == prompts.end.min()).nonzero()[:7, 0].tolist())
    engine = FusedEngine(model, sets("ioi")["reference"], tokens_per_block=256)
    engine.smallest_product = 1  # so that every state's edit is computed once for its run
    assert engine.reference.prompts.end.max() > shortest.end.max() + 3
    made = []
    for recipe, few in itertools.product((Recipe("mean"), Recipe("resample")), itertools.combinations(range(8), 3)):
        nodes = tuple(head(layer, number) for layer in range(3) for number in few)
        made.append(Variant(f"{few}/{recipe}", (Intervention(nodes, recipe),)))
    sweep, planned, needs = Sweep(tuple(made)), [], engine.needs
    monkeypatch.setattr(engine, "needs", lambda *asked: planned.append(needs(*asked)) or planned[-1])
    engine._check(sweep, shortest)
    engine._prefetch_reference(sweep)
    with LiveBytes() as live:
        engine.run(sweep, shortest)
    assert abs(off(max(planned), live.peak)) < WITHIN
    assert live.peak < 25 * MIB  # 100 MiB if outputs and weights of all edits of a layer are held


def test_edits_are_held_from_their_first_run_to_their_last() -> None:
    assert memory.held_at_once(["a", "b", "a", None, "c"]) == [{"a"}, {"a", "b"}, {"a"}, {None}, {"c"}]
    assert memory.held_at_once(["a"]) == [{"a"}]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rows", "length"), [(64, 16), (32, 40)])
@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "lens"])
@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_forward_pass_takes_the_planned_bytes_a_row(name, hooked, rows, length, shaped, sets) -> None:
    model = shaped(name)
    engine = FusedEngine(model, sets("ioi")["reference"])
    tokens = torch.randint(5, 300, (rows, length), generator=torch.Generator().manual_seed(0))
    end = torch.full((rows,), length - 1)
    hooks = [("blocks.1.attn.hook_z", lambda tensor, hook: tensor.clone())]
    forward = partial(hooked_logits, model) if hooked else engine.decoder.forward
    with LiveBytes() as live:
        forward(tokens, end, hooks)
    assert abs(off(rows * DecoderSizes.of(model).forward_row(length, hooked), live.peak)) < WITHIN


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_paths_take_the_planned_bytes_a_row(name, shaped, alike, sets) -> None:
    """All edges out of layer 0 into one layer, and into everything above: many writers, and many readers."""
    model = shaped(name)
    engine = FusedEngine(model, sets("ioi")["reference"])
    into = [Edge(writer, Reader(kind, 1, index)) for writer in model.heads[:8] for kind in "qv" for index in range(2)]
    every = [edge for edge in model.graph.edges if edge.writer.kind == "head" and edge.writer.layer == 0]
    for edges in (into, every):
        variants = tuple(patch_paths(edges, CORRUPTED, str(number)) for number in range(4))
        engine.run(Sweep(variants[:1]), alike)  # the wiring is proved
        with LiveBytes() as live:
            engine.run(Sweep(variants), alike)
        length = int(alike.end[0]) + 1
        row = engine.shape.forward_row(length, False, most_paths(variants))
        assert abs(off(len(variants) * len(alike) * row, live.peak)) < 2 * WITHIN


def test_the_vocabulary_is_what_the_audit_found() -> None:
    """A table of 32,768 rows: 6.6 GB for GPT-2's vocabulary and 16.8 GB for Llama 3's, and of it there are two."""
    gpt2 = DecoderSizes(12, 768, 12, 12, 64, 3072, 50257, 4)
    llama = DecoderSizes(32, 4096, 32, 8, 128, 14336, 128256, 2, rotary=128, gated=True, widened=2**26)
    assert 32768 * gpt2.logits_row / 2 == pytest.approx(6.6e9, rel=0.01)
    assert 32768 * llama.logits_row / 2 == pytest.approx(16.8e9, rel=0.01)
    assert llama.exact_unembedding == 256 * MIB and gpt2.exact_unembedding == 0
    assert llama.widened_matrix == 0 and replace(llama, itemsize=4).widened_matrix == 4 * 4096 * 14336
    piece = memory.VariantWork(20, 0, (*[memory.States(77, 77, 77, ((77, 77),))] * 12,), 0, 0, True)
    one = piece.peak(gpt2, 64, 32768, 4928)
    assert one == pytest.approx(4928 * gpt2.logits_row, rel=0.02)  # more than all streams of 77 variants on 64 prompts
    assert piece.peak(gpt2, 64, 2048, 667) < 0.4 * one


@pytest.mark.slow
def test_logits_are_held_in_blocks_that_the_room_allows(shaped, alike, sets) -> None:
    model = shaped("llama")
    engine = FusedEngine(model, sets("ioi")["reference"], memory_mib=40)
    sweep = sweep_of(model, (Recipe("mean"),), None, True)
    expected = FusedEngine(model, sets("ioi")["reference"]).run(sweep, alike)
    assert engine.logits_per_block == int(memory.TRANSIENTS * 40 * MIB) // engine.shape.logits_row == 80
    engine.reference.prefetch([f"blocks.{layer}.attn.hook_z" for layer in range(3)])
    engine._check(sweep, alike)
    with LiveBytes() as live:
        found = engine.run(sweep, alike)
    assert live.peak < (1 + WITHIN) * 40 * MIB
    assert abs(found.answer_probability - expected.answer_probability).max() < 1e-6


# --- chunks -----------------------------------------------------------------------------------------------------


def test_chunks_are_balanced() -> None:
    assert [part.stop - part.start for part in memory.balanced(64, 60)] == [32, 32]
    for count, most in itertools.product(range(0, 70), (1, 2, 7, 60, 10**9)):
        chunks = list(memory.balanced(count, most))
        sizes = [part.stop - part.start for part in chunks]
        assert [place for part in chunks for place in range(part.start, part.stop)] == list(range(count))
        assert not sizes or (max(sizes) - min(sizes) <= 1 and max(sizes) <= most)
        assert len(sizes) == -(-count // most)


def test_as_many_prompts_as_fit_in_balanced_parts() -> None:
    assert memory.most_that_fit(lambda n: 10 * n, 64, 600) == 32
    assert memory.most_that_fit(lambda n: 10 * n, 64, 640) == 64
    assert memory.most_that_fit(lambda n: 10 * n + 100, 64, 110) == 1
    assert memory.most_that_fit(lambda n: 10 * n, 64, 0) == 1


@pytest.mark.parametrize("backend", [LensEngine, FusedEngine])
def test_sixty_four_prompts_with_room_for_sixty_are_two_halves(backend, model, reference, sets) -> None:
    prompts = sets("ioi")["reference"].select(range(64))
    engine = backend(model, sets("ioi")["evaluation"], rows_per_forward=60, prompts_per_batch=60)
    if backend is LensEngine:
        assert [len(rows) for rows in engine._batches(prompts)] == [32, 32]
    sizes: list[int] = []
    engine._forward = lambda tokens, end, hooks: sizes.append(len(tokens)) or torch.zeros(len(tokens), 3)
    engine.end_logits(prompts)
    assert sizes == [32, 32]


def test_prompts_of_a_sweep_are_balanced_by_what_they_need(model, sets, alike, monkeypatch) -> None:
    """In less and less room, down to one prompt at a time."""
    reference = sets("ioi")["reference"]
    engine = FusedEngine(model, reference)
    sweep, sizes, largest, scores = sweep_of(model, (Recipe("zero"),), None, False), [], [], Rows.scores
    monkeypatch.setattr(Rows, "scores", lambda self, wanted: sizes.append(self.n) or scores(self, wanted))
    expected = engine.run(sweep, alike).logit_diff
    assert set(sizes) == {7}
    whole = engine_bytes(engine, sweep, alike, 7) / MIB
    for share in (1.0, 0.6, 0.35, 0.2, 0.1):
        tight = FusedEngine(model, reference, memory_mib=share * whole)
        sizes.clear()
        found = tight.run(sweep, alike).logit_diff
        assert max(sizes) - min(sizes) <= 1
        assert engine_bytes(tight, sweep, alike, max(sizes)) <= tight.room or max(sizes) == 1
        assert abs(found - expected).max() < 1e-5 * abs(expected).max()
        largest.append(max(sizes))
    assert largest == sorted(largest, reverse=True) and largest[-1] == 1 and len(set(largest)) >= 3


def engine_bytes(engine: FusedEngine, sweep: Sweep, prompts, n: int) -> int:
    groups = engine._groups(sweep, list(range(len(sweep))), prompts, {})
    return engine.needs(groups, prompts, n, sweep.probabilities)


# --- room and recovery ------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 100 MiB, of which 40 are free and 8 more in the allocator's unused blocks."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * MIB, 100 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 12 * MIB)
    return torch.device("cuda")


def test_the_room_is_a_share_of_what_is_free_or_what_is_asked_for(gpu) -> None:
    assert memory.room(gpu) == int(0.8 * 48 * MIB)
    assert memory.room(gpu, memory_share=0.5) == 24 * MIB
    assert memory.room(gpu, memory_mib=7) == memory.room(torch.device("cpu"), 7) == 7 * MIB
    assert memory.room(torch.device("cpu")) == 1024 * MIB


def test_half_of_what_failed_is_tried_and_later_more_again() -> None:
    allowance, now = Allowance(1000), []
    for _ in range(5 * memory.RETRY):
        if allowance.now > 300:
            allowance.failed(allowance.now)
        else:
            allowance.fitted()
        now.append(allowance.now)
    assert now[:2] == [500, 250]
    assert now[2 : 2 + memory.RETRY] == [250] * (memory.RETRY - 1) + [500]
    assert now.count(500) < len(now) / memory.RETRY + 2
    room_again = Allowance(1000)
    room_again.failed(1000)
    for _ in range(memory.RETRY):
        room_again.fitted()
    assert room_again.now == 1000
    tiny = Allowance(1)
    tiny.failed(1)
    assert tiny.now == 1


def test_no_paths_and_no_rows_are_nothing() -> None:
    assert most_paths([Variant("clean")]) == Paths()
    assert most_paths([]) == Paths()
    assert most_paths([patch_paths([Edge(head(0, 1), Reader("v", 1, 2))], CORRUPTED, "a")]) == Paths(4, 1)
    assert memory.block(0, 5, 10) == 0 and memory.block(3, 5, 1) == 5 and memory.block(3, 5, 10) == 10
