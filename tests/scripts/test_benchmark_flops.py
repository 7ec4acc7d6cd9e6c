"""Operation counts against the table of the GPT-2-small shape, and against counts written out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from circuits.circuit import Node, head
from circuits.interventions import Recipe, Sweep, ablate, denoise
from results_io import UserError
from scripts.benchmarks import engines, flops, subjects, workloads
from tests.circuits import toy

GPT2_SMALL = flops.DecoderShape(n_layers=12, n_heads=12, d_model=768, d_mlp=3072, vocabulary=50257)
LENGTHS = (16, 20, 64)
GPT2_HEADS = [head(layer, index) for layer in range(12) for index in range(12)]
TINY = flops.DecoderShape(n_layers=2, n_heads=4, d_model=32, d_mlp=64, vocabulary=100)


def prompts(length: int, first_changed: int = 1):
    return subjects.random_prompts(3, length, first_changed, 1000, seed=0)


def giga(operations: int) -> float:
    return operations / 1e9


def all_heads_floor(length: int, first_changed: int, last_layer: str) -> float:
    sweep = workloads.all_heads(GPT2_SMALL)
    return giga(flops.floor(GPT2_SMALL, sweep, prompts(length, first_changed), last_layer))


@pytest.mark.parametrize(("length", "everywhere", "last"), [(16, 570, 403), (20, 713, 502), (64, 2288, 1588)])
def test_naive_counts_of_the_table(length, everywhere, last):
    """GFLOP per prompt for all 144 single-head patches, as published beside the engine's design."""
    assert giga(flops.naive(GPT2_SMALL, 144, length, length)) == pytest.approx(everywhere, abs=0.6)
    assert giga(flops.naive(GPT2_SMALL, 144, length, 1)) == pytest.approx(last, abs=0.6)


@pytest.mark.parametrize(
    ("last_layer", "expected"),
    [("all positions", (202, 252, 811)), ("keys and values", (177, 220, 704)), ("absorbed", (172, 215, 685))],
)
def test_floors_of_the_table(last_layer, expected):
    """The table lets all positions change; here position 0, the BOS token, stays: (S - 1) / S of the work."""
    for length, value in zip(LENGTHS, expected, strict=True):
        sweep = Sweep(tuple(ablate([node], Recipe("zero"), str(node)) for node in GPT2_HEADS))
        found = giga(flops.floor(GPT2_SMALL, sweep, prompts(length), last_layer))
        assert found == pytest.approx(value, abs=0.6)


