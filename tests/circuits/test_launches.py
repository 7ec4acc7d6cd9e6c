"""What the fused engine asks of a GPU, counted without one: launches, waits, operations.

The ceilings are for CUDA's block sizes, each Triton kernel being one launch. Before blocks held states of different edits the
pocket's battery took 2,130 launches and 239 waits, GPT-2's 9,725 and 1,257, 1,000 subsets on the pocket 23,872 and 2,382.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits import models
from circuits.circuit import Node, head
from circuits.edges import EMBEDDING, Edge, Reader
from circuits.engine import FusedEngine, dry_run, fused, launches
from circuits.engine.decoder import Decoder
from circuits.engine.dry_run import DryEngine, Widths
from circuits.engine.launches import DeviceWork, LaunchCount
from circuits.engine.rows import Rows
from circuits.interventions import (
    Intervention,
    PathIntervention,
    Recipe,
    Sweep,
    Variant,
    ablate,
    denoise,
    noise,
)
from kernels.roofline import DEVICES, Device, KernelWork
from scripts.benchmarks import subjects, workloads
from scripts.benchmarks.flops import DecoderShape
from tests.circuits import toy

POCKET, GPT2 = DecoderShape(4, 8, 192, 384, 680), DecoderShape(12, 12, 768, 3072, 50257)
GPT2_WIDTHS = Widths(768, 64, 3072, 50257)
CEILINGS = {  # (model, work): launches, waits; at 64 prompts
    ("pocket", "ablation battery"): (300, 40),
    ("pocket", "1,000 random subsets"): (3000, 40),
    ("gpt2", "ablation battery"): (1000, 130),
}
PER_PASS = 80  # launches of a pass besides those of its blocks: embedding, indices, read-out, the base run
PER_LAYER = 60  # of one of its blocks 13, and those of sources, of the base run's past, of edits at single positions
PER_BASE_RUN = 4  # waits for a layer of a base run: each site that a sweep patches from it
RECIPES = (
    *(Recipe("zero"), Recipe("zero_raw"), Recipe("mean"), Recipe("mean", pooled=True)),
    *(Recipe("resample"), Recipe("noise"), Recipe("patch", source="corrupted")),
)


@pytest.fixture(scope="module")
def pocket():
    where = {"name": "pocket", "kind": "local", "path": str(models.EMBEDDED / "pocket"), "device": "cpu"}
    return engine_of(models.load({**where, "dtype": "float32"}), POCKET, 16)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """An engine with GPT-2's layers and heads; `GPT2_WIDTHS` make it as wide."""
    folder = tmp_path_factory.mktemp("launches") / "gpt2"
    built = toy.build("gpt2", n_layer=12, n_head=12, n_embd=96)
    return engine_of(toy.load(toy.save(built, folder)), GPT2, 20)


def engine_of(model, shape: DecoderShape, length: int) -> FusedEngine:
    return FusedEngine(model, prompts_of(shape, 16, length, seed=1))


def prompts_of(shape: DecoderShape, n: int, length: int, first: int = 1, seed: int = 0):
    return subjects.random_prompts(n, length, first, shape.vocabulary, seed)


def test_pocket_is_the_shape_that_is_counted(pocket) -> None:
    cfg = pocket.model.bridge.cfg
    assert DecoderShape(cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_mlp, cfg.d_vocab) == POCKET


# --- ceilings ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "work"), CEILINGS)
def test_ceilings_of_launches_and_waits(name, work, pocket, gpt2) -> None:
    shape, length = (POCKET, 16) if name == "pocket" else (GPT2, 20)
    engine, widths = (pocket, None) if name == "pocket" else (gpt2, GPT2_WIDTHS)
    sweep = workloads.get(work).build(shape)
    found = dry_run.count(engine, sweep, prompts_of(shape, 64, length), widths)
    launches_at_most, waits_at_most = CEILINGS[name, work]
    assert len(sweep) == (1000 if "1,000" in work else 77)
    assert 50 < found.launches <= launches_at_most
    assert 0 < found.syncs <= waits_at_most
    if name == "gpt2":  # 14.2 MFLOP for each of 77 x 64 x 20 tokens and 12 layers
        assert found.flops == pytest.approx(14.2e6 * 77 * 64 * 20 * 11, rel=0.1)


@pytest.mark.slow
def test_the_ceilings_are_those_of_blocks_of_any_edits(pocket, monkeypatch) -> None:
    """If every run of states with one edit has a block of its own, as before, the ceilings do not hold."""
    monkeypatch.setitem(fused.SMALLEST_PRODUCT, "cuda", 0)
    found = dry_run.count(pocket, workloads.battery(POCKET), prompts_of(POCKET, 64, 16))
    assert found.launches > 3 * CEILINGS["pocket", "ablation battery"][0]


def sweeps(shape: DecoderShape) -> dict[str, list[Variant]]:
    """Everything that measurements send, some hundred variants each."""
    rng, layers = random.Random(0), range(shape.n_layers)
    heads = [head(layer, index) for layer in layers for index in range(shape.n_heads)]
    mlps = [Node("mlp", layer) for layer in layers]
    subsets = [sorted(rng.sample(heads, rng.randrange(1, len(heads)))) for _ in range(100)]
    roles = ("first", "middle", "last")
    parts = [[replace(node, position=rng.choice(roles)) for node in some] for some in subsets]
    others = [[replace(node, but=(rng.choice(roles),)) for node in some] for some in subsets]
    sites = [Node(kind, layer) for kind in ("residual", "attention", "mlp") for layer in layers]
    into_logits = [
        Variant(f"{node} {recipe}", (Intervention((node,), Recipe("mean")), PathIntervention((edge,), recipe)))
        for node in (*heads, *mlps)
        for edge in [Edge(node, Reader("logits", shape.n_layers))]
        for recipe in RECIPES[::3]
    ]
    return {
        "heads, both ways": [make([node], f"{make.__name__} {node}") for make in (denoise, noise) for node in heads],
        "heads, every recipe": [ablate([node], r, f"{node} {i}") for node in heads for i, r in enumerate(RECIPES)],
        "heads at positions": [denoise([node], f"{node} {role}", (role,)) for node in heads for role in roles],
        "subsets": [ablate(some, Recipe("mean"), str(i)) for i, some in enumerate(subsets)],
        "subsets, every recipe": [ablate(s, RECIPES[i % len(RECIPES)], str(i)) for i, s in enumerate(subsets)],
        "subsets, heads and MLPs": [
            ablate([*some, *rng.sample(mlps, rng.randrange(1, len(mlps)))], Recipe("resample"), str(i))
            for i, some in enumerate(subsets)
        ],
        "parts of heads": [ablate(some, Recipe("mean"), str(i)) for i, some in enumerate(parts)],
        "heads but at a position": [ablate(some, Recipe("mean"), str(i)) for i, some in enumerate(others)],
        "MLPs": [ablate([node], r, f"{node} {i}") for node in mlps for i, r in enumerate(RECIPES)],
        "sites at positions": [denoise([node], f"{node} {role}", (role,)) for node in sites for role in roles],
        "tokens corrupted, sites restored": [
            Variant(
                f"{node} {role} {draw}",
                (
                    Intervention((EMBEDDING,), Recipe("noise", additive=True, scale=3.0, draw=draw), ("first",)),
                    Intervention((node,), Recipe("patch"), (role,)),
                ),
            )
            for node in sites
            for role in roles
            for draw in range(3)
        ],
        "paths into the logits": into_logits,
        "battery": list(workloads.battery(shape).variants),
    }


KINDS = tuple(sweeps(POCKET))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_takes_as_many_launches_whatever_the_variants(kind, pocket) -> None:
    """Few prompts, so that all states of a layer are one block: then their number does not count.

    Within a pass the host waits for the scores and for nothing else; a base run waits for what it gives, site by site.
    """
    variants, prompts = sweeps(POCKET)[kind], prompts_of(POCKET, 4, 16, first=6)
    assert len(variants) >= 28
    work, passes, waits, base_runs = counted(pocket, variants, prompts)
    assert 1 <= passes <= 3
    assert work.launches <= passes * (PER_PASS + PER_LAYER * POCKET.n_layers)
    assert waits <= 2 * passes * POCKET.n_layers
    assert work.syncs - waits <= PER_BASE_RUN * base_runs * POCKET.n_layers