@pytest.mark.parametrize(("length", "value"), zip(LENGTHS, (89, 111, 353), strict=True))
def test_second_half_of_the_table(length, value):
    assert all_heads_floor(length, length // 2, "keys and values") == pytest.approx(value, abs=1.1)
    assert all_heads_floor(length, length // 2, "cheaper") < value


@pytest.mark.parametrize("length", LENGTHS)
def test_last_position_of_the_table(length):
    value = {16: 12.6, 20: 12.6, 64: 12.7}[length]
    assert all_heads_floor(length, length - 1, "keys and values") == pytest.approx(value, abs=0.06)
    assert all_heads_floor(length, length - 1, "cheaper") == all_heads_floor(length, length - 1, "keys and values")


@pytest.mark.slow
def test_random_subsets_cost_the_published_share_of_full_runs():
    """Trunk only, layers with all their heads: 1,000 sets of 2, 10 and 72 of 144 heads cost 0.41 ... 0.97 of full runs."""
    full = flops.naive(GPT2_SMALL, 1000, 16, 0)
    for size, share in {2: 0.41, 10: 0.83, 72: 0.97}.items():
        rng = random.Random(size)
        drawn = [ablate(sorted(rng.sample(GPT2_HEADS, size)), Recipe("zero"), str(i)) for i in range(1000)]
        found = flops.floor(GPT2_SMALL, Sweep(tuple(drawn)), prompts(16), "all positions", every_head=True)
        assert found / full == pytest.approx(share, abs=0.02)


def test_a_head_in_the_last_layer_costs_one_mlp_at_one_position():
    sweep = Sweep((denoise([head(1, 2)], "a head"),))
    one_head = 2 * 8 * 32
    assert flops.floor(TINY, sweep, prompts(6)) == one_head + 4 * 32 * 64 + 2 * 32


def test_variants_that_share_a_prefix_share_its_cost():
    early, late = head(0, 0), [head(1, index) for index in range(4)]
    alone = flops.floor(TINY, Sweep((ablate([early], Recipe("zero"), "early"),)), prompts(6))
    both = Sweep(tuple(ablate([early, node], Recipe("zero"), str(node)) for node in late))
    child = TINY.projection + TINY.mlp + 2 * TINY.d_model  # what each child does after the shared parent
    assert flops.floor(TINY, both, prompts(6)) == alone + 3 * child


def test_replaced_heads_are_not_computed_and_written_once():
    """Two variants after different first layers replace the same half of the second: half of W_Q to W_O, one product more."""
    half = [head(1, 0), head(1, 1)]
    sweep = Sweep(tuple(ablate([head(0, index), *half], Recipe("zero"), str(index)) for index in range(2)))
    first = 2 * (6 * TINY.projection // 4 + 6 * TINY.mlp)
    formed = 13 * TINY.projection + 4 * TINY.d_model * 6
    absorbed = 3 * TINY.projection + 4 * TINY.d_model * 6 * TINY.n_heads
    second = 2 * (min(formed, absorbed) // 2 + TINY.projection // 2 + TINY.mlp) + TINY.projection // 2
    # the first layer writes a distinct head each
    assert flops.floor(TINY, sweep, prompts(6)) == first + second + 2 * 2 * TINY.d_model


def test_heads_that_one_child_needs_are_computed():
    """Children of one changed parent that replace heads 0 and 1 alone: together they need all heads."""
    alike = [ablate([head(0, 0), head(1, index)], Recipe("zero"), str(index)) for index in range(2)]
    both = flops.floor(TINY, Sweep(tuple(alike)), prompts(6))
    assert both == flops.floor(TINY, Sweep(tuple(alike)), prompts(6), every_head=True)
    assert flops.floor(TINY, Sweep((alike[0],)), prompts(6)) < flops.floor(
        TINY, Sweep((alike[0],)), prompts(6), every_head=True
    )


def test_nothing_changed_costs_nothing_but_the_readout():
    sweep = Sweep((ablate([], Recipe("zero"), "intact"),))
    assert flops.floor(TINY, sweep, prompts(6)) == 2 * TINY.d_model
    assert flops.restart(TINY, sweep, 6) == TINY.unembedding(1)


def test_a_replaced_mlp_is_not_computed():
    """Every position of the first layer's MLP output is replaced: only the second layer runs."""
    sweep = Sweep((ablate([Node("mlp", 0)], Recipe("zero"), "mlp"),))
    absorbed = 3 * TINY.projection + 4 * 6 * TINY.n_heads * TINY.d_model
    formed = 13 * TINY.projection + 4 * TINY.d_model * 6
    after = TINY.projection + TINY.mlp + 2 * TINY.d_model
    assert flops.floor(TINY, sweep, prompts(6)) == min(absorbed, formed) + after


def test_the_expert_loop_runs_whole_blocks_from_the_first_changed_one():
    sweep = Sweep((denoise([head(0, 0)], "a"), denoise([head(1, 0), head(1, 1)], "b")))
    assert flops.restart(TINY, sweep, 6) == 3 * TINY.layer(range(6)) + 2 * TINY.unembedding(1)


def test_prompts_of_several_lengths_are_refused():
    mixed = replace(prompts(6), end=torch.tensor([5, 5, 4]))
    with pytest.raises(UserError, match="one length"):
        flops.floor(TINY, workloads.all_heads(TINY), mixed)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    torch.set_num_threads(1)
    folder = toy.save(toy.build("gpt2"), tmp_path_factory.mktemp("models") / "gpt2")
    return subjects.load("toy", folder, "cpu", "float32")


@pytest.mark.parametrize(
    ("work", "most"), [("1,000 random halves", 1.2), ("ablation battery", 1.2), ("all-heads patching", 2)]
)
def test_the_engine_executes_no_less_than_the_floor(work, most, subject):
    """At so many rows that the engine leaves out replaced heads. Intact runs weigh much beside the toy's twelve heads."""
    scored, reference = (subjects.random_prompts(40, 9, 1, toy.VOCABULARY, seed=seed) for seed in (0, 1))
    sweep = workloads.spread(workloads.get(work).build(subject.shape), 48)
    engine = engines.FusedRun(subject, reference)
    assert len(scored) * 9 > engine.engine.smallest_product
    engine(sweep, scored)
    before = engine.flops
    engine(sweep, scored)
    executed, least = engine.flops - before, len(scored) * flops.floor(subject.shape, sweep, scored)
    assert 1 <= executed / least < most