def counted(engine: FusedEngine, variants: Sequence[Variant], prompts) -> tuple[DeviceWork, int, int, int]:
    """(work of a sweep, its passes, waits within them, base runs), once the reference prompts have been run."""
    count, waits, base_runs = LaunchCount(), [], []
    dry, scores, forward = DryEngine(engine, count), Rows.scores, Decoder.forward

    def noted(self, probabilities):
        before = count.work.syncs
        found = scores(self, probabilities)
        waits.append(count.work.syncs - before)
        return found

    def run(self, *arguments):
        base_runs.append(1)
        return forward(self, *arguments)

    with pytest.MonkeyPatch.context() as patch, count:
        dry._prefetch_reference(Sweep(tuple(variants)))
        before = count.work
        patch.setattr(Rows, "scores", noted)
        patch.setattr(Decoder, "forward", run)
        dry.run(Sweep(tuple(variants)), prompts)
    return count.work - before, len(waits), sum(waits), len(base_runs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_variants_take_no_more_launches_a_pass(kind, pocket) -> None:
    variants, prompts = sweeps(POCKET)[kind], prompts_of(POCKET, 2, 16)
    some = random.Random(1).sample(variants, len(variants) // 2)
    (few, passes, *_), (many, more_passes, *_) = (counted(pocket, chosen, prompts) for chosen in (some, variants))
    assert many.launches / more_passes <= 1.15 * few.launches / passes


# --- the count itself -------------------------------------------------------------------------------------------


def test_what_is_a_launch_and_what_a_wait() -> None:
    a, b = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    host = torch.zeros(5)
    with LaunchCount() as count:
        product = a @ b
        work = count.work
        assert (work.launches, work.syncs, work.flops, work.bytes) == (1, 0, 2 * 2 * 3 * 4, 4 * (6 + 12 + 8))
        product.T.contiguous().view(-1)[2:].expand(3, -1)
        assert count.work.launches == 2  # a strided tensor has been copied; nothing else has
        host.to("meta", non_blocking=True)
        assert (count.work.launches, count.work.syncs) == (3, 0)
        host.to("meta")
        assert (count.work.launches, count.work.syncs) == (4, 1)
        assert product.cpu().device.type == "cpu"
        assert (count.work.launches, count.work.syncs) == (5, 2)
        assert product.sum().item() == 0
        assert (count.work.launches, count.work.syncs) == (6, 3)
        torch.add(host, host)  # the host's own
        assert count.work.launches == 6
        with count.paused():
            torch.add(a, a)
        assert count.work.launches == 6
        index, before = torch.empty(1, dtype=torch.long, device="meta"), count.work
        b.index_select(0, index)
        b.index_copy_(0, index, b[:1])
        moved = count.work - before
        assert (moved.launches, moved.syncs) == (2, 0)
        assert moved.bytes == 2 * 16 + 2 * (8 + 16)  # a row read and written, twice, and where to
    torch.add(a, a)
    assert count.work.launches == 8


def test_attention_is_one_launch_on_every_device() -> None:
    for kind in ("meta", "cpu"):
        q, k = torch.zeros(2, 4, 5, 8, device=kind), torch.zeros(2, 4, 7, 8, device=kind)
        with LaunchCount(kind) as count:
            torch.nn.functional.scaled_dot_product_attention(q, k, k)
        assert (count.work.launches, count.work.flops) == (1, 4 * 2 * 4 * 5 * 7 * 8)
        assert count.work.bytes == 4 * 2 * 4 * 8 * (2 * 5 + 2 * 7)


def test_seconds_by_hand() -> None:
    device = Device("by hand", 100.0, 10.0, launch_seconds=2.0, sync_seconds=3.0, gemm_share=0.5)
    work = DeviceWork({KernelWork(1000, 10): 2, KernelWork(0, 50): 1}, syncs=4)
    assert (work.launches, work.flops, work.bytes) == (3, 2000, 70)
    assert work.roofline(device) == 2 * 10 + 5
    assert work.parts(device) == {"math": 2 * 20 + 5, "launches": 6, "syncs": 12}
    twice = work.times(2) + DeviceWork({KernelWork(0, 50): 1}, 1)
    assert (twice.launches, twice.syncs, twice.calls[KernelWork(0, 50)]) == (7, 9, 3)
    assert DEVICES["h200"].flops_per_second == 67e12 and DEVICES["h200"].bytes_per_second == 4.8e12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["battery", "subsets, heads and MLPs", "sites at positions", "paths into the logits"])
def test_a_dry_run_asks_for_what_a_real_one_does(kind, pocket) -> None:
    """A pass on the CPU, with CUDA's block sizes, and the same pass without contents: the same operations.

    The dry run alone moves tensors between host and device: indices, tokens, candidates, a table for each site; and the scores.
    """
    variants, prompts = Sweep(tuple(sweeps(POCKET)[kind][::2])), prompts_of(POCKET, 3, 16, first=6)
    found: dict[str, DeviceWork] = {}
    for where in ("cpu", "meta"):
        count, scores = LaunchCount(where), Rows.scores
        engine = DryEngine(pocket, count) if where == "meta" else FusedEngine(pocket.model, pocket.reference.prompts)
        engine.operations = launches.operations(count, where)
        dry_run.use_cuda_blocks(engine)

        def counted_alone(self, probabilities, scores=scores, count=count, where=where):
            for site in {(kind, layer) for kind, layer, _ in self.trie.recipes}:
                self.inputs.table(*site)
            before = count.work
            scored = scores(self, probabilities)
            found[where] = found.get(where, DeviceWork()) + (count.work - before)
            return scored

        with pytest.MonkeyPatch.context() as patch, count:
            patch.setattr(Rows, "scores", counted_alone)
            engine.run(variants, prompts)
    assert found["cpu"].flops == found["meta"].flops > 0
    copies = found["meta"].launches - found["cpu"].launches
    assert 0 <= copies <= 4 * 3
    assert found["cpu"].launches > 50


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "neox", "qwen2"])
def test_every_architecture_can_be_counted(architecture, load, scored, reference) -> None:
    """The operations of a real run, as the engine itself counts them, on prompts of several lengths."""
    engine = FusedEngine(load(architecture), reference)
    heads = engine.model.heads
    rng = random.Random(0)
    made = [ablate(rng.sample(heads, 3), recipe, str(i)) for i, recipe in enumerate(RECIPES)]
    made += [denoise([Node("mlp", 1)], "m", ("s2",)), noise([Node("residual", 1)], "r", ("end",))]
    sweep = Sweep(tuple(made), probabilities=True)
    dry_run.use_cuda_blocks(engine)
    engine.run(sweep, scored)
    before = engine.flops
    engine.run(sweep, scored)
    count = LaunchCount()
    dry = DryEngine(engine, count)
    with count:
        dry.run(sweep, scored)
        first = dry.flops
        dry.run(sweep, scored)
    assert dry.flops - first == engine.flops - before > 0
    assert count.work.flops >= dry.flops


@pytest.mark.slow
def test_blocks_of_any_edits_give_the_numbers_of_blocks_of_one(pocket) -> None:
    """CUDA's blocks against the CPU's, and against blocks of a single state."""
    prompts = prompts_of(POCKET, 6, 16, first=6)
    for kind in KINDS:
        some = Sweep(tuple(sweeps(POCKET)[kind][::14]), probabilities=kind == "battery")
        default, cuda, single = (FusedEngine(pocket.model, pocket.reference.prompts) for _ in range(3))
        dry_run.use_cuda_blocks(cuda)
        single.tokens_per_block, single.smallest_product = 1, 0
        expected = single.run(some, prompts).logit_diff
        for engine in (default, cuda):
            error = np.abs(engine.run(some, prompts).logit_diff - expected).max()
            assert error < 3e-6 * np.abs(expected).max(), kind
